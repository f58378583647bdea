"""Sums, products and determinants of matrices, carried out entry by entry."""

from __future__ import annotations

from functools import reduce

from fr3e_jax.answers.expression_tree import Node
from fr3e_jax.answers.limits import MATRIX_ENTRIES, Refused, Unreadable

_DETERMINANT_ROWS = 5
_POWER = 10


def collapsed(node: Node) -> Node:
    """The tree as one matrix, or as a tree without matrices.

    Raises:
      Unreadable: shapes that do not fit, or an operation that matrices do not have.
      Refused: beyond a limit.
    """
    if node.head == "matrix" or not node.has("matrix"):
        return node
    if node.head == "function" and node.value == "det":
        return determinant(collapsed(node.args[0]))
    operands = [collapsed(operand) for operand in node.args]
    if node.head == "negate":
        return _scaled(Node("number", (), -1), operands[0])
    if node.head == "add":
        return reduce(_sum, operands)
    if node.head == "multiply":
        return reduce(_product, operands)
    if node.head == "divide":
        return _map(operands[0], lambda entry: Node("divide", (entry, operands[1])))
    if node.head == "power":
        return _power(*operands)
    raise Unreadable(f"a matrix inside of a {node.head}")


def determinant(matrix: Node) -> Node:
    """The determinant as an expression, by expansion along the first row."""
    size = matrix.value
    if matrix.head != "matrix" or len(matrix.args) != size * size:
        raise Unreadable("a determinant of something that is no square matrix")
    if size > _DETERMINANT_ROWS:
        raise Refused(f"a determinant of more than {_DETERMINANT_ROWS} rows")
    if size == 1:
        return matrix.args[0]
    terms = []
    for column in range(size):
        rest = tuple(e for i, e in enumerate(matrix.args) if i >= size and i % size != column)
        term = Node("multiply", (matrix.args[column], determinant(Node("matrix", rest, size - 1))))
        terms.append(Node("negate", (term,)) if column % 2 else term)
    return Node("add", tuple(terms))


def _map(matrix: Node, function) -> Node:
    if matrix.head != "matrix":
        raise Unreadable("a division by a matrix")
    return matrix.mapped(function)


def _scaled(factor: Node, other: Node) -> Node:
    if other.head == "matrix":
        return _map(other, lambda entry: Node("multiply", (factor, entry)))
    return Node("multiply", (factor, other))


def _sum(left: Node, right: Node) -> Node:
    if left.head != right.head and "matrix" in (left.head, right.head):
        raise Unreadable("a sum of a number and a matrix")
    if left.head != "matrix":
        return Node("add", (left, right))
    if left.value != right.value or len(left.args) != len(right.args):
        raise Unreadable("a sum of matrices of different shapes")
    entries = zip(left.args, right.args, strict=True)
    return Node("matrix", tuple(Node("add", pair) for pair in entries), left.value)


def _product(left: Node, right: Node) -> Node:
    if left.head != "matrix":
        return _scaled(left, right)
    if right.head != "matrix":
        return _scaled(right, left)
    inner, columns = left.value, right.value
    rows = len(left.args) // inner
    if inner * columns != len(right.args):
        raise Unreadable("a product of matrices whose shapes do not fit")
    if rows * columns > MATRIX_ENTRIES:
        raise Refused(f"a matrix has more than {MATRIX_ENTRIES} entries")
    entries = []
    for row in range(rows):
        for column in range(columns):
            pairs = [(left.args[row * inner + k], right.args[k * columns + column]) for k in range(inner)]
            entries.append(Node("add", tuple(Node("multiply", pair) for pair in pairs)))
    return Node("matrix", tuple(entries), columns)


def _power(base: Node, exponent: Node) -> Node:
    if base.head != "matrix" or not exponent.is_integer:
        raise Refused("a power of a matrix that is not a natural number")
    if not 1 <= exponent.value <= _POWER:
        raise Refused(f"a power of a matrix beyond {_POWER}")
    return reduce(_product, [base] * int(exponent.value))
