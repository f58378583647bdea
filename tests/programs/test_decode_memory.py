"""The compiled decode step writes into the donated caches and copies none of them."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from network_programs import abstract_params

from fr3e_jax.programs.decoder_programs import DecoderPrograms
from fr3e_jax.programs.decoder_state import DecoderSizes, cache_shape
from fr3e_jax.programs.mesh import make_mesh

CAPACITY = TRUNK = 1024  # large enough that one layer's cache is larger than all that a step needs besides


def compiled_chunk(tiny, lanes):
    mesh = make_mesh()
    programs = DecoderPrograms(tiny.graphdef, tiny.architecture, mesh)
    slots = 2 * programs.shards
    trunks = jax.eval_shape(programs._prefill, tiny.params, jax.ShapeDtypeStruct((slots, TRUNK), np.int32))
    sizes = DecoderSizes(slots, lanes, TRUNK, CAPACITY, names=6, stops=1, promotable=True)
    placed = programs._empty.lower(cache_shape(trunks), sizes).out_info
    abstract = jax.tree.map(lambda out: jax.ShapeDtypeStruct(out.shape, out.dtype, sharding=out.sharding), placed)
    lowered = programs._chunk.lower(abstract_params(tiny, mesh), abstract, np.int32(1), steps=4, filtered=False)
    return lowered.compile().memory_analysis(), abstract, slots // programs.shards


@pytest.mark.parametrize("lanes", [1, 3])
def test_a_chunk_updates_the_donated_caches_in_place(tiny, lanes):
    memory, state, slots = compiled_chunk(tiny, lanes)
    size = lambda tree: sum(leaf.size // leaf.shape[0] * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
    lane_bytes, trunk_bytes = slots * lanes * size((state.lanes, state.lane_hidden)), slots * size(state.trunks)
    assert memory.alias_size_in_bytes >= lane_bytes + trunk_bytes  # outputs that lie where their inputs lay
    one_layer = slots * lanes * size(state.lanes[0])
    assert memory.temp_size_in_bytes < one_layer, (memory.temp_size_in_bytes, one_layer)
