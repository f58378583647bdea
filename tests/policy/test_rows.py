"""Packed trunk-and-branch rows against each branch flattened into a sequence of its own: scores and gradient."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fr3e_jax.objectives.entropy import token_entropy, token_logprobs
from fr3e_jax.policy.network import bind
from fr3e_jax.policy.rows import Rows, predicting_states, run_trunks, score_states

TRUNK_SIZE, LANE_SIZE = 10, 9
TRUNKS = [[3, 17, 0, 5, 9, 11, 2, 8], [1, 4], [6, 6, 12, 19, 13, 7, 15, 10, 18, 14]]
# rows -> lanes -> branches (fork, token ids): forks at 1, inside, at the end; full, half-full and empty lanes.
LANES = [
    [[(4, [7, 7, 1]), (8, [2, 0, 19, 4]), (1, [5])], [(4, [16, 3, 3, 3, 8, 12, 1, 0, 9])]],
    [[(2, [11])], []],
    [[(10, [5, 4, 3]), (10, [5, 4, 9])], [(3, [1, 2]), (7, [8])]],
]


def pack(trunks=TRUNKS, lanes=LANES, pad_id=0) -> Rows:
    shape = (len(lanes), 2, LANE_SIZE)
    trunk_ids = np.full((len(lanes), TRUNK_SIZE), pad_id, np.int32)
    ids, (segment, fork, offset) = np.full(shape, pad_id, np.int32), np.zeros((3, *shape), np.int32)
    for b, row in enumerate(lanes):
        trunk_ids[b, : len(trunks[b])] = trunks[b]
        for n, lane in enumerate(row):
            start = 0
            for number, (at, tokens) in enumerate(lane):
                place = (b, n, slice(start, start + len(tokens)))
                ids[place], segment[place], fork[place] = tokens, number + 1, at
                offset[place] = np.arange(len(tokens))
                start += len(tokens)
    return Rows(trunk_ids, ids, segment, fork, offset)


def branches(trunks=TRUNKS, lanes=LANES):
    """(prefix, new tokens, place in the packed arrays) of every branch."""
    for b, row in enumerate(lanes):
        for n, lane in enumerate(row):
            start = 0
            for fork, tokens in lane:
                yield trunks[b][:fork], tokens, (b, n, slice(start, start + len(tokens)))
                start += len(tokens)


def _scores(logits, ids, temperature):
    return token_logprobs(logits / temperature, ids), token_entropy(logits)


@partial(jax.jit, static_argnums=0)
def score(graphdef, params, rows, temperature):
    states = predicting_states(graphdef, params, rows)
    return score_states(graphdef, params, states, rows.branch_ids, temperature, chunk=7, token_scores=_scores)


def logprobs_of(network, rows):
    return np.asarray(score(network.graphdef, network.params, rows, jnp.float32(1.0))[0])


@pytest.mark.parametrize("fixture", ["tiny", "tiny_untied"])
def test_scores_equal_those_of_the_flattened_sequences(fixture, request):
    network = request.getfixturevalue(fixture)
    packed = list(branches())
    temperature = 0.7
    logprobs, entropies = score(network.graphdef, network.params, pack(), jnp.float32(temperature))
    full = network.full_logits([prefix + tokens for prefix, tokens, _ in packed])
    for (prefix, tokens, place), logits in zip(packed, full, strict=True):
        predicting = logits[len(prefix) - 1 : -1]
        expected = token_logprobs(predicting / temperature, np.array(tokens))
        np.testing.assert_allclose(logprobs[place], expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(entropies[place], token_entropy(predicting), rtol=1e-5, atol=1e-5)


def test_gradient_equals_that_of_the_flattened_sequences(tiny):
    network, rows = tiny, pack()
    weights = np.random.default_rng(1).standard_normal(rows.branch_ids.shape) * (rows.segment > 0)
    packed = list(branches())
    ids, at, flat_weights = (np.zeros((len(packed), 20), kind) for kind in (np.int32, np.int32, np.float32))
    for i, (prefix, tokens, place) in enumerate(packed):
        sequence = prefix + tokens
        ids[i, : len(sequence)] = sequence
        at[i, : len(sequence) - 1] = sequence[1:]
        flat_weights[i, len(prefix) - 1 : len(sequence) - 1] = weights[place]

    def packed_sum(params):
        return (score(network.graphdef, params, rows, jnp.float32(1.0))[0] * weights).sum()

    def flattened_sum(params):
        hidden = run_trunks(network.graphdef, params, ids).hidden
        return (token_logprobs(bind(network.graphdef, params).logits(hidden), at) * flat_weights).sum()

    value, gradient = jax.jit(jax.value_and_grad(packed_sum))(network.params)
    expected_value, expected = jax.jit(jax.value_and_grad(flattened_sum))(network.params)
    np.testing.assert_allclose(value, expected_value, rtol=1e-5)
    for (path, leaf), other in zip(
        jax.tree_util.tree_leaves_with_path(gradient), jax.tree.leaves(expected), strict=True
    ):
        assert np.linalg.norm(other) > 0.01, path  # every parameter takes part
        assert np.linalg.norm(leaf - other) <= 1e-5 * np.linalg.norm(other), path


def test_a_token_changes_no_earlier_score_and_no_other_branch(tiny):
    """The first branch's last token, with all others as witnesses; its own score is the only one to change."""
    changed = [[[(4, [7, 7, 18]), *LANES[0][0][1:]], LANES[0][1]], *LANES[1:]]
    before, after = logprobs_of(tiny, pack()), logprobs_of(tiny, pack(lanes=changed))
    assert before[0, 0, 2] != after[0, 0, 2]
    others = pack().segment > 0
    others[0, 0, 2] = False
    np.testing.assert_array_equal(before[others], after[others])


