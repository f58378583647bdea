"""What jax hands to XLA: a second start traces and lowers every program again, whatever the compilation cache holds."""

from __future__ import annotations

import jax
import numpy as np
import optax

from fr3e_jax.learning.experience import TrainingBranch, TrainingTrunk
from fr3e_jax.learning.packing import pack
from fr3e_jax.policy.network import Block
from fr3e_jax.programs.decode import cache_shape
from fr3e_jax.programs.decoder import DecoderPrograms
from fr3e_jax.programs.mesh import make_mesh, param_shardings
from fr3e_jax.programs.train_programs import LossSettings, TrainPrograms

WIDTH = 24  # that no other test has: what was traced before would not be traced here


def lowered_programs(network):
    """Every program that passes tokens through the network, at small sizes."""
    mesh = make_mesh(devices=jax.devices()[:1])
    decoder = DecoderPrograms(network.graphdef, network.architecture, mesh)
    prefill = decoder._prefill.lower(network.abstract, np.zeros((2, 16), np.int32))
    state = jax.eval_shape(lambda: decoder._empty(cache_shape(prefill.out_info), 2, 3, 16, 32, 6, 1, True))
    shardings = param_shardings(mesh, network.abstract, network.axes, network.architecture)
    train = TrainPrograms(
        network.graphdef, network.abstract, shardings, mesh, optax.sgd(1.0), loss=LossSettings(), token_chunk=32
    )
    branches = [TrainingBranch(4, np.ones(9, np.int32), np.zeros(9, np.float32), np.zeros(9, np.float32))] * 3
    batch = pack([TrainingTrunk(np.ones(4, np.int32), branches, 0)], tokens=4096, pad_id=0)[0].batch
    one = np.float32(1)
    return dict(
        prefill=prefill,
        decode=decoder._chunk.lower(network.abstract, state, np.int32(1), steps=4, filtered=False),
        score=train._score.lower(network.abstract, batch.rows, one),
        accumulate=train._accumulate.lower(network.abstract, network.abstract, batch, one, one),
    )


def test_a_layer_is_traced_and_lowered_once_however_many_there_are(tiny_network, monkeypatch):
    traced, call = [], Block.__call__

    def counted(*inputs, **options):
        traced.append(inputs)
        return call(*inputs, **options)

    monkeypatch.setattr(Block, "__call__", counted)
    products = []
    for layers in (2, 5):
        traced.clear()
        programs = lowered_programs(tiny_network(num_layers=layers, hidden_size=WIDTH))
        assert len(traced) <= len(programs)
        products.append({name: program.as_text().count("dot_general") for name, program in programs.items()})
    assert products[0] == products[1] and min(products[0].values()) > 0
