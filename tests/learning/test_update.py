"""Updates: every branch trains once an epoch, however it is cut; ratios, gaps and non-finite gradients are reported."""

from __future__ import annotations

import copy
import dataclasses
import json

import jax
import numpy as np
import pytest
from encoded_prompts import prepare

from fr3e_jax.configuration.schema import LossConfig
from fr3e_jax.learning import update
from fr3e_jax.learning.dispatch import finished
from fr3e_jax.learning.experience import TrainingBranch, TrainingTrunk, count_rollouts, split_full_batch
from fr3e_jax.learning.finiteness import NonFiniteUpdate, check_scores, check_weights
from fr3e_jax.learning.learner import Learner
from fr3e_jax.learning.mini_batches import MiniBatch, mini_batches, pack_mini_batch, row_options, split_mini_batches
from fr3e_jax.learning.packing import pack
from fr3e_jax.learning.scoring import gap_metrics, score_packed
from fr3e_jax.learning.update import update_policy
from fr3e_jax.loop.explore import assign_advantages, explored_trunks, place_anchors, roll_out_states
from fr3e_jax.loop.first_return import base_trunks, first_return
from fr3e_jax.rollouts.sampled_tokens import LaneArray
from fr3e_jax.runs.ledger import TokenLedger

STEP = 3


@pytest.fixture(scope="module")
def batch(session, params, tiny_run) -> list[TrainingTrunk]:
    """Base rollouts on prompts and explored ones on bases, sampled with ``params``."""
    problems = session.task.problems("train")
    groups = first_return(session, params, STEP, prepare(session.texts, [(i, problems[i]) for i in range(4)]))
    anchored = place_anchors(session, STEP, [group for group in groups if group.kept])
    explored = roll_out_states(session, params, STEP, anchored)
    trunks = explored_trunks(
        session.config.explore, STEP, assign_advantages(session.config.explore, session.config.advantage, explored)
    )
    return base_trunks(session.config, STEP, [group for group in groups if group.kept])[:2] + trunks


@pytest.fixture(scope="module")
def programs(session):
    return session.model.train_programs(session.config)


def learner_of(programs, params) -> Learner:
    """A learner with weights of its own, which updates may donate."""
    own = jax.tree.map(lambda leaf: leaf.copy(), params)
    return Learner(programs, own, programs.init_optimizer(own))


def updated(session, programs, params, batch, ledger=None):
    learner = learner_of(programs, params)
    metrics = update_policy(session.learning, learner, STEP, batch, ledger or TokenLedger())
    return learner, metrics


def test_training_trunks_come_back_from_json_bit_for_bit(batch):
    routed = copy.deepcopy(batch[0])
    routed.routes = np.arange(2 * len(routed.token_ids), dtype=np.int8).reshape(-1, 2)
    routed.branches[0].loss_mask, routed.branches[0].on_trunk = routed.branches[0].token_ids > 5, True
    routed.branches[0].routes = np.arange(3 * len(routed.branches[0].token_ids), dtype=np.uint8).reshape(-1, 3)
    for trunk in [routed, *batch]:
        trunk = copy.deepcopy(trunk)
        trunk.branches[0].advantages[:] = np.float32(0.1) / 3
        restored = TrainingTrunk.from_json(json.loads(json.dumps(trunk.to_json())))
        for left, right in zip([restored, *restored.branches], [trunk, *trunk.branches], strict=True):
            for field in dataclasses.fields(right):
                was, now = getattr(right, field.name), getattr(left, field.name)
                if isinstance(was, np.ndarray | LaneArray):
                    assert (now.dtype, now.shape, now.tobytes()) == (was.dtype, was.shape, was.tobytes())
                elif field.name != "branches":
                    assert (type(now), now) == (type(was), was)


def test_a_full_batch_is_the_first_trunks_that_hold_enough(batch):
    sizes = [len(trunk.branches) for trunk in batch]
    assert split_full_batch(batch, 1) == (batch[:1], batch[1:])
    assert split_full_batch(batch, sizes[0]) == (batch[:1], batch[1:])
    assert split_full_batch(batch, sizes[0] + 1) == (batch[:2], batch[2:])
    assert split_full_batch(batch, sum(sizes)) == (batch, [])
    assert split_full_batch(batch, sum(sizes) + 1) == (batch, [])
    assert count_rollouts(batch) == sum(sizes)


def score_trunks(setup, learner, batch):
    """Log-probs of the batch under the learner's weights, packed for this call only."""
    packed = [MiniBatch(list(range(len(batch))), batch, pack(batch, **row_options(setup, learner)))]
    return finished(score_packed(setup, learner, learner.params, batch, packed)).logprobs


