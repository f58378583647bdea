"""Comparison of the tree of an answer with the tree of the gold answer.

Equality is a convention here; docs/users/grading.md states it case by case. The gold answer decides the kind of
answer: a value, an equation, an inequality, a set, a tuple, a list. An answer that says more than that (``3 or 4``,
``4 = 5``, a set that contains the gold value) is another answer.
"""

from __future__ import annotations

import itertools
import re
from fractions import Fraction

from fr3e_jax.answers.arithmetic import Arithmetic, as_decimal, last_place
from fr3e_jax.answers.expression_shapes import (
    as_matrix,
    choices,
    clock,
    difference,
    elements,
    infinity_sign,
    is_asked,
    is_name,
    is_open,
    is_system,
    is_time,
    is_zero,
    letters,
    mirrored,
    name_of,
    named_point,
    set_letter,
    with_unit,
)
from fr3e_jax.answers.expression_tree import EMPTY_SET, Node, number_node, symbols, unsigned
from fr3e_jax.answers.items import (
    Item,
    componentwise,
    condition,
    distinct_names,
    expanded,
    members,
    name_first,
    named_set,
    paired_by_name,
    residue,
    same_domain,
    same_variable,
    without_points,
)
from fr3e_jax.answers.limits import Contradiction, Unreadable
from fr3e_jax.answers.matrices import collapsed
from fr3e_jax.answers.quantity import quantity
from fr3e_jax.answers.real_sets import real_set
from fr3e_jax.answers.units import conversion
from fr3e_jax.answers.vectors import paired_components

_SET_OPERATIONS = {"union", "intersection", "difference", "set_name"}
_SETS = _SET_OPERATIONS | {"set"}
_DIFFERENTIALS = re.compile(r"divide:\\?\w*\(d,(\w).*,d,\w\)")
_APPROXIMATION = Fraction(1, 200)  # relative error of an approximation that is no decimal, such as 22/7


def same(gold: Node, answer: Node, arithmetic: Arithmetic) -> bool:
    """Return whether ``answer`` is right.

    Raises:
      Unreadable: something has no meaning here.
      Refused: beyond a limit.
      Contradiction: the answer contradicts itself.
      NeedsWorker: ``arithmetic`` is not enough to tell.
    """
    return _Comparison(arithmetic).same(gold, answer)


