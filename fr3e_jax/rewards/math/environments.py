"""The rules for matrices and arrays."""

from __future__ import annotations

from fr3e_jax.rewards.math.cursor import END, Cursor
from fr3e_jax.rewards.math.expression_tree import Node
from fr3e_jax.rewards.math.limits import MATRIX_ENTRIES, Refused, Unreadable


class Environments(Cursor):
    """Rules of ``reader.Reader``."""

    def environment(self) -> Node:
        kind = self.environment_name()
        if kind == "array" and self.next.value == "{":
            while self.take().value != "}":
                if self.next is END:
                    raise Unreadable("an array has no end")
        if not kind.endswith("matrix") and kind != "array":
            raise Unreadable(f"the environment {kind!r} is not in the grammar")
        rows = self.rows()
        if self.environment_name() != kind:
            raise Unreadable("environments are nested wrongly")
        columns = len(rows[0])
        if any(len(row) != columns for row in rows):
            raise Unreadable("the rows of a matrix differ in length")
        matrix = Node("matrix", tuple(entry for row in rows for entry in row), columns)
        return Node("function", (matrix,), "det") if kind == "vmatrix" else matrix

    def environment_name(self) -> str:
        self.expect("{")
        letters = []
        while not self.accept("}"):
            token = self.take()
            if token is END:
                raise Unreadable("an environment has no name")
            letters.append(token.value)
        return "".join(letters)

    def rows(self) -> list[list[Node]]:
        rows, entries, bars, self.bars = [[]], 0, self.bars, 0
        while not self.accept("\\end"):
            if self.accept("\\\\"):
                rows.append([])
            elif not self.accept("&", "\\hline"):
                rows[-1].append(self.item())
                entries += 1
            if entries > MATRIX_ENTRIES:
                raise Refused(f"a matrix has more than {MATRIX_ENTRIES} entries")
            if self.next is END:
                raise Unreadable("a matrix has no end")
        self.bars = bars
        rows = [row for row in rows if row]
        if not rows:
            raise Unreadable("a matrix is empty")
        return rows
