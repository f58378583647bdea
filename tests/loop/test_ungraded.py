"""Responses whose judge failed: baselines, values and losses are those of groups that never had them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fr3e_jax.loop.expansion import Explored, PromptGroup, anchored_at
from fr3e_jax.loop.explore import anchor_rules, assign_advantages, explored_trunks
from fr3e_jax.loop.first_return import _has_signal, base_trunks, choose_bases
from fr3e_jax.loop.kept_bases import KeptBases, credit_visits
from fr3e_jax.loop.step_report import rollout_entries, rollout_metrics
from fr3e_jax.loop.success_rates import SuccessRates
from fr3e_jax.problem import Problem
from fr3e_jax.rollouts.requests import Rollout

LOST = ("judge_unreachable", "judge_timeout", "judge_unparseable")


def rollout_of(length: int) -> Rollout:
    zeros = np.zeros(length, np.float32)
    return Rollout(np.full(length, 5, np.int32), zeros, zeros, zeros, finished=True)


def group_of(rewards, lost=(), **fields) -> PromptGroup:
    """A prompt's group; ``lost``: the rollouts that have no verdict."""
    outcomes = [LOST[n % 3] if n in lost else "right" if reward == 1 else "wrong" for n, reward in enumerate(rewards)]
    problem, ids = Problem("p", "1=", "1"), np.array([3, 4], np.int32)
    rollouts = [rollout_of(3 + n) for n in range(len(rewards))]
    return PromptGroup(7, problem, ids, rollouts, np.array(rewards, float), outcomes=outcomes, **fields)


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "mean", "maxrl", "pass_at_k", "reward", "own"])
def test_base_rollouts_train_as_if_the_lost_ones_had_not_been_sampled(session, tiny_run, estimator, tmp_path):
    own = tmp_path / "own.py"
    own.write_text(
        "def f(rewards, outcomes, lengths):\n    return rewards - rewards.mean() + len(outcomes) * lengths\n"
    )
    name = f"{own}:f" if estimator == "own" else estimator
    twin = tiny_run.changed(session, advantage__base_estimator=name, explore__enabled=False)
    whole, lossy = group_of([1, 0, 0.5, 1]), group_of([1, 0, 0, 0.5, 0, 1], lost=(2, 4))
    lossy.rollouts = [whole.rollouts[n] for n in (0, 1, 0, 2, 1, 3)]
    (wanted,), (found,) = (base_trunks(twin.config, 1, [group]) for group in (whole, lossy))
    assert len(found.branches) == 4
    for one, other in zip(found.branches, wanted.branches, strict=True):
        np.testing.assert_array_equal(one.advantages, other.advantages)
        np.testing.assert_array_equal(one.token_ids, other.token_ids)


def test_groups_are_judged_by_what_is_graded(session, tiny_run):
    config = session.config
    assert _has_signal(config, group_of([1, 0, 0], lost=(2,)))
    assert not _has_signal(config, group_of([1, 0, 1], lost=(1,))), "the 0 is no reward"
    keeping = tiny_run.changed(session, rollout__reject_degenerate=False).config
    assert _has_signal(keeping, group_of([1, 0, 1], lost=(1,))) and not _has_signal(
        keeping, group_of([0, 0], lost=(0, 1))
    )
    group = group_of([1, 0, 0, 0], lost=(1, 2))
    assert choose_bases(replace(config.explore, max_wrong=9), session.noise, 1, group) == [0, 3]
    assert group.mean_reward == group.success_rate == 0.5 and group_of([0], lost=(0,)).mean_reward == 0
    rates = SuccessRates()
    rates.observe([group])
    assert rates.counts == {"p": [1.0, 2.0]}


def explored_of(session, rows, lost, anchors=(1, 2)) -> Explored:
    """A base with a state at each anchor; ``rows``: rewards; ``lost``: (state, rollout) without a verdict."""
    group = group_of([1, 0], chosen=[0])
    anchored = anchored_at(group, 0, list(anchors), anchor_rules(session.config.explore), fresh=False)
    outcomes = [
        [LOST[0] if (i, m) in lost else "right" if reward == 1 else "wrong" for m, reward in enumerate(row)]
        for i, row in enumerate(rows)
    ]
    rollouts = [[rollout_of(4) for _ in row] for row in rows]
    return Explored(
        **vars(anchored), rollouts=rollouts, rewards=[np.array(row, float) for row in rows], outcomes=outcomes
    )


