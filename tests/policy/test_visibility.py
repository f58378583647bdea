"""Intervals of what tokens see, and the blocks in which anything is seen, against the mask token by token."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fr3e_jax.policy import visibility
from fr3e_jax.policy.attention import RowView
from fr3e_jax.policy.visibility import block_list

seen_intervals = jax.jit(visibility.seen_intervals, static_argnums=(1, 2))
block_kinds = jax.jit(visibility.block_kinds, static_argnums=(1, 2, 3))


def one_row(trunk_segment, segment, fork, start) -> RowView:
    return RowView(*(np.asarray(x, np.int32)[None] for x in (trunk_segment, segment, fork, start)))


# The row drawn in `fr3e_jax.policy.rows`: trunks q r and s, branches a to d over lanes of five tokens.
DRAWN = one_row(
    [1, 1, 1, 1, 1, 1, 1, 2, 2, 0],
    [[1, 1, 1, 2, 2], [2, 3, 3, 3, 4], [4, 4, 0, 0, 0]],
    [[4, 4, 4, 4, 4], [4, 3, 3, 3, 2], [2, 2, 0, 0, 0]],
    [[0, 0, 0, 0, 0], [0, 0, 0, 0, 7], [7, 7, 0, 0, 0]],
)


def dense(seen):
    """bool ``[B, P, P]``, query by key."""
    at = np.arange(seen.shape[2])
    inside = lambda begin, end: (seen[:, begin, :, None] <= at) & (at < seen[:, end, :, None])
    return inside(0, 1) | inside(2, 3)


def test_intervals_of_the_drawn_row():
    seen = np.asarray(seen_intervals(DRAWN, 2))[0]
    none, of_trunks = [0] * 10, [[0, i + 1] for i in range(7)] + [[7, 8], [7, 9], [0, 0]]
    np.testing.assert_array_equal(seen[0], none + [0] * 9 + [7, 7, 7, 0, 0, 0])
    np.testing.assert_array_equal(seen[1], none + [4] * 6 + [3] * 3 + [9, 9, 9, 0, 0, 0])
    np.testing.assert_array_equal(seen[2:, :10].T, of_trunks)
    np.testing.assert_array_equal(seen[2, 10:], [10, 10, 10, 13, 13, 13, 16, 16, 16, 19, 19, 19, 0, 0, 0])
    np.testing.assert_array_equal(seen[3, 10:], [*range(11, 23), 0, 0, 0])


def test_token_sees_no_lane_outside_of_its_window():
    branch = one_row([1, 0], [[1, 1], [1, 1], [1, 0]], [[1, 1], [1, 1], [1, 0]], [[0, 0]] * 3)
    begins = [np.asarray(seen_intervals(branch, window))[0, 2, 2:7] for window in (1, 2, 3)]
    np.testing.assert_array_equal(begins, [[2, 2, 4, 4, 6], [2, 2, 2, 2, 4], [2, 2, 2, 2, 2]])


def test_token_sees_its_own_segment_no_further_back_than_the_limit():
    seen, whole = (np.asarray(seen_intervals(DRAWN, 2, limit))[0] for limit in (2, 0))
    np.testing.assert_array_equal(seen[[0, 1, 3]], whole[[0, 1, 3]])
    np.testing.assert_array_equal(seen[2], np.where(whole[3] > 0, np.maximum(whole[2], whole[3] - 2), 0))


@pytest.mark.parametrize("sizes", [(5, 5), (1, 25), (25, 1)])
def test_kinds_of_blocks_equal_the_mask(sizes):
    seen = np.asarray(seen_intervals(DRAWN, 2))
    query, key = sizes
    cut = dense(seen).reshape(1, 25 // query, query, 25 // key, key)
    expected = cut.any(axis=(2, 4)).astype(int) + cut.all(axis=(2, 4))
    np.testing.assert_array_equal(block_kinds(jnp.asarray(seen), query, key, 25), expected)
    assert sizes != (5, 5) or set(np.unique(expected)) == {0, 1}


def test_list_has_the_seen_blocks_in_order_and_says_which_are_whole():
    entries, counts = jax.jit(block_list)(np.array([[[0, 1, 2, 0], [0, 0, 0, 0]], [[2, 0, 0, 1], [1, 1, 1, 1]]]))
    np.testing.assert_array_equal(counts, [2, 0, 2, 4])
    entries = np.asarray(entries).reshape(4, 4)
    listed = [row[:count].tolist() for row, count in zip(entries, counts, strict=True)]
    assert listed == [[2, 5], [], [1, 6], [0, 2, 4, 6]]
