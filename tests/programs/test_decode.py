"""The decoder against full forward passes: its tokens, promoted trunks, compiled programs and donated arrays.

Most tests look at one run of branches of all kinds, long enough that the rings grow and then wrap.
"""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from network_programs import decoder_on
from scipy.special import log_softmax

from fr3e_jax.policy.sampling import stream_keys, uniform
from fr3e_jax.programs import size_buckets
from fr3e_jax.programs.decoder_programs import DecoderPrograms
from fr3e_jax.programs.decoder_state import LaneSettings
from fr3e_jax.programs.program import programs_of
from fr3e_jax.programs.shapes import Shapes
from fr3e_jax.rollouts.engine import RolloutEngine
from fr3e_jax.rollouts.requests import STREAM_NAMES, Branch, Sampling, TrunkRequest

VOCAB = 20
EVERY_TOKEN = tuple(range(VOCAB))
PLAIN = Sampling(stop_ids=(0, 7))
TRUNKS = [np.array([3, 17, 0, 5, 9, 11, 2, 8]), np.array([1, 4, 19]), np.array([6, 6, 12, 13, 7, 15, 10, 18, 14, 2, 2])]
CLOSE = dict(rtol=1e-5, atol=1e-5)


class WatchedPrograms(DecoderPrograms):
    """Counts how often the rings grew and wrapped."""

    grown = wrapped = 0
    capacities = ()

    def resize(self, state, *, capacity):
        self.capacities += (capacity,)
        self.grown += capacity > state.capacity
        return super().resize(state, capacity=capacity)

    def decode_chunk(self, params, state, **options):
        before = int(state.column)
        state, emitted = super().decode_chunk(params, state, **options)
        self.wrapped += int(state.column) < before
        return state, emitted


def branch(fork, name, max_tokens, **sampling):
    how = Sampling(**{"stop_ids": PLAIN.stop_ids} | sampling)
    return Branch(fork, (1, name), max_tokens, how)


