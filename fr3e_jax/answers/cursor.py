"""A position in a list of tokens, which the rules of the grammar move.

A rule is a function that reads a tree and moves the cursor past it. The cursor's own methods read tokens, not trees.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fr3e_jax.answers.expression_tree import Node
from fr3e_jax.answers.limits import NESTING, Refused, Unreadable
from fr3e_jax.answers.tokens import Token
from fr3e_jax.answers.vocabulary import (
    ACCENTS,
    CLOSING,
    CONSTANTS,
    FUNCTIONS,
    GREEK_SYMBOLS,
    OPENING,
    RELATIONS,
    SEPARATORS,
)

END = Token("mark", "")
_LOOKAHEAD = 8  # more tokens than any rule looks ahead
_OPENING, _CLOSING = {*OPENING, "{"}, {*CLOSING, "}"}
_AFTER_PRODUCT = {*RELATIONS, *SEPARATORS, "+", "-", "\\pm", "\\mp"}
_FACTOR_COMMANDS = {*FUNCTIONS, *CONSTANTS, *GREEK_SYMBOLS, *ACCENTS} | set(
    r"\frac \sqrt \binom \sum \prod \int \lim \begin \lfloor \lceil \langle \log \operatorname \mathbb".split()
)


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that brackets and commands call back, as both hold whole expressions; ``reader`` names the functions.

    ``answer`` takes the closing brackets after the cursor; the others take the cursor alone.
    """

    answer: Callable[..., Node]
    item: Callable[[Cursor], Node]
    additive: Callable[[Cursor], Node]
    term: Callable[[Cursor], Node]
    postfix: Callable[[Cursor], Node]
    atom: Callable[[Cursor], Node]


class Cursor:
    """The state that the rules share: the position, and the brackets around it."""

    def __init__(self, tokens: list[Token], rules: Rules, enclosing_bars: bool = False):
        self.tokens = tokens + [END] * _LOOKAHEAD
        self.rules = rules
        self.enclosing_bars = enclosing_bars  # an outermost |...| ends with the last bar of a product: ||x||y||
        self.position = 0
        self.depth = 0
        self.bars = 0  # open |...|: inside, a bar closes
        self.heading = False  # at the start of {x : ...}: a colon after a name ends it
        self.differential = False  # inside of an integral: d and a letter end it

    @property
    def next(self) -> Token:
        return self.tokens[self.position]

    @property
    def last(self) -> Token:
        """The token that was taken last."""
        return self.tokens[self.position - 1] if self.position else END

    def peek(self, ahead: int) -> Token:
        return self.tokens[self.position + ahead] if self.next is not END else END

    def take(self) -> Token:
        token = self.next
        if token is not END:
            self.position += 1
        return token

    def accept(self, *values: str) -> str | None:
        """Take the next token if it is one of ``values`` (not words in text); return its value or None."""
        token = self.tokens[self.position]
        if token.value not in values or token.kind == "text" or token is END:
            return None
        self.position += 1
        return token.value

    def expect(self, value: str) -> None:
        if not self.accept(value):
            raise Unreadable(f"expected {value!r}, found {self.next.value!r}")

    def separator(self) -> str | None:
        """Take the separators that stand next to each other as one; None if there is none."""
        separator = None
        while (token := self.accept(*SEPARATORS)) is not None:
            if separator is None or (separator == "," and token != "and"):
                separator = token
        return separator

    def subscript(self) -> str:
        """The subscript as written, without blanks and braces; it is part of a name."""
        if not self.accept("_"):
            return ""
        if not self.accept("{"):
            return f"_{self.take().value}"
        depth, parts = 1, []
        while depth:
            token = self.take()
            if token is END:
                raise Unreadable("a subscript does not end")
            depth += {"{": 1, "}": -1}.get(token.value, 0)
            parts.append(token.value)
        return "_" + "".join(parts[:-1])

    def starts_factor(self) -> bool:
        """Return whether a factor begins here without a multiplication sign."""
        token = self.next
        if token is END:
            return False
        if token.kind == "number":
            return self.tokens[self.position - 1].kind != "number"
        if token.value == "|":
            return not self.bars or (self.enclosing_bars and self._bar_opens_within_bars())
        if token.kind == "letter":
            return not (self.differential and token.value == "d" and self.peek(1).kind in ("letter", "command"))
        if token.kind == "mark":
            return token.value in ("(", "[", "{", "\\{", "\\|")
        return token.kind == "command" and token.value in _FACTOR_COMMANDS

    def _bar_opens_within_bars(self) -> bool:
        """Return whether the next bar leaves the outermost |...| open, as its product has more bars: ||x||y||."""
        if self.bars != 1 or self.peek(1).value == "|":
            return False
        depth = count = 0
        for token in self.tokens[self.position :]:
            depth += (token.value in _OPENING) - (token.value in _CLOSING)
            if depth < 0 or (depth == 0 and token.value in _AFTER_PRODUCT):
                break
            count += depth == 0 and token.value == "|"
        return count > 1

    def enter(self) -> None:
        self.depth += 1
        if self.depth > NESTING:
            raise Refused(f"the answer is nested more than {NESTING} deep")
