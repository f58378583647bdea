"""The rules for brackets of all kinds, and for arguments that stand in braces or alone."""

from __future__ import annotations

from fr3e_jax.answers.cursor import Cursor
from fr3e_jax.answers.expression_tree import Node, listed, literal_node, with_sign
from fr3e_jax.answers.limits import LIST_ITEMS, Refused, Unreadable
from fr3e_jax.answers.tokens import Token
from fr3e_jax.answers.vocabulary import OPENING


def in_braces(cursor: Cursor) -> Node:
    """The content of ``{...}``."""
    cursor.expect("{")
    if cursor.accept("}"):
        raise Unreadable("there are empty braces")
    bars, cursor.bars = cursor.bars, 0
    inner = stacked(cursor, "}")
    cursor.bars = bars
    cursor.expect("}")
    return inner


def stacked(cursor: Cursor, *closing: str) -> Node:
    """The content of braces: an answer, or two of them around ``\\over`` or ``\\choose``."""
    upper = cursor.rules.answer(cursor, *closing)
    if cursor.accept("\\over"):
        return Node("divide", (upper, cursor.rules.answer(cursor, *closing)), "\\frac")
    if cursor.accept("\\choose"):
        return Node("function", (upper, cursor.rules.answer(cursor, *closing)), "binomial")
    return upper


def operand(cursor: Cursor) -> Node:
    """An argument of a command: in braces, or the one digit, letter or command that follows."""
    if cursor.next.value == "{":
        return in_braces(cursor)
    if cursor.next.kind == "number":
        digits = cursor.take().value
        if len(digits) == 1:
            return literal_node(digits)  # the 3 of \log_3 243, which is not 3 243
        if not digits[0].isdigit():
            raise Unreadable("a command has a decimal point for its argument")
        cursor.position -= 1
        rest = Token("number", digits[1:]) if digits[1] != "." else Token("number", "0" + digits[1:])
        cursor.tokens[cursor.position] = rest
        return literal_node(digits[0])
    return cursor.rules.atom(cursor)


def exponent(cursor: Cursor) -> Node:
    """An exponent, in braces or a single atom."""
    cursor.enter()
    sign = cursor.accept("-", "+")
    inner = in_braces(cursor) if cursor.next.value == "{" else cursor.rules.atom(cursor)
    if inner.head == "set" and len(inner.args) == 1:
        inner = inner.args[0]
    if cursor.next.value == "^" and inner.head in ("number", "symbol", "constant") and cursor.accept("^"):
        inner = Node("power", (inner, exponent(cursor)))
    cursor.depth -= 1
    return with_sign(sign, inner)


def bracket(cursor: Cursor, opening: str) -> Node:
    """Brackets after their opening one: a grouped expression, a tuple, an interval or a set."""
    bars, cursor.bars = cursor.bars, 0
    inner = _set_braces(cursor) if opening == "\\{" else _bracket_content(cursor, opening)
    cursor.bars = bars
    return inner


def _bracket_content(cursor: Cursor, opening: str) -> Node:
    if cursor.accept(OPENING[opening]):
        raise Unreadable("there are empty brackets")
    content = cursor.rules.answer(cursor, ")", "]", "\\rangle")
    closing = cursor.accept(")", "]", "\\rangle")
    if closing is None:
        raise Unreadable(f"{opening!r} is not closed")
    items = tuple(item for group in listed(content) for item in listed(group))
    if len(items) == 1 and OPENING[opening] == closing and opening != "\\langle":
        return items[0] if items[0].head != "list" else Node("bracket", items, opening + closing)
    if len(items) == 1:
        raise Unreadable("an interval has one end")
    return Node("bracket", items, "()" if opening == "\\langle" else opening + closing)


def _set_braces(cursor: Cursor) -> Node:
    """A set by its elements or by a condition."""
    if cursor.accept("\\}"):
        return Node("set")
    cursor.bars = 1  # so that | after the first item is "such that", not the start of an absolute value
    cursor.heading, before = True, cursor.heading
    first = cursor.rules.item(cursor)
    cursor.heading = before
    if cursor.accept("|", ":"):
        cursor.bars = 0
        condition = cursor.rules.answer(cursor, "\\}")
        cursor.expect("\\}")
        return Node("builder", (first, condition))
    cursor.bars = 0
    items = [first]
    while cursor.separator() and cursor.next.value != "\\}":
        items.append(cursor.rules.item(cursor))
        if len(items) > LIST_ITEMS:
            raise Refused(f"a set has more than {LIST_ITEMS} elements")
    cursor.expect("\\}")
    return Node("set", tuple(items))


def within_bars(cursor: Cursor, bar: str) -> Node:
    """An absolute value, or the determinant of a matrix."""
    cursor.bars += 1
    inner = cursor.rules.additive(cursor)
    cursor.bars -= 1
    cursor.expect(bar)
    return Node("function", (inner,), "det" if inner.head == "matrix" else "abs")