def test_old_logprobs_equal_the_samplers(session, programs, params, batch):
    old = score_trunks(session.learning, learner_of(programs, params), batch)
    for trunk, row in zip(batch, old, strict=True):
        for branch, logprobs in zip(trunk.branches, row, strict=True):
            np.testing.assert_allclose(logprobs, branch.sampler_logprobs, atol=1e-4)
    gap = gap_metrics(session.config.loss, batch, old, STEP)
    assert 0 <= gap["logprob_gap/mean"] <= gap["logprob_gap/max"] < 1e-4 and 0 <= gap["logprob_gap/kl"] < 1e-8


def test_the_gap_leaves_out_rollouts_of_earlier_steps(batch):
    old = [[branch.sampler_logprobs + 0.5 for branch in trunk.branches] for trunk in batch]
    mixed = [copy.copy(trunk) for trunk in batch]
    mixed[0].step, old[0] = STEP - 1, [branch.sampler_logprobs + 9 for branch in batch[0].branches]
    gap = gap_metrics(LossConfig(), mixed, old, STEP)
    assert [gap[f"logprob_gap/{name}"] for name in ("mean", "max")] == pytest.approx([0.5, 0.5], abs=1e-4)
    assert gap["logprob_gap/kl"] == pytest.approx(np.exp(0.5) - 1.5, abs=1e-4)
    assert not any(name.startswith("logprob_gap") for name in gap_metrics(LossConfig(), mixed, old, STEP + 1))


def test_the_gap_is_that_of_all_processes_sums(batch):
    random = np.random.default_rng(0)
    old = [
        [b.sampler_logprobs + random.normal(0, 0.2, len(b.token_ids)).astype(np.float32) for b in t.branches]
        for t in batch
    ]
    mixed = [dataclasses.replace(trunk, step=STEP - n % 2) for n, trunk in enumerate(batch)]
    parts, number = [], iter(range(99))
    owners = [[next(number) % 3 for _ in row] for row in old]
    for index in range(3):
        held = [[v if n == index else None for v, n in zip(*row, strict=True)] for row in zip(old, owners, strict=True)]
        gap_metrics(LossConfig(), mixed, held, STEP, lambda part: parts.append(part) or [part])
    joined = gap_metrics(LossConfig(), mixed, [[None] * len(row) for row in old], STEP, lambda _: parts)
    assert joined == pytest.approx(gap_metrics(LossConfig(), mixed, old, STEP), rel=1e-12) and len(joined) == 7


def test_a_nan_in_the_rows_of_one_process_stops_all(batch):
    good, bad = ([[branch.sampler_logprobs * x for branch in trunk.branches] for trunk in batch] for x in (1.0, np.nan))
    tokens = sum(len(branch.token_ids) for trunk in batch for branch in trunk.branches)
    parts = []
    check_scores(batch, {"scores": good}, lambda part: parts.append(part) or [part])
    with pytest.raises(NonFiniteUpdate, match=f"scores are NaN or infinite for {tokens} of the {2 * tokens} tokens"):
        check_scores(batch, {"scores": bad, "no scores": None}, lambda part: [part, *parts])