@pytest.mark.parametrize("estimator", ["mean", "grpo", "tree"])
def test_states_have_the_values_and_advantages_of_their_graded_rollouts(session, tiny_run, estimator):
    config = tiny_run.changed(session, advantage__state_estimator=estimator).config
    whole = explored_of(session, [[1, 0, 0.5], [0, 1, 1]], ())
    lossy = explored_of(session, [[0, 1, 0, 0, 0.5], [0, 0, 0, 1, 1]], {(0, 0), (0, 3), (1, 1), (1, 2)})
    (wanted,), (found,) = (
        assign_advantages(replace(config.explore, rollouts_per_state=count), config.advantage, [each])
        for each, count in ((whole, 3), (lossy, 5))
    )
    np.testing.assert_array_equal(found.values, wanted.values)
    np.testing.assert_array_equal(found.block_credit, wanted.block_credit)
    (one,), (other,) = (explored_trunks(config.explore, 1, [each]) for each in (found, wanted))
    assert [b.advantages[0] for b in one.branches] == [b.advantages[0] for b in other.branches]
    stored = list(rollout_entries(1, [lossy.group], [found]))
    lost = [entry.fields for entry in stored if entry.fields["outcome"] in LOST]
    assert len(lost) == 4 and all(fields["advantage"] is None for fields in lost), "they are stored, and do not train"


def test_a_state_or_a_prompt_without_any_verdict_trains_nothing_and_is_counted_nowhere(session, tiny_run):
    config = tiny_run.changed(session, explore__rollouts_per_state=2).config
    (found,) = assign_advantages(
        config.explore, config.advantage, [explored_of(session, [[0, 0], [1, 0]], {(0, 0), (0, 1)})]
    )
    assert found.trained == [False, True] and len(explored_trunks(config.explore, 1, [found])[0].branches) == 2
    metrics = rollout_metrics([group_of([1, 0]), group_of([0, 0], lost=(0, 1))], [found])
    assert metrics["reward/mean"] == 0.5 and metrics["explore/reward"] == 0.5
    assert [metrics[f"base_groups/{kind}"] for kind in ("all_right", "all_wrong", "mixed")] == [0, 0, 1]
    assert [metrics[f"state_groups/{kind}"] for kind in ("all_right", "all_wrong", "mixed")] == [0, 0, 1]
    assert "value/S_1" not in metrics and metrics["value/S_2"] == 0.5
    assert "reward/mean" not in rollout_metrics([group_of([0], lost=(0,))], [])
    values = [entry.fields["value"] for entry in rollout_entries(1, [], [replace(found, parent="1/7/0")])]
    assert values == [None, None, 0.5, 0.5]
    silent = explored_of(session, [[0, 0]], {(0, 0), (0, 1)}, anchors=(2,))
    (none,) = assign_advantages(config.explore, config.advantage, [silent])
    assert "explore/reward" not in rollout_metrics([group_of([1, 0])], [none])
    (entry,) = rollout_entries(1, [group_of([0], lost=(0,))], [])
    assert entry.fields["value"] is None


@pytest.mark.parametrize("estimator", ["mean", "tree"])
def test_blocks_of_a_base_end_at_states_with_verdicts_alone(session, tiny_run, estimator):
    changes = {"advantage__state_estimator": estimator, "explore__block_credit": True, "explore__train_base": False}
    config = tiny_run.changed(session, explore__rollouts_per_state=2, **changes).config
    lossy = explored_of(session, [[0, 0], [1, 0]], {(0, 0), (0, 1)})
    without = explored_of(session, [[1, 0]], (), anchors=(2,))
    found, wanted = (
        explored_trunks(config.explore, 1, assign_advantages(config.explore, config.advantage, [each]))[0].branches[-1]
        for each in (lossy, without)
    )
    assert len(found.token_ids) == 3 and np.any(wanted.advantages)
    np.testing.assert_array_equal(found.advantages, wanted.advantages)


def test_kept_bases_learn_from_graded_rollouts_alone(session, tiny_run):
    config = tiny_run.changed(session, returns__size=4, returns__failures=True, returns__max_success_rate=0.5).config
    kept = KeptBases(config.returns)
    kept.add(1, [group_of([0, 0, 1], lost=(0,)), group_of([0, 0], lost=(0, 1))])
    assert [base.parent for base in kept.bases] == ["1/7/2"] and kept.wasted_share == 0, "nothing is lost or wasted"
    assert kept.fresh_tokens == (3 + 4 + 5) + (3 + 4), "tokens without a verdict are sampled tokens"
    whole, lossy = explored_of(session, [[1, 0], [0, 0]], ()), explored_of(session, [[1, 0], [0, 0]], {(1, 0), (1, 1)})
    (wanted,), (found,) = credit_visits([whole], config.advantage), credit_visits([lossy], config.advantage)
    assert found.trained == wanted.trained == [True, False]
    assert credit_visits([whole], config.advantage, taught=True)[0].trained == [True, True]
    np.testing.assert_array_equal(found.advantages[0], wanted.advantages[0])
