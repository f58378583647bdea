"""Packed trunk-and-branch rows against each branch flattened into a sequence of its own: scores and gradient."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from fr3e_jax.objectives.entropy import token_entropy, token_logprobs
from fr3e_jax.policy.head import Head, count_tokens, gather_tokens, token_loss, token_scores
from fr3e_jax.policy.network import ForwardOptions, bind
from fr3e_jax.policy.rows import Rows, predictors, row_states, run_trunks

TRUNK_SIZE, LANE_SIZE, CHUNK, WINDOW = 12, 10, 7, 3
# Trunks of each row; the second row holds two.
TRUNKS = [[[3, 17, 0, 5, 9, 11, 2, 8]], [[1, 4], [9, 9, 5, 2, 0]], [[6, 6, 12, 19, 13, 7, 15, 10, 18, 14]]]
# rows -> lanes -> branches (trunk of the row, fork, token ids): forks at 1, inside, at the end; full, part-full and
# empty lanes, and a lane with branches of both trunks.
LANES = [
    [[(0, 4, [7, 7, 1]), (0, 8, [2, 0, 19, 4]), (0, 1, [5])], [(0, 4, [16, 3, 3, 3, 8, 12, 1, 0, 9])]],
    [[(0, 2, [11]), (1, 5, [3, 3, 8]), (0, 1, [4, 6]), (1, 2, [17, 1])], []],
    [[(0, 10, [5, 4, 3]), (0, 10, [5, 4, 9])], [(0, 3, [1, 2]), (0, 7, [8])]],
]


def end_to_end(rows: Rows, lane_size: int) -> tuple[Rows, np.ndarray]:
    """The same branches without gaps in lanes of another size, and each token's old index, ``[tokens, 3]``."""
    moved = {}
    for name in ("branch_ids", "segment", "start", "fork", "offset"):
        streams = [x[real] for x, real in zip(getattr(rows, name), rows.segment > 0, strict=True)]
        lanes = -(-max(map(len, streams)) // lane_size)
        moved[name] = np.zeros((len(streams), lanes * lane_size), np.int32)
        for target, stream in zip(moved[name], streams, strict=True):
            target[: len(stream)] = stream
        moved[name] = moved[name].reshape(len(streams), lanes, lane_size)
    return rows._replace(**moved, window=np.ones((len(rows.segment), WINDOW))), np.argwhere(rows.segment > 0)


def pack(trunks=TRUNKS, lanes=LANES, pad_id=0) -> Rows:
    shape = (len(lanes), 2, LANE_SIZE)
    trunk_ids = np.full((len(lanes), TRUNK_SIZE), pad_id, np.int32)
    trunk_segment, trunk_offset = np.zeros((2, len(lanes), TRUNK_SIZE), np.int32)
    ids, (segment, begin, fork, offset) = np.full(shape, pad_id, np.int32), np.zeros((4, *shape), np.int32)
    for b, row in enumerate(lanes):
        starts, end, number = [], 0, 0
        for which, trunk in enumerate(trunks[b]):
            at = (b, slice(end, end + len(trunk)))
            trunk_ids[at], trunk_segment[at], trunk_offset[at] = trunk, which + 1, np.arange(len(trunk))
            starts.append(end)
            end += len(trunk)
        for n, lane in enumerate(row):
            start = 0
            for which, at, tokens in lane:
                number += 1
                place = (b, n, slice(start, start + len(tokens)))
                ids[place], segment[place], begin[place], fork[place] = tokens, number, starts[which], at
                offset[place] = np.arange(len(tokens))
                start += len(tokens)
    return Rows(trunk_ids, trunk_segment, trunk_offset, ids, segment, begin, fork, offset)


def branches(trunks=TRUNKS, lanes=LANES):
    """(prefix, new tokens, place in the packed arrays) of every branch."""
    for b, row in enumerate(lanes):
        for n, lane in enumerate(row):
            start = 0
            for which, fork, tokens in lane:
                yield trunks[b][which][:fork], tokens, (b, n, slice(start, start + len(tokens)))
                start += len(tokens)


def _counted(graphdef, params, rows, mask, shards=1, chunk=CHUNK, **options):
    states = row_states(graphdef, params, rows, ForwardOptions(**options))
    mask = jnp.asarray(mask).reshape(mask.shape[0], -1)
    counted = count_tokens(mask, predictors(rows), states.shape[1], shards=shards, chunk=chunk)
    return Head(*bind(graphdef, params).output_weight()), states, counted


@partial(jax.jit, static_argnums=0, static_argnames=("shards", "chunk"))
def score(graphdef, params, rows, temperature, shards=1, chunk=CHUNK):
    scores = lambda logits, ids: (token_logprobs(logits / temperature, ids), token_entropy(logits))
    counted = _counted(graphdef, params, rows, rows.segment > 0, shards, chunk)
    return token_scores(*counted, rows.branch_ids, scores, chunk=chunk)


def weighted_sum(graphdef, params, rows, mask, weights, shards=1, chunk=CHUNK, **options):
    """Sum of weights times log-probs over ``mask``, and the number of tokens in it."""

    def loss(logits, valid, tokens, scalars):
        ids, weights = tokens
        logprobs = token_logprobs(logits, ids) * weights * scalars
        return jnp.where(valid, logprobs, 0.0).sum(), ({"tokens": valid.sum()}, ())

    counted = _counted(graphdef, params, rows, mask, shards, chunk, **options)
    tokens = gather_tokens(counted[2], (rows.branch_ids, jnp.asarray(weights, jnp.float32)))
    total, (sums, _) = token_loss(*counted, tokens, jnp.float32(2.0), loss, chunk=chunk)
    return total, sums


def logprobs_of(network, rows):
    return np.asarray(score(network.graphdef, network.params, rows, jnp.float32(1.0))[0])


@pytest.mark.parametrize("fixture", ["tiny", "tiny_untied", "tiny_windowed", "tiny_experts"])
def test_scores_equal_those_of_the_flattened_sequences(fixture, request):
    network = request.getfixturevalue(fixture)
    packed = list(branches())
    temperature = 0.7
    logprobs, entropies = jax.device_get(score(network.graphdef, network.params, pack(), jnp.float32(temperature)))
    full = network.full_logits([prefix + tokens for prefix, tokens, _ in packed])
    for (prefix, tokens, place), logits in zip(packed, full, strict=True):
        predicting = logits[len(prefix) - 1 : -1]
        expected = log_softmax(predicting / temperature, axis=-1)[np.arange(len(tokens)), tokens]
        np.testing.assert_allclose(logprobs[place], expected, rtol=1e-5, atol=1e-5)
        plain = log_softmax(predicting, axis=-1)
        np.testing.assert_allclose(entropies[place], -(np.exp(plain) * plain).sum(axis=-1), rtol=1e-5, atol=1e-5)


# The longest branch has nine tokens; in lanes of 5 its last tokens read keys from two lanes before.
@pytest.mark.parametrize("lane_size", [4, 5, 16])
def test_scores_do_not_depend_on_the_size_of_the_lanes(tiny, lane_size):
    rows = pack()
    moved, before = end_to_end(rows, lane_size)
    assert rows.offset.max() + 1 == 9 <= (WINDOW - 1) * lane_size + 1
    crossing = moved.segment[:, 1:, 0] == moved.segment[:, :-1, -1]
    assert (crossing & (moved.segment[:, 1:, 0] > 0)).any() or lane_size == 16
    for ours, other in zip(
        score(tiny.graphdef, tiny.params, moved, jnp.float32(1.0)),
        score(tiny.graphdef, tiny.params, rows, jnp.float32(1.0)),
        strict=True,
    ):
        np.testing.assert_allclose(ours[moved.segment > 0], other[tuple(before.T)], rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module", params=["tiny", "tiny_untied", "tiny_windowed", "tiny_experts"])
def flattened(request):
    """A network, the tokens with a loss and their weights, and value and gradient over the flattened sequences."""
    network, rows = request.getfixturevalue(request.param), pack()
    mask = (rows.segment > 0) & (rows.offset != 1)  # tokens without a loss lie between those with one
    weights = np.random.default_rng(1).standard_normal(rows.branch_ids.shape)
    packed = list(branches())
    ids, at, flat_weights = (np.zeros((len(packed), 20), kind) for kind in (np.int32, np.int32, np.float32))
    for i, (prefix, tokens, place) in enumerate(packed):
        sequence = prefix + tokens
        ids[i, : len(sequence)] = sequence
        at[i, : len(sequence) - 1] = sequence[1:]
        flat_weights[i, len(prefix) - 1 : len(sequence) - 1] = 2 * (weights * mask)[place]

    def flattened_sum(params):
        hidden = run_trunks(network.graphdef, params, ids).hidden
        return (token_logprobs(bind(network.graphdef, params).logits(hidden), at) * flat_weights).sum()

    return network, mask, weights, jax.jit(jax.value_and_grad(flattened_sum))(network.params)


# Chunks of one token, of a size that divides nothing, of all tokens; shards of a mesh; rematerialisation; attention in
# blocks; layers in a loop.
CUTS = [
    {"chunk": 1, "remat": "dots"},
    {"attention_block": 4, "chunk": 1000, "scan": True, "remat": "block"},  # trunks by 4 positions, lanes by 2
    {"shards": 3, "chunk": 4, "scan": True},
    {"lane_size": 5},
    {"lane_size": 4, "attention_block": 12, "chunk": 5},  # five lanes by 2
]


def _moved(values, before, after):
    out = np.zeros(after.shape, values.dtype)
    for target, source, at, was in zip(out, values, after, before, strict=True):
        target[at] = source[was]
    return out


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_gradient_equals_that_of_the_flattened_sequences(flattened, cut):
    architecture = flattened[0].architecture
    if not architecture.tie_word_embeddings and cut is not CUTS[0]:
        pytest.skip("another head changes nothing here but the product with the chunk")
    if bool(architecture.sliding_window) != (cut in (CUTS[1], CUTS[4])) and not architecture.num_experts:
        pytest.skip("windows meet blocks, lanes and the scan over layers, and those without windows the other cuts")
    if architecture.num_experts and cut is not CUTS[1]:
        pytest.skip("experts meet rematerialisation and the scan over layers in the other cut")
    network, mask, weights, (expected_value, expected) = flattened
    rows, options = pack(), dict(cut)
    if lane_size := options.pop("lane_size", None):
        real = rows.segment > 0
        rows, _ = end_to_end(rows, lane_size)
        mask, weights = (_moved(x, real, rows.segment > 0) for x in (mask, weights))

    @partial(jax.value_and_grad, has_aux=True)
    def packed_sum(params):
        return weighted_sum(network.graphdef, params, rows, mask, weights, **options)

    (value, sums), gradient = jax.jit(packed_sum)(network.params)
    np.testing.assert_allclose(value, expected_value, rtol=1e-5)
    assert sums["tokens"] == mask.sum()
    for (path, leaf), other in zip(
        jax.tree_util.tree_leaves_with_path(gradient), jax.tree.leaves(expected), strict=True
    ):
        assert np.linalg.norm(other) > 0.01, path  # every parameter takes part
        assert np.linalg.norm(leaf - other) <= 1e-5 * np.linalg.norm(other), path


def test_a_token_changes_no_earlier_score_and_no_other_branch(tiny):
    """The first branch's last token changes: of all scores only its own does."""
    changed = [[[(0, 4, [7, 7, 18]), *LANES[0][0][1:]], LANES[0][1]], *LANES[1:]]
    before, after = logprobs_of(tiny, pack()), logprobs_of(tiny, pack(lanes=changed))
    assert before[0, 0, 2] != after[0, 0, 2]
    others = pack().segment > 0
    others[0, 0, 2] = False
    np.testing.assert_array_equal(before[others], after[others])


def test_trunk_tokens_after_the_fork_change_no_score(tiny):
    """The third trunk changes at position 3: forks at 3 stay, forks at 7 and 10 do not."""
    trunks = [TRUNKS[0], TRUNKS[1], [[*TRUNKS[2][0][:3], 0, *TRUNKS[2][0][4:]]]]
    before, after = logprobs_of(tiny, pack()), logprobs_of(tiny, pack(trunks))
    before, after, fork = before[2], after[2], pack().fork[2]
    np.testing.assert_array_equal(before[fork == 3], after[fork == 3])
    assert (before[fork >= 7] != after[fork >= 7]).all()


def test_padding_ids_change_no_score(tiny):
    real = pack().segment > 0
    np.testing.assert_array_equal(logprobs_of(tiny, pack())[real], logprobs_of(tiny, pack(pad_id=13))[real])


def test_trunks_of_a_row_do_not_see_one_another(tiny):
    """The second row's first trunk changes: the branches of its second keep every bit."""
    before, after = (
        logprobs_of(tiny, pack())[1],
        logprobs_of(tiny, pack([TRUNKS[0], [[18, 2], TRUNKS[1][1]], TRUNKS[2]]))[1],
    )
    second = pack().start[1] == 2
    assert second.sum() == 5
    np.testing.assert_array_equal(before[second], after[second])
    first = (pack().segment[1] > 0) & ~second
    assert (before[first] != after[first]).all()


def test_scores_of_padding_are_zero(tiny):
    logprobs, entropies = score(tiny.graphdef, tiny.params, pack(), jnp.float32(1.0))
    padding = pack().segment == 0
    assert not np.asarray(logprobs)[padding].any() and not np.asarray(entropies)[padding].any()


@pytest.mark.parametrize(("shards", "chunk"), [(1, 1), (1, 1000), (3, 4)])
def test_scores_do_not_depend_on_the_chunk_of_logits_or_the_shards(tiny, shards, chunk):
    """Chunks of 7 elsewhere; here of one token, of all tokens, and rows in three shards."""
    ours = score(tiny.graphdef, tiny.params, pack(), jnp.float32(1.0), shards=shards, chunk=chunk)
    for mine, other in zip(ours, score(tiny.graphdef, tiny.params, pack(), jnp.float32(1.0)), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)