def test_the_sampler_ratio_tells_carried_rollouts_from_fresh_ones():
    """Ratios are counted over the tokens that train; 1 - 0.2 and 1 + 0.3 bound the clip range."""
    zeros = np.zeros(3, np.float32)

    def trunk(step, mask=None):
        return TrainingTrunk(zeros[:1], [TrainingBranch(1, zeros, zeros, zeros, loss_mask=mask)], step)

    trunks = [trunk(STEP), trunk(STEP - 2, np.array([True, True, False])), trunk(STEP - 1)]
    ratios = [[0.81, 1.29, 1.31]], [[0.79, 1.0, 9.0]], [[1.31, 1.0, 1.0]]
    old = [[np.log(np.array(row[0], np.float32))] for row in ratios]
    loss = LossConfig(epsilon_low=0.2, epsilon_high=0.3)
    metrics = gap_metrics(loss, trunks, old, STEP)
    carried = np.abs(np.log([0.79, 1, 1.31, 1, 1]))
    expected = {
        "sampler_ratio/fresh": np.abs(np.log(ratios[0][0])).mean(),
        "sampler_ratio/fresh_outside": 1 / 3,
        "sampler_ratio/carried": carried.mean(),
        "sampler_ratio/carried_outside": 2 / 5,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert not any("carried" in name for name in gap_metrics(loss, trunks[:1], old[:1], STEP))


def test_the_old_logprobs_in_the_rows_are_those_of_the_scoring_pass(session, programs, params, batch):
    trunks = [copy.copy(batch[i % len(batch)]) for i in range(10)]
    trunks[0].step = STEP - 1
    setup, learner = session.learning, learner_of(programs, params)
    packed = [pack_mini_batch(setup, learner, part) for part in mini_batches(setup, STEP, 0, trunks)]
    scores = finished(score_packed(setup, learner, learner.params, trunks, packed, into="old_logprobs"))
    assert_rows_hold(packed, scores.logprobs)
    assert gap_metrics(setup.config.loss, trunks, scores.logprobs, STEP)["logprob_gap/max"] < 1e-4
    for row, true in zip(scores.logprobs, score_trunks(setup, learner_of(programs, params), trunks), strict=True):
        np.testing.assert_allclose(np.concatenate(row), np.concatenate(true), atol=1e-5)


def assert_rows_hold(packed, old) -> None:
    """The rows that train have the log-probs of their branches, and zeros elsewhere."""
    for mini_batch in packed:
        for micro in mini_batch.micros:
            left = micro.batch.old_logprobs.copy()
            for p in micro.spans:
                np.testing.assert_array_equal(left[p.where], old[mini_batch.members[p.trunk]][p.branch])
                left[p.where] = 0
            assert not left.any()


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_mean"])
def test_the_size_of_micro_batches_changes_no_weight(session, programs, params, batch, tiny_run, aggregation):
    results = []
    for tokens in (1, 512, 10_000):
        twin = tiny_run.changed(
            session,
            training__micro_batch_tokens=tokens,
            training__mini_batch_rollouts=count_rollouts(batch),
            loss__aggregation=aggregation,
        )
        learner, metrics = updated(twin, programs, params, batch)
        results.append((jax.device_get(learner.params), metrics))
    first, first_metrics = results[0]
    moved = [np.abs(a - b).max() for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(params), strict=True)]
    assert max(moved) > 1e-3
    for other, metrics in results[1:]:
        for left, right in zip(jax.tree.leaves(first), jax.tree.leaves(other), strict=True):
            # AdamW's first step has size learning_rate whatever the gradient's: 1e-6 is 1e-4 of it.
            np.testing.assert_allclose(left, right, atol=1e-6)
        for name in ("loss/policy", "gradient_norm/mean", "entropy/trained"):
            assert metrics[name] == pytest.approx(first_metrics[name], rel=1e-4, abs=1e-6)


def test_mini_batches_partition_the_batch_in_every_epoch(session, programs, params, batch, tiny_run, monkeypatch):
    from fr3e_jax.learning import update

    seen, original = [], update.update_on_mini_batch

    def noted(session, learner, mini_batch, *rest):
        seen.append(list(zip(mini_batch.members, mini_batch.trunks, strict=True)))
        return original(session, learner, mini_batch, *rest)

    monkeypatch.setattr(update, "update_on_mini_batch", noted)
    twin = tiny_run.changed(
        session, training__epochs=2, training__mini_batch_rollouts=7, training__micro_batch_tokens=8 * 256
    )
    ledger = TokenLedger()
    learner, metrics = updated(twin, programs, params, batch, ledger)
    assert learner.updates == metrics["updates"] == len(seen)
    for members in seen[:-1]:
        assert all(trunk is batch[index] for index, trunk in members)
    order = [index for members in seen for index, _ in members]
    epochs = order[: len(batch)], order[len(batch) :]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(len(batch)))
    assert epochs[0] != epochs[1], "every epoch has an order of its own"
    tokens = sum(len(branch.token_ids) for trunk in batch for branch in trunk.branches)
    assert ledger.loss_tokens == 2 * tokens
    forks = [[branch.fork for branch in trunk.branches] for trunk in batch]
    # A trunk passes once in each row that has branches of it.
    passed = ledger.trained_positions - 2 * tokens
    assert 2 * sum(map(max, forks)) <= passed < 2 * sum(map(sum, forks))
    assert ledger.padded_positions > ledger.trained_positions


def test_a_small_rest_of_a_batch_joins_the_last_mini_batch():
    sizes = lambda mini_batches: [count_rollouts([trunk for _, trunk in members]) for members in mini_batches]
    branch = TrainingBranch(1, np.array([1]), np.zeros(1), np.zeros(1))
    trunks = lambda *counts: [(i, TrainingTrunk(np.array([1]), [branch] * n, 1)) for i, n in enumerate(counts)]
    assert sizes(split_mini_batches(trunks(4, 4, 4, 4, 3), 8)) == [8, 11]
    assert sizes(split_mini_batches(trunks(4, 4, 4, 4, 4), 8)) == [8, 8, 4]
    assert sizes(split_mini_batches(trunks(5, 6, 6), 8)) == [11, 6], "groups are never cut"
    assert sizes(split_mini_batches(trunks(3), 8)) == [3]
    assert sizes(split_mini_batches([], 8)) == []


