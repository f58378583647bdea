"""The same held-out problems under the runs of a comparison: who solves what, and the answers side by side."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from fr3e_jax.studies.analysis.comparison import Comparison
from fr3e_jax.studies.analysis.figure import TextTable
from fr3e_jax.studies.analysis.held_out_scores import GREEDY, RIGHT, Problem, ProblemScores, problem_of
from fr3e_jax.studies.analysis.run_groups import ComparedRun

SOLVED = 0.5  # least score of a solved problem
LONGEST_TEXT = 4000  # characters of an answer or a question


def problem_table(comparison: Comparison) -> TextTable | None:
    """A row for each pair of runs of one seed, the baseline's and another group's: a 2×2 table, and McNemar's test.

    A problem is solved if its greedy answer is right; without greedy answers, if its score is at least one half.
    """
    rows, label = [], comparison.baseline.label
    for group in comparison.groups:
        for run in group.runs if group is not comparison.baseline else ():
            other = next((base for base in comparison.baseline.runs if base.seed == run.seed), None)
            ours, theirs = solved(comparison, run), solved(comparison, other) if other else {}
            if not ours or ours.keys() != theirs.keys():
                continue
            pairs = [(theirs[key], ours[key]) for key in ours]
            counts = [pairs.count(pair) for pair in ((True, True), (True, False), (False, True), (False, False))]
            rows.append([group.label, str(run.seed), *map(str, counts), f"{mcnemar(counts[1], counts[2]):.3g}"])
    if not rows:
        return None
    return TextTable(
        name="problems",
        title=f"Problem by problem, against {label}",
        columns=["group", "seed", "both solve", f"only {label}", "only the group", "neither", "p"],
        cells=rows,
        note="Held-out problems of the last evaluation. p: exact two-sided McNemar test (1947) of the problems that "
        "one of the two runs alone solves; it holds for these two runs, not for other seeds.",
    )


def mcnemar(only_first: int, only_second: int) -> float:
    """The exact two-sided p of so many problems that only the first and only the second solves; 1 without any."""
    n, least = only_first + only_second, min(only_first, only_second)
    return min(1.0, 2 * sum(math.comb(n, k) for k in range(least + 1)) / 2**n)


def solved(comparison: Comparison, run: ComparedRun) -> dict[Problem, bool]:
    """Problem → whether the run solves it at its last evaluation; empty without stored samples."""
    of_run = comparison.problem_scores.get(id(run), {})
    scores: ProblemScores = of_run.get(RIGHT) or of_run.get(comparison.metric) or {}
    return {key: score >= SOLVED for key, score in scores.items()}


def side_by_side(comparison: Comparison, most_characters: int) -> list[dict[str, Any]]:
    """The problems that a run of several groups answered, with the answers, as many as the limit allows.

    Problems that some solve and some do not come first. Each group shows its first run with stored samples.
    """
    runs = [next((run for run in group.runs if solved(comparison, run)), None) for group in comparison.groups]
    verdicts = [solved(comparison, run) if run else {} for run in runs]
    problems: dict[Problem, dict[str, Any]] = {}
    for i, run in enumerate(runs):
        for key, text in _answers(comparison, run) if run else ():
            row = problems.setdefault(key, {"answers": [None] * len(runs)})
            row |= {name: text.pop(name) or row.get(name, "") for name in ("name", "question", "gold")}
            row["answers"][i] = text | {"solved": verdicts[i].get(key)}
    rows = [row for row in problems.values() if sum(answer is not None for answer in row["answers"]) > 1]
    rows.sort(key=lambda row: len({answer["solved"] for answer in row["answers"] if answer}) < 2)
    left = most_characters
    for count, row in enumerate(rows):
        left -= len(row["question"]) + sum(len(answer["response"]) for answer in row["answers"] if answer)
        if left < 0:
            return rows[:count]
    return rows


def _answers(comparison: Comparison, run: ComparedRun) -> Iterator[tuple[Problem, dict[str, Any]]]:
    """The greedy answer to each problem, or the first sample, and how many samples are right."""
    curve = run.curves.curve(comparison.metric)
    answers: dict[Problem, list] = {}
    for record in run.run.rollouts(int(curve.steps[-1]), "eval") if curve is not None else ():
        answers.setdefault(problem_of(record), []).append(record)
    for key, records in answers.items():
        shown = min(records, key=lambda record: record.base)
        samples = [record.outcome == "right" for record in records if record.base != GREEDY]
        yield (
            key,
            {
                "name": ": ".join(filter(None, (shown.benchmark, shown.problem_id))),  # as the report of a run has it
                "question": (shown.prompt or shown.problem_id)[:LONGEST_TEXT],
                "gold": shown.gold,
                "response": shown.response[:LONGEST_TEXT],
                "outcome": shown.outcome,
                "finished": shown.finished,
                "right": sum(samples),
                "samples": len(samples),
            },
        )
