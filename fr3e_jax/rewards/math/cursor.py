"""A position in a list of tokens, which the rules of the grammar move."""

from __future__ import annotations

from fr3e_jax.rewards.math.limits import NESTING, Refused, Unreadable
from fr3e_jax.rewards.math.tokens import Token
from fr3e_jax.rewards.math.vocabulary import CLOSING, OPENING, RELATIONS, SEPARATORS

END = Token("mark", "")
_OPENING, _CLOSING = {*OPENING, "{"}, {*CLOSING, "}"}
_AFTER_PRODUCT = {*RELATIONS, *SEPARATORS, "+", "-", "\\pm", "\\mp"}


class Cursor:
    """The state that the rules share: the position, and the brackets around it."""

    def __init__(self, tokens: list[Token], enclosing_bars: bool = False):
        self.tokens = tokens
        self.enclosing_bars = enclosing_bars  # an outermost |...| ends with the last bar of a product: ||x||y||
        self.position = 0
        self.depth = 0
        self.bars = 0  # open |...|: inside, a bar closes
        self.heading = False  # at the start of {x : ...}: a colon after a name ends it
        self.differential = False  # inside of an integral: d and a letter end it

    @property
    def next(self) -> Token:
        return self.tokens[self.position] if self.position < len(self.tokens) else END

    def peek(self, ahead: int) -> Token:
        position = self.position + ahead
        return self.tokens[position] if position < len(self.tokens) else END

    def take(self) -> Token:
        token = self.next
        self.position += 1
        return token

    def accept(self, *values: str) -> str | None:
        """Take the next token if it is one of ``values`` (not words in text); return its value or None."""
        if self.next.value in values and self.next is not END and self.next.kind != "text":
            return self.take().value
        return None

    def expect(self, value: str) -> None:
        if not self.accept(value):
            raise Unreadable(f"expected {value!r}, found {self.next.value!r}")

    def bar_opens_within_bars(self) -> bool:
        """Whether the next bar leaves the outermost |...| open because the product has more bars, as in ||x||y||."""
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