@pytest.fixture(scope="module", autouse=True)
def small_rings():
    """Rings that begin at 16 columns, so that those of a few tokens grow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(size_buckets, "_FIRST_RING", 16)
        yield


@pytest.fixture(scope="module")
def decoder(tiny):
    return decoder_of(tiny)


def decoder_of(network):
    """An engine that has more branches than lanes and more trunks than slots, with its programs and parameters."""
    return decoder_on(network, Shapes(2, 2, 4), programs_type=WatchedPrograms)


@pytest.fixture(scope="module")
def run(decoder):
    """Forks at 1, inside, at the end; one token, a first stop token, long ones; every way of sampling."""
    requests = [
        TrunkRequest(TRUNKS[0], [branch(8, 0, 24), branch(1, 1, 20, stop_ids=()), branch(4, 2, 1), branch(4, 3, 17)]),
        TrunkRequest(
            TRUNKS[1], [branch(3, 4, 9, stop_ids=EVERY_TOKEN), branch(2, 5, 24, temperature=0.7, stop_ids=())]
        ),
        TrunkRequest(
            TRUNKS[2],
            [
                branch(11, 6, 12, temperature=0.0, stop_ids=()),
                branch(11, 7, 24, stop_ids=()),
                branch(5, 8, 10, top_k=3, temperature=1.5, stop_ids=()),
            ]
            + [branch(3, 9 + i, 22, stop_ids=()) for i in range(8)],
        ),
    ]
    everything = lambda i, rollouts, wait: range(len(rollouts))
    rollouts, promoted = decoder.engine.sample(decoder.params, requests, everything)
    decoder.engine.take_counts()
    return SimpleNamespace(requests=requests, rollouts=rollouts, promoted=promoted)


@pytest.fixture(scope="module")
def passes(tiny, run):
    """(branch, rollout, logits before each new token, hidden states before them) from passes over whole sequences."""
    found = []
    for request, rollouts in zip(run.requests, run.rollouts, strict=True):
        whole = [
            np.append(request.token_ids[: b.fork], r.token_ids) for b, r in zip(request.branches, rollouts, strict=True)
        ]
        for b, r, (logits, hidden) in zip(request.branches, rollouts, tiny.full_pass(whole), strict=True):
            found.append((b, r, logits[b.fork - 1 : -1], hidden[b.fork - 1 : -1]))
    return found


def test_the_run_grows_and_wraps_its_rings(decoder, run):
    """Otherwise the other tests would show less than they claim."""
    assert decoder.programs.grown >= 1 and decoder.programs.wrapped >= 1


def of_tokens(x, rollout):
    return np.take_along_axis(x, rollout.token_ids[:, None], -1)[:, 0]


def test_logprobs_equal_those_of_a_full_pass(passes):
    for b, rollout, logits, _ in passes:
        if b.sampling.top_k:
            best = np.argsort(-logits, axis=-1)[:, : b.sampling.top_k]
            kept = np.full_like(logits, -np.inf)
            np.put_along_axis(kept, best, np.take_along_axis(logits, best, -1), -1)
            logits = kept
        expected = log_softmax(logits / (b.sampling.temperature or 1.0), axis=-1)
        np.testing.assert_allclose(rollout.logprobs, of_tokens(expected, rollout), **CLOSE)


def test_entropies_and_update_magnitudes_equal_those_of_a_full_pass(passes):
    for _, rollout, logits, hidden in passes:
        logprobs = log_softmax(np.float64(logits), axis=-1)
        np.testing.assert_allclose(rollout.entropies, -(np.exp(logprobs) * logprobs).sum(axis=-1), **CLOSE)
        difference = np.eye(VOCAB)[rollout.token_ids] - np.exp(logprobs)
        expected = np.linalg.norm(difference[:, :, None] * hidden[:, None], axis=(1, 2))
        np.testing.assert_allclose(rollout.magnitudes, expected, rtol=1e-4, atol=1e-5)


def test_tokens_invert_the_distribution_of_a_full_pass_at_the_branch_s_noise(passes, decoder):
    """The random number of (seed, stream, position) lies in the token's share of the full pass's distribution."""
    streams = np.zeros((len(passes), STREAM_NAMES), np.uint32)
    streams[:, :2] = [b.stream for b, *_ in passes]
    keys = np.repeat(jax.jit(stream_keys)(decoder.engine.base_key, streams), 24, axis=0)
    numbers = np.asarray(jax.jit(uniform)(keys, np.tile(np.arange(24), len(passes)))).reshape(-1, 24)
    for (b, rollout, logits, _), number in zip(passes, numbers, strict=True):
        if b.sampling.top_k or not b.sampling.temperature:
            continue
        probabilities = np.exp(log_softmax(logits / b.sampling.temperature, axis=-1))
        ends = of_tokens(np.cumsum(probabilities, axis=-1), rollout)
        starts = ends - of_tokens(probabilities, rollout)
        assert (starts - 1e-5 <= number[: len(ends)]).all() and (number[: len(ends)] <= ends + 1e-5).all()


def flattened(run, key):
    request = run.requests[key[0]]
    return np.append(request.token_ids[: request.branches[key[1]].fork], run.rollouts[key[0]][key[1]].token_ids)


def test_promoted_branches_equal_a_prefill_of_their_ids(decoder, run):
    assert len(run.promoted) == sum(len(request.branches) for request in run.requests)
    for key, trunk in run.promoted.items():
        np.testing.assert_array_equal(trunk.token_ids, flattened(run, key))
    assert_equal_to_a_prefill(decoder, list(run.promoted.values()))


def assert_equal_to_a_prefill(decoder, promoted):
    ids = np.zeros((decoder.programs.round_up(len(promoted)), 64), np.int32)
    for row, trunk in enumerate(promoted):
        ids[row, : len(trunk.token_ids)] = trunk.token_ids
    theirs = jax.device_get(decoder.programs.prefill(decoder.params, ids))
    for row, trunk in enumerate(promoted):
        length, ours = len(trunk.token_ids), jax.device_get(trunk.batch)
        np.testing.assert_allclose(ours.hidden[trunk.row, :length], theirs.hidden[row, :length], **CLOSE)
        for a, b in zip(ours.layers, theirs.layers, strict=True):
            np.testing.assert_allclose(a.key[trunk.row, :, :, :length], b.key[row, :, :, :length], **CLOSE)
            np.testing.assert_allclose(a.value[trunk.row, :, :length], b.value[row, :, :length], **CLOSE)


def test_size_of_rings_does_not_depend_on_when_a_choice_is_made(decoder):
    """A choice waits for grading and a larger ring rounds sums differently, yet runs must repeat bit for bit."""
    alone, after = branch(8, 0, 40, stop_ids=()), [branch(3, n, tokens, stop_ids=()) for n, tokens in ((1, 38), (2, 5))]
    requests = [TrunkRequest(TRUNKS[0], [alone]), TrunkRequest(TRUNKS[1], after)]
    engine = RolloutEngine(decoder.programs, Shapes(2, 1, 2), seed=5)
    seen = []
    for late in (False, True):
        decoder.programs.capacities = ()
        choose = lambda i, rollouts, wait, late=late: (0,) if wait or not late else None
        rollouts, _ = engine.sample(decoder.params, requests, choose)
        seen.append((decoder.programs.capacities, [r.logprobs.tolist() for row in rollouts for r in row]))
    assert seen[0] == seen[1] and seen[0][0], "rings were resized, and alike"


def exploration(trunks, offset):
    """Branches from the first token, the middle and the end of each trunk."""
    return [
        TrunkRequest(ids, [Branch(fork, (2, offset + i, fork), 14, PLAIN) for fork in (1, len(ids) // 2, len(ids))])
        for i, ids in enumerate(trunks)
    ]


def test_windows_of_layers_are_those_of_a_full_pass(tiny_of_windows):
    """Of 5 positions: within the trunk, over the fork, in the branch alone, in rings that wrap, after a promotion."""
    decoder, everything = decoder_of(tiny_of_windows), lambda i, rollouts, wait: range(len(rollouts))
    forks = [(8, 30), (1, 20), (4, 2), (6, 17)]
    trunk = TrunkRequest(TRUNKS[0], [branch(fork, i, length, stop_ids=()) for i, (fork, length) in enumerate(forks)])
    rollouts, promoted = decoder.engine.sample(decoder.params, [trunk], everything)
    assert decoder.programs.wrapped
    again = TrunkRequest(promoted[0, 0], [branch(20, 5, 9, stop_ids=()), branch(6, 6, 9, stop_ids=())])
    explored, _ = decoder.engine.sample(decoder.params, [again])
    ids = np.append(TRUNKS[0], rollouts[0][0].token_ids)
    pairs = [(TRUNKS[0], *pair) for pair in zip(trunk.branches, rollouts[0], strict=True)]
    pairs += [(ids, *pair) for pair in zip(again.branches, explored[0], strict=True)]
    whole = [np.append(prefix[: b.fork], r.token_ids) for prefix, b, r in pairs]
    for (_, b, r), (logits, _) in zip(pairs, tiny_of_windows.full_pass(whole), strict=True):
        expected = log_softmax(logits[b.fork - 1 : -1], axis=-1)
        np.testing.assert_allclose(r.logprobs, of_tokens(expected, r), **CLOSE)


def compiled_programs(programs) -> dict[str, int]:
    return {name: program._cache_size() for name, program in programs_of(programs).items()}


def test_a_second_run_of_the_same_shapes_compiles_nothing(decoder, run, started):
    """Prompts, lengths, forks, noise, and the slots and lanes to copy and to promote are no shapes."""
    programs, engine = decoder.programs, decoder.engine
    jax.clear_caches()  # those of earlier tests, which stay in memory or not
    own = lambda: jax.tree.map(jnp.copy, started.filled.trunks)  # a copy donates its trunks
    engine.sample(decoder.params, exploration([TRUNKS[0], TRUNKS[2]], 10))
    programs.promote(started.filled, 1, 0, capacity=16)
    before = compiled_programs(programs)
    programs.copy_trunk(started.filled._replace(trunks=own()), 0, 1)
    copies = compiled_programs(programs)["_copy"]
    programs.copy_trunk(started.filled._replace(trunks=own()), 1, 0)
    assert compiled_programs(programs) == before | {"_copy": copies}
    assert all(before[name] for name in ("_prefill", "_empty", "_insert", "_fill", "_chunk", "_promote"))
    engine.sample(decoder.params, exploration([TRUNKS[1], TRUNKS[0][:5]], 20))
    programs.promote(started.filled, 0, 1, capacity=16)
    after = compiled_programs(programs) | {"_copy": before["_copy"]}  # whether a trunk is copied follows from the noise
    assert after == before


def settings(shape, *, limit, fork=2, stream=0):
    ones = lambda kind, x=1: np.full(shape, x, kind)
    streams = np.arange(np.prod(shape), dtype=np.uint32).reshape(*shape, 1) + np.uint32(100 * stream)
    return LaneSettings(
        fork=ones(np.int32, fork),
        limit=np.broadcast_to(np.asarray(limit, np.int32), shape),
        stream=np.pad(streams, [(0, 0), (0, 0), (0, STREAM_NAMES - 1)]),
        temperature=ones(np.float32),
        top_p=ones(np.float32),
        top_k=ones(np.int32, 0),
        stop_ids=np.full((*shape, 2), -1, np.int32),
    )


@pytest.fixture
def started(decoder):
    """A state with a trunk in every slot: lane 0 with 3 tokens to go, lane 1 with 16, which is the ring's capacity."""
    programs, slots = decoder.programs, decoder.engine.slots
    ids = np.zeros((slots, 16), np.int32)
    ids[:, :3] = TRUNKS[1]
    trunks = programs.prefill(decoder.params, ids)
    sizes = dict(slots=slots, lanes=2, trunk_capacity=16, capacity=16, names=STREAM_NAMES, stops=2, promotable=True)
    empty = programs.empty_state(trunks, **sizes)
    inserted = empty
    for slot in range(slots):
        inserted = programs.insert_trunk(inserted, trunks, slot, slot)
    new = np.ones((slots, 2), bool)
    filled = programs.fill_lanes(inserted, decoder.engine.base_key, new, settings(new.shape, limit=[3, 16]))
    return SimpleNamespace(empty=empty, inserted=inserted, filled=filled)


