"""Metrics of a step's rollouts, and their records for later analysis."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, get_args

import numpy as np

from fr3e_jax.learning.experience import TrainingTrunk
from fr3e_jax.loop.expansion import Credited, PromptGroup, are_graded, are_right, graded_mean, mean_reward
from fr3e_jax.loop.rollout_entries import Entry
from fr3e_jax.session.grading import ResponseGrader
from fr3e_jax.session.sampler import Sampler
from fr3e_jax.verdict import UNGRADED, Outcome


def rollout_metrics(groups: list[PromptGroup], credited: list[Credited]) -> dict[str, float]:
    """Means over the base rollouts of all prompts, rejected ones included, and over explored rollouts.

    A step that sampled nothing, because carried trunks filled its batch, has only counts.
    """
    if not groups:
        return {"prompts/kept": 0, "prompts/rejected": 0, "prompts/expanded": 0}
    base = [rollout for group in groups for rollout in group.rollouts]
    reward = mean_reward(groups)
    metrics = {
        **({} if reward is None else {"reward/mean": reward}),
        "length/mean": float(np.mean([len(r.token_ids) for r in base])),
        "length/finished": float(np.mean([r.finished for r in base])),
        "prompts/kept": sum(group.kept for group in groups),
        "prompts/rejected": sum(not group.kept for group in groups),
        "prompts/expanded": sum(bool(group.chosen) for group in groups),
    } | _right_and_wrong("base", [group.right[group.graded] for group in groups])
    if len(counts := {len(group.rollouts) for group in groups}) > 1:
        metrics |= {"prompts/least_rollouts": min(counts), "prompts/most_rollouts": max(counts)}
    if credited:
        metrics |= _exploration_metrics(credited)
    return metrics


def entropies_of(groups: list[PromptGroup]) -> list[np.ndarray]:
    """Of each base rollout the entropies of the tokens that the policy chose."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    return [r.entropies if r.tool_written is None else r.entropies[~r.tool_written] for r in rollouts]


Moments = tuple[int, float, float, float]
"""Of values: their number, mean, sum of squared deviations from it, and largest size."""


def moments(arrays: Sequence[np.ndarray]) -> Moments:
    """Moments of the values in all arrays; JSON content, so that processes can join theirs."""
    if not sum(map(len, arrays)):
        return 0, 0.0, 0.0, 0.0
    values = np.concatenate([np.asarray(array) for array in arrays])
    mean = float(values.mean(dtype=np.float64))
    return len(values), mean, float(np.square(values - mean).sum(dtype=np.float64)), float(np.abs(values).max())


def joined(parts: Sequence[Moments]) -> Moments:
    """Moments of the values of all parts."""
    count = sum(part[0] for part in parts)
    mean = math.fsum(size * part_mean for size, part_mean, *_ in parts) / max(count, 1)
    squares = math.fsum(part[2] + part[0] * (part[1] - mean) ** 2 for part in parts)
    return count, mean, squares, max(part[3] for part in parts)


def token_metrics(parts: Sequence[tuple[Moments, Moments]]) -> dict[str, float]:
    """Metrics over tokens: the entropy of base rollouts, and the advantages of what trains.

    ``parts``: of each process the moments of its entropies and of its advantages.
    """
    entropies, (count, mean, squares, largest) = (joined(column) for column in zip(*parts, strict=True))
    metrics = {"entropy/mean": entropies[1]} if entropies[0] else {}
    spread = math.sqrt(squares / max(count, 1))
    return metrics | {"advantage/mean": mean, "advantage/std": spread, "advantage/max_abs": largest}


def _right_and_wrong(name: str, right: list[np.ndarray]) -> dict[str, float]:
    """Numbers of groups by the verdicts on their rollouts (FR3E, figure 5); ``right``: bool ``[M]`` of each group."""
    right = [r for r in right if len(r)]  # a group without a verdict is none of these
    all_right, all_wrong = sum(bool(r.all()) for r in right), sum(not r.any() for r in right)
    return {
        f"{name}_groups/all_right": all_right,
        f"{name}_groups/all_wrong": all_wrong,
        f"{name}_groups/mixed": len(right) - all_right - all_wrong,
    }


def _exploration_metrics(credited: list[Credited]) -> dict[str, float]:
    explored = [r for base in credited for state in base.rollouts for r in state]
    start = {"value/S_0": float(np.mean([e.initial_value for e in credited]))}
    if not explored:  # with block credit, a base without an anchor trains as one step
        return start | _right_and_wrong("state", [])
    rewards = np.concatenate([row for e in credited for row in e.rewards])
    outcomes = [outcome for e in credited for row in e.outcomes for outcome in row]
    metrics = {
        **({"explore/reward": graded_mean(rewards, graded)} if (graded := are_graded(outcomes)).any() else {}),
        "explore/length": float(np.mean([len(r.token_ids) for r in explored])),
        "explore/anchor_position": float(
            np.mean([a / len(e.rollout.token_ids) for e in credited for a in e.anchors] or [0.0])
        ),
    } | start
    alphas = np.concatenate([e.alphas for e in credited])
    metrics |= {"alpha/mean": alphas.mean(), "alpha/min": alphas.min(), "alpha/max": alphas.max()}
    for state in sorted({s for e in credited for s in e.states if s > 0}):
        members = [(e, e.states.index(state)) for e in credited if state in e.states]
        if values := [e.values[i] for e, i in members if e.graded_states[i]]:
            metrics[f"value/S_{state}"] = float(np.mean(values))
    return metrics | _right_and_wrong(
        "state", [are_right(row)[are_graded(row)] for e in credited for row in e.outcomes]
    )