def test_trunk_tokens_after_the_fork_are_not_seen(tiny):
    """The third trunk changes at position 3: forks at 3 stay, forks at 7 and 10 do not."""
    trunks = [TRUNKS[0], TRUNKS[1], [*TRUNKS[2][:3], 0, *TRUNKS[2][4:]]]
    before, after = logprobs_of(tiny, pack()), logprobs_of(tiny, pack(trunks))
    before, after, fork = before[2], after[2], pack().fork[2]
    np.testing.assert_array_equal(before[fork == 3], after[fork == 3])
    assert (before[fork >= 7] != after[fork >= 7]).all()


def test_padding_ids_reach_no_score(tiny):
    real = pack().segment > 0
    np.testing.assert_array_equal(logprobs_of(tiny, pack())[real], logprobs_of(tiny, pack(pad_id=13))[real])


def test_padding_scores_stay_finite_so_that_masks_can_drop_them(tiny):
    logprobs, entropies = score(tiny.graphdef, tiny.params, pack(), jnp.float32(1.0))
    assert np.isfinite(logprobs).all() and np.isfinite(entropies).all()


@pytest.mark.parametrize("chunk", [1, 54, 1000])
def test_the_chunk_of_logits_changes_nothing(tiny, chunk):
    """54 tokens in chunks of 7 elsewhere; here one by one, all at once, and in a chunk that they do not fill."""
    rng = np.random.default_rng(0)
    states, ids = rng.standard_normal((3, 18, 32)).astype(np.float32), rng.integers(0, 20, (3, 18))

    @partial(jax.jit, static_argnames="chunk")
    def scores(chunk):
        return score_states(
            tiny.graphdef, tiny.params, states, ids, jnp.float32(1.0), chunk=chunk, token_scores=_scores
        )

    for ours, other in zip(scores(chunk=chunk), scores(chunk=7), strict=True):
        np.testing.assert_allclose(ours, other, rtol=1e-5, atol=1e-6)
