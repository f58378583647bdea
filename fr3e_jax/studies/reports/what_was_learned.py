"""Sentences on what a run learned first and what is still hard, by rules from metrics and held-out answers."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from fr3e_jax.studies.analysis.run_curves import FINAL_SHARE, is_finite

SURE = 3.0  # standard errors of a change that is no chance
FEWEST_STEPS = 6  # of a curve that has a course
FEWEST_PROBLEMS = 20  # that tell which words are hard
COMMON = 0.05  # least share of the questions with a word that counts
CHANCE = 0.01  # of naming a word, among all of them, that tells nothing
MOST_WORDS, MOST_REASONS, MOST_STEPS = 2, 3, 4
LEAST_SHARE = 0.01  # of a reason that is told
CHANGES = {
    "entropy/mean": "entropy",
    "length/mean": "response length",
    "length/finished": "share of finished responses",
    "reward/mean": "reward",
    "explore/reward": "reward of explored states",
    "returns/depth": "depth of returns",
}
"""Metrics whose course is told, with their names."""
_WORD = re.compile(r"\w+|[^\w\s]")


def changes(training: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, int]]:
    """(metric, name, step at which half of the change was made) of the `CHANGES` that are clear, in their order."""
    halves = ((metric, name, half_change(training, metric)) for metric, name in CHANGES.items())
    return sorted(((metric, name, step) for metric, name, step in halves if step is not None), key=lambda row: row[2])


def half_change(training: Sequence[Mapping[str, Any]], metric: str) -> int | None:
    """The first step at which a metric, averaged over a tenth of the steps, has made half of its change.

    None if its first and last tenth do not clearly differ, measured by the noise between neighbouring steps.
    """
    points = [(r["step"], r[metric]) for r in training if is_finite(r.get(metric))]
    if len(points) < FEWEST_STEPS:
        return None
    values = np.array([value for _, value in points], np.float64)
    count = math.ceil(FINAL_SHARE * len(values))
    first, last = values[:count].mean(), values[-count:].mean()
    noise = math.sqrt(sum((b - a) ** 2 for a, b in pairwise(values)) / (2 * (len(values) - 1)))
    if abs(last - first) <= SURE * noise * math.sqrt(2 / count):
        return None
    means = np.convolve(values, np.full(count, 1 / count), "valid")
    at = int(np.argmax((means - first) / (last - first) >= 0.5))
    return points[at + count - 1][0]


def solved_since(right: Mapping[int, bool]) -> int | None:
    """The first evaluation, by step, from which on all answers are right; None if the last one is wrong."""
    since = None
    for step in sorted(right, reverse=True):
        if not right[step]:
            break
        since = step
    return since


def telling_words(questions: Sequence[str], shares: Sequence[float]) -> list[tuple[str, float]]:
    """The words and signs that go with success, and the number of words (``""``), the most telling first.

    Args:
      questions: of the problems.
      shares: of right answers, of each problem.

    Returns:
      (word, correlation of its count with the share) where chance alone would hardly make it so large.
    """
    counts = [Counter(_WORD.findall(text.lower())) for text in questions]
    spread = np.array(shares, np.float64) - np.mean(shares) if len(shares) else np.zeros(0)
    if len(counts) < FEWEST_PROBLEMS or not spread.any():
        return []
    frequency = Counter(word for count in counts for word in count)
    words = [word for word, problems in frequency.items() if problems >= COMMON * len(counts)]
    columns = {word: np.array([count[word] for count in counts], np.float64) for word in words}
    columns[""] = np.array([count.total() for count in counts], np.float64)
    bound = math.sqrt(2 * math.log(2 * len(columns) / CHANCE))  # a normal's tail, times the number of tries
    found = []
    for word, column in columns.items():
        column = column - column.mean()
        if column.any():
            correlation = float(column @ spread / math.sqrt((column @ column) * (spread @ spread)))
            certainty = math.atanh(min(abs(correlation), 1 - 1e-9)) * math.sqrt(len(counts) - 3)
            if certainty > bound:
                found.append((word, correlation))
    return sorted(found, key=lambda pair: -abs(pair[1]))[:MOST_WORDS]


def held_out_sentences(
    since: Sequence[int | None], courses: Sequence[str], words: Sequence[tuple[str, float]], reasons: Counter[str]
) -> list[dict[str, Any]]:
    """Texts on the held-out answers, each with the place that shows it, as alerts have.

    Args:
      since: of each problem, see `solved_since`.
      courses: of each problem: learned, forgotten, unsolved, ...
      words: see `telling_words`.
      reasons: of the wrong samples at the last evaluation.
    """
    learned = Counter(
        step for step, course in zip(since, courses, strict=True) if course == "learned" and step is not None
    )
    counts = Counter(courses)
    sentences = []
    if learned:
        steps = sorted(learned)[:MOST_STEPS]
        course = ", ".join(f"{learned[step]} since step {step}" for step in steps)
        more = f", {rest} later" if (rest := learned.total() - sum(learned[step] for step in steps)) else ""
        told = f"learned, by the greedy answer: {_problems(learned.total())} ({course}{more})"
        sentences.append(_sentence(told, "learned", "earliest"))
    if counts["forgotten"]:
        told = f"forgotten, by the greedy answer: {_problems(counts['forgotten'])}"
        sentences.append(_sentence(told, "forgotten"))
    if counts["unsolved"]:
        hard = [
            f"questions with more {f'“{word}”' if word else 'words'} are solved {'less' if r < 0 else 'more'} often"
            for word, r in words
        ]
        told = "; ".join([f"still hard: {_problems(counts['unsolved'])} never solved", *hard])
        sentences.append(_sentence(told, "unsolved", "hardest"))
    if total := reasons.total():
        often = [(reason, count / total) for reason, count in reasons.most_common(MOST_REASONS)]
        shares = ", ".join(f"{share:.0%} {reason}" for reason, share in often if share >= LEAST_SHARE)
        sentences.append(_sentence(f"wrong samples at the last evaluation: {shares}", "all", "hardest"))
    return sentences


def _problems(count: int) -> str:
    return f"{count} problem{'s' * (count != 1)}"


def _sentence(text: str, course: str, order: str = "course") -> dict[str, Any]:
    return {"text": text, "place": {"view": "held-out", "filter": course, "order": order}}
