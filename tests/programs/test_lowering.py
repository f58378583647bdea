"""The lowered programs: a second start traces and lowers every program again, whatever the compilation cache holds."""

from __future__ import annotations

import jax
import numpy as np
from network_programs import one_device, train_programs

from fr3e_jax.learning.experience import TrainingBranch, TrainingTrunk
from fr3e_jax.learning.packing import pack
from fr3e_jax.policy.network import Block
from fr3e_jax.programs.decoder_programs import DecoderPrograms
from fr3e_jax.programs.decoder_state import DecoderSizes, cache_shape

WIDTH = 24  # of no other test: a layer that another test has traced would not be traced here


def lowered_programs(network):
    """Every program that passes tokens through the network, at small sizes."""
    decoder = DecoderPrograms(network.graphdef, network.architecture, one_device())
    prefill = decoder._prefill.lower(network.abstract, np.zeros((2, 16), np.int32))
    sizes = DecoderSizes(slots=2, lanes=3, trunk_capacity=16, capacity=32, names=6, stops=1, promotable=True)
    state = jax.eval_shape(lambda: decoder._empty(cache_shape(prefill.out_info), sizes))
    train = train_programs(network, chunk=32)
    branches = [TrainingBranch(4, np.ones(9, np.int32), np.zeros(9, np.float32), np.zeros(9, np.float32))] * 3
    batch = pack([TrainingTrunk(np.ones(4, np.int32), branches, 0)], tokens=4096, pad_id=0)[0].batch
    one = np.float32(1)
    return dict(
        prefill=prefill,
        decode=decoder._chunk.lower(network.abstract, state, np.int32(1), steps=4, filtered=False),
        score=train._score.lower(network.abstract, batch.rows, one),
        accumulate=train._accumulate.lower(network.abstract, network.abstract, batch, one, one),
    )


def test_layer_is_traced_and_lowered_once_for_any_number_of_layers(tiny_network, monkeypatch):
    traced = []

    def counted(name):
        method = getattr(Block, name)
        return lambda *inputs, **settings: traced.append(name) or method(*inputs, **settings)

    for name in ("causal", "rows", "decode"):
        monkeypatch.setattr(Block, name, counted(name))
    products, modes = [], set()
    for layers in (2, 5):
        traced.clear()
        programs = lowered_programs(tiny_network(num_layers=layers, hidden_size=WIDTH))
        assert len(traced) <= len(programs)
        modes |= set(traced)
        products.append({name: program.as_text().count("dot_general") for name, program in programs.items()})
    assert products[0] == products[1] and min(products[0].values()) > 0
    assert modes == {"causal", "rows", "decode"}, "the counter saw every way through a layer"
