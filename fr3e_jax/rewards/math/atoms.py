"""The rules for atoms: numbers, names, brackets, sets, absolute values."""

from __future__ import annotations

from fractions import Fraction

from fr3e_jax.rewards.math import commands, expressions
from fr3e_jax.rewards.math.cursor import END, Cursor
from fr3e_jax.rewards.math.expression_tree import Node, number
from fr3e_jax.rewards.math.limits import LIST_ITEMS, Refused, Unreadable
from fr3e_jax.rewards.math.nodes import literal_node, mixed_number, three_digits
from fr3e_jax.rewards.math.tokens import Token
from fr3e_jax.rewards.math.vocabulary import OPENING, UNDEFINED_FUNCTIONS


def atom(cursor: Cursor) -> Node:
    """The smallest expression: a number, name, bracket, absolute value or command with its arguments."""
    cursor.enter()
    try:
        return _atom(cursor)
    finally:
        cursor.depth -= 1


def _atom(cursor: Cursor) -> Node:
    token = cursor.take()
    if token is END:
        raise Unreadable("the answer ends where something was expected")
    if token.kind == "number":
        return _literal(cursor, token)
    if token.kind == "letter":
        return _named(cursor, token.value)
    if token.kind == "text":
        return Node("text", (), token.value)
    if token.value == "{":
        cursor.position -= 1
        return in_braces(cursor)
    if token.value in OPENING:
        return bracket(cursor, token.value)
    if token.value in ("|", "\\|"):
        return _bars_around(cursor, token.value)
    return commands.command(cursor, token.value)


def _literal(cursor: Cursor, token: Token) -> Node:
    """A number, with the digits, base, period or exponent after it."""
    digits = token.value
    if len(digits) <= 3 and "." not in digits and digits[0] != "0":
        while cursor.next.kind == "number" and cursor.next.spaced and three_digits(cursor.next.value):
            digits += cursor.take().value  # 1 000 000
    if cursor.next.value == "_" and "." not in digits:
        return based(cursor, digits)
    if "." in digits and cursor.next.value in ("\\overline", "\\bar", "\\dot"):
        return _repeating(cursor, digits)
    if (
        cursor.next.kind == "number"
        and cursor.next.spaced
        and cursor.peek(1).value == "/"
        and cursor.peek(2).kind == "number"
    ):
        whole, upper = digits, cursor.take().value
        cursor.take()
        return mixed_number(whole, upper, cursor.take().value)  # 1 1/2
    if cursor.next.value in ("e", "E") and not cursor.next.spaced and (exponent := _scientific(cursor)) is not None:
        return Node("multiply", (literal_node(digits), Node("power", (number(10), number(exponent)))))
    return literal_node(digits)


def _repeating(cursor: Cursor, digits: str) -> Node:
    """``0.1\\overline{6}`` is a sixth."""
    cursor.take()
    period = commands.operand(cursor)
    written = str(cursor.tokens[cursor.position - (2 if cursor.tokens[cursor.position - 1].value == "}" else 1)].value)
    if period.head != "number" or not written.isdigit():
        raise Unreadable("a repeating decimal has a period that is no number")
    places = len(digits.partition(".")[2])
    start = Fraction(int(digits.replace(".", "")), 10**places)
    return number(start + Fraction(int(written), (10 ** len(written) - 1) * 10**places))


def _scientific(cursor: Cursor) -> int | None:
    """The exponent of ``1e-9``; None for ``2e`` and ``2e+x``."""
    signed = cursor.peek(1).value in ("+", "-") and not cursor.peek(1).spaced
    digits = cursor.peek(2 if signed else 1)
    if digits.kind != "number" or digits.spaced or not digits.value.isdigit() or len(digits.value) > 6:
        return None
    sign = -1 if cursor.peek(1).value == "-" else 1
    cursor.position += 3 if signed else 2
    return sign * int(digits.value)


