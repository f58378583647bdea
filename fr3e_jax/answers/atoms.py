"""The rules for atoms: numbers and names; brackets and commands are in files of their own."""

from __future__ import annotations

from fractions import Fraction

from fr3e_jax.answers.brackets import bracket, in_braces, operand, within_bars
from fr3e_jax.answers.commands import command, environment
from fr3e_jax.answers.cursor import END, Cursor
from fr3e_jax.answers.expression_shapes import letters
from fr3e_jax.answers.expression_tree import Node, listed, literal_node, mixed_number, number_node, three_digits
from fr3e_jax.answers.limits import Unreadable
from fr3e_jax.answers.tokens import Token
from fr3e_jax.answers.vocabulary import BASES, OPENING, UNDEFINED_FUNCTIONS


def atom(cursor: Cursor) -> Node:
    """The smallest expression: a number, name, bracket, absolute value or command with its arguments."""
    cursor.enter()
    tree = _atom(cursor)
    cursor.depth -= 1
    return tree


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
    if token.value == "\\{" and cursor.accept("\\begin"):
        cases = environment(cursor, braced=True)
        cursor.accept("\\}", ".")
        return cases
    if token.value in OPENING:
        return bracket(cursor, token.value)
    if token.value in ("|", "\\|"):
        return within_bars(cursor, token.value)
    return command(cursor, token.value)


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
        integer, upper = digits, cursor.take().value
        cursor.take()
        return mixed_number(integer, upper, cursor.take().value)  # 1 1/2
    if cursor.next.value in ("e", "E") and not cursor.next.spaced and (exponent := _scientific(cursor)) is not None:
        return Node("multiply", (literal_node(digits), Node("power", (number_node(10), number_node(exponent)))))
    return literal_node(digits)


def _repeating(cursor: Cursor, digits: str) -> Node:
    """``0.1\\overline{6}`` is a sixth."""
    cursor.take()
    period = operand(cursor)
    written = str(cursor.tokens[cursor.position - (2 if cursor.tokens[cursor.position - 1].value == "}" else 1)].value)
    if period.head != "number" or not written.isdigit():
        raise Unreadable("a repeating decimal has a period that is no number")
    places = len(digits.partition(".")[2])
    start = Fraction(int(digits.replace(".", "")), 10**places)
    return number_node(start + Fraction(int(written), (10 ** len(written) - 1) * 10**places))


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
    if letters(base) in BASES:
        base = number_node(BASES.index(letters(base)) + 2)
    if base.head not in ("number", "text"):
        raise Unreadable("a number has a subscript that is not a base")
    return Node("based", (), (digits.lstrip("0") or "0", str(base.value)))


def _named(cursor: Cursor, letter: str) -> Node:
    """A letter with its subscript: a constant, a symbol, or a function that nobody defined."""
    name = letter + cursor.subscript()
    if name in UNDEFINED_FUNCTIONS:
        ahead = [cursor.peek(index).value for index in range(6)]
        if ahead[:1] == ["\\circ"] and ahead[1] in UNDEFINED_FUNCTIONS:  # (f \\circ g)(x)
            cursor.position += 2
            return Node("symbol", (), f"{name}∘{ahead[1]}")
        if ahead == ["^", "{", "-", "1", "}", "("]:
            cursor.position += 5
            return _applied(cursor, f"{name}^-1")
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
    arguments = cursor.rules.answer(cursor, ")")
    cursor.expect(")")
    return Node("apply", listed(arguments), name)
