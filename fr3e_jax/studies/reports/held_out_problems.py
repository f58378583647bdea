"""The same held-out problems at every evaluation: who was solved when, and the samples of some of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fr3e_jax.runs.rollout_parts import rollout_path, stored_bytes
from fr3e_jax.runs.rollout_store import RolloutRecord
from fr3e_jax.studies.analysis.stored_run import StoredRun
from fr3e_jax.studies.reports.embedding import embed
from fr3e_jax.studies.reports.prompt_sampling import Budget, chosen_steps, evenly, priority
from fr3e_jax.studies.reports.rollout_trees import prompt_tree

Problem = tuple[str, int]
"""Name of the benchmark, and place in its split."""
COURSES = ("learned", "forgotten", "changing", "solved", "unsolved")
"""Courses of a problem's greedy answer over the evaluations, the most telling first."""


def held_out_problems(run: StoredRun, budget: Budget, used_ids: set[int]) -> tuple[dict[str, Any] | None, list[str]]:
    """The table of problems by evaluation, and an embedded chunk of samples for each problem that has one.

    Args:
      run: its evaluation samples are read; the first result is None if there are none.
      budget: bounds what is read and the size of the chunks.
      used_ids: gets the token ids of the chunks.
    """
    sizes = {step: stored_bytes(rollout_path(run.directory, step, stem="eval")) for step in run.steps("eval")}
    steps = chosen_steps(sizes, Budget(read_bytes=budget.read_bytes // 4, seed=budget.seed))
    steps = evenly(steps, budget.evaluations)
    results: dict[Problem, dict[int, list[tuple[int, bool]]]] = {}
    questions: dict[Problem, str] = {}
    for step in steps:
        for record in run.rollouts(step, "eval"):
            key = (record.benchmark, record.prompt_position)
            questions.setdefault(key, record.problem_id)
            results.setdefault(key, {}).setdefault(step, []).append((record.base, record.outcome == "right"))
    if not results:
        return None, []
    courses = {key: _course(rows) for key, rows in results.items()}
    order = sorted(results, key=lambda key: (COURSES.index(courses[key]), priority(budget.seed, *key)))
    chunks = _chunks(run, steps, _in_turns(order, courses), budget, used_ids)
    place = {key: number for number, key in enumerate(chunks)}
    table = {
        "steps": steps,
        "stored_steps": len(sizes),
        "problems": [
            {
                "benchmark": key[0],
                "index": key[1],
                "problem": questions[key],
                "course": courses[key],
                "greedy": [_greedy(results[key].get(step, [])) for step in steps],
                "right": [_sampled_right(results[key].get(step, [])) for step in steps],
                "chunk": place.get(key),
            }
            for key in order[: budget.problems]
        ],
        "stored_problems": len(order),
    }
    return table, list(chunks.values())


def _greedy(answers: list[tuple[int, bool]]) -> bool | None:
    return next((right for sample, right in answers if sample == 0), None)


def _sampled_right(answers: list[tuple[int, bool]]) -> list[int]:
    """[right, all] of the samples, the greedy answer not counted."""
    sampled = [right for sample, right in answers if sample > 0]
    return [sum(sampled), len(sampled)]


def _course(by_step: dict[int, list[tuple[int, bool]]]) -> str:
    right = [answer for step in sorted(by_step) if (answer := _greedy(by_step[step])) is not None]
    if not right:
        return "changing"
    if right[0] != right[-1]:
        return "learned" if right[-1] else "forgotten"
    return "changing" if len(set(right)) > 1 else "solved" if right[0] else "unsolved"


def _in_turns(order: list[Problem], courses: dict[Problem, str]) -> list[Problem]:
    """The problems so that each course comes in its turn."""
    turns: dict[str, int] = {}
    places = {}
    for key in order:
        turns[courses[key]] = turns.get(courses[key], 0) + 1
        places[key] = turns[courses[key]]
    return sorted(order, key=lambda key: places[key])


def _chunks(
    run: StoredRun, steps: list[int], wanted: list[Problem], budget: Budget, used_ids: set[int]
) -> dict[Problem, str]:
    """Embedded samples of the first problems, as many as the budget holds."""
    limit = budget.prompt_tokens // 2
    held = _first_that_fit(run, steps, wanted, budget)
    records: dict[Problem, list[RolloutRecord]] = {key: [] for key in held}
    for step in steps:
        for record in run.rollouts(step, "eval"):
            key = (record.benchmark, record.prompt_position)
            if key in records:
                records[key].append(record)
    chunks: dict[Problem, str] = {}
    left = budget.held_out_bytes
    for key, rows in records.items():
        rows.sort(key=lambda record: (record.step, record.base))
        tree = prompt_tree(rows, limit, {record.id for record in rows if record.base == 0})
        encoded = embed(tree)
        if len(encoded) <= left:
            left -= len(encoded)
            chunks[key] = encoded
            used_ids.update(tree["token_ids"], tree["prompt_ids"])
    return chunks


def _first_that_fit(run: StoredRun, steps: list[int], wanted: list[Problem], budget: Budget) -> Iterator[Problem]:
    """Problems whose samples, at four embedded bytes a token, fit the budget by the sizes in the last evaluation."""
    tokens: dict[Problem, int] = {}
    for record in run.rollouts(steps[-1], "eval"):
        key = (record.benchmark, record.prompt_position)
        tokens[key] = tokens.get(key, 0) + len(record.token_ids)
    left = budget.held_out_bytes
    for key in wanted:
        size = 4 * min(tokens.get(key, 0) * len(steps), budget.prompt_tokens // 2)
        if size > left:
            return
        left -= size
        yield key
