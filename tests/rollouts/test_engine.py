"""A rollout depends on its stream, trunk, fork and sampling alone, and follows the network's distribution."""

from __future__ import annotations

import dataclasses
import gc
import itertools

import jax
import numpy as np
import pytest

from fr3e_jax.programs.shapes import LaneLayout, Shapes
from fr3e_jax.rollouts import promotion
from fr3e_jax.rollouts.engine import RolloutEngine
from fr3e_jax.rollouts.requests import Branch, CachedTrunk, Sampling, TrunkRequest

FREE = Sampling()  # no stop ids: a branch runs to its cap
SHORT, LONG = 5, 20  # caps on either side of the first ring size (16)


def engine_of(session, seed: int = 7, **changes) -> RolloutEngine:
    shapes = Shapes(**{"slots": 2, "lanes": 3, "chunk": 4} | changes)
    return RolloutEngine(session.sampler.engine.programs, shapes, seed=seed)


def trunk_of(length: int, start: int = 2) -> np.ndarray:
    return ((start + 3 * np.arange(length)) % 20 + 2).astype(np.int32)


@pytest.fixture(scope="module")
def requests() -> list[TrunkRequest]:
    """Five trunks of different lengths; forks, caps, filters, stop ids and temperatures differ within a trunk."""
    ways = [
        Sampling(1.0, stop_ids=(1,)),
        Sampling(0.0, stop_ids=(1,)),
        Sampling(0.7, top_p=0.6, stop_ids=(3, 4)),
        Sampling(1.3, top_k=3, stop_ids=(5,)),
        FREE,
    ]
    found = []
    for i, length in enumerate([3, 17, 1, 9, 20]):
        trunk, caps = trunk_of(length, i), [LONG, 1, SHORT, 12, 16]
        branches = [
            Branch(max(1, length - 2 * m), (0, 1, i, m), caps[(i + m) % 5], ways[(i + 2 * m) % 5]) for m in range(5)
        ]
        found.append(TrunkRequest(trunk, branches))
    return found


def choose(index, rollouts, wait=True):
    """The longest and the first: one of them has often left its lane before the trunk's last branch ends."""
    return sorted({0, int(np.argmax([len(r.token_ids) for r in rollouts]))})


@pytest.fixture(scope="module")
def expected(session, params, requests):
    return engine_of(session).sample(params, requests, choose)


def assert_same_rollout(found, wanted) -> None:
    assert found.finished == wanted.finished
    np.testing.assert_array_equal(found.token_ids, wanted.token_ids)
    for name in ("logprobs", "entropies", "magnitudes"):
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), rtol=1e-5, atol=1e-5, err_msg=name)


def assert_same_rollouts(found, wanted) -> None:
    for row, wanted_row in zip(found, wanted, strict=True):
        for rollout, wanted_rollout in zip(row, wanted_row, strict=True):
            assert_same_rollout(rollout, wanted_rollout)


def trunk_arrays(trunk: CachedTrunk) -> list[np.ndarray]:
    length, row = len(trunk.token_ids), trunk.row
    arrays = [trunk.batch.hidden[row, :length]]
    for layer in trunk.batch.layers:
        arrays += [layer.key[row, ..., :length], layer.value[row, :, :length]]
    return [np.asarray(array) for array in arrays]


def assert_same_trunk(found: CachedTrunk, wanted: CachedTrunk) -> None:
    np.testing.assert_array_equal(found.token_ids, wanted.token_ids)
    for left, right in zip(trunk_arrays(found), trunk_arrays(wanted), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"slots": 1, "lanes": 1},  # every branch after another, each promoted trunk displaced
        {"slots": 5, "lanes": 5, "chunk": 64},  # all at once, nothing refilled, no ring grown
        {"chunk": 1},
        {"slots": 11, "lanes": 1, "chunk": 32},  # trunks in several slots each, chunks that end early
    ],
    ids=str,
)
def test_slots_lanes_and_chunks_change_no_rollout_and_no_promoted_trunk(session, params, requests, expected, changes):
    rollouts, promoted = engine_of(session, **changes).sample(params, requests, choose)
    assert_same_rollouts(rollouts, expected[0])
    assert promoted.keys() == expected[1].keys()
    for key in promoted:
        assert_same_trunk(promoted[key], expected[1][key])


