r"""Verifiers of mathematics, one for each benchmark's convention: the gold answer of a row, and the right answers.

Every convention reads the response in the same way (``extraction.extract``). A closed box in a response that was cut
is an answer, too, as verl, DAPO and Qwen2.5-Math have it.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from functools import lru_cache

from fr3e_jax.answers import RIGHT, WRONG, chosen_letter, quick_verdict
from fr3e_jax.problem import Problem
from fr3e_jax.rewards.extraction import Extraction, extract, readable_gold
from fr3e_jax.verdict import Job, Verdict

JUDGE = "fr3e_jax.answers:judge"
_NO_ANSWER = Verdict(0.0, "no_answer")
_DIGITS_AND_COMMAS = re.compile(r"-?\d{1,3}(?:,\d{3})+")
_APPROXIMATELY = re.compile(r"\\approx|≈|\\doteq")


@dataclass(frozen=True)
class MathVerifier:
    """Mathematical equality with the gold answer, or with one of ``extra["golds"]``: MATH and its relatives.

    Attributes:
      extraction: the place in which the prompt asked for the answer.

    Raises (when called):
      ValueError: the problem has no gold answer that a response could give.
    """

    extraction: Extraction = "boxed"
    job_functions = (JUDGE,)

    def __call__(self, problem: Problem, response: str, finished: bool) -> Verdict | Job:
        answer = self.answer(response)
        if answer is None:
            return _NO_ANSWER
        return self.verdict(self.golds(problem), answer, problem)

    def answer(self, response: str) -> str | None:
        """The answer in the response, or None."""
        return extract(response, self.extraction)

    def golds(self, problem: Problem) -> tuple[str, ...]:
        """The answers that count as right."""
        return _readable(problem.extra.get("golds") or (problem.gold,), problem.id)

    def verdict(self, golds: tuple[str, ...], answer: str, problem: Problem) -> Verdict | Job:
        """Right if equal to a gold answer and more than the question; a job if rational numbers cannot tell."""
        arguments = (golds, answer, *self.tolerance(problem), problem.prompt)
        return quick_verdict(*arguments) or Job(JUDGE, arguments)

    def tolerance(self, problem: Problem) -> tuple[float, float]:
        """The absolute and the relative error that a decimal may have: none."""
        return 0.0, 0.0


@dataclass(frozen=True)
class Gsm8kVerifier(MathVerifier):
    """GSM8K: the gold answer stands after ``####``; so may the answer of a response without a box."""

    def answer(self, response: str) -> str | None:
        extraction = "boxed_or_hashes" if self.extraction == "boxed" else self.extraction
        return extract(response, extraction)

    def golds(self, problem: Problem) -> tuple[str, ...]:
        return _readable((problem.gold.rpartition("####")[2],), problem.id)


@dataclass(frozen=True)
class AimeVerifier(MathVerifier):
    """AIME: integers from 000 to 999; leading zeros and a degree sign do not matter."""

    def golds(self, problem: Problem) -> tuple[str, ...]:
        golds = []
        for gold in super().golds(problem):
            digits = re.sub(r"\^\{?\\circ\}?|°|,", "", gold).strip()
            if not re.fullmatch(r"\d{1,3}(\.0+)?", digits):
                raise ValueError(
                    f"problem {problem.id} has the gold answer {gold!r}; AIME answers are integers from 0 to 999: "
                    "check the dataset card, or let it name the verifier 'math'"
                )
            golds.append(str(int(digits.partition(".")[0])))
        return tuple(golds)


@dataclass(frozen=True)
class MinervaVerifier(MathVerifier):
    """Minerva's OCWCourses: measured values in given units; decimals and scientific notation to 1e-4.

    Qwen2.5-Math's evaluator, which made the papers' figures, has this tolerance. Fractions, integers and expressions
    are compared exactly.
    """

    def tolerance(self, problem: Problem) -> tuple[float, float]:
        return 0.0, 1e-4


@dataclass(frozen=True)
class TextbookVerifier(MathVerifier):
    r"""College Math and Gaokao: of a gold answer with a value and its approximation, either is right."""

    def golds(self, problem: Problem) -> tuple[str, ...]:
        golds = super().golds(problem)
        sides = [side for gold in golds for side in _approximations(gold)]
        return (*golds, *sides)


@dataclass(frozen=True)
class CollegeMathVerifier(TextbookVerifier):
    """College Math writes two answers without a blank (``110,880`` dollars for calf and cow): a list is right."""

    def golds(self, problem: Problem) -> tuple[str, ...]:
        golds = super().golds(problem)
        return (*golds, *(gold.replace(",", ", ") for gold in golds if _DIGITS_AND_COMMAS.fullmatch(gold)))


@dataclass(frozen=True)
class OlympiadVerifier(MathVerifier):
    """OlympiadBench: several answers in any order; ``extra["tolerance"]`` is the absolute error of decimals."""

    def tolerance(self, problem: Problem) -> tuple[float, float]:
        return _tolerance(str(problem.extra.get("tolerance") or "0")), 0.0


@dataclass(frozen=True)
class MultipleChoiceVerifier(MathVerifier):
    """The letter of a choice, or its text where ``extra["choices"]`` has the texts in order.

    The gold answer may also be either of them.
    """

    def verdict(self, golds: tuple[str, ...], answer: str, problem: Problem) -> Verdict | Job:
        choices = tuple(problem.extra.get("choices", ()))
        right, letter = right_letter(golds[0], choices), chosen_letter(answer)
        if right is None:
            raise ValueError(
                f"problem {problem.id} has the gold answer {golds[0]!r}; expected a letter from A to J, or one of "
                f"its choices {choices!r}"
            )
        if letter is not None or not choices:
            return RIGHT if letter == right else WRONG
        return super().verdict((choices[ord(right) - ord("A")],), answer, problem)


def right_letter(gold: str, choices: tuple[str, ...]) -> str | None:
    """The letter that a gold answer is, or that of the choice with its text; None if it is neither."""
    letters, letter = string.ascii_uppercase[: len(choices)], chosen_letter(gold)
    if letter is None or (choices and letter not in letters):
        return chr(ord("A") + choices.index(gold)) if gold in choices else None
    return letter


CONVENTIONS: dict[str, type[MathVerifier]] = {
    "math": MathVerifier,
    "gsm8k": Gsm8kVerifier,
    "aime": AimeVerifier,
    "minerva": MinervaVerifier,
    "olympiad": OlympiadVerifier,
    "gaokao": TextbookVerifier,
    "college_math": CollegeMathVerifier,
    "multiple_choice": MultipleChoiceVerifier,
}


@lru_cache(maxsize=4096)
def _readable(golds: tuple[str, ...], name: str) -> tuple[str, ...]:
    readable = tuple(readable_gold(gold) for gold in golds)
    if None in readable:
        raise ValueError(f"problem {name} has no gold answer: {golds!r}; drop its row, or correct the dataset card")
    return readable


@lru_cache(maxsize=4096)
def _approximations(gold: str) -> tuple[str, ...]:
    sides = _APPROXIMATELY.split(gold)
    return tuple(side.strip(" $") for side in sides) if len(sides) == 2 and all(map(str.strip, sides)) else ()


@lru_cache(maxsize=64)
def _tolerance(text: str) -> float:
    """The largest number of OlympiadBench's ``error`` field, which has one or several with commas."""
    return max(float(error) for error in text.split(","))
