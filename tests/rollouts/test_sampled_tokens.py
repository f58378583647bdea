"""The tokens of the lanes are cut into the rollouts that ended; other lanes do not matter."""

from __future__ import annotations

import numpy as np

from fr3e_jax.programs.decode_steps import Emitted
from fr3e_jax.rollouts.sampled_tokens import SampledTokens


def chunk(counts: np.ndarray, steps: int, first: int) -> Emitted:
    """A chunk in which lanes emit ``counts [slots, lanes]`` tokens, numbered from ``first`` on."""
    shape = (steps, *counts.shape)
    emitted = np.arange(steps)[:, None, None] < counts
    numbers = first + np.arange(np.prod(shape)).reshape(shape)
    floats = [(numbers * scale).astype(np.float32) for scale in (-0.5, 0.25, 2.0)]
    return Emitted(emitted, numbers.astype(np.int32), *floats, np.zeros(shape, bool))


def test_rollouts_hold_the_tokens_of_their_lanes_in_order():
    counts = [np.array([[2, 1, 3], [0, 3, 2]]), np.array([[3, 0, 1], [2, 3, 0]])]
    chunks = [chunk(each, 3, 100 * n) for n, each in enumerate(counts)]
    sampled = SampledTokens(2, 3)
    for n, each in enumerate(chunks):
        sampled.make_room(3 * (n + 1))
        assert sampled.take(each) == (counts[n].sum(), 3)
    over = np.array([[True, False, True], [False, True, False]])
    stopped = np.array([[True, False, False], [True, True, True]])
    rollouts = sampled.cut(over, stopped, sampled.generated[over])
    assert [r.finished for r in rollouts] == [True, False, True]
    for (slot, lane), rollout in zip(np.argwhere(over), rollouts, strict=True):
        drawn = [each.token_ids[each.emitted[:, slot, lane], slot, lane] for each in chunks]
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
        sampled.make_room(7)
        counts = np.minimum(random.integers(1, 3, (1, 3)), lengths - sampled.generated)
        fresh = chunk(counts, 2, 10 * n)
        sampled.take(fresh)
        for lane in range(3):
            drawn[lane] += fresh.token_ids[: counts[0, lane], 0, lane].tolist()
        over = sampled.generated == lengths
        sampled.start(over)
        sampled.make_room(7)  # as the engine does before it cuts
        rollouts = sampled.cut(over, over, lengths[over])
        for lane, rollout in zip(np.flatnonzero(over[0]), rollouts, strict=True):
            ended.append((rollout, drawn[lane]))
            drawn[lane] = []
    assert len(ended) > 40
    for rollout, tokens in ended:
        assert rollout.token_ids.tolist() == tokens
        np.testing.assert_array_equal(rollout.magnitudes, np.float32(tokens) * 2)


def test_a_restarted_lane_holds_no_token_of_the_branch_before():
    sampled = SampledTokens(1, 2)
    sampled.make_room(4)
    sampled.take(chunk(np.array([[4, 2]]), 4, 0))
    sampled.start(np.array([[True, False]]))
    fresh = chunk(np.array([[1, 2]]), 2, 50)
    sampled.take(fresh)
    both = np.ones((1, 2), bool)
    first, second = sampled.cut(both, ~both, sampled.generated[both])
    np.testing.assert_array_equal(first.token_ids, fresh.token_ids[:1, 0, 0])
    assert len(second.token_ids) == 4