def test_a_smaller_layout_changes_no_rollout(session, params):
    """A call takes the first declared layout that holds its trunks and branches."""
    requests = [
        TrunkRequest(trunk_of(5 + i, i), [Branch(3 + i, (0, 1, i, m), 9, FREE) for m in range(2)]) for i in (0, 1)
    ]
    full, fitting = engine_of(session, slots=4), engine_of(session, slots=4, smaller=(LaneLayout(2, 2),))
    assert_same_rollouts(*(engine.sample(params, requests)[0] for engine in (fitting, full)))
    lanes = lambda engine: engine.take_counts().lane_steps
    fewer, all_lanes = lanes(fitting), lanes(full)
    if jax.device_count() == 1:
        assert fewer * 3 == all_lanes
    engine = engine_of(session, slots=4, smaller=(LaneLayout(1, 2), LaneLayout(2, 1)))
    engine.sample(params, requests)
    full.sample(params, requests)
    assert lanes(engine) == lanes(full), "no smaller layout holds both trunks with both branches"


def test_a_stop_between_two_chunks_ends_the_call_and_leaves_the_engine_as_it_was(session, params, requests, expected):
    engine, asked = engine_of(session), itertools.count()

    def stop_here() -> None:
        if next(asked) == 2:
            raise KeyboardInterrupt

    engine.stop_here = stop_here
    with pytest.raises(KeyboardInterrupt):
        engine.sample(params, requests, choose)
    assert engine.take_counts().chunks == 2
    rollouts, _ = engine.sample(params, requests, choose)
    assert_same_rollouts(rollouts, expected[0])


def test_order_and_company_of_requests_change_no_rollout(session, params, requests, expected):
    order = [3, 0, 4]
    shuffled = [dataclasses.replace(requests[i], branches=requests[i].branches[::-1]) for i in order]
    rollouts, _ = engine_of(session).sample(params, shuffled)
    assert_same_rollouts([row[::-1] for row in rollouts], [expected[0][i] for i in order])


def test_stream_and_seed_change_the_tokens(session, params):
    streams = [(0, 1, 2, 3), (0, 1, 2, 4), (0, 1, 2, 3, 0, 0), (1, 1, 2, 3)]
    branches = [Branch(4, stream, 12, FREE) for stream in streams]
    first, second = (
        engine_of(session, seed=seed).sample(params, [TrunkRequest(trunk_of(4), branches)])[0][0] for seed in (7, 8)
    )
    texts = [tuple(r.token_ids) for r in first]
    assert texts[0] == texts[2], "a stream is filled up with zeros"
    assert len({texts[0], texts[1], texts[3], tuple(second[0].token_ids)}) == 4


def distribution(logits: np.ndarray, how: Sampling) -> np.ndarray:
    """The distribution of `Sampling`, written out: temperature, then top-k, then the nucleus of the rest."""
    weights = np.exp((logits - logits.max()) / (how.temperature or 1.0))
    order = np.argsort(-weights, kind="stable")
    kept = order[: how.top_k] if how.top_k else order
    shares = weights[kept] / weights[kept].sum()
    kept = kept[: int(np.searchsorted(np.cumsum(shares), how.top_p - 1e-9)) + 1] if how.top_p < 1 else kept
    result = np.zeros_like(weights)
    result[kept] = weights[kept] / weights[kept].sum()
    return result


def test_logprobs_and_entropies_are_those_of_a_full_forward(session, params, requests, expected, tiny_run):
    greedy_tokens = 0
    for request, row in zip(requests, expected[0], strict=True):
        for branch, rollout in zip(request.branches, row, strict=True):
            whole = np.concatenate([request.token_ids[: branch.fork], rollout.token_ids])
            logits = tiny_run.full_logits(session, params, whole)[branch.fork - 1 : -1]
            shares = np.stack([distribution(row, branch.sampling) for row in logits])
            drawn = np.take_along_axis(shares, rollout.token_ids[:, None], axis=1)[:, 0]
            np.testing.assert_allclose(rollout.logprobs, np.log(drawn), atol=2e-5)
            plain = tiny_run.log_softmax(logits)
            np.testing.assert_allclose(rollout.entropies, -(np.exp(plain) * plain).sum(axis=1), atol=2e-5)
            if branch.sampling.temperature == 0:
                np.testing.assert_array_equal(rollout.token_ids, logits.argmax(axis=1))
                greedy_tokens += len(rollout.token_ids)
    assert greedy_tokens > 20


