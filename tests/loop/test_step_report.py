"""Metrics and records of a step's rollouts."""

from __future__ import annotations

import numpy as np
import pytest

from fr3e_jax.configuration.schema import Config
from fr3e_jax.data.task import Problem
from fr3e_jax.learning.experience import TrainingBranch, TrainingTrunk
from fr3e_jax.loop.expansion import Credited, PromptGroup
from fr3e_jax.loop.rollout_entries import records_of
from fr3e_jax.loop.run_report import no_signal_message
from fr3e_jax.loop.step_report import (
    batch_metrics,
    entropies_of,
    moments,
    rollout_entries,
    rollout_metrics,
    token_metrics,
)
from fr3e_jax.rollouts.requests import Rollout


def rollout_of(length: int, entropy: float, finished: bool = True) -> Rollout:
    ids = np.arange(length, dtype=np.int32) + 2
    floats = np.full(length, entropy, np.float32)
    return Rollout(ids, -floats, floats, floats, finished)


def group_of(position: int, rewards: list[float], lengths: list[int], kept: bool) -> PromptGroup:
    rollouts = [rollout_of(n, 0.5 * n, finished=n < 4) for n in lengths]
    problem = Problem(f"p{position}", "1=", "1")
    return PromptGroup(position, problem, np.array([3, 4], np.int32), rollouts, np.array(rewards), kept)


@pytest.fixture
def groups() -> list[PromptGroup]:
    mixed = group_of(7, [1, 0], [4, 2], kept=True)
    mixed.chosen = [0]
    return [mixed, group_of(8, [1, 1], [1, 1], kept=False), group_of(9, [0, 0], [3, 3], kept=False)]


@pytest.fixture
def expansions(groups) -> list[Credited]:
    first = Credited(
        group=groups[0],
        base=0,
        anchors=[1, 3],
        states=[1, 2],
        forks=[1, 3],
        rollouts=[[rollout_of(2, 1.0), rollout_of(4, 1.0)], [rollout_of(1, 1.0), rollout_of(1, 1.0, False)]],
        rewards=[np.array([1.0, 0.0]), np.array([1.0, 1.0])],
        outcomes=[["right", "wrong"], ["right", "right"]],
        values=np.array([0.5, 1.0]),
        alphas=np.array([1.0, 0.6]),
        advantages=[np.array([0.5, -0.5]), np.array([0.0, 0.0])],
        initial_value=0.5,
        trained=[True, False],
        block_credit=[0.0, 0.0, 0.0],
    )
    short = Credited(
        group=groups[0],
        base=1,
        anchors=[1],
        states=[1],
        forks=[1],
        rollouts=[[rollout_of(3, 1.0), rollout_of(1, 1.0)]],
        rewards=[np.array([0.0, 0.0])],
        outcomes=[["wrong", "wrong"]],
        values=np.array([0.0]),
        alphas=np.array([1.7]),
        advantages=[np.zeros(2)],
        initial_value=0.5,
        trained=[False],
        block_credit=[0.0, 0.0],
    )
    return [first, short]


def test_means_and_counts_of_base_and_explored_rollouts(groups, expansions):
    metrics = rollout_metrics(groups, expansions)
    expected = {
        "reward/mean": (0.5 + 1 + 0) / 3,
        "length/mean": 14 / 6,
        "length/finished": 5 / 6,
        "prompts/kept": 1,
        "prompts/rejected": 2,
        "prompts/expanded": 1,
        "base_groups/all_right": 1,
        "base_groups/all_wrong": 1,
        "base_groups/mixed": 1,
        "explore/reward": 3 / 6,
        "explore/length": 12 / 6,
        "explore/anchor_position": (1 / 4 + 3 / 4 + 1 / 2) / 3,
        "value/S_0": 0.5,
        "value/S_1": 0.25,
        "value/S_2": 1.0,
        "alpha/mean": 3.3 / 3,
        "alpha/min": 0.6,
        "alpha/max": 1.7,
        "state_groups/all_right": 1,
        "state_groups/all_wrong": 1,
        "state_groups/mixed": 1,
    }
    assert {name: float(metrics[name]) for name in expected} == pytest.approx(expected)
    assert not any(name.startswith(("explore", "value", "alpha", "state")) for name in rollout_metrics(groups, []))


def test_groups_are_counted_by_verdicts_and_not_by_graded_rewards(groups, expansions):
    """A partial reward is no success; the verifier may accept a response for less than the full reward."""
    groups[0].rewards, groups[0].outcomes = np.array([0.9, 0.4]), ["wrong", "wrong"]
    groups[1].rewards, groups[1].outcomes = np.array([0.8, 0.6]), ["right", "right"]
    expansions[1].rewards[0][:] = [0.5, 0.5]
    expansions[1].outcomes[0][:] = ["right", "wrong"]
    metrics = rollout_metrics(groups, expansions)
    kinds = ("all_right", "all_wrong", "mixed")
    assert [metrics[f"base_groups/{kind}"] for kind in kinds] == [1, 2, 0]
    assert [metrics[f"state_groups/{kind}"] for kind in kinds] == [1, 0, 2]


def test_the_message_of_rounds_without_signal_tells_hard_problems_from_easy_ones(groups, expansions):
    message = no_signal_message(Config(), groups, [], 2)
    assert message.startswith("2 rounds in a row gave nothing to train on; of 3 prompts 1 were all right, 1 all wrong")
    assert "too hard" in message and "explore" not in message
    assert "choose harder ones" in no_signal_message(Config(), groups[:2], [], 1)
    message = no_signal_message(Config(), groups, expansions, 1)
    assert "; 2 of 3 explored states were all right or all wrong" in message and "explore.train_base=true" in message


