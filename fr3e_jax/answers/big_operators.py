"""The rules for sums, products, integrals, limits and derivatives."""

from __future__ import annotations

from fr3e_jax.answers.brackets import in_braces
from fr3e_jax.answers.cursor import Cursor
from fr3e_jax.answers.expression_tree import Node, literal_node, number_node, replaced, with_sign
from fr3e_jax.answers.limits import Unreadable
from fr3e_jax.answers.vocabulary import CONSTANTS, GREEK_SYMBOLS


def big_operator(cursor: Cursor, head: str) -> Node:
    """A sum or product: its index, bounds and body."""
    upper = _script(cursor) if cursor.accept("^") else None
    cursor.expect("_")
    cursor.expect("{")
    index = cursor.take()
    if index.kind != "letter":
        raise Unreadable("a sum has an index that is not a letter")
    cursor.expect("=")
    lower = cursor.rules.additive(cursor)
    cursor.expect("}")
    if upper is None:
        cursor.expect("^")
        upper = _script(cursor)
    body = cursor.rules.term(cursor)
    body = replaced(body, Node("constant", (), index.value), Node("symbol", (), index.value))  # i is not imaginary here
    return Node(head, (body, lower, upper), index.value)


def _script(cursor: Cursor) -> Node:
    """A bound of a sum or integral: in braces, or one token."""
    if cursor.next.value == "{":
        return in_braces(cursor)
    sign, token = cursor.accept("-", "+"), cursor.take()
    if token.kind == "number":
        bound = literal_node(token.value)
    elif token.value in CONSTANTS:
        bound = Node("constant", (), CONSTANTS[token.value])
    elif token.kind == "letter" or token.value in GREEK_SYMBOLS:
        bound = Node("symbol", (), token.value)
    else:
        raise Unreadable("a bound of a sum or integral was expected")
    return with_sign(sign, bound)


def integral(cursor: Cursor) -> Node:
    """``\\int_a^b f(x) dx``, or without bounds."""
    bounds: tuple[Node, ...] = ()
    if cursor.accept("_"):
        lower = _script(cursor)
        cursor.expect("^")
        bounds = (lower, _script(cursor))
    elif cursor.accept("^"):
        upper = _script(cursor)
        cursor.expect("_")
        bounds = (_script(cursor), upper)
    before, cursor.differential = cursor.differential, True
    body = cursor.rules.additive(cursor) if cursor.next.value != "d" else number_node(1)
    cursor.differential = before
    cursor.expect("d")
    return Node("integral", (body, *bounds), _variable_name(cursor))


def limit(cursor: Cursor) -> Node:
    """``\\lim_{x \\to a} f(x)``; ``a^+`` and ``a^-`` are one-sided."""
    cursor.expect("_")
    cursor.expect("{")
    variable = _variable_name(cursor)
    if not cursor.accept("\\to", "\\Rightarrow"):
        raise Unreadable("a limit has no arrow")
    point, side = with_sign(cursor.accept("-", "+"), cursor.rules.atom(cursor)), "+-"
    if cursor.accept("^"):
        side = cursor.accept("+", "-") or ""
        if not side:
            cursor.expect("{")
            side = cursor.take().value
            cursor.expect("}")
    cursor.expect("}")
    return Node("limit", (cursor.rules.term(cursor), point), (variable, side))


def derivative(cursor: Cursor) -> Node:
    """``\\frac{d}{dx} f(x)``, of one variable and of the first order."""
    cursor.position += 3
    cursor.expect("{")
    cursor.take()
    variable = _variable_name(cursor)
    cursor.expect("}")
    return Node("derivative", (cursor.rules.term(cursor),), variable)


def _variable_name(cursor: Cursor) -> str:
    token = cursor.take()
    if token.kind != "letter" and token.value not in GREEK_SYMBOLS:
        raise Unreadable("a variable was expected")
    return token.value + cursor.subscript()