def test_trunks_go_to_their_slots(decoder):
    programs, slots = decoder.programs, decoder.engine.slots
    ids = np.arange(slots * 16, dtype=np.int32).reshape(slots, 16) % VOCAB
    trunks = programs.prefill(decoder.params, ids)
    sizes = dict(slots=slots, lanes=2, trunk_capacity=16, capacity=16, names=STREAM_NAMES, stops=2, promotable=True)
    state = programs.insert_trunk(programs.empty_state(trunks, **sizes), trunks, 1, 0)
    state = programs.insert_trunk(state, trunks, 0, slots - 1)
    for ours, theirs in zip(jax.tree.leaves(state.trunks), jax.tree.leaves(trunks), strict=True):
        np.testing.assert_array_equal(ours[0], theirs[1])
        np.testing.assert_array_equal(ours[slots - 1], theirs[0])


def test_finished_lanes_keep_their_cache_while_others_go_on(decoder, started):
    """The write column passes lane 0's tokens twice more; in between, lane 1 ends and is filled again."""
    programs, state = decoder.programs, started.filled
    step = lambda state: programs.decode_chunk(decoder.params, state, steps=4, patience=99, filtered=False)[0]
    columns = []
    state = step(state)
    before = jax.device_get(programs.promote(state, 0, 0, capacity=16))
    for _ in range(3):
        state = step(state)
    assert not np.asarray(state.active).any() and (np.asarray(state.generated) == [3, 16]).all()
    new = np.zeros(state.active.shape, bool)
    new[:, 1] = True
    state = programs.fill_lanes(state, decoder.engine.base_key, new, settings(new.shape, limit=16, stream=1))
    for _ in range(4):
        state = step(state)
        columns.append(int(state.column))
    assert columns == [4, 8, 12, 0]
    after = jax.device_get(programs.promote(state, 0, 0, capacity=16))
    seen = 2 + 3  # fork and tokens; the positions after them are never read
    np.testing.assert_array_equal(before.hidden[:, :seen], after.hidden[:, :seen])
    for a, b in zip(before.layers, after.layers, strict=True):
        np.testing.assert_array_equal(a.key[..., :seen], b.key[..., :seen])
        np.testing.assert_array_equal(a.value[:, :, :seen], b.value[:, :, :seen])


