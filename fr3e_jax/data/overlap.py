"""The overlap of training and evaluation questions: equal words, or a long run of words in common.

The comparison takes lower-case words and numbers without punctuation, signs and LaTeX layout, so that spelling does not
hide a shared question. ``x+1`` and ``x-1`` then look alike; the ids are listed, so that a reader can check. Texts of
fewer than five words proper, such as ``Simplify: $3-x$`` or ``12/60=``, keep their signs, because little else tells
them apart.

Runs have 13 words (Brown et al. 2020, appendix C) and exclude drawings (``[asy]`` code). As in that paper, runs in more
than ten training questions are common phrases ("where m and n are relatively prime positive integers ...") and do not
count. Questions of fewer than 13 words can only be equal as a whole.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fr3e_jax.problem import Problem

RUN = 13  # words
COMMON = 10  # a run in more training questions than this is a common phrase
NEAR = 0.5  # shared part of the runs of an evaluation question
FEW = 5  # a text with fewer words of two or more letters keeps its signs

Source = tuple[str, str]  # name of a set, id of a problem

_DRAWING = re.compile(r"\[asy\].*?\[/asy\]", re.DOTALL)
_LAYOUT = re.compile(
    r"\\(?:left|right|displaystyle|text|textrm|textbf|textit|mathrm|mathbf|mbox|operatorname|quad|qquad)(?![a-zA-Z])"
)
_FRACTION = re.compile(r"\\[dtc]frac(?![a-zA-Z])")
_WORD = re.compile(r"[^\W_]+")
_SIGNED = re.compile(r"[^\W_]+|[^\w\s$]")


def words(text: str) -> tuple[str, ...]:
    """The words of a text in the form that is compared."""
    text = _FRACTION.sub(r"\\frac", _LAYOUT.sub(" ", text)).lower()
    plain = _WORD.findall(text)
    signs = sum(len(word) > 1 and word.isalpha() for word in plain) < FEW
    return tuple(_SIGNED.findall(text) if signs else plain)


def runs(text: str) -> set[int]:
    """Hashes of all runs of ``RUN`` words. At 64 bits, ten million runs collide with odds of 1 to 10^5."""
    text_words = words(_DRAWING.sub(" ", text))
    return {hash(text_words[start : start + RUN]) for start in range(len(text_words) - RUN + 1)}


@dataclass
class Overlap:
    """The overlap of one training set and one evaluation set; pairs are (training id, evaluation id).

    Attributes:
      train, evaluation: names of the sets.
      size: number of questions in the evaluation set.
      identical: pairs with equal words.
      near: other pairs that share at least half of the evaluation question's runs.
      touching: other pairs that share a run.
    """

    train: str
    evaluation: str
    size: int
    identical: list[tuple[str, str]] = field(default_factory=list)
    near: list[tuple[str, str]] = field(default_factory=list)
    touching: list[tuple[str, str]] = field(default_factory=list)

    @property
    def share(self) -> float:
        """The part of the evaluation set that is in ``identical`` or ``near``."""
        return len({evaluation for _, evaluation in self.identical + self.near}) / self.size


def overlaps(train: Mapping[str, Sequence[Problem]], evaluation: Mapping[str, Sequence[Problem]]) -> list[Overlap]:
    """The overlap of each pair of sets that has one, in the order of the sets; the time is linear in the words."""
    by_text: dict[tuple[str, ...], list[Source]] = defaultdict(list)
    by_run: dict[int, list[Source]] = defaultdict(list)
    sizes: dict[Source, int] = {}
    for name, problems in evaluation.items():
        for problem in problems:
            source, problem_runs = (name, problem.id), runs(problem.prompt)
            by_text[words(problem.prompt)].append(source)
            sizes[source] = len(problem_runs)
            for run in problem_runs:
                by_run[run].append(source)
    questions = [
        (name, problem.id, words(problem.prompt), runs(problem.prompt) & by_run.keys())
        for name, problems in train.items()
        for problem in problems
    ]
    different = {text: shared for _, _, text, shared in questions}
    counts = Counter(run for shared in different.values() for run in shared)
    phrases = {run for run, count in counts.items() if count > COMMON}
    pairs_of = {(name, other): Overlap(name, other, len(evaluation[other])) for name in train for other in evaluation}
    for name, train_id, text, shared in questions:
        matches = Counter(source for run in shared - phrases for source in by_run[run])
        equal = dict.fromkeys(by_text.get(text, ()))
        for source in {**matches, **equal}:
            pairs = pairs_of[name, source[0]]
            is_near = matches[source] >= NEAR * sizes[source]
            kind = pairs.identical if source in equal else pairs.near if is_near else pairs.touching
            kind.append((train_id, source[1]))
    return [pairs for pairs in pairs_of.values() if pairs.identical or pairs.near or pairs.touching]
