"""The limits of an answer's size, one constant each; docs/users/grading.md lists them.

They bound the time of reading and comparing an answer: a text within them has a small tree, and a tree within them has
values that fit on a page.
"""

from __future__ import annotations

ANSWER_LENGTH = 2000  # characters of an answer
TOKENS = 1200  # tokens of an answer
NESTING = 40  # open brackets, fractions, roots and exponents at a time
LITERAL_DIGITS = 1000  # digits of one number as written
VALUE_DIGITS = 5000  # digits of any exact value on the way
EXPONENT = 20_000  # absolute value of an exact exponent
EXPONENT_LOG = 50_000  # |exponent x log10 base| of an inexact power
FACTORIAL = 1500  # largest n of an exact n!
INEXACT_ARGUMENT = 10**9  # largest argument of a trigonometric function, gamma and the like
TERMS = 2000  # terms of a sum or product that is written out
MATRIX_ENTRIES = 144
LIST_ITEMS = 100
SIGNS = 4  # plus-minus signs in one expression: each doubles the number of values


class Refused(ValueError):
    """The answer is beyond a limit and is not read; it is right only if it is the gold answer literally."""


class Unreadable(ValueError):
    """The text is not mathematics that this grammar knows."""


class Contradiction(ValueError):
    """The answer asserts a falsehood such as ``4 = 5``, and is wrong whatever else it says."""


def check_length(text: str) -> None:
    """Raises ``Refused`` if ``text`` is too long or its brackets are nested too deeply; linear time."""
    if len(text) > ANSWER_LENGTH:
        raise Refused(f"the answer has {len(text)} characters; at most {ANSWER_LENGTH} are read")
    depth = deepest = 0
    for character in text:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth -= 1
    if deepest > NESTING:
        raise Refused(f"the answer has {deepest} brackets open at a time; at most {NESTING} are read")