def test_promoted_trunks_take_an_equal_share_of_every_device(decoder, started):
    """One row is not padded to a row for each shard: its positions are split."""
    programs = decoder.programs
    trunks = programs.promote(started.filled, 1, 1, capacity=17)
    assert trunks.hidden.shape[:2] == (1, programs.round_up(17))
    for leaf in jax.tree.leaves(trunks):
        assert {shard.data.size for shard in leaf.addressable_shards} == {leaf.size // jax.device_count()}


def test_a_chunk_stops_early_when_no_lane_is_left(decoder, started):
    programs, slots = decoder.programs, decoder.engine.slots
    new = np.ones((slots, 2), bool)
    state = programs.fill_lanes(started.filled, decoder.engine.base_key, new, settings(new.shape, limit=[2, 1]))
    state, emitted = programs.decode_chunk(decoder.params, state, steps=4, patience=99, filtered=False)
    emitted = programs.fetch(emitted)
    assert emitted.counts[0].tolist() == [2, 1]
    assert int(state.column) == 2


def test_programs_delete_only_the_arrays_that_they_change(decoder, started):
    is_gone = lambda tree: [leaf.is_deleted() for leaf in jax.tree.leaves(tree)]
    lanes = lambda state: (state.lanes, state.lane_hidden)
    assert all(is_gone(started.empty.trunks)) and not any(is_gone(lanes(started.empty)))
    assert all(is_gone((started.inserted.settings, started.inserted.active)))
    assert not any(is_gone(started.filled))
    decoder.programs.decode_chunk(decoder.params, started.filled, steps=4, patience=99, filtered=False)
    assert all(is_gone(lanes(started.filled)))
    assert not any(is_gone(decoder.params))


def test_resized_rings_hold_the_same_tokens_and_the_old_ones_are_gone(decoder, started):
    programs = decoder.programs
    state, _ = programs.decode_chunk(decoder.params, started.filled, steps=4, patience=99, filtered=False)
    promoted = lambda state: jax.device_get([programs.promote(state, 0, lane, capacity=8) for lane in (0, 1)])
    before = promoted(state)
    old = state.lanes
    for capacity in (64, 8):
        state = programs.resize(state, capacity=capacity)
        assert state.capacity == capacity and int(state.column) == 0
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(old))
    after = promoted(state)
    for ours, theirs, seen in zip(after, before, (2 + 3, 2 + 4), strict=True):  # fork and tokens
        np.testing.assert_array_equal(ours.hidden[:, :seen], theirs.hidden[:, :seen])
        for one, other in zip(ours.layers, theirs.layers, strict=True):
            np.testing.assert_array_equal(one.key[..., :seen], other.key[..., :seen])
            np.testing.assert_array_equal(one.value[:, :, :seen], other.value[:, :, :seen])