def test_branches_end_at_their_own_stop_ids_or_at_their_cap(requests, expected):
    finished = 0
    for request, row in zip(requests, expected[0], strict=True):
        for branch, rollout in zip(request.branches, row, strict=True):
            stops = np.isin(rollout.token_ids, branch.sampling.stop_ids)
            assert not stops[:-1].any(), "sampling went on after a stop token"
            assert rollout.finished == bool(stops[-1])
            assert rollout.finished or len(rollout.token_ids) == branch.max_tokens
            finished += rollout.finished
    assert 3 < finished < 20


def test_a_stop_token_at_the_first_position_is_a_response_of_one_token(session, params):
    def sample(stop_ids):
        branches = [Branch(5, (0, 0, 0, m), 9, Sampling(stop_ids=stop_ids)) for m in range(4)]
        return engine_of(session).sample(params, [TrunkRequest(trunk_of(5), branches)])[0][0]

    open_ended = sample(())
    first = int(open_ended[2].token_ids[0])
    stopped = sample((first,))[2]
    assert stopped.finished and stopped.token_ids.tolist() == [first]
    assert not open_ended[2].finished and len(open_ended[2].token_ids) == 9
    np.testing.assert_allclose(stopped.logprobs, open_ended[2].logprobs[:1], atol=1e-5)
    np.testing.assert_allclose(stopped.entropies, open_ended[2].entropies[:1], atol=1e-5)