def grading_metrics(grader: ResponseGrader) -> dict[str, float]:
    """Counts of verdict outcomes since the last call, means of rewards, and the seconds of waiting for verdicts."""
    outcomes = grader.take_outcomes()
    judge = grader.take_judge_counts()
    names = [name for name in get_args(Outcome) if judge or name not in UNGRADED]
    metrics = {f"verifier/{name}": outcomes[name] for name in names} | judge
    return metrics | grader.take_reward_means() | {"seconds/grading_wait": grader.take_wait_seconds()}


def tool_metrics(sampler: Sampler, groups: list[PromptGroup], credited: list[Credited]) -> dict[str, float]:
    """Metrics of the tools or the environment, from the step's rollouts."""
    if sampler.toolbox is None:
        return {}
    rollouts = [r for group in groups for r in group.rollouts]
    return sampler.toolbox.metrics(rollouts + [r for base in credited for state in base.rollouts for r in state])


def batch_metrics(batch: list[TrainingTrunk], step: int) -> dict[str, float]:
    """Numbers of rollouts and trunks, and the ages of the rollouts.

    The age of a rollout is the number of steps since the one that sampled it.
    """
    branches = [branch for trunk in batch for branch in trunk.branches]
    ages = np.array([step - trunk.sampled(branch) for trunk in batch for branch in trunk.branches])
    replayed = [branch.loss_tokens for branch in branches if branch.step is not None]
    return ({"replay/trained_tokens": sum(replayed)} if replayed else {}) | {
        "batch/rollouts": len(branches),
        "batch/trunks": len(batch),
        "batch/carried_rollouts": int((ages > 0).sum()),
        "batch/age_mean": float(ages.mean()),
        "batch/age_max": int(ages.max()),
        "batch/age_share_0": float((ages == 0).mean()),
        "batch/age_share_1": float((ages == 1).mean()),
        "batch/age_share_2_or_more": float((ages >= 2).mean()),
    }


def rollout_entries(step: int, groups: list[PromptGroup], credited: list[Credited]) -> Iterator[Entry]:
    """The rollouts of a step. Explored rollouts follow their base; those from kept bases come last."""
    by_base = {(e.group.position, e.base): e for e in credited if not e.parent}
    for group in groups:
        mean_reward = group.mean_reward if group.graded.any() else None
        for n, rollout in enumerate(group.rollouts):
            expanded = by_base.get((group.position, n))
            parent, common = f"{step}/{group.position}/{n}", _common(step, group, n)
            fields = {
                "id": parent,
                "kind": "base",
                "reward": float(group.rewards[n]),
                "outcome": group.outcomes[n],
                "anchors": expanded.anchors if expanded else [],
                "kept": group.kept,
                "advantage": float(group.advantages[n]) if group.advantages is not None and group.trains(n) else None,
                "value": mean_reward,
            }
            yield Entry(common | fields, rollout, group.problem.gold)
            if expanded:
                yield from _state_entries(parent, common, expanded)
    for expanded in credited:
        if expanded.parent:
            yield from _state_entries(expanded.parent, _common(step, expanded.group, expanded.base_number), expanded)


def _common(step: int, group: PromptGroup, base: int) -> dict[str, Any]:
    return {
        "step": step,
        "prompt_position": group.position,
        "problem_id": group.problem.id,
        "prompt_ids": group.prompt_ids,
        "base": base,
    }


def _state_entries(parent: str, common: dict[str, Any], credited: Credited) -> Iterator[Entry]:
    for i, state in enumerate(credited.states):
        prefix = credited.rollout.token_ids[: credited.forks[i]]
        for m, rollout in enumerate(credited.rollouts[i]):
            trains = credited.trained[i] and credited.outcomes[i][m] not in UNGRADED
            fields = {
                "id": f"{parent}/{common['step']}/{state}/{m}" if credited.parent else f"{parent}/{state}/{m}",
                "kind": "state",
                "reward": float(credited.rewards[i][m]),
                "outcome": credited.outcomes[i][m],
                "state": state,
                "branch": m,
                "parent": parent,
                "fork": credited.forks[i],
                "kept": credited.trained[i],
                "advantage": float(credited.advantages[i][m]) if trains else None,
                "value": float(credited.values[i]) if credited.graded_states[i] else None,
                "alpha": float(credited.alphas[i]),
            }
            yield Entry(common | fields, rollout, credited.group.problem.gold, prefix)
