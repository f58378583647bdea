"""Questions about the shape of a tree, and trees in other shapes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from fr3e_jax.answers.characters import UNIT_LETTERS
from fr3e_jax.answers.expression_tree import INFINITY, Node, number_node, symbols, unsigned
from fr3e_jax.answers.units import ORDINALS
from fr3e_jax.answers.vocabulary import NUMBER_SETS

_TRANSPARENT = {"apply", "bracket", "ratio", "multiply", "function", "degrees", "list"}
_UNIT_SYMBOLS = {letter: letter for letter in UNIT_LETTERS} | {r"\Omega": "Ω"}
_ARTICLE = re.compile(r"^(?:(?:is|an?|the|on) )+(?=\w{3})")
_CHOICES = re.compile(r"[A-J](?:\s*(?:,|and|&|,\s*and)\s*[A-J])+")
_ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()
MIRROR = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!=", "=": "="}


def is_open(node: Node) -> bool:
    return bool(symbols(node)) or node.has("text", "set", "bracket")


def difference(relation: Node) -> Node:
    left, right = relation.args
    if relation.value[0] in (">", ">="):
        left, right = right, left
    return Node("add", (left, Node("negate", (right,))))


def mirrored(relation: Node) -> Node | None:
    """``a < b`` as ``b > a``; None for relations that have no mirror image."""
    if not set(relation.value) <= set(MIRROR):
        return None
    return Node("relation", relation.args[::-1], tuple(MIRROR[operator] for operator in relation.value[::-1]))


def letters(node: Node) -> str:
    """The words that a tree spells, casefolded: \\text{odd} and odd are the same; "" if it is not words."""
    if node.head == "text":
        return "".join(c for c in _ARTICLE.sub("", node.value.casefold()) if c.isalnum())
    if node.head == "measured" and node.args[0].is_integer and node.value in ORDINALS:
        return dict(enumerate(_ORDINALS, 1)).get(int(node.args[0].value), "")
    if node.head == "symbol" or (node.head == "constant" and len(node.value) == 1):
        return node.value.casefold()
    if node.head == "multiply":
        words = [letters(factor) for factor in node.args]
        return "".join(words) if all(words) else ""
    if node.head == "measured":
        inner = letters(node.args[0])
        return inner + letters(Node("text", (), node.value)) if inner else ""
    return ""


def infinity_sign(node: Node) -> int:
    """The sign of an infinity: 1 or -1; 0 for other trees."""
    if node.head == "negate":
        return -infinity_sign(node.args[0])
    return int(node == INFINITY)


def is_zero(node: Node) -> bool:
    return node.head == "number" and not node.value


def as_matrix(node: Node) -> Node:
    """``[[0, 1], [1, 0]]`` as a matrix."""
    if node.head != "bracket" or any(row.head != "bracket" for row in node.args):
        return node
    widths = {len(row.args) for row in node.args}
    if len(widths) != 1:
        return node
    return Node("matrix", tuple(entry for row in node.args for entry in row.args), widths.pop())


def is_system(node: Node) -> bool:
    """Return whether a list says something about a name by inequalities."""
    return node.head == "list" and any(
        item.head == "relation" and not set(item.value) <= {"=", "~", "in"} for item in node.args
    )


def named_point(node: Node) -> tuple[str, Node] | None:
    """The name and the coordinates of ``A(3, 4)``; None for anything else."""
    if node.head == "apply" and node.value.isupper() and len(node.args) > 1:
        return node.value, Node("bracket", node.args, "()")
    if node.head == "multiply" and len(node.args) == 2 and node.args[0].head == "symbol":
        name, point = node.args
        if name.value.isupper() and point.head == "bracket" and point.value == "()":
            return name.value, point
    return None


def clock(node: Node) -> tuple[int, bool] | None:
    """The minute of the day of ``3:30 p.m.``, ``15:30`` or ``8 a.m.``, and whether the half of the day is said."""
    if node.head not in ("measured", "ratio"):
        return None
    halves = [
        piece.value.lower().replace(".", "").replace(" ", "") for piece in node.walk() if piece.head == "measured"
    ]
    pieces = [piece for piece in node.walk() if not piece.args][::-1]
    if len(pieces) > 2 or not all(piece.is_integer for piece in pieces):
        return None
    half = "".join(halves)
    if half not in ("am", "pm", "") or any(piece.head not in ("measured", "ratio", "number") for piece in node.walk()):
        return None
    hours, minutes = int(pieces[0].value), int(pieces[1].value) if len(pieces) > 1 else 0
    if hours > 24 or minutes > 59 or (half and hours > 12):
        return None
    hours = hours % 12 + 12 * (half == "pm") if half else hours
    return 60 * hours + minutes, bool(half) or not 1 <= hours <= 12


def choices(node: Node) -> tuple[str, ...]:
    """The letters of ``A, C``, ``AC`` or ``A and C``, in ascending order; () for anything else."""
    if node.value == "or":
        return ()
    if node.head in ("list", "multiply"):
        letters = [piece.value for piece in node.args if piece.head in ("symbol", "text")]
        if len(letters) != len(node.args):
            return ()
    else:
        letters = list(node.value) if node.head == "text" and node.value.isalpha() else []
        if node.head == "text" and _CHOICES.fullmatch(node.value):
            letters = re.findall(r"[A-J]\b", node.value)
    if len(letters) < 2 or not all(letter in tuple("ABCDEFGHIJ") for letter in letters):
        return ()
    if node.head == "multiply" and letters != sorted(set(letters)):
        return ()
    return tuple(sorted(set(letters)))


def is_time(ratio: Node) -> bool:
    """Return whether ``3:45`` is a time of day: with a.m. or p.m., or as ratios of integers are in lowest terms."""
    if len(ratio.args) != 2 or ratio.args[1].head == "measured":
        return len(ratio.args) == 2
    if not all(operand.is_integer for operand in ratio.args):
        return False
    hours, minutes = (operand.value.numerator for operand in ratio.args)
    return 0 <= hours <= 24 and 10 <= minutes < 60 and math.gcd(hours, minutes) > 1


def set_letter(node: Node) -> Node:
    """The set of numbers that a letter names beside another set: ``R`` is the set in bold or blackboard bold."""
    return Node("set_name", (), node.value) if node.head == "symbol" and node.value in NUMBER_SETS else node


def elements(node: Node) -> tuple[Node, ...]:
    return node.args if node.head == "set" else (node,)


def is_name(node: Node) -> bool:
    """Return whether a tree may stand before ``=`` as the name of an answer: ``x``, ``f(x)``, ``(p, q)``, ``|AB|``."""
    if node.head in ("symbol", "text"):
        return True
    if node.head == "constant":
        return node.value in ("e", "i")
    if node.head == "apply":
        return True
    if node.head == "divide":
        return all(map(is_name, node.args))
    if node.head == "power" and node.args[0].head == "symbol":  # A^{-1}, of a matrix
        return node.args[0].value.isupper() and node.args[1] == Node("negate", (number_node(1),))
    return node.head in _TRANSPARENT and bool(node.args) and all(map(is_name, node.args))


def is_asked(node: Node) -> bool:
    """Return whether a tree is a sum of names, whose value ``m + n = 7`` or ``2a - b = 7`` says."""
    return node.head == "add" and all(map(_is_multiple, node.args))


def _is_multiple(node: Node) -> bool:
    """Return whether a tree is a name, or an integer times one."""
    node = unsigned(node)
    if node.head == "multiply" and node.args[0].head == "number" and len(node.args) > 1:
        return all(map(is_name, node.args[1:]))
    return is_name(node)


def with_unit(node: Node) -> Node | None:
    """``5 m^2`` as five square metres: a number and a unit's letters, written without ``text``; None for all else."""
    words = unit_words(node.args[-1], _UNIT_SYMBOLS) if node.head == "multiply" else None
    if words is None:
        return None
    factors = node.args[:-1]
    amount = factors[0] if len(factors) == 1 else Node("multiply", factors)
    return None if is_open(amount) else Node("measured", (amount,), words)


def unit_words(node: Node, names: Mapping[str, str] = {}) -> str | None:
    """The unit that words, or letters in ``names``, write: ``\\frac{\\text{m}}{\\text{s}}``; else None."""
    if node.head == "text" or (node.head == "symbol" and node.value in names):
        return names.get(node.value, node.value)
    if node.head == "power" and node.args[1].is_integer:
        base = unit_words(node.args[0], names)
        return base and f"{base}^{node.args[1].value}"
    if node.head in ("divide", "multiply"):
        words = [unit_words(operand, names) for operand in node.args]
        return (" / " if node.head == "divide" else " * ").join(words) if all(words) else None
    return None


def name_of(node: Node) -> str:
    """The text of a name; equal names have equal texts."""
    if node.head in ("symbol", "text", "constant"):
        return str(node.value)
    inner = ",".join(map(name_of, node.args)) if node.args else str(node.value)
    return f"{node.head}:{node.value}({inner})" if node.head != "multiply" else inner