def test_bfloat16_caches_draw_with_float32_logits_and_logprobs(tiny_network):
    network = tiny_network(compute_dtype="bfloat16")
    decoder = decoder_on(network, Shapes(2, 2, 8))
    requests = [TrunkRequest(trunk, [branch(len(trunk), i, 16, stop_ids=())]) for i, trunk in enumerate(TRUNKS)]
    rollouts, promoted = decoder.engine.sample(decoder.params, requests, lambda i, rollouts, wait: [0])
    assert {leaf.dtype.name for leaf in jax.tree.leaves(promoted[0, 0].batch)} == {"bfloat16"}
    whole = [np.append(t, r[0].token_ids) for t, r in zip(TRUNKS, rollouts, strict=True)]
    for trunk, [rollout], logits in zip(TRUNKS, rollouts, network.full_logits(whole), strict=True):
        assert rollout.logprobs.dtype == rollout.entropies.dtype == np.float32
        expected = log_softmax(logits[len(trunk) - 1 : -1], axis=-1)
        # Of logits around 5 a bfloat16 network keeps 2 to 3 digits; rounding the log-probs too would show in the first.
        np.testing.assert_allclose(rollout.logprobs, of_tokens(expected, rollout), atol=0.15)
        assert (rollout.logprobs.view(np.uint32) & 0xFFFF).any()  # more bits than bfloat16 has