def test_the_ratio_is_one_until_the_first_update_and_moves_afterwards(session, programs, params, batch, tiny_run):
    everything = count_rollouts(batch)
    once = tiny_run.changed(session, training__mini_batch_rollouts=everything)
    _, metrics = updated(once, programs, params, batch)
    assert metrics["updates"] == 1
    assert metrics["ratio/mean"] == pytest.approx(1, abs=1e-5)
    assert metrics["clip/low"] == metrics["clip/high"] == 0
    advantages = np.concatenate([branch.advantages for trunk in batch for branch in trunk.branches])
    assert metrics["loss/policy"] == pytest.approx(-advantages.mean(), abs=1e-5)
    for settings in ({"training__epochs": 4, "training__mini_batch_rollouts": everything}, {}):
        twin = tiny_run.changed(session, **settings)
        _, metrics = updated(twin, programs, params, batch)
        assert metrics["updates"] > 1
        assert abs(metrics["ratio/mean"] - 1) > 1e-5
    assert metrics["logprob_gap/max"] < 1e-4, "the gap is of the weights that sampled"


@pytest.mark.parametrize("settings", [{}, {"training__epochs": 2}, {"training__mini_batch_rollouts": 1000}])
def test_the_first_mini_batch_needs_no_scoring_pass(session, programs, params, batch, tiny_run, monkeypatch, settings):
    """Its gradient pass has the old log-probs: weights and metrics are those of a scored batch, with fewer passes."""
    twin, passes, original = tiny_run.changed(session, **settings), [], programs.score
    monkeypatch.setattr(programs, "score", lambda *inputs: passes.append(0) or original(*inputs))
    found = {}
    for scored in (False, True):
        if scored:
            monkeypatch.setattr(update, "reads_old_logprobs", lambda config: True)
        passes.clear()
        cut = [copy.copy(trunk) for trunk in batch]
        cut[0].step = STEP - 1
        found[scored] = *updated(twin, programs, params, cut), len(passes)
    (ours, metrics, fewer), (theirs, expected, all_passes) = found[False], found[True]
    assert fewer < all_passes and (fewer == 0) == (metrics["updates"] == 1)
    assert {"logprob_gap/max", "sampler_ratio/carried", "sampler_ratio/fresh"} <= metrics.keys()
    assert metrics == pytest.approx(expected, rel=1e-4, abs=1e-5)
    for left, right in zip(jax.tree.leaves(ours.params), jax.tree.leaves(theirs.params), strict=True):
        np.testing.assert_allclose(left, right, atol=2e-6)


def test_the_gradient_pass_reports_a_log_prob_that_is_not_finite(session, programs, params, batch, tiny_run):
    broken = jax.tree.map(lambda leaf: leaf * np.float32(1e30), params)
    twin = tiny_run.changed(session, training__mini_batch_rollouts=1000)
    with pytest.raises(NonFiniteUpdate, match="the policy's log-probs are NaN or infinite for"):
        updated(twin, programs, broken, batch)


def test_clipped_tokens_are_counted(session, params, batch, tiny_run):
    twin = tiny_run.changed(session, training__epochs=4, optimizer__learning_rate=0.1)
    _, metrics = updated(twin, twin.model.train_programs(twin.config), params, batch)
    assert metrics["clip/low"] > 0.01 and metrics["clip/high"] > 0.01
    assert metrics["clip/low"] + metrics["clip/high"] <= 1


def test_a_non_finite_gradient_stops_with_the_values_found(session, programs, params, batch):
    broken = [copy.deepcopy(trunk) for trunk in batch]
    broken[-1].branches[0].advantages[0] = np.nan
    learner = learner_of(programs, params)
    with pytest.raises(NonFiniteUpdate) as caught:
        update_policy(session.learning, learner, STEP, broken, TokenLedger())
    message = str(caught.value)
    assert f"the loss of update {learner.updates} is nan" in message and "expected finite numbers" in message


@pytest.mark.parametrize(
    ("factor", "fault"),
    [(np.nan, "norm of the weights .* is nan"), (1e25, "norm of the weights .* is inf"), (1e10, "entropy .* is nan")],
)
def test_weights_that_give_no_distribution_are_found_before_they_are_saved(
    session, programs, params, batch, factor, fault
):
    """1e10 is finite, and so is the norm of such weights, but the squares of the activations overflow."""
    learner, _ = updated(session, programs, params, batch)
    check_weights(learner)
    learner.params = jax.tree.map(lambda leaf: leaf * np.float32(factor), learner.params)
    with pytest.raises(NonFiniteUpdate, match=fault):
        check_weights(learner)


def test_scores_that_are_not_finite_are_named(session, programs, params, batch):
    learner = learner_of(programs, params)
    learner.reference = jax.tree.map(lambda leaf: leaf * np.float32(np.nan), params)
    with pytest.raises(NonFiniteUpdate, match="the reference's log-probs are NaN or infinite for"):
        update_policy(session.learning, learner, STEP, batch, TokenLedger())
    assert learner.updates == 0
