"""Scores of each held-out problem from the stored samples of an evaluation.

Dimension key: P problems of a set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fr3e_jax.runs.rollout_store import RolloutRecord

GREEDY = 0  # `base` of the greedy answer; samples are 1, 2, ...
RIGHT = "right"
"""The score that is 1 where the greedy answer is right; its reward may be another number."""
Problem = tuple[str, int, str]
"""Set, place in it, and the problem's name with its gold answer: two tasks may give their problems the same names."""
ProblemScores = Mapping[Problem, float]
"""A score for each problem of each set."""


def problem_of(record: RolloutRecord) -> Problem:
    """The problem that a record answers."""
    return record.benchmark, record.prompt_position, f"{record.problem_id} {record.gold}"


def scores_of_problems(records: Iterable[RolloutRecord], metrics: Sequence[str]) -> dict[str, ProblemScores]:
    """Of each metric among ``greedy``, `RIGHT`, ``avg@k`` and ``pass@k`` that the samples allow, the problems' scores.

    ``greedy`` and ``avg@k`` are rewards, pass@k counts right answers (``outcome``), as in the metrics of an evaluation.
    ``avg`` and ``avg@k`` take all samples of a problem; ``avg`` takes the greedy answer where there is none. A metric
    of another name is left out.
    """
    from fr3e_jax.objectives.pass_at_k import pass_at_k  # jax loads slowly

    rewards: dict[Problem, dict[int, tuple[float, bool]]] = {}
    for record in records:
        rewards.setdefault(problem_of(record), {})[record.base] = (record.reward, record.outcome == "right")
    scores: dict[str, dict[Problem, float]] = {name: {} for name in metrics}
    for key, answers in rewards.items():
        samples = [answer for base, answer in answers.items() if base != GREEDY]
        right, count = sum(is_right for _, is_right in samples), len(samples)
        for name in metrics:
            kind, _, k = name.partition("@")
            if name == "greedy" and GREEDY in answers:
                scores[name][key] = answers[GREEDY][0]
            elif name == RIGHT and GREEDY in answers:
                scores[name][key] = float(answers[GREEDY][1])
            elif kind == "avg" and count and (not k or int(k) == count):
                scores[name][key] = float(np.mean([reward for reward, _ in samples]))
            elif name == "avg" and GREEDY in answers:  # of a set that takes no samples
                scores[name][key] = answers[GREEDY][0]
            elif kind == "pass" and k.isdecimal() and int(k) <= count:
                scores[name][key] = float(pass_at_k(count, right, int(k)))
    return {name: of_metric for name, of_metric in scores.items() if len(of_metric) == len(rewards) > 0}


def differences_by_set(pairs: Sequence[tuple[ProblemScores, ProblemScores]]) -> list[np.ndarray] | None:
    """The difference first − second on each problem, a mean over the pairs: for each set, an array ``[P]``.

    None if the pairs were not all scored on the same problems, or there is no pair.
    """
    keys = {frozenset(side) for pair in pairs for side in pair}
    if len(keys) != 1:
        return None
    sets: dict[str, list[float]] = {}
    for key in sorted(keys.pop()):
        sets.setdefault(key[0], []).append(float(np.mean([a[key] - b[key] for a, b in pairs])))
    return [np.array(each) for each in sets.values()]
