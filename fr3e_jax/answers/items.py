"""One answer or several: lists, plus-minus signs, descriptions of sets, and names of answers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from fr3e_jax.answers.exact_numbers import substituted
from fr3e_jax.answers.expression_shapes import is_asked, is_name, is_open
from fr3e_jax.answers.expression_tree import Node, replaced, symbols
from fr3e_jax.answers.limits import SIGNS, Refused, Unreadable
from fr3e_jax.answers.quantity import Quantity, quantity

_PARAMETERS = set("jklmnNKM")
_INTEGRATION_CONSTANTS = {"C", "c", "k", "K", "C_1", "c_1", "C_0"}


@dataclass(frozen=True, slots=True)
class Item:
    """One answer: its value, its name (``x`` of ``x = 5``, or ""), and the equation it was read from."""

    value: Node
    name: str = ""
    equation: Node | None = None
    constant: bool = False  # it was a chain of numbers such as 10^3 = 1000
    rounded: Node | None = None  # what it is approximately, as the answer says


def single_values(node: Node) -> list[Quantity]:
    """The values of an answer or of each member of a list, without names, with units.

    Raises:
      Unreadable: a part is no value.
    """
    return [quantity(_named_value(member)) for member in members(expanded(node))]


def _named_value(node: Node) -> Node:
    """The value of ``x = 5`` or ``5``; of a longer chain, the last one."""
    if node.head != "relation":
        return node
    if not set(node.value) <= {"=", "~"}:
        raise Unreadable("not a value")
    return node.args[-1]


def condition(node: Node) -> Node:
    """A set without its braces: ``x > 3`` for ``\\{x | x > 3\\}``."""
    if node.head == "builder":
        element, described = node.args
        if element.head == "relation" and element.value == ("in",):
            element = element.args[0]
        if element.head not in ("symbol", "bracket") and described.head != "relation":
            return node
        if element.head not in ("symbol", "bracket") and described.value == ("in",):
            return Node("builder", (element, described))  # {2k : k \\in \\mathbb{Z}}
        if not symbols(element) <= symbols(described):
            raise Unreadable("a set is described by a condition on something else")
        return described
    if node.head in ("union", "intersection", "difference", "list"):
        return node.mapped(condition)
    if node.head == "relation" and node.args[-1].head == "builder":
        return condition(node.args[-1]) if node.value == ("in",) or node.value == ("=",) else node
    return node


def expanded(node: Node) -> Node:
    """A tree without plus-minus signs: the list of both values of ``1 \\pm a``. All signs change together."""
    if node.head in ("list", "set"):
        items = []
        for item in node.args:
            values = expanded(item)
            items += values.args if values.head == "list" and item.head != "list" else (values,)
        return Node(node.head, tuple(items), node.value)
    if node.head == "relation" and node.value in (("=",), ("!=",)) and _count_signs(node.args[1]):
        values = expanded(node.args[1]).args
        separator = "," if node.value == ("=",) else "and"
        return Node("list", tuple(Node("relation", (node.args[0], value), node.value) for value in values), separator)
    signs = _count_signs(node)
    if not signs:
        return node
    if signs > SIGNS:
        raise Refused(f"the answer has more than {SIGNS} plus-minus signs")
    return Node("list", (_with_signs(node, 1), _with_signs(node, -1)), ",")


def without_points(node: Node) -> Node:
    """``x \\ne 3, 7`` and ``x \\notin \\{3, 7\\}`` as ``x \\ne 3`` and ``x \\ne 7``."""
    if node.head == "builder":
        return without_points(condition(node)) if node.args[1].head == "list" else node
    if node.head == "relation" and node.value == ("notin",) and node.args[1].head == "set":
        name, points = node.args[0], node.args[1].args
    elif node.head == "list" and node.args[0].head == "relation" and node.args[0].value == ("!=",):
        name, first = node.args[0].args
        points = (first, *node.args[1:])
        if any(point.head == "relation" for point in points):
            return node
    else:
        return node
    return Node("list", tuple(Node("relation", (name, point), ("!=",)) for point in points), "and")


def same_domain(gold: Node, answer: Node) -> tuple[Node, Node]:
    """Both sides without the declaration ``k \\in \\mathbb{Z}`` of a parameter at their ends, if they agree on it."""
    (left, declared), (right, other) = map(_declared, (gold, answer))
    return (left, right) if declared == other or {declared, other} == {"", "Z"} else (gold, answer)


def _declared(node: Node) -> tuple[Node, str]:
    """A list without its last item ``k \\in \\mathbb{Z}``, and the set in it; "" if there is none."""
    last = node.args[-1] if node.head == "list" else node
    if node is last or last.head != "relation" or last.value != ("in",) or last.args[1].head != "set_name":
        return node, ""
    if last.args[0].head != "symbol" or last.args[0].value not in _PARAMETERS:
        return node, ""
    return (node.args[0] if len(node.args) == 2 else Node("list", node.args[:-1], node.value)), last.args[1].value


def same_variable(gold: Node, answer: Node) -> tuple[Node, Node]:
    """Both sides, with one variable for ``\\{x : x > 1\\}`` and ``\\{y : y > 1\\}``, ``k\\pi`` and ``n\\pi``.

    The constant of an integral, ``+C``, has several names, too.
    """
    left, right = (symbols(gold), symbols(answer)) if gold.args and answer.args else (set(), set())
    names = left - right, right - left
    if all(len(side) == 1 and side <= _PARAMETERS for side in names) and _is_family(gold) and _is_family(answer):
        return gold, substituted(answer, names[1].pop(), Node("symbol", (), names[0].pop()))
    if {"C"} in names and all(len(side) == 1 and side <= _INTEGRATION_CONSTANTS for side in names):
        constants = [Node("symbol", (), next(iter(side))) for side in names]
        if all(side in _terms(node) for side, node in zip(constants, (gold, answer), strict=True)):
            return gold, replaced(answer, *constants[::-1])
    if gold.head == answer.head == "builder" and gold.args[0].head == answer.args[0].head == "symbol":
        return gold, substituted(answer, answer.args[0].value, gold.args[0])
    return gold, answer


def _terms(node: Node) -> tuple[Node, ...]:
    """The terms of a sum, or of the sum at the end of a relation; () for anything else."""
    value = node.args[-1] if node.head == "relation" else node
    return value.args if value.head == "add" else ()


def _is_family(node: Node) -> bool:
    """Return whether a tree has a parameter for all integers, as multiples of \\pi or degrees do, or names its set."""
    return node.has("degrees", "builder") or Node("constant", (), "pi") in node.walk()


def named_set(node: Node) -> Node:
    """``S = \\{1, 2\\}`` as the set."""
    value = _unnamed(node)
    return value if value.head == "set" else node


def residue(node: Node) -> Node:
    """x ≡ 2 (mod 5) as the class 2 (mod 5); any other tree as it is."""
    if node.head != "relation" or set(node.value) != {"=="} or node.args[-1].head != "modulo":
        return node
    return node.args[-1] if is_name(node.args[0]) and len(node.args) == 2 else node


def componentwise(node: Node) -> Node:
    """``(p, q) = (3, 2)`` as ``p = 3, q = 2``."""
    if node.head != "relation" or node.value != ("=",):
        return node
    names, values = node.args
    if not (names.head == values.head == "bracket" and len(names.args) == len(values.args)):
        return node
    pairs = zip(names.args, values.args, strict=True)
    return Node("list", tuple(Node("relation", pair, ("=",)) for pair in pairs), ",") if is_name(names) else node


def _count_signs(node: Node) -> int:
    return sum(child.head == "plusminus" for child in node.walk())


def _with_signs(node: Node, sign: int) -> Node:
    if node.head == "plusminus":
        operand = _with_signs(node.args[0], sign)
        return operand if (sign > 0) == (node.value == "\\pm") else Node("negate", (operand,))
    return node.mapped(partial(_with_signs, sign=sign))


def members(node: Node) -> tuple[Node, ...]:
    if node.head == "list" and node.value == ";":
        return tuple(Node("bracket", tuple(_unnamed(item) for item in group.args), "()") for group in node.args)
    return node.args if node.head in ("list", "set") else (node,)


def _unnamed(node: Node) -> Node:
    if node.head == "relation" and node.value in (("=",), ("in",)) and is_name(node.args[0]):
        return node.args[1]
    return node


def name_first(node: Node) -> Node:
    """``7 = x`` as ``x = 7``, and ``3 + 4 = 7 = x`` as ``x = 3 + 4 = 7``."""
    if node.head != "relation" or set(node.value) != {"="} or not (is_name(node.args[-1]) or is_asked(node.args[-1])):
        return node
    if any(is_name(operand) or operand.head in ("text", "set") for operand in node.args[:-1]):
        return node
    if not is_name(node.args[-1]) and any(map(is_open, node.args[:-1])):
        return node  # an equation between two expressions
    return Node("relation", (node.args[-1], *node.args[:-1]), node.value)


def paired_by_name(golds: list[Item], answers: list[Item]) -> list[tuple[Item, Item]] | None:
    """Pairs of items of equal names, if both sides name all items alike; the roots x_1, x_2 are no names."""
    if not (distinct_names(golds) and distinct_names(answers)):
        return None
    by_name = {item.name: item for item in answers}
    if {item.name for item in golds} != set(by_name):
        return None
    return [(gold, by_name[gold.name]) for gold in golds]


def distinct_names(items: list[Item]) -> bool:
    names = [item.name for item in items]
    numbered = {f"{name.partition('_')[0]}_{index}" for index, name in enumerate(sorted(names), 1)}
    repeated = len({item.value for item in items}) < len(items)  # so that x_1, x_2 are no roots in any order
    return len(names) > 1 and all(names) and len(set(names)) == len(names) and (set(names) != numbered or repeated)
