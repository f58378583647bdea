"""The tokens of the lanes are cut into the rollouts that ended; other lanes do not matter."""

from __future__ import annotations

import weakref

import numpy as np

from fr3e_jax.programs.decode_steps import Emitted
from fr3e_jax.rollouts.sampled_tokens import SampledTokens


def chunk(counts: np.ndarray, steps: int, first: int) -> Emitted:
    """A chunk in which lanes emit ``counts [slots, lanes]`` tokens, numbered from ``first`` on."""
    shape = (*counts.shape, steps)
    numbers = first + np.arange(np.prod(shape)).reshape(shape)
    floats = [(numbers * scale).astype(np.float32) for scale in (-0.5, 0.25, 2.0)]
    nothing = np.zeros(counts.shape, np.int32)
    return Emitted(counts, nothing > 0, nothing, numbers.astype(np.int32), *floats)


def test_rollouts_hold_the_tokens_of_their_lanes_in_order():
    counts = [np.array([[2, 1, 3], [0, 3, 2]]), np.array([[3, 0, 1], [2, 3, 0]])]
    chunks = [chunk(each, 3, 100 * n) for n, each in enumerate(counts)]
    sampled = SampledTokens(2, 3)
    for n, each in enumerate(chunks):
        assert sampled.take(each, np.ones((2, 3), bool)) == (counts[n].sum(), 3)
    over = np.array([[True, False, True], [False, True, False]])
    stopped = np.array([[True, False, False], [True, True, True]])
    rollouts = sampled.cut(over, stopped, sampled.generated[over])
    assert [r.finished for r in rollouts] == [True, False, True]
    for (slot, lane), rollout in zip(np.argwhere(over), rollouts, strict=True):
        drawn = [each.token_ids[slot, lane, : each.counts[slot, lane]] for each in chunks]
        wanted = np.concatenate(drawn)
        np.testing.assert_array_equal(rollout.token_ids, wanted)
        for array, scale in ((rollout.logprobs, -0.5), (rollout.entropies, 0.25), (rollout.magnitudes, 2.0)):
            np.testing.assert_array_equal(array, wanted * np.float32(scale))
            assert array.dtype == np.float32
    assert sampled.cut(np.zeros((2, 3), bool), stopped, np.zeros(0, int)) == []


def test_branches_end_to_end_keep_their_tokens_when_a_lane_gets_new_columns():
    """Lanes that restart at different times, over many times the room; a branch goes on across the change."""
    random, sampled, drawn, ended = np.random.default_rng(0), SampledTokens(1, 3), {0: [], 1: [], 2: []}, []
    lengths = np.array([[7, 3, 5]])  # of the branches of each lane
    for n in range(60):
        counts = np.minimum(random.integers(1, 3, (1, 3)), lengths - sampled.generated)
        fresh = chunk(counts, 2, 10 * n)
        sampled.take(fresh, np.ones((1, 3), bool))
        for lane in range(3):
            drawn[lane] += fresh.token_ids[0, lane, : counts[0, lane]].tolist()
        over = sampled.generated == lengths
        sampled.start(over)
        rollouts = sampled.cut(over, over, lengths[over])
        for lane, rollout in zip(np.flatnonzero(over[0]), rollouts, strict=True):
            ended.append((rollout, drawn[lane]))
            drawn[lane] = []
    assert len(ended) > 40
    for rollout, tokens in ended:
        assert rollout.token_ids.tolist() == tokens
        np.testing.assert_array_equal(rollout.magnitudes, np.float32(tokens) * 2)


def test_a_restarted_lane_holds_no_token_of_the_branch_before():
    sampled, both = SampledTokens(1, 2), np.ones((1, 2), bool)
    sampled.take(chunk(np.array([[4, 2]]), 4, 0), both)
    sampled.start(np.array([[True, False]]))
    fresh = chunk(np.array([[1, 2]]), 2, 50)
    sampled.take(fresh, both)
    first, second = sampled.cut(both, ~both, sampled.generated[both])
    np.testing.assert_array_equal(first.token_ids, fresh.token_ids[0, 0, :1])
    assert len(second.token_ids) == 4


def test_the_arrays_of_a_rollout_are_read_once_and_leave_the_chunks_then():
    sampled, both = SampledTokens(1, 2), np.ones((1, 2), bool)
    fresh = [chunk(np.array([[4, 1]]), 9, 0), chunk(np.array([[3, 2]]), 3, 50)]
    for each in fresh:
        sampled.take(each, both)
    reference = weakref.ref(fresh[1].token_ids)
    rollout, other = sampled.cut(both, both, sampled.generated[both])
    del sampled, fresh[1], each
    assert len(rollout.token_ids) == 7 and len(other.logprobs) == 3 and reference() is not None
    drawn = np.array([0, 1, 2, 3, 50, 51, 52])
    np.testing.assert_array_equal(rollout.logprobs, drawn * np.float32(-0.5))
    np.testing.assert_array_equal(np.exp(rollout.entropies), np.exp(np.float32(drawn) / 4))
    np.testing.assert_array_equal(rollout.magnitudes - 1, np.float32(drawn) * 2 - 1)
    assert rollout.token_ids[4:].tolist() == [50, 51, 52] and rollout.token_ids.dtype == np.int32
    assert other.token_ids.sum() == 9 + 53 + 54 and reference() is None, "both have read their token ids"
