"""Verdicts of the main process: on equal texts, choice letters, and rational numbers in any arrangement."""

from __future__ import annotations

import re
from functools import lru_cache

from fr3e_jax.answers.arithmetic import ExactArithmetic, NeedsWorker
from fr3e_jax.answers.equality import same
from fr3e_jax.answers.limits import LITERAL_DIGITS, Contradiction, Refused, Unreadable
from fr3e_jax.answers.reader import keys, readings
from fr3e_jax.verdict import Verdict

RIGHT = Verdict(1.0, "right")
WRONG = Verdict(0.0, "wrong")
REFUSED = Verdict(0.0, "refused")
_STYLE = re.compile(r"\\(?:text(?:bf|rm|it|up)?|math(?:rm|bf|it)|mbox)\s*(?=\{)|[{}$*]")
_BLANK = re.compile(r"\\(?:[ ,;:!~]|q?quad(?![a-z]))|~")
_LETTER = re.compile(r"\(\s*([A-J])\s*\)[.:]?(\s.*)?|([A-J])[.:)](\s.*)?|([A-J])", re.DOTALL)
_ANOTHER = re.compile(r"(?<![A-Za-z\\])[A-J](?![A-Za-z'])")
_LONGEST = 200
_INTEGER = re.compile(r"(?:\\?\$)?([+-]?)(\d{1,3}(?:,\d{3})+|\d+)(?:\.0*)?")


def verdict_on_pair(gold: str, answer: str) -> Verdict | None:
    """The verdict if it is certain without symbolic mathematics; None if a worker has to decide.

    ``gold`` and ``answer`` are bare or in dollars, without ``\\boxed``. An answer beyond a limit is refused unless it
    is the gold answer, literally.
    """
    gold, answer = gold.strip(), answer.strip()
    if gold == answer:
        return RIGHT
    left, right = _integer(gold), _integer(answer)
    if left is not None and right is not None:
        return RIGHT if left == right else WRONG
    gold_letter = chosen_letter(gold)
    if gold_letter and (answer_letter := chosen_letter(answer)):
        return RIGHT if answer_letter == gold_letter else WRONG
    try:
        if keys(answer) == _gold_keys(gold):
            return RIGHT
        arithmetic = ExactArithmetic()
        return RIGHT if any(same(left, right, arithmetic) for left, right in readings(gold, answer)) else WRONG
    except (Refused, RecursionError):
        return REFUSED
    except Contradiction:
        return WRONG
    except (Unreadable, NeedsWorker):
        return None


@lru_cache(maxsize=4096)
def _gold_keys(gold: str):
    try:
        return keys(gold)
    except (Refused, Unreadable):
        return None


def _integer(text: str) -> int | None:
    match = _INTEGER.fullmatch(text) if len(text) <= LITERAL_DIGITS else None
    return int(match[1] + match[2].replace(",", "")) if match else None


def chosen_letter(text: str) -> str | None:
    """The one letter, A to J, that ``text`` chooses; None if it does not start with one or mentions another.

    Text after the letter is an explanation, ``C. x = 42``; with another letter in it, it would be a second choice.
    """
    if len(text) > _LONGEST:
        return None
    match = _LETTER.fullmatch(_STYLE.sub("", _BLANK.sub(" ", text)).strip().removesuffix("."))
    if not match:
        return None
    letter = match[1] or match[3] or match[5]
    explanation = match[2] or match[4] or ""
    return None if _ANOTHER.search(explanation) else letter
