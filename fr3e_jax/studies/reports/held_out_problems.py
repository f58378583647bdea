"""The same held-out problems at every evaluation: who was solved when, and the samples of some of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fr3e_jax.runs.rollout_store import RolloutRecord
from fr3e_jax.studies.analysis.stored_run import StoredRun, drawn_steps
from fr3e_jax.studies.analysis.verdicts import answer_of, answer_reader, gold_of, reason
from fr3e_jax.studies.reports.embedding import embed
from fr3e_jax.studies.reports.list_items import COURSES, entitle, held_out_item
from fr3e_jax.studies.reports.page_limits import PageLimits, evenly, in_turns, priority
from fr3e_jax.studies.reports.prompt_text import question_finder, shortened
from fr3e_jax.studies.reports.rollout_trees import prompt_tree
from fr3e_jax.studies.reports.what_was_learned import held_out_sentences, solved_since, telling_words

Problem = tuple[str, int]
"""Name of the benchmark, and place in its split."""
FEWEST_PAIRS = 10
"""Problems at two evaluations that tell the error of a change."""
TEXT_BYTES = 1.5
"""What the text of a token takes, embedded, by experience; with its log-prob and entropy it is about four."""


class HeldOutAnswer(NamedTuple):
    """A response to a held-out problem: the greedy answer is sample 0."""

    sample: int
    right: bool
    reward: float


def held_out_problems(
    run: StoredRun, limits: PageLimits, used_ids: set[int]
) -> tuple[dict[str, Any] | None, list[str]]:
    """The table of problems by evaluation, and an embedded chunk of samples for each problem that has one.

    Args:
      run: its evaluation samples are read; the first result is None if there are none.
      limits: of what is read, and of the size of the chunks.
      used_ids: gets the token ids of the chunks.
    """
    sizes = run.stored_bytes("eval")
    steps = evenly(drawn_steps(sizes, limits.read_bytes // 4, limits.seed), limits.evaluations)
    results: dict[Problem, dict[int, list[HeldOutAnswer]]] = {}
    first: dict[Problem, dict[str, str]] = {}
    question = question_finder(run.settings, run.codec)
    tokens: dict[Problem, int] = {}
    questions: dict[Problem, str] = {}
    reasons: Counter[str] = Counter()
    read = answer_reader(run.settings)
    for key, record in _samples(run, steps):
        if key not in first:
            questions[key] = question(record.prompt)
            first[key] = {
                "problem": record.problem_id,
                "question": shortened(questions[key]),
                "gold": shortened(gold_of(record)),
            }
        if record.step == steps[-1] and record.outcome not in (None, "right"):
            reasons[reason(record, answer_of(record, read))] += 1
        tokens[key] = tokens.get(key, 0) + len(record.token_ids)
        results.setdefault(key, {}).setdefault(record.step, []).append(
            HeldOutAnswer(record.base, record.outcome == "right", record.reward)
        )
    if not results:
        return None, []
    courses = {key: _course(rows) for key, rows in results.items()}
    since = {key: solved_since(_greedy_answers(rows)) for key, rows in results.items()}
    last = {key: _share_right(rows[steps[-1]]) for key, rows in results.items() if steps[-1] in rows}
    words = telling_words([questions[key] for key in last], list(last.values()))
    order = sorted(results, key=lambda key: (COURSES.index(courses[key]), priority(limits.seed, *key)))
    left, chosen = float(limits.held_out_bytes), {}
    for key in in_turns(order, lambda key: courses[key]):
        size = TEXT_BYTES * min(tokens[key], limits.prompt_tokens // 2)
        left -= size
        if left < 0:
            break
        chosen[key] = size
    chunks, bare = _chunks(run, steps, chosen, limits, used_ids)
    chunk_names = {key: f"held-out-{n}" for n, key in enumerate(chunks)}
    problems = [
        {
            "benchmark": key[0],
            "index": key[1],
            **first[key],
            "course": courses[key],
            "since": since[key],
            "greedy": [_greedy(results[key].get(step, [])) for step in steps],
            "right": [_sampled_right(results[key].get(step, [])) for step in steps],
            "chunk": chunk_names.get(key),
        }
        for key in order[: limits.problems]
    ]
    table = {
        "steps": steps,
        "problems": entitle([problem | held_out_item(problem) for problem in problems]),
        "stored_problems": len(order),
        "sentence": _sentence(problems, len(order), steps, len(sizes), bare),
        "change_error": _change_error(results, steps[0], steps[-1]),
        "sentences": held_out_sentences(list(since.values()), list(courses.values()), words, reasons),
    }
    return table, list(chunks.values())


def _sentence(
    problems: Sequence[Mapping[str, Any]], stored_problems: int, steps: Sequence[int], stored_steps: int, bare: int
) -> str:
    """The account of the problems, evaluations and answers that the page has."""
    present = sum(problem["chunk"] is not None for problem in problems)
    answers = (
        "the answers to all of them" if present == len(problems) else f"the answers to {present} of them, by turns"
    )
    numbers = f" Of {bare} of these the texts are here, without log-probs and entropies." if bare else ""
    return (
        f"{_of(len(problems), stored_problems, 'problem')} at {_of(len(steps), stored_steps, 'evaluation')}, with "
        f"{answers}.{numbers} The icons are the greedy answers, the bar is the share of right samples at the last one."
    )


def _of(shown: int, stored: int, noun: str) -> str:
    plural = f"{stored:,} {noun}{'s' * (stored != 1)}"
    return plural if shown == stored else f"{shown:,} of {plural}"


def _samples(run: StoredRun, steps: Sequence[int]) -> Iterator[tuple[Problem, RolloutRecord]]:
    for step in steps:
        for record in run.rollouts(step, "eval"):
            yield (record.benchmark, record.prompt_position), record


def _chunks(
    run: StoredRun, steps: Sequence[int], chosen: Mapping[Problem, float], limits: PageLimits, used_ids: set[int]
) -> tuple[dict[Problem, str], int]:
    """Embedded samples of the chosen problems, and how many have no numbers: the texts of the others have the room."""
    records: dict[Problem, list[RolloutRecord]] = {key: [] for key in chosen}
    for key, record in _samples(run, steps):
        if key in records:
            records[key].append(record)
    chunks: dict[Problem, str] = {}
    read, bare = answer_reader(run.settings), 0
    left, promised = float(limits.held_out_bytes), sum(chosen.values())
    for key, rows in records.items():
        rows.sort(key=lambda record: (record.step, record.base))
        greedy = {record.id for record in rows if record.base == 0}
        tree = prompt_tree(rows, limits.prompt_tokens // 2, read, greedy)
        promised -= chosen[key]
        encoded = embed(tree)
        if is_bare := len(encoded) > left - promised:
            encoded = embed(tree | {"logprobs": [], "entropies": []})
        if len(encoded) <= left:
            left -= len(encoded)
            bare += is_bare
            chunks[key] = encoded
            used_ids.update(tree["token_ids"])
    return chunks, bare


def _greedy(answers: list[HeldOutAnswer]) -> bool | None:
    return next((answer.right for answer in answers if not answer.sample), None)


def _change_error(
    results: Mapping[Problem, Mapping[int, list[HeldOutAnswer]]], first: int, last: int
) -> dict[str, float] | None:
    """The standard errors of the changes of ``avg`` and ``greedy`` between two evaluations of the same problems.

    Both are means over sets of rewards: ``avg`` of samples, or of the greedy answer in a set without samples. A set of
    one problem says nothing of its error, which is infinite then.
    """
    both = {key: rows for key, rows in results.items() if first in rows and last in rows}
    if len(both) < FEWEST_PAIRS or first == last:
        return None

    def error(score: Callable[[list[HeldOutAnswer]], float]) -> float:
        changes: dict[str, list[float]] = {}
        for (benchmark, _), rows in both.items():
            changes.setdefault(benchmark, []).append(score(rows[last]) - score(rows[first]))
        variances = [np.var(of_set, ddof=1) / len(of_set) if len(of_set) > 1 else np.inf for of_set in changes.values()]
        return float(np.sqrt(sum(variances)) / len(changes))

    def greedy(answers: list[HeldOutAnswer]) -> float:
        return next((answer.reward for answer in answers if not answer.sample), 0.0)

    def sampled(answers: list[HeldOutAnswer]) -> float:
        return float(np.mean([answer.reward for answer in answers if answer.sample] or [greedy(answers)]))

    return {"greedy": error(greedy), "avg": error(sampled)}


def _greedy_answers(by_step: dict[int, list[HeldOutAnswer]]) -> dict[int, bool]:
    return {step: answer for step, rows in by_step.items() if (answer := _greedy(rows)) is not None}


def _share_right(answers: list[HeldOutAnswer]) -> float:
    return sum(answer.right for answer in answers) / len(answers)


def _sampled_right(answers: list[HeldOutAnswer]) -> list[int]:
    """[right, all] of the samples, the greedy answer not counted."""
    sampled = [answer.right for answer in answers if answer.sample]
    return [sum(sampled), len(sampled)]


def _course(by_step: dict[int, list[HeldOutAnswer]]) -> str:
    right = [answer for _, answer in sorted(_greedy_answers(by_step).items())]
    if not right:
        return "changing"
    if right[0] != right[-1]:
        return "learned" if right[-1] else "forgotten"
    return "changing" if len(set(right)) > 1 else "solved" if right[0] else "unsolved"