class _Comparison:
    def __init__(self, arithmetic: Arithmetic):
        self.arithmetic = arithmetic

    def same(self, gold: Node, answer: Node) -> bool:
        if "list" in (gold.head, answer.head) and choices(gold):
            if choices(gold) == choices(answer):
                return True
        gold, answer = map(without_points, same_variable(*same_domain(gold, answer)))
        systems = is_system(gold) or is_system(answer)
        gold, answer = (expanded(named_set(condition(side))) for side in (gold, answer))
        if "modulo" in (gold.head, answer.head):
            gold, answer = residue(gold), residue(answer)
        if gold.head != answer.head and "list" in (gold.head, answer.head):
            gold, answer = componentwise(gold), componentwise(answer)
        if "list" in (gold.head, answer.head) and not _SET_OPERATIONS & {gold.head, answer.head}:
            sides = [self.item(side).value for side in (gold, answer)] if systems else []
            return (systems and self.same_sets(*sides)) or self.same_lists(gold, answer)
        return self.same_items(self.item(gold, trusted=True), self.item(answer))

    # ---- one answer ------------------------------------------------------------------------------------------------

    def item(self, node: Node, trusted: bool = False) -> Item:
        """An answer without ``x =``, ``x \\in`` and the steps of a chain before it.

        The approximations of a gold answer are ``trusted``, as books round some of them carelessly.
        """
        if node.head != "relation":
            point = named_point(node)
            return Item(point[1], point[0]) if point else Item(node)
        node = name_first(node)
        operators, operands = node.value, node.args
        if operators[0] == "in" and is_name(operands[0]):
            rest = Node("relation", operands[1:], operators[1:]) if len(operators) > 1 else operands[1]
            return Item(rest, name_of(operands[0]))
        if not set(operators) <= {"=", "~"}:
            return Item(node)
        exact = operands[operators.index("~")] if "~" in operators else operands[-1]
        rounded = operands[-1] if "~" in operators[1:] or (operators[0] == "~" and not is_name(operands[0])) else None
        if is_name(operands[0]):
            if not trusted:
                self.check_approximations(Node("relation", operands[1:], operators[1:]))
            value = operands[1] if operators[0] == "~" else exact
            equation = Node("relation", (operands[0], value), ("=",))
            recursive = bool(symbols(operands[0]) & symbols(value)) and operands[0].head == "symbol"
            name = "" if recursive else name_of(operands[0])
            return Item(equation if recursive else value, name, equation, rounded=rounded)
        if any(map(is_open, operands)):
            return Item(node if len(operators) == 1 else Node("relation", operands[-2:], operators[-1:]))
        return Item(self.checked_chain(node, exact, trusted), constant=True, rounded=rounded)

    def checked_chain(self, node: Node, exact: Node, trusted: bool) -> Node:
        """The value of ``10^3 = 1000``.

        Raises:
          Contradiction: the parts differ.
        """
        for operator, (left, right) in zip(node.value, itertools.pairwise(node.args), strict=True):
            if operator == "=" and not self.same_values(left, right):
                raise Contradiction("the answer is an equation between different numbers")
        if not trusted:
            self.check_approximations(node)
        return exact

    def check_approximations(self, node: Node) -> None:
        """Raises ``Contradiction`` if a number after ``\\approx`` is not the rounded value of the one before."""
        for operator, (left, right) in zip(node.value, itertools.pairwise(node.args), strict=True):
            try:
                quantities = quantity(left), quantity(right)
                if (
                    operator != "~"
                    or any(map(is_open, (left, right)))
                    or quantities[0].percent != quantities[1].percent
                ):
                    continue
                exact, near = (abs(self.arithmetic.real(side.core)) for side in quantities)
            except Unreadable:
                continue  # numbers that are not real
            place = last_place(quantities[1].core)
            close = 2 * abs(exact - near) <= place or 0 <= exact - near < place
            if not (close if place else abs(exact - near) <= _APPROXIMATION * exact):
                raise Contradiction("the answer is an approximation that is far off")

    def same_items(self, gold: Item, answer: Item) -> bool:
        if gold.value.head == "relation":
            return self.same_relations(gold.value, answer)
        if gold.equation is not None and answer.constant:
            return False  # x = 1 is not answered by 1 = 1
        if gold.equation is not None and answer.equation is not None and _contains_name(answer, gold):
            return False  # x = 1 is not answered by |x| = 1
        if answer.value.head == "relation":
            if answer.value.value == ("=",):
                if gold.equation is None:  # an identity states a value twice; m + n = 7 says which number 7 is
                    if is_asked(answer.value.args[0]) and not is_open(gold.value) and not is_open(answer.value.args[1]):
                        return self.same_values(gold.value, answer.value.args[1])
                    return all(self.same_values(gold.value, side) for side in answer.value.args)
                return self.same_equations(gold.equation, answer.value)
            return self.same_sets(gold.value, answer.value)
        names = _primed(gold.name), _primed(answer.name)
        if _derived(names[0]) != _derived(names[1]) and names[0][:1] == names[1][:1]:
            return False  # f'(x) = 3x or f^{-1}(x) = 3x is not f(x) = 3x
        if self.same_values(gold.value, answer.value) or self.same_approximations(gold, answer):
            return True
        both = gold.equation is not None and answer.equation is not None
        return both and len(symbols(gold.equation)) > 1 and self.same_equations(gold.equation, answer.equation)

    def same_approximations(self, gold: Item, answer: Item) -> bool:
        """Return whether a value is the rounded one that the other side states: -0.891 of ``A \\approx -0.891``."""
        if gold.rounded is not None and answer.rounded is None and as_decimal(answer.value):
            return self.same_values(gold.rounded, answer.value)
        return (
            answer.rounded is not None and bool(as_decimal(gold.value)) and self.same_values(gold.value, answer.rounded)
        )

    def same_relations(self, gold: Node, answer: Item) -> bool:
        relation = answer.value if answer.value.head == "relation" else answer.equation
        if set(gold.value) == {"="}:
            return relation is not None and set(relation.value) == {"="} and self.same_equations(gold, relation)
        if relation is not None and set(relation.value) != {"="}:
            if self.same_inequalities(gold, relation):
                return True
        elif answer.equation is not None:
            return False
        if answer.value.head == "relation" and symbols(gold) != symbols(answer.value):
            return False
        return self.same_sets(gold, answer.value)

    def same_equations(self, gold: Node, answer: Node) -> bool:
        """Return whether two equations are equal up to a constant factor; one that always holds is equal to none."""
        if len(gold.args) != 2 or len(answer.args) != 2:
            return False
        if gold == answer:
            return True
        if any(side.has("set", "bracket", "text", "matrix") for side in (gold, answer)):
            return all(self.same_values(a, b) for a, b in zip(gold.args, answer.args, strict=True))
        return self.arithmetic.proportional(difference(gold), difference(answer), False)

    def same_inequalities(self, gold: Node, answer: Node) -> bool:
        return any(self._same_direction(gold, side) for side in (answer, mirrored(answer)) if side is not None)

    def _same_direction(self, gold: Node, answer: Node) -> bool:
        if gold.value != answer.value:
            return False
        if gold == answer:
            return True
        if len(gold.value) == 1 and gold.value != ("==",):
            signed = gold.value[0] not in ("!=", "=")
            return self.arithmetic.proportional(difference(gold), difference(answer), signed)
        return all(self.same_values(a, b) for a, b in zip(gold.args, answer.args, strict=True))

    def same_sets(self, gold: Node, answer: Node) -> bool:
        try:
            left, right = real_set(gold, self.arithmetic), real_set(answer, self.arithmetic)
        except Unreadable:
            return False
        return left == right

    # ---- values ----------------------------------------------------------------------------------------------------

    def same_values(self, gold: Node, answer: Node) -> bool:
        """Return whether two values are equal: quantities, expressions, tuples, intervals, matrices or words."""
        for special in (
            self._texts,
            self._literals,
            self._times,
            self._ratios,
            self._vectors,
            self._containers,
            self._matrices,
        ):
            verdict = special(gold, answer)
            if verdict is not None:
                return verdict
        if gold.head == answer.head == "modulo" and not self.arithmetic.equal(gold.args[1], answer.args[1]):
            return False  # 3 modulo 7 and 3 modulo 8 are different classes
        left, right = quantity(gold), quantity(answer)
        factor = conversion(left.unit, right.unit)
        if factor is None:
            return False
        if factor != 1:
            return self.arithmetic.equal(left.core, Node("multiply", (right.core, number_node(factor))))
        if left.core.head != gold.head or right.core.head != answer.head:
            if self.same_values(left.core, right.core):
                return True
        elif self.arithmetic.equal(left.core, right.core):
            return True
        if left.percent == right.percent:
            if symbols(gold) == {r"\Omega"} != symbols(answer) and (lettered := with_unit(gold)):
                return self.same_values(lettered, answer)
            lettered = with_unit(answer)
            return lettered is not None and not symbols(gold) and self.same_values(gold, lettered)
        scaled = [Node("divide", (q.core, number_node(100))) if q.percent else q.core for q in (left, right)]
        return self.arithmetic.equal(*scaled)

    def _texts(self, gold: Node, answer: Node) -> bool | None:
        if not {"text", "measured"} & {gold.head, answer.head}:
            return None
        equal = letters(gold) == letters(answer) != ""
        if "text" in (gold.head, answer.head):
            return equal
        return True if equal and "measured" in (gold.head, answer.head) else None  # 5th is the fifth

    def _literals(self, gold: Node, answer: Node) -> bool | None:
        """The verdict on values that are equal only as written: numerals of a base, infinities, names of sets."""
        if "based" in (unsigned(gold).head, unsigned(answer).head):
            return gold == answer
        if "set_name" in (gold.head, answer.head):
            return set_letter(gold) == set_letter(answer) or self.same_sets(gold, answer)
        infinite = [infinity_sign(quantity(node).core) for node in (gold, answer)]
        if any(infinite):
            return infinite[0] == infinite[1]
        return None

    def _times(self, gold: Node, answer: Node) -> bool | None:
        """The verdict on times of day of which one says the half of the day; a time without it may be either."""
        times = clock(gold), clock(answer)
        if None in times or not any(said for _, said in times):
            return None
        day = 24 * 60 if all(said for _, said in times) else 12 * 60
        return (times[0][0] - times[1][0]) % day == 0

    def _ratios(self, gold: Node, answer: Node) -> bool | None:
        if "ratio" not in (gold.head, answer.head):
            return None
        if gold.head == answer.head:
            if self.ordered(gold.args, answer.args):
                return True
            if len(gold.args) != len(answer.args) or is_time(gold):
                return False
        sides = [
            side.args if side.head == "ratio" else (quantity(side).core, number_node(1)) for side in (gold, answer)
        ]
        if any(len(side) != len(sides[0]) or any(map(is_zero, side)) for side in sides):
            return False
        return not is_time(gold) and self._proportional(*sides)

    def _proportional(self, golds, answers) -> bool:
        """Return whether each part is to the first as its counterpart is."""
        pairs = zip(golds[1:], answers[1:], strict=True)
        return all(
            self.arithmetic.equal(Node("divide", (golds[0], a)), Node("divide", (answers[0], b))) for a, b in pairs
        )

    def _vectors(self, gold: Node, answer: Node) -> bool | None:
        pair = paired_components(gold, answer)  # of which a multiple of a tuple may be one
        return None if pair is None else self.ordered(*pair)

    def _containers(self, gold: Node, answer: Node) -> bool | None:
        heads = {gold.head, answer.head}
        if heads & {"cases", "builder"}:
            return len(heads) == 1 and (self.ordered if "builder" in heads else self.same_cases)(gold.args, answer.args)
        if not heads & (_SETS | {"bracket", "list", "relation"}):
            return gold == answer if EMPTY_SET in (gold, answer) else None
        if heads == {"bracket"}:
            return self._brackets(gold, answer)
        if heads == {"bracket", "matrix"}:
            return self._matrices(as_matrix(gold), as_matrix(answer))
        if "list" in heads and not heads & _SET_OPERATIONS:
            return self.same_lists(gold, answer)
        if heads == {"set"} or (
            heads & {"set"} and not heads & (_SETS - {"set"} | {"bracket", "relation", "constant"})
        ):
            return self.unordered(elements(gold), elements(answer))
        return self.same_sets(gold, answer) or (gold.head == answer.head and self._parts(gold, answer))

    def same_cases(self, golds, answers) -> bool:
        """Return whether two functions have the same values under the same conditions, in any order.

        "Otherwise" on one side stands for the one condition that the other side writes instead.
        """

        def same(gold: Node, answer: Node) -> bool:
            conditions = _is_rest(gold) or _is_rest(answer) or self.same(gold.args[1], answer.args[1])
            return conditions and self.same(gold.args[0], answer.args[0])

        rests = sum(map(_is_rest, golds)), sum(map(_is_rest, answers))
        return len(golds) == len(answers) and max(rests) < 2 and self._matching(golds, answers, same)

    def _parts(self, gold: Node, answer: Node) -> bool:
        """Return whether unions whose ends are no numbers are equal part by part."""
        if gold.head == "relation":
            return gold.value == answer.value and self.ordered(gold.args, answer.args)
        if gold.head == "union":
            return self.unordered(gold.args, answer.args)
        return self.ordered(gold.args, answer.args)

    def _brackets(self, gold: Node, answer: Node) -> bool:
        if gold.value != answer.value and len(gold.args) == 2:
            return False
        return self.ordered(gold.args, answer.args)

    def _matrices(self, gold: Node, answer: Node) -> bool | None:
        if not gold.has("matrix") and not answer.has("matrix"):
            return None
        left, right = collapsed(gold), collapsed(answer)
        if left.head == right.head == "matrix":
            return left.value == right.value and self.ordered(left.args, right.args)
        return "matrix" not in (left.head, right.head) and self.arithmetic.equal(left, right)

    # ---- several answers -------------------------------------------------------------------------------------------

    def same_lists(self, gold: Node, answer: Node) -> bool:
        """Return whether two lists are equal in any order; items without names have the order of the gold names."""
        if "bracket" in (gold.head, answer.head):
            return self._list_and_tuple(gold, answer)
        golds = [self.item(node, trusted=True) for node in members(gold)]
        answers = [self.item(node) for node in members(answer)]
        if ordered := paired_by_name(golds, answers):
            return all(self.same_items(a, b) for a, b in ordered)
        if distinct_names(golds) and len(golds) != len(answers):
            return False
        if distinct_names(golds) and not any(item.name for item in answers):
            return len(golds) == len(answers) and all(map(self.same_items, golds, answers))
        return self._matching(golds, answers, self.same_items)

    def _list_and_tuple(self, gold: Node, answer: Node) -> bool:
        listed, other = (gold, answer) if gold.head == "list" else (answer, gold)
        if other.value not in ("()", "[]") and other.head == "bracket":
            return False
        items = [self.item(node).value for node in listed.args]
        return self.ordered(*((items, other.args) if listed is gold else (other.args, items)))

    def ordered(self, golds, answers) -> bool:
        return len(golds) == len(answers) and all(
            self.same(a, b) if "relation" in (a.head, b.head) else self.same_values(a, b)
            for a, b in zip(golds, answers, strict=True)
        )

    def unordered(self, golds, answers) -> bool:
        return self._matching(golds, answers, self.same)

    def _matching(self, golds, answers, same) -> bool:
        """Return whether every gold has an answer and every answer a gold, so that the sets are equal."""
        unmatched = list(answers)
        for gold in golds:
            rest = [answer for answer in unmatched if not same(gold, answer)]
            if len(rest) == len(unmatched) and not any(same(gold, answer) for answer in answers):
                return False
            unmatched = rest
        return not unmatched


def _is_rest(case: Node) -> bool:
    """Return whether a case is that of all values that the other cases leave."""
    return letters(case.args[1]) in ("otherwise", "else")


def _primed(name: str) -> str:
    """The name with a prime for a quotient of differentials: ``y'`` for ``dy/dx``; other names as they are."""
    return _DIFFERENTIALS.sub(r"\1'", name.removeprefix("apply:"))


def _derived(name: str) -> str:
    """The marks of a derivative or of an inverse in a name."""
    return "".join(mark for mark in ("'", "''", "^-1") if mark in name)


def _contains_name(answer: Item, gold: Item) -> bool:
    """Return whether the answer names an expression of the gold answer's name, as ``|x|`` is one of ``x``."""
    name, left_side = gold.equation.args[0], answer.equation.args[0]
    return name.head == "symbol" and left_side.head not in ("symbol", "apply") and name.value in symbols(left_side)
