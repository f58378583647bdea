"""The rules for matrices and arrays."""

from __future__ import annotations

from fr3e_jax.rewards.math import expressions
from fr3e_jax.rewards.math.cursor import END, Cursor
from fr3e_jax.rewards.math.expression_tree import Node
from fr3e_jax.rewards.math.limits import MATRIX_ENTRIES, Refused, Unreadable


def environment(cursor: Cursor) -> Node:
    """A matrix or array, after ``\\\\begin``."""
    kind = _name(cursor)
    if kind == "array" and cursor.next.value == "{":
        while cursor.take().value != "}":
            if cursor.next is END:
                raise Unreadable("an array has no end")
    if not kind.endswith("matrix") and kind != "array":
        raise Unreadable(f"the environment {kind!r} is not in the grammar")
    rows = _rows(cursor)
    if _name(cursor) != kind:
        raise Unreadable("environments are nested wrongly")
    columns = len(rows[0])
    if any(len(row) != columns for row in rows):
        raise Unreadable("the rows of a matrix differ in length")
    matrix = Node("matrix", tuple(entry for row in rows for entry in row), columns)
    return Node("function", (matrix,), "det") if kind == "vmatrix" else matrix


def _name(cursor: Cursor) -> str:
    cursor.expect("{")
    letters = []
    while not cursor.accept("}"):
        token = cursor.take()
        if token is END:
            raise Unreadable("an environment has no name")
        letters.append(token.value)
    return "".join(letters)


def _rows(cursor: Cursor) -> list[list[Node]]:
    rows, entries, bars, cursor.bars = [[]], 0, cursor.bars, 0
    while not cursor.accept("\\end"):
        if cursor.accept("\\\\"):
            rows.append([])
        elif not cursor.accept("&", "\\hline"):
            rows[-1].append(expressions.item(cursor))
            entries += 1
        if entries > MATRIX_ENTRIES:
            raise Refused(f"a matrix has more than {MATRIX_ENTRIES} entries")
        if cursor.next is END:
            raise Unreadable("a matrix has no end")
    cursor.bars = bars
    rows = [row for row in rows if row]
    if not rows:
        raise Unreadable("a matrix is empty")
    return rows
