r"""The form in which an expression is written: how it is arranged does not matter, but what is carried out does.

``written_form`` gives a text for a tree. Trees have equal texts if they differ only in the order of summands and
factors, in brackets, in signs that are moved (``-(a-b)`` and ``b-a``), in neutral parts (``1\cdot x``, ``x+0``,
``x^1``), in the way a quotient is written (``\frac12 x`` and ``\frac{x}{2}``) or in the names of bound variables.
Nothing is multiplied out, factored, reduced or evaluated: ``2\cdot 3`` is not ``6``.

``folded`` forms also combine numbers and equal summands and cancel equal factors, so that ``t^2-49+1-1`` and
``\frac{2(t^2-49)}{2}`` are ``t^2-49``. Both take time linear in the tree, times its depth.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from math import gcd, log

from fr3e_jax.answers.exact_numbers import NotRational, Undefined, rational
from fr3e_jax.answers.expression_tree import Node, bound_variable, number_node, replaced, symbols, unsigned
from fr3e_jax.answers.limits import Refused

_MEASURES = ("measured", "percent", "degrees")
_BINDERS = ("sum", "product", "integral", "limit")
OPERATIONS = {
    "add", "negate", "multiply", "divide", "power", "root", "factorial", "modulo", "function", "sum", "product",
    "integral", "derivative", "limit", "intersection", "difference", "plusminus",
}  # fmt: skip
_E = Node("constant", (), "e")
_UNORDERED = ("set", "list", "union", "intersection")
_MIRRORED = {">": "<", ">=": "<="}
_SYMMETRIC = {"=", "!=", "~"}
_LARGEST_SQUARE = 1000  # squares of larger numbers are not looked for in a radicand


def written_form(node: Node, folded: bool = False, forms: set[str] | None = None) -> str:
    """The text of the form without its sign; those of all sub-expressions are added to ``forms``."""
    coefficient, text = _form(node, folded, forms)
    return _signed(abs(coefficient), text)


def _form(node: Node, folded: bool, forms: set[str] | None) -> tuple[Fraction, str]:
    """A coefficient, which is a sign unless ``folded``, and the text of the rest."""
    node = _measured(node)
    if node.head in ("add", "negate"):
        form = _sum(node, folded, forms)
    elif node.head in ("multiply", "divide", "number", "decimal"):
        form = _product(node, folded, forms)
    elif node.head in ("power", "root"):
        form = _power(node, folded, forms)
    else:
        form = Fraction(1), _other(node, folded, forms)
    if forms is not None:
        forms.add(_signed(abs(form[0]), form[1]))
    return form


def _signed(coefficient: Fraction, text: str) -> str:
    return text if coefficient == 1 else f"-{text}" if coefficient == -1 else f"{coefficient}*{text}"


def _sum(node: Node, folded: bool, forms: set[str] | None) -> tuple[Fraction, str]:
    terms: list[tuple[str, Fraction]] = []
    _add_terms(node, 1, terms, folded, forms)
    if folded:
        combined: dict[str, Fraction] = {}
        for text, coefficient in terms:
            combined[text] = combined.get(text, Fraction(0)) + coefficient
        terms = list(combined.items())
    terms = sorted((text, coefficient) for text, coefficient in terms if coefficient and text != "0")
    if not terms:
        return Fraction(1), "0"
    if len(terms) == 1:
        return terms[0][1], terms[0][0]
    scale = terms[0][1] if folded else Fraction(1 if terms[0][1] > 0 else -1)
    return scale, "(" + "+".join(_signed(coefficient / scale, text) for text, coefficient in terms) + ")"


def _add_terms(node: Node, sign: int, terms: list, folded: bool, forms: set[str] | None) -> None:
    node = _measured(node)
    if node.head == "add":
        for term in node.args:
            _add_terms(term, sign, terms, folded, forms)
    elif node.head == "negate":
        _add_terms(node.args[0], -sign, terms, folded, forms)
    else:
        coefficient, text = _form(node, folded, forms)
        terms.append((text, sign * coefficient))


def _product(node: Node, folded: bool, forms: set[str] | None) -> tuple[Fraction, str]:
    factors: list[tuple[Fraction, str, int]] = []
    _add_factors(node, 1, factors, folded, forms)
    coefficient, texts = Fraction(1), []
    for scale, text, side in factors:
        if folded or abs(scale) == 1:
            coefficient *= scale if side > 0 or not scale else 1 / scale
        if text != "1":
            texts.append((text, side))
    if not coefficient:
        return Fraction(1), "0"
    if folded:
        counts: Counter[str] = Counter()
        for text, side in texts:
            counts[text] += side
        texts = [(text, 1 if count > 0 else -1) for text, count in counts.items() for _ in range(abs(count))]
    if not texts:
        return coefficient, "1"
    if len(texts) == 1 and texts[0][1] > 0:
        return coefficient, texts[0][0]
    return coefficient, "[" + " ".join(text if side > 0 else f"/{text}" for text, side in sorted(texts)) + "]"


def _add_factors(node: Node, side: int, factors: list, folded: bool, forms: set[str] | None) -> None:
    node = _measured(node)
    if node.head == "multiply":
        for factor in node.args:
            _add_factors(factor, side, factors, folded, forms)
    elif node.head == "divide":
        upper, lower = map(_measured, node.args)
        if side > 0 and upper.head != "divide":
            _add_factors(upper, side, factors, folded, forms)
        else:
            factors.append((*_form(upper, folded, forms), side))
        if lower.head == "divide":  # a quotient by a quotient is one more step
            factors.append((*_form(lower, folded, forms), -side))
        else:
            _add_factors(lower, -side, factors, folded, forms)
    elif node.head in ("number", "decimal"):
        value = node.value if node.head == "number" else node.value[0]
        if folded:
            factors.append((value, "1", side))
        else:
            factors.append((Fraction(-1 if value < 0 else 1), str(abs(value.numerator)), side))
            factors.append((Fraction(1), str(value.denominator), -side))
    else:
        factors.append((*_form(node, folded, forms), side))


def _power(node: Node, folded: bool, forms: set[str] | None) -> tuple[Fraction, str]:
    scale, base = _form(node.args[0], folded, forms)
    exponent = _signed(*_form(node.args[1], folded, forms))
    if node.head == "root":
        exponent = f"[/{exponent}]"
    if exponent in ("1", "1*1"):
        return scale, base
    if scale == -1 and exponent.isdigit():
        return Fraction(-1 if int(exponent[-1]) % 2 else 1), f"{base}^{exponent}"
    return Fraction(1), f"{_signed(scale, base)}^{exponent}"


def _other(node: Node, folded: bool, forms: set[str] | None) -> str:
    if node.head in _BINDERS and not (node.head == "integral" and len(node.args) == 1):
        node = _renamed(node)
    parts = [_signed(*_form(child, folded, forms)) for child in node.args]
    value = node.value
    if node.head in _UNORDERED:
        parts, value = sorted(parts), None
    elif node.head == "relation":
        operators = tuple(value)
        if len(operators) == 1 and operators[0] in _MIRRORED:
            parts, operators = parts[::-1], (_MIRRORED[operators[0]],)
        if len(set(operators)) == 1 and operators[0] in _SYMMETRIC:
            parts = sorted(parts)
        value = operators
    elif node.head == "symbol" or (node.head == "constant" and not parts):
        return str(value)
    return f"{node.head}:{value}({';'.join(parts)})"


def _renamed(node: Node) -> Node:
    name = bound_variable(node)
    height = sum(child.head in _BINDERS for child in node.walk())
    bound = "\N{BULLET}" * height
    value = (bound, *node.value[1:]) if node.head == "limit" else bound
    body = replaced(node.args[0], Node("symbol", (), name), Node("symbol", (), bound))
    return Node(node.head, (body, *node.args[1:]), value)


def undone(node: Node, written: set[str]) -> Node:
    r"""The tree without identities: ``|3|``, ``\binom31``, ``\sqrt{3^2}``, ``\log_2 2^3`` and ``\int_0^3 dx`` are 3.

    Operations whose forms are in ``written`` stay; of the others, those that leave a part as it is are undone.
    """
    bare = node.mapped(lambda child: undone(child, written))
    if bare.head not in OPERATIONS or bare.head == "negate" or written_form(bare) in written:
        return bare
    bare = _inner(bare)
    try:
        value = rational(bare)
        if bare.head == "divide" and value.denominator != 1:
            return bare
        if not any(unsigned(child).args for child in bare.args):
            return number_node(value)
        return next((child for child in bare.args if rational(child) == value), _base(bare, value))
    except (NotRational, Refused, Undefined):
        return bare


def _base(node: Node, value: Fraction) -> Node:
    """The base of a power in a root that undoes it; else the root itself."""
    power = node.args[0]
    return power.args[0] if power.head == "power" and rational(power.args[0]) == value else node


def _inner(node: Node) -> Node:
    """The operand of an operation that something inside undoes, or that does nothing; else the tree itself."""
    if node.head not in ("function", "power", "integral", "limit"):
        return node
    first, last = node.args[0], node.args[-1]
    if node.head in ("integral", "limit"):
        if bound_variable(node) in symbols(first) or len(node.args) == 1:
            return node
        width = Node("add", (last, Node("negate", (node.args[1],))))
        return first if node.head == "limit" else Node("multiply", (first, number_node(rational(width))))
    if node.head == "power":
        return last.args[0] if first == _E and last.head == "function" and last.value == "ln" else node
    if node.value == "binomial" and last == number_node(1):
        return first
    bases = {
        "ln": _E,
        "lg": number_node(10),
        "lb": number_node(2),
        "log": last if len(node.args) == 2 else number_node(10),
    }
    base = bases.get(node.value)
    if first.head == "power" and first.args[0] == base:
        return first.args[1]
    if base is not None and base.is_integer and first.is_integer and base.value > 1 and first.value > 0:
        exponent = round(log(int(first.value), int(base.value)))
        return number_node(exponent) if base.value**exponent == first.value else node
    return node


def leaves(node: Node) -> Counter[Node]:
    """The numbers and names in a tree, with their counts."""
    return Counter(leaf for leaf in node.walk() if not leaf.args)


def size(node: Node) -> int:
    """The number of numbers, names and functions in a tree."""
    return sum(child.head in ("function", *_BINDERS) or not child.args for child in node.walk())


def has_operation(node: Node) -> bool:
    """Return whether an expression, or a part of one, has something to carry out; numbers and names have nothing."""
    if node.head in OPERATIONS:
        return (node.head != "negate" and bool(symbols(node))) or not is_plain(node)
    return any(map(has_operation, node.args))


def has_root_below(node: Node) -> bool:
    """Return whether a denominator has a root."""
    denominators = (quotient.args[1] for quotient in node.walk() if quotient.head == "divide")
    return any(
        factor.head == "root" or (factor.head == "power" and factor.args[1].head == "divide")
        for denominator in denominators
        for factor in denominator.walk()
    )


def is_plain(node: Node, rounded: bool = False) -> bool:
    r"""Return whether nothing is left to be carried out: ``5``, ``\frac34``, ``2\sqrt3``, ``1-i``, ``x``, ``(2, 5]``.

    Args:
      rounded: the answer is wanted as a number, so that roots, powers and functions are operations.
    """
    node = _measured(node)
    if not node.args:
        return True
    if node.head == "negate":
        return is_plain(node.args[0], rounded)
    if node.head in ("bracket", "set", "list", "relation", "union", "matrix", "ratio", "builder", "text", "apply"):
        return all(is_plain(child, rounded) for child in node.args)
    if rounded:
        return _is_fraction(node)
    return _is_term(node) or _is_plain_sum(node) or _is_plain_quotient(node)


def _measured(node: Node) -> Node:
    while node.head in _MEASURES:
        node = node.args[0]
    return node


def _is_fraction(node: Node) -> bool:
    """Return whether a tree is a fraction of integers in lowest terms."""
    if node.head != "divide":
        return False
    upper, lower = map(unsigned, node.args)
    return upper.is_integer and lower.is_integer and lower.value > 1 and gcd(int(upper.value), int(lower.value)) == 1


def _is_irrational(node: Node) -> bool:
    r"""Return whether a tree is one factor in lowest terms: a letter, a constant, ``e^2``, ``\sqrt3``, ``\ln 2``."""
    if node.head in ("symbol", "constant"):
        return True
    if node.head == "power":
        base, exponent = node.args
        return base.head == "constant" and base.value != "i" and all(map(_is_rational_part, exponent.walk()))
    if node.head == "root":
        radicand, index = node.args
        return radicand.is_integer and radicand.value > 1 and index.is_integer and _is_power_free(node)
    if node.head == "function" and node.value in ("ln", "log") and len(node.args) == 1:
        argument = node.args[0]
        return argument.is_integer and argument.value > 1 and not _is_perfect_power(int(argument.value))
    return False


def _is_rational_part(node: Node) -> bool:
    return node.head in ("number", "decimal", "divide", "negate")


def _is_power_free(root: Node) -> bool:
    value, index = int(root.args[0].value), int(root.args[1].value)
    if not 2 <= index <= 64:
        return False
    for base in range(2, _LARGEST_SQUARE):
        power = base**index
        if power > value:
            return True
        if value % power == 0:
            return False
    return True


def _is_perfect_power(value: int) -> bool:
    return any(round(value ** (1 / k)) ** k == value for k in range(2, 20)) if value < 10**15 else False


def _is_term(node: Node) -> bool:
    r"""Return whether a tree is a rational number times distinct factors: ``2\sqrt3``, ``4.5\times10^{33}``."""
    factors = node.args if node.head == "multiply" else (node,)
    factors = [unsigned(_measured(factor)) for factor in factors]
    rationals = [f for f in factors if f.head in ("number", "decimal") or _is_fraction(f)]
    rest = [f for f in factors if f not in rationals]
    if len(rationals) == 1 and len(rest) == 1 and _is_scientific(rationals[0], rest[0]):
        return True
    roots = sum(f.head in ("root", "function") for f in rest)
    return len(rationals) <= 1 and all(map(_is_irrational, rest)) and roots <= 1 and len(set(rest)) == len(rest)


def _is_scientific(coefficient: Node, power: Node) -> bool:
    value = coefficient.value[0] if coefficient.head == "decimal" else coefficient.value
    return (
        coefficient.head in ("number", "decimal")
        and 1 <= abs(value) < 10
        and power.head == "power"
        and power.args[0] == number_node(10)
    )


def _is_plain_sum(node: Node) -> bool:
    """Return whether the terms of a sum cannot be combined; a mixed number is one."""
    if node.head != "add":
        return False
    if len(node.args) == 2 and node.args[0].is_integer and _is_fraction(node.args[1]):
        upper, lower = node.args[1].args
        return upper.head == "number" and upper.value < lower.value
    terms = [_measured(unsigned(term)) for term in node.args]
    if not all(_is_term(term) or _is_plain_quotient(term) for term in terms):
        return False
    bodies = [written_form(Node("multiply", (term, number_node(1))), folded=True).rpartition("*")[2] for term in terms]
    return len(set(bodies)) == len(bodies)


def _is_plain_quotient(node: Node) -> bool:
    r"""Return whether a quotient by an integer shares no factor with its numerator: ``\frac{1+\sqrt5}{2}``.

    A root may stand below the number 1 or one without a common factor, too.
    """
    if node.head != "divide":
        return False
    upper, lower = map(unsigned, node.args)
    if lower.head in ("root", "constant") and upper.is_integer:
        radicand = lower.args[0].value if lower.head == "root" and lower.args[0].is_integer else 1
        return _is_irrational(lower) and gcd(int(upper.value), int(radicand)) == 1
    if not lower.is_integer or lower.value < 2 or not (_is_term(upper) or _is_plain_sum(upper)):
        return False
    terms = upper.args if upper.head == "add" else (upper,)
    return gcd(int(lower.value), *map(_integer_factor, terms)) == 1


def _integer_factor(term: Node) -> int:
    if term.head == "negate":
        return _integer_factor(term.args[0])
    factors = term.args if term.head == "multiply" else (term,)
    return next((int(f.value) for f in factors if f.is_integer), 1)
