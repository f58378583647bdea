"""Rows cut into parts: the way there and back, the places of positions, and the balance of work."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fr3e_jax.policy.attention import RowView
from fr3e_jax.policy.fused_attention import block_sizes
from fr3e_jax.policy.row_parts import RowSizes, cut, cut_row, join_row, part_size, places_in_parts, reach
from fr3e_jax.policy.visibility import UNSEEN, block_kinds, seen_intervals


def test_parts_take_stripes_in_turn_and_lie_before_one_another():
    trunk, lanes = jnp.arange(8).reshape(1, 8), 10 + jnp.arange(8).reshape(1, 2, 4)
    parts = cut_row(trunk, lanes, 2)
    np.testing.assert_array_equal(parts, [[0, 2, 4, 6, 10, 12, 14, 16], [1, 3, 5, 7, 11, 13, 15, 17]])


@pytest.mark.parametrize(("sizes", "parts"), [((12, 2, 10), 4), ((7, 3, 5), 4), ((64, 2, 40), 2), ((33, 1, 1), 8)])
def test_a_row_is_joined_as_it_was_and_each_position_has_its_place(sizes, parts):
    rng, sizes = np.random.default_rng(0), RowSizes(*sizes)
    trunk, lanes = rng.random((3, sizes.trunk)), rng.random((3, sizes.lanes, sizes.length))
    flat = np.concatenate([trunk, lanes.reshape(3, -1)], axis=1)
    found = cut_row(jnp.asarray(trunk), jnp.asarray(lanes), parts).reshape(parts, 3, -1)
    np.testing.assert_allclose(join_row(found, sizes), flat, rtol=1e-6)
    in_turn = np.moveaxis(found, 0, 1).reshape(3, -1)
    np.testing.assert_allclose(in_turn[:, places_in_parts(sizes, parts)], flat, rtol=1e-6)


@pytest.mark.parametrize(("length", "parts"), [(12, 4), (100, 4), (64, 2), (4096, 8)])
def test_reach_covers_the_first_positions_of_every_part(length, parts):
    places = np.asarray(cut(jnp.arange(length).reshape(1, length), parts, mode="edge"))
    for end in range(1, part_size(length, parts) + 1):
        assert places[:, :end].max() < reach(length, parts, end) <= length


@partial(jax.jit, static_argnums=1)
def computed(seen, length):
    """Pairs in the blocks that the forward kernel computes for a part ``[4, positions]`` of a row."""
    (queries, keys), blocks = block_sizes(seen.shape[1], length)
    seen = jnp.pad(seen[None], ((0, 0), (0, 0), (0, queries - seen.shape[1])))
    return blocks.query * blocks.key * (block_kinds(seen, blocks.query, blocks.key, keys) > UNSEEN).sum()


@pytest.mark.parametrize(("tokens", "most"), [(2**15, 1.13), (2**16, 1.07)])
def test_the_busiest_of_eight_parts_computes_little_more_than_its_share(tokens, most):
    """A trunk and a branch of as many tokens; parts in order compute 1.9 times the share."""
    trunk, lane = np.ones((1, tokens), np.int32), np.ones((1, 1, tokens), np.int32)
    seen = jax.jit(seen_intervals, static_argnums=1)(RowView(trunk, lane, lane * tokens, lane * 0), 1)
    share = (tokens * (tokens + 1) + tokens**2) / 8
    trunk, lanes = np.split(np.asarray(seen), 2, axis=2)
    striped = np.asarray(jax.jit(cut_row, static_argnums=2)(trunk, lanes[:, :, None], 8))
    assert max(computed(part, 2 * tokens) for part in striped) < most * share
    assert computed(np.asarray(seen)[0, :, -tokens // 4 :], 2 * tokens) > 1.8 * share
