r"""Vectors in their notations: columns, ``(3, -1, 2)``, ``\langle 3, -1, 2\rangle``, ``3\hat i-\hat j+2\hat k``."""

from __future__ import annotations

from collections.abc import Sequence

from fr3e_jax.answers.expression_tree import Node, number_node
from fr3e_jax.answers.matrices import collapsed

_ACCENTS = r"\hat \vec \widehat \overrightarrow".split()
_ACCENTED = {f"{accent}{name}": name for accent in _ACCENTS for name in "ijk"}
_OPERATIONS = {"add", "multiply", "divide", "negate"}
_UNIT_VECTORS = {**_ACCENTED, "i": "i", "j": "j", "k": "k"}


def paired_components(left: Node, right: Node) -> tuple[Sequence[Node], Sequence[Node]] | None:
    """The components of two vectors in different notations; None unless both are vectors so.

    A row is no column, and ``3i + 2j`` without accents is a vector only beside one in another notation.

    Raises:
      Unreadable, Refused: see ``collapsed``.
    """
    as_written, (left, right) = (left, right), (_carried_out(left), _carried_out(right))
    if not {"matrix", "bracket"} & {left.head, right.head}:
        return _both_by_units(left, right)
    kinds = [_kind(side) for side in (left, right)]
    if None in kinds or kinds[0] == kinds[1] == "units" or (kinds[0] == kinds[1] and (left, right) == as_written):
        return None
    if "units" not in kinds:
        return left.args, right.args
    size = len((right if kinds[0] == "units" else left).args)
    sides = [
        _by_units(side, size) if kind == "units" else side.args for side, kind in zip((left, right), kinds, strict=True)
    ]
    return None if None in sides else (sides[0], sides[1])


def _kind(node: Node) -> str | None:
    if node.head == "matrix":
        return "column" if node.value == 1 and len(node.args) > 1 else None
    if node.head == "bracket":
        return "tuple" if node.value == "()" or (node.value == "[]" and len(node.args) > 2) else None
    if node.head == "function" and node.value == "binomial":
        return "binomial"
    return "units" if _coefficients(node) else None


def _carried_out(node: Node) -> Node:
    """The vector that sums and multiples such as ``2(3, -4)`` give; any other tree as it is."""
    if node.head not in _OPERATIONS or not node.has("matrix", "bracket"):
        return node
    result = collapsed(_tuples_as_columns(node))
    if result.head != "matrix" or node.has("matrix"):
        return result
    return Node("bracket", result.args, "()")


def _tuples_as_columns(node: Node) -> Node:
    if node.head == "bracket" and node.value == "()":
        return Node("matrix", node.args, 1)
    return node.mapped(_tuples_as_columns) if node.head in _OPERATIONS else node


def _both_by_units(left: Node, right: Node) -> tuple[Sequence[Node], Sequence[Node]] | None:
    """Both sides as sums of unit vectors, if one has accents: ``\\hat i`` and ``\\mathbf i`` are the same vector."""
    if not any(node.head == "symbol" and node.value in _ACCENTED for side in (left, right) for node in side.walk()):
        return None
    sides = _by_units(left, 3), _by_units(right, 3)
    return None if None in sides else sides


def _by_units(node: Node, size: int) -> Sequence[Node] | None:
    """The first ``size`` components of a sum of unit vectors; None if there are more."""
    coefficients = _coefficients(node)
    names = "ijk"[:size]
    if coefficients is None or not set(coefficients) <= set(names) or size > 3:
        return None
    return tuple(coefficients.get(name, number_node(0)) for name in names)


def _coefficients(node: Node) -> dict[str, Node] | None:
    """The factor of each unit vector in a sum; None if a summand has none, or two of them."""
    if node.head in ("symbol", "constant") and node.value in _UNIT_VECTORS:
        return {_UNIT_VECTORS[node.value]: number_node(1)}
    if node.head == "negate" or node.head == "divide":
        inner = _coefficients(node.args[0])
        return inner and {name: Node(node.head, (factor, *node.args[1:])) for name, factor in inner.items()}
    if node.head == "multiply":
        vectors = [_coefficients(factor) for factor in node.args]
        if sum(vector is not None for vector in vectors) != 1:
            return None
        rest = tuple(factor for factor, vector in zip(node.args, vectors, strict=True) if vector is None)
        inner = next(vector for vector in vectors if vector is not None)
        return {name: Node("multiply", (*rest, factor)) for name, factor in inner.items()}
    if node.head != "add":
        return None
    total: dict[str, Node] = {}
    for vector in map(_coefficients, node.args):
        if vector is None:
            return None
        for name, factor in vector.items():
            total[name] = Node("add", (total[name], factor)) if name in total else factor
    return total
