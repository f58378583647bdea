"""Operations and verifier of the task *Chain*: apply each operation of a prompt to a list of digits, one per line.

The prompt ``314202+01*00=>`` has the list ``3142`` and three steps, counted down: ``02+``, ``01*`` and ``00=``. A line
of the response repeats its step and has the list after it: ``02+4253>01*4235>00=5324`` and the stop token. A step is
two digits and an operation. Digits are modulo 10.

A *plain* operation has one reading. An *ambiguous* one has two plausible readings, of which one counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fr3e_jax.problem import Problem

LINE_END = ">"
STEP_WIDTH = 3  # of ``02+``
Reading = Callable[[str], str]
_ADD_ONE = str.maketrans("0123456789", "1234567890")
_SUBTRACT_ONE = str.maketrans("1234567890", "0123456789")
_COMPLEMENT = str.maketrans("0123456789", "9876543210")


def _ends(digits: str) -> str:
    return str((int(digits[0]) + int(digits[-1])) % 10)


AMBIGUOUS: dict[str, tuple[Reading, Reading]] = {  # (the reading that counts, the other one); D >= 4 digits
    "+": (lambda d: d.translate(_ADD_ONE), lambda d: d.translate(_SUBTRACT_ONE)),
    "-": (lambda d: d[-1] + d[:-1], lambda d: d[1:] + d[0]),  # rotate right or left
    "*": (lambda d: d[:-2] + d[-1] + d[-2], lambda d: d[1] + d[0] + d[2:]),  # exchange the last or the first two
    "/": (  # 9 - d of the first or of the second half
        lambda d: d[: len(d) // 2].translate(_COMPLEMENT) + d[len(d) // 2 :],
        lambda d: d[: len(d) - len(d) // 2] + d[len(d) - len(d) // 2 :].translate(_COMPLEMENT),
    ),
    "(": (lambda d: d[:-3] + d[-3:][::-1], lambda d: d[:3][::-1] + d[3:]),  # reverse the last or the first three
    ")": (lambda d: _ends(d) + d[1:], lambda d: d[:-1] + _ends(d)),  # the sum of both ends replaces the first or last
}
PLAIN: dict[str, Reading] = {
    "=": lambda d: d[::-1],
    "%": lambda d: d.translate(_COMPLEMENT),
    ".": lambda d: d[-1] + d[1:-1] + d[0],  # exchange both ends
}


def readings(operation: str, digits: str) -> tuple[str, ...]:
    """The lists after ``operation`` in each of its readings, the one that counts first; one for a plain operation."""
    if operation in PLAIN:
        return (PLAIN[operation](digits),)
    return tuple(reading(digits) for reading in AMBIGUOUS[operation])


def steps_of(prompt: str) -> tuple[str, list[str]]:
    """The digits of a prompt, and its steps: ``3142`` and ``["02+", "01*", "00="]``."""
    text = prompt.removesuffix(LINE_END)
    last = next(i for i, character in enumerate(text) if character in AMBIGUOUS or character in PLAIN)
    start = last + 1 - STEP_WIDTH
    return text[:start], [text[i : i + STEP_WIDTH] for i in range(start, len(text), STEP_WIDTH)]


@dataclass(frozen=True)
class ChainVerifier:
    """The verifier of *Chain*: reward 1 or 0; a response without its stop token is wrong.

    Under both rules the response has a line for each step, and the last one is right. The rule ``answer`` asks for no
    more. ``strict`` also computes every line from the line before it, in the reading that counts.
    """

    rule: Literal["answer", "strict"]

    def __call__(self, problem: Problem, response: str, finished: bool) -> float:
        digits, steps = steps_of(problem.prompt)
        lines = response.split(LINE_END)
        if not finished or len(lines) != len(steps) or lines[-1] != steps[-1] + problem.gold:
            return 0.0
        if self.rule == "strict":
            for step, line in zip(steps, lines, strict=True):
                digits = readings(step[-1], digits)[0]
                if line != step + digits:
                    return 0.0
        return 1.0