def based(cursor: Cursor, digits: str) -> Node:
    """A numeral with its base as a subscript."""
    cursor.take()
    base = in_braces(cursor) if cursor.next.value == "{" else atom(cursor)
    if base.head not in ("number", "text"):
        raise Unreadable("a number has a subscript that is not a base")
    return Node("based", (), (digits.lstrip("0") or "0", str(base.value)))


def _named(cursor: Cursor, letter: str) -> Node:
    """A letter with its subscript: a constant, a symbol, or a function that nobody defined."""
    name = letter + subscript(cursor)
    if name == "e":
        return Node("constant", (), "e")
    at_zero = [cursor.peek(ahead).value for ahead in range(3)] == ["(", "0", ")"]
    if at_zero or (name[0] in UNDEFINED_FUNCTIONS and cursor.next.value == "("):  # nobody writes a product with 0
        return _applied(cursor, name)
    if name[0] in UNDEFINED_FUNCTIONS and cursor.next.value == "{" and cursor.peek(1).value == "(":
        cursor.take()
        called = _applied(cursor, name)
        cursor.expect("}")
        return called
    if name == "i":
        return Node("constant", (), "i")
    return Node("symbol", (), name)


def _applied(cursor: Cursor, name: str) -> Node:
    """A function that nobody defined, with its arguments."""
    cursor.expect("(")
    arguments = expressions.answer(cursor, ")")
    cursor.expect(")")
    return Node("apply", arguments.args if arguments.head == "list" else (arguments,), name)


def subscript(cursor: Cursor) -> str:
    """The subscript as written, without blanks and braces; it is part of a name."""
    if not cursor.accept("_"):
        return ""
    if not cursor.accept("{"):
        return f"_{cursor.take().value}"
    depth, parts = 1, []
    while depth:
        token = cursor.take()
        if token is END:
            raise Unreadable("a subscript does not end")
        depth += {"{": 1, "}": -1}.get(token.value, 0)
        parts.append(token.value)
    return "_" + "".join(parts[:-1])


def in_braces(cursor: Cursor) -> Node:
    """The content of ``{...}``."""
    cursor.expect("{")
    if cursor.accept("}"):
        raise Unreadable("there are empty braces")
    bars, cursor.bars = cursor.bars, 0
    inner = expressions.stacked(cursor, "}")
    cursor.bars = bars
    cursor.expect("}")
    return inner


def bracket(cursor: Cursor, opening: str) -> Node:
    """Brackets after their opening one: a grouped expression, a tuple, an interval or a set."""
    bars, cursor.bars = cursor.bars, 0
    inner = _set_braces(cursor) if opening == "\\{" else _bracket_content(cursor, opening)
    cursor.bars = bars
    return inner


def _bracket_content(cursor: Cursor, opening: str) -> Node:
    if cursor.accept(OPENING[opening]):
        raise Unreadable("there are empty brackets")
    content = expressions.answer(cursor, ")", "]", "\\rangle")
    closing = cursor.accept(")", "]", "\\rangle")
    if closing is None:
        raise Unreadable(f"{opening!r} is not closed")
    items = (
        tuple(i for g in content.args for i in (g.args if g.head == "list" else (g,)))
        if content.head == "list"
        else (content,)
    )
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
    first = expressions.item(cursor)
    cursor.heading = before
    if cursor.accept("|", ":"):
        cursor.bars = 0
        condition = expressions.answer(cursor, "\\}")
        cursor.expect("\\}")
        return Node("builder", (first, condition))
    cursor.bars = 0
    items = [first]
    while expressions.separator(cursor) and cursor.next.value != "\\}":
        items.append(expressions.item(cursor))
        if len(items) > LIST_ITEMS:
            raise Refused(f"a set has more than {LIST_ITEMS} elements")
    cursor.expect("\\}")
    return Node("set", tuple(items))


def _bars_around(cursor: Cursor, bar: str) -> Node:
    """An absolute value, or the determinant of a matrix."""
    cursor.bars += 1
    inner = expressions.additive(cursor)
    cursor.bars -= 1
    cursor.expect(bar)
    if inner.head == "matrix":
        return Node("function", (inner,), "det")
    return Node("function", (inner,), "abs")