def test_a_batch_without_a_trained_token_has_no_advantages():
    branch = TrainingBranch(1, np.zeros(2, np.int32), *np.ones((2, 2), np.float32), loss_mask=np.zeros(2, bool))
    metrics = token_metrics([(moments([]), moments([branch.trained(branch.advantages)]))])
    assert metrics == {"advantage/mean": 0, "advantage/std": 0, "advantage/max_abs": 0}


def test_a_step_that_sampled_nothing_reports_counts_alone():
    assert rollout_metrics([], []) == {"prompts/kept": 0, "prompts/rejected": 0, "prompts/expanded": 0}


@pytest.mark.parametrize("processes", [1, 2, 5])
def test_means_over_tokens_are_those_of_the_parts_of_all_processes(processes, groups):
    """Of tokens, not of responses; a process may have none. Values that are equal have no spread at all."""
    entropies, advantages = entropies_of(groups), [np.float32(row) for row in ([0.1], [-2.5, 3], [], [0.7, 0.1])]
    of = lambda arrays: [moments(arrays[n::processes]) for n in range(processes)]
    metrics = token_metrics(list(zip(of(entropies), of(advantages), strict=True)))
    values = np.concatenate(advantages).astype(np.float64)
    expected = {
        "entropy/mean": 0.5 * (16 + 4 + 1 + 1 + 9 + 9) / 14,
        "advantage/mean": values.mean(),
        "advantage/std": values.std(),
        "advantage/max_abs": 3,
    }
    assert metrics == pytest.approx(expected, rel=1e-6)
    constant = of([np.full(3, 0.1, np.float32)] * processes)
    assert token_metrics([(moments([]), part) for part in constant])["advantage/std"] == 0


@pytest.mark.parametrize("written", [(), (7,), (7, 7, -9)])
def test_advantage_statistics_are_over_trained_tokens_and_carried_rollouts_are_counted(written):
    """A tool wrote the tokens ``written``, here the last ones of a response."""

    def branch(*advantages, written=()):
        values = np.array([*advantages, *written], np.float32)
        mask = np.arange(len(values)) < len(advantages) if written else None
        return TrainingBranch(1, np.zeros(len(values), np.int32), values, values, loss_mask=mask)

    trunk = np.zeros(1, np.int32)
    batch = [
        TrainingTrunk(trunk, [branch(1, 1, 1, written=written), branch(-2)], 3),
        TrainingTrunk(trunk, [branch(0, 0)], 2),
    ]
    advantages = [branch.trained(branch.advantages) for trunk in batch for branch in trunk.branches]
    assert batch_metrics(batch, 3) | token_metrics([(moments([]), moments(advantages))]) == pytest.approx(
        {
            "advantage/mean": 1 / 6,
            "advantage/std": np.std([1, 1, 1, -2, 0, 0]),
            "advantage/max_abs": 2,
            "batch/rollouts": 3,
            "batch/trunks": 2,
            "batch/carried_rollouts": 1,
            "batch/age_mean": 1 / 3,
            "batch/age_max": 1,
            "batch/age_share_0": 2 / 3,
            "batch/age_share_1": 1 / 3,
            "batch/age_share_2_or_more": 0,
        }
    )


def test_the_age_of_a_batch_counts_rollouts_and_not_trunks():
    """Ages 0, 1, 1, 1, 4, of five rollouts on three trunks."""

    def trunk(step, branches):
        values = np.zeros(2, np.float32)
        own = [TrainingBranch(1, np.zeros(2, np.int32), values, values) for _ in range(branches)]
        return TrainingTrunk(np.zeros(1, np.int32), own, step)

    metrics = batch_metrics([trunk(9, 1), trunk(8, 3), trunk(5, 1)], 9)
    replayed = trunk(9, 2)
    replayed.branches[1].step = 7
    ages = batch_metrics([replayed], 9)
    assert (ages["batch/carried_rollouts"], ages["batch/age_max"], ages["replay/trained_tokens"]) == (1, 2, 2)
    names = ("mean", "max", "share_0", "share_1", "share_2_or_more")
    assert [metrics[f"batch/age_{name}"] for name in names] == pytest.approx([7 / 5, 4, 0.2, 0.6, 0.2])


def test_records_link_states_to_their_bases(groups, expansions):
    groups[0].advantages = np.array([0.25, -0.25])
    records = list(records_of(rollout_entries(5, groups, expansions)))
    assert [record.id for record in records] == [
        *["5/7/0", "5/7/0/1/0", "5/7/0/1/1", "5/7/0/2/0", "5/7/0/2/1", "5/7/1", "5/7/1/1/0", "5/7/1/1/1"],
        *["5/8/0", "5/8/1", "5/9/0", "5/9/1"],
    ]
    by_id = {record.id: record for record in records}
    base, state = by_id["5/7/0"], by_id["5/7/0/2/1"]
    assert (base.kind, base.anchors, base.kept, base.advantage, base.value) == ("base", [1, 3], True, 0.25, 0.5)
    assert (state.kind, state.parent, state.fork, state.state, state.branch, state.base) == (
        "state",
        base.id,
        3,
        2,
        1,
        0,
    )
    assert (state.reward, state.value, state.alpha, state.finished) == (1.0, 1.0, 0.6, False)
    assert (state.kept, state.advantage) == (False, None), "its group is all right and trains nothing"
    assert by_id["5/7/0/1/1"].advantage == -0.5 and by_id["5/7/0/1/1"].kept
    assert (by_id["5/9/1"].kept, by_id["5/9/1"].advantage) == (False, None)
    for record in records:
        assert (record.step, list(record.prompt_ids)) == (5, [3, 4])
        assert record.problem_id == f"p{record.prompt_position}"