def test_branches_of_a_promoted_trunk_are_those_of_the_same_tokens_prefilled(session, params, requests, expected):
    """Also if the trunk left its lane early: with three lanes for five branches, refills displace two of them."""
    keys = sorted(expected[1])
    ids = {key: expected[1][key].token_ids for key in keys}
    branches = {
        key: [Branch(f, (1, *key, f), 8, Sampling(stop_ids=(1,))) for f in {1, len(ids[key]) // 2 + 1, len(ids[key])}]
        for key in keys
    }
    engine = engine_of(session)
    cached, _ = engine.sample(
        params, [TrunkRequest(dataclasses.replace(expected[1][key]), branches[key]) for key in keys]
    )
    assert engine.take_counts().prefill_positions == 0
    fresh, _ = engine.sample(params, [TrunkRequest(ids[key], branches[key]) for key in keys])
    assert engine.take_counts().prefill_positions == sum(len(ids[key]) for key in keys)
    for key in keys:
        request, branch = requests[key[0]], requests[key[0]].branches[key[1]]
        own = expected[0][key[0]][key[1]].token_ids
        np.testing.assert_array_equal(ids[key], np.concatenate([request.token_ids[: branch.fork], own]))
    assert_same_rollouts(cached, fresh)


def test_a_branch_reads_its_given_tokens_and_goes_on_as_from_the_flattened_sequence(session, params):
    """Greedy, so that no noise hides a difference; from one cached trunk, which keeps what it held."""
    engine, response = engine_of(session), trunk_of(12)
    greedy = Sampling(0.0, stop_ids=(1,))
    given = [(5,), (9, 3), (20,)]
    branches = [Branch(fork, (3, fork), 9, greedy, given=ids) for fork, ids in zip((4, 7, 12), given, strict=True)]
    (trunk,) = engine.prefill(params, [response])
    engine.take_counts()
    kept = dataclasses.replace(trunk)
    (row,), _ = engine.sample(params, [TrunkRequest(trunk, branches)])
    counts = engine.take_counts()
    assert counts.prefill_positions == 0 and counts.reused_prefix_positions == 4 + 7 + 12
    assert counts.tool_tokens == 4 and counts.sampled_tokens == sum(len(r.token_ids) for r in row) - 4
    for branch, ids, found in zip(branches, given, row, strict=True):
        flat = np.concatenate([response[: branch.fork], ids]).astype(np.int32)
        plain = Branch(len(flat), (4,), 9 - len(ids), greedy)
        (wanted,), _ = engine.sample(params, [TrunkRequest(flat, [plain])])
        np.testing.assert_array_equal(found.token_ids, [*ids, *wanted[0].token_ids])
        np.testing.assert_allclose(found.logprobs[len(ids) :], wanted[0].logprobs, rtol=1e-5, atol=1e-5)
        assert found.tool_written.tolist() == [True] * len(ids) + [False] * len(wanted[0].token_ids)
    (fresh,), _ = engine.sample(params, [TrunkRequest(response, branches)])
    (again,), _ = engine.sample(params, [TrunkRequest(kept, branches)])
    assert_same_rollouts([fresh, again], [row, row])


def test_a_given_stop_token_ends_nothing_but_the_cap_does(session, params):
    branches = [Branch(3, (5,), cap, FREE, given=(1,)) for cap in (1, 4)]
    branches = [dataclasses.replace(one, sampling=Sampling(1.0, stop_ids=(1,))) for one in branches]
    (row,), _ = engine_of(session).sample(params, [TrunkRequest(trunk_of(5), branches)])
    assert row[0].token_ids.tolist() == [1] and not row[0].finished
    assert row[1].token_ids[0] == 1 and len(row[1].token_ids) > 1


def test_alternatives_are_the_likeliest_other_tokens_of_a_full_forward(session, params, tiny_run):
    engine, sequences = engine_of(session), [trunk_of(9), trunk_of(6, start=11)]
    trunks = engine.prefill(params, sequences)
    rows, positions = np.array([0, 0, 1, 1, 1]), np.array([1, 8, 1, 3, 5])
    chosen = np.array([sequences[row][position] for row, position in zip(rows, positions, strict=True)])
    found = engine.programs.alternatives(params, trunks[0].batch, rows, positions, chosen)
    for i, (row, position) in enumerate(zip(rows, positions, strict=True)):
        logits = np.asarray(tiny_run.full_logits(session, params, sequences[row]), np.float64)[position - 1]
        shares = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        others = np.where(np.arange(len(shares)) == chosen[i], -1.0, shares)
        assert found.token_ids[i] == others.argmax() != chosen[i]
        assert np.exp(found.logprobs[i]) == pytest.approx(others.max(), rel=1e-4)
        assert found.candidates[i] == np.searchsorted(np.cumsum(np.sort(shares)[::-1]), 0.95) + 1


def test_select_sees_each_request_once_with_all_its_rollouts(session, params, requests, expected):
    seen = {}

    def select(index, rollouts, wait):
        assert index not in seen
        seen[index] = [tuple(rollout.token_ids) for rollout in rollouts]
        return [1] if index == 3 else []

    _, promoted = engine_of(session).sample(params, requests, select)
    assert seen == {i: [tuple(r.token_ids) for r in row] for i, row in enumerate(expected[0])}
    assert list(promoted) == [(3, 1)], "a trunk that was not selected was kept"


def assert_equal_to_the_last_digit(found, wanted) -> None:
    for row, wanted_row in zip(found[0], wanted[0], strict=True):
        for rollout, other in zip(row, wanted_row, strict=True):
            for name in ("token_ids", "logprobs", "entropies", "magnitudes"):
                np.testing.assert_array_equal(getattr(rollout, name), getattr(other, name), err_msg=name)
    assert found[1].keys() == wanted[1].keys()
    for key, trunk in found[1].items():
        np.testing.assert_array_equal(trunk.token_ids, wanted[1][key].token_ids)
        for left, right in zip(trunk_arrays(trunk), trunk_arrays(wanted[1][key]), strict=True):
            np.testing.assert_array_equal(left, right)


@pytest.fixture(scope="module")
def crowd(session, params, requests):
    """Five trunks for every two slots (each device has at least one slot), and their rollouts."""
    engine = engine_of(session)
    repeated = requests * (engine.slots // 2)
    return repeated, engine.slots, engine.sample(params, repeated, choose)


def test_an_undecided_request_leaves_its_slot_to_others_and_changes_no_digit(session, params, crowd):
    """Request 0 is decided only when it must be, after all others have been decoded."""
    requests, _, expected = crowd
    asked, decided = [], []

    def slow(index, rollouts, wait):
        asked.append((index, wait))
        if index == 0 and not wait:
            return None
        decided.append(index)
        return choose(index, rollouts)

    found = engine_of(session).sample(params, requests, slow)
    assert decided[-1] == 0 and sorted(decided) == list(range(len(requests)))
    assert asked.count((0, False)) > 5 and asked.count((0, True)) == 1
    assert not any(wait for index, wait in asked if index != 0)
    assert_equal_to_the_last_digit(found, expected)


@pytest.mark.parametrize("late", [{1}, {2, 4}, {0, 1, 2}, {0, 1, 2, 3, 4}], ids=str)
def test_the_time_of_a_choice_changes_no_digit(session, params, crowd, late):
    """A run repeats and resumes exactly, however busy the grading processes are."""
    requests, _, expected = crowd
    asked = dict.fromkeys(late, 0)

    def reluctant(index, rollouts, wait):
        asked[index] = asked.get(index, 0) + 1
        known = index not in late or asked[index] > 1 + index % 3
        return choose(index, rollouts) if wait or known else None

    assert_equal_to_the_last_digit(engine_of(session).sample(params, requests, reluctant), expected)


def test_few_caches_of_undecided_trunks_are_kept_outside_their_slots(session, params, crowd, monkeypatch):
    """Then the engine waits for the choice: of five trunks on two slots, three or more are displaced, one is kept."""
    requests, slots, expected = crowd
    undecided, waited = [], []
    monkeypatch.setattr(promotion, "MOST_DISPLACED", 1)

    def never(index, rollouts, wait):
        if not wait:
            undecided.append(index) if index not in undecided else None
            return None
        waited.append((index, len(undecided)))
        return choose(index, rollouts)

    found = engine_of(session).sample(params, requests, never)
    assert len(waited) == len(requests) and waited[0][1] < len(requests), "the first was waited for before the end"
    kept = [ended - decided for decided, (_, ended) in enumerate(waited)]
    assert max(kept[:-1]) <= slots + 1, "in the slots, and one beside them"
    assert_equal_to_the_last_digit(found, expected)


def test_a_select_that_never_decides_raises(session, params, requests):
    with pytest.raises(TypeError, match="select returned None for request"):
        engine_of(session).sample(params, requests, lambda index, rollouts, wait: None)


def test_each_rollout_is_handed_on_when_it_ends_not_when_its_trunk_ends(session, params, requests, expected):
    events = []
    rollouts, _ = engine_of(session).sample(
        params,
        requests,
        lambda index, rows, wait: events.append(("decided", index)) or [],
        events.extend,
    )
    ended = {event[:2]: event[2] for event in events if event[0] != "decided"}
    assert len(ended) == len(events) - 5 == 25
    assert all(rollouts[i][b] is rollout for (i, b), rollout in ended.items())
    for index in range(5):
        assert max(n for n, e in enumerate(events) if e[0] == index) < events.index(("decided", index))
    first_of_1 = next(n for n, e in enumerate(events) if e[0] == 1)
    assert first_of_1 < events.index(("decided", 0)), "no rollout was handed on while two trunks decoded"


@pytest.mark.parametrize("choosing", [False, True])
def test_rollouts_are_handed_on_while_the_next_chunk_runs(session, params, requests, monkeypatch, choosing):
    """Unless the lanes to fill hold caches to choose from: the choice comes first."""
    events, own = [], session.sampler.engine.programs
    for name in ("decode_chunk", "fetch", "fill_lanes"):
        original = getattr(own, name)
        noted = lambda *a, _name=name, _original=original, **k: events.append(_name) or _original(*a, **k)
        monkeypatch.setattr(own, name, noted)
    ended = lambda rollouts: events.append("ended")
    engine_of(session).sample(params, requests, choose if choosing else None, ended)
    handed_on = [events[n - 1] for n, event in enumerate(events) if event == "ended"]
    assert handed_on[-1] == "fetch", "no other chunk follows the last"
    if choosing:
        assert {"fetch", "decode_chunk"} == set(handed_on)
        refilled = [n for n, event in enumerate(events) if event == "fill_lanes" and n]
        assert all(events[n - 1] in ("ended", "fetch") for n in refilled)
    else:
        assert set(handed_on[:-1]) == {"decode_chunk"}


def test_counts_are_the_positions_sampled_prefilled_and_reused(session, params, requests):
    engine = engine_of(session)
    rollouts, _ = engine.sample(params, requests)
    counts = engine.take_counts()
    assert counts.sampled_tokens == sum(len(r.token_ids) for row in rollouts for r in row)
    assert counts.prefill_positions == sum(len(request.token_ids) for request in requests)
    assert counts.reused_prefix_positions == sum(b.fork for request in requests for b in request.branches)
    assert counts.lane_steps >= counts.sampled_tokens
    assert engine.take_counts().sampled_tokens == 0


def test_counts_include_lane_steps_and_copies_of_trunks(session, params):
    """Eight branches of a trunk in four slots of two lanes: three copies, and no lane is idle for a step."""
    engine = engine_of(session, slots=4, lanes=2)
    lanes = engine.slots * 2
    branches = [Branch(4, (0, 0, 0, m), SHORT, FREE) for m in range(lanes)]
    engine.sample(params, [TrunkRequest(trunk_of(4), branches)])
    counts = engine.take_counts()
    assert counts.trunk_insertions == engine.slots and counts.chunks == 2
    assert counts.lane_steps == counts.sampled_tokens == lanes * SHORT


def promoted_trunks(session, params, count: int) -> list[CachedTrunk]:
    requests = [TrunkRequest(trunk_of(9), [Branch(9, (0, i), SHORT, FREE)]) for i in range(count)]
    return list(engine_of(session).sample(params, requests, lambda index, rollouts, wait: [0])[1].values())


def test_a_trunk_is_held_once_while_its_branches_decode(session, params):
    """Its batch is gone when the first branch ends: only the decoder's state lives, for cached and prefilled trunks."""

    def live_bytes(trunks) -> int:
        seen = []
        requests = [TrunkRequest(t, [Branch(5, (1, i), SHORT, FREE)]) for i, t in enumerate(trunks)]
        measure = lambda *_: seen.append(sum(array.nbytes for array in jax.live_arrays()))
        engine_of(session).sample(params, requests, ended=measure)
        return seen[0]

    trunks = promoted_trunks(session, params, 2)
    assert any(trunk.batch.hidden.shape[1] == 16 for trunk in trunks)
    gc.collect()
    handed_over = live_bytes(trunks)
    assert all(trunk.batch is None for trunk in trunks)
    assert handed_over == live_bytes([trunk.token_ids for trunk in trunks])


def test_a_consumed_trunk_cannot_be_sampled_again_unless_a_copy_was_kept(session, params):
    trunk = promoted_trunks(session, params, 1)[0]
    kept = dataclasses.replace(trunk)
    request = lambda trunk: [TrunkRequest(trunk, [Branch(5, (1,), SHORT, FREE)])]
    first, _ = engine_of(session).sample(params, request(trunk))
    with pytest.raises(ValueError, match="request 0: an earlier call consumed its cached trunk"):
        engine_of(session).sample(params, request(trunk))
    again, _ = engine_of(session).sample(params, request(kept))
    assert_same_rollout(again[0][0], first[0][0])


def test_requests_without_branches_give_no_rollouts(session, params):
    engine = engine_of(session)
    assert engine.sample(params, []) == ([], {})
    assert engine.sample(params, [TrunkRequest(trunk_of(3), [])]) == ([[]], {})
    rollouts, _ = engine.sample(
        params, [TrunkRequest(trunk_of(3), []), TrunkRequest(trunk_of(3), [Branch(3, (0,), 1, FREE)])]
    )
    assert [len(row) for row in rollouts] == [0, 1] and len(rollouts[1][0].token_ids) == 1
    assert engine.take_counts().sampled_tokens == 1


@pytest.mark.parametrize(
    ("trunk", "branch", "message"),
    [
        (trunk_of(4), Branch(5, (0,), 1, FREE), "request 1: fork 5 is outside its trunk of 4 tokens"),
        (trunk_of(4), Branch(0, (0,), 1, FREE), "request 1: fork 0 is outside its trunk of 4 tokens"),
        (trunk_of(0), Branch(0, (0,), 1, FREE), "request 1: fork 0 is outside its trunk of 0 tokens"),
        (trunk_of(4), Branch(4, (0,), 0, FREE), "request 1: max_tokens is 0; a branch has at least one token"),
        (trunk_of(4), Branch(4, (0,) * 7, 1, FREE), "has more than 6 names"),
    ],
)
def test_impossible_branches_are_refused_before_any_token_is_sampled(session, params, trunk, branch, message):
    engine = engine_of(session)
    good = TrunkRequest(trunk_of(3), [Branch(3, (0,), 1, FREE)])
    with pytest.raises(ValueError) as caught:
        engine.sample(params, [good, TrunkRequest(trunk, [branch])])
    assert message in str(caught.value)
    assert engine.take_counts().sampled_tokens == 0
