"""Exact rational values of trees: integers of any size, fractions, decimals; no floats, no sympy."""

from __future__ import annotations

import math
import operator
from collections import Counter
from fractions import Fraction
from functools import partial, reduce

from fr3e_jax.answers.expression_tree import Node, number_node
from fr3e_jax.answers.limits import EXPONENT, FACTORIAL, TERMS, VALUE_DIGITS, Refused, Unreadable

_PRIMES = 1000
_BITS = int(VALUE_DIGITS * math.log2(10))


class Undefined(Unreadable):
    """Division by zero and the like: the expression has no value."""


class NotRational(Exception):
    """The value is irrational, depends on a variable, or is not a number; rational arithmetic cannot tell."""


def rational(node: Node) -> Fraction:
    """The value of a tree of rational numbers.

    Raises:
      NotRational: a part is not rational (or not known to be).
      Refused: a value on the way is beyond a limit.
      Undefined: there is no value.
    """
    evaluate = _EVALUATORS.get(node.head)
    if evaluate is None:
        raise NotRational
    return _bounded(evaluate(node))


def same_factors(left: Node, right: Node) -> bool:
    """Return whether two numbers beyond the limits have the same factors: ``9^{9^9}`` and ``3^{2\\cdot9^9}``.

    Sums have to be equal term by term. Prime factors beyond a thousand are not looked for.
    """
    try:
        return _factored_terms(left) == _factored_terms(right)
    except (NotRational, Refused):
        return False


def _factored_terms(node: Node, sign: int = 1) -> Counter:
    """How often each term of a sum occurs; a term is its sign and its factors with exponents."""
    if node.head == "add":
        return sum((_factored_terms(term, sign) for term in node.args), Counter())
    if node.head == "negate":
        return _factored_terms(node.args[0], -sign)
    return Counter([(sign, frozenset((name, power) for name, power in _factors(node).items() if power))])


def _factors(node: Node) -> Counter:
    """The exponents of the factors of a product of powers, factorials and natural numbers."""
    factors: Counter = Counter()
    if node.head == "number" and node.value > 0:
        for number, side in ((node.value.numerator, 1), (node.value.denominator, -1)):
            for prime in range(2, _PRIMES):
                while number > 1 and number % prime == 0:
                    factors[prime] += side
                    number //= prime
            if number > 1:
                factors[number] += side
    elif node.head in ("multiply", "divide"):
        for index, operand in enumerate(node.args):
            for name, power in _factors(operand).items():
                factors[name] += power if node.head == "multiply" or not index else -power
    elif node.head == "power":
        exponent = rational(node.args[1])
        factors.update({name: power * exponent for name, power in _factors(node.args[0]).items()})
    elif node.head == "factorial":
        factors[f"{rational(node.args[0])}!"] = 1
    else:
        raise NotRational
    return factors


def _bounded(value: Fraction) -> Fraction:
    if value.numerator.bit_length() > _BITS or value.denominator.bit_length() > _BITS:
        raise Refused(f"a value has more than {VALUE_DIGITS} digits")
    return value


def _folded(node: Node) -> Fraction:
    """A sum or product of parts; its partial results are bounded, too."""
    combine, start = (operator.add, 0) if node.head == "add" else (operator.mul, 1)
    return reduce(lambda total, operand: _bounded(combine(total, rational(operand))), node.args, Fraction(start))


def _divide(node: Node) -> Fraction:
    upper, lower = rational(node.args[0]), rational(node.args[1])
    if not lower:
        raise Undefined("the answer divides by zero")
    return upper / lower


def _power(node: Node) -> Fraction:
    base, exponent = rational(node.args[0]), rational(node.args[1])
    if exponent.denominator > 1000:
        raise NotRational
    if exponent.denominator != 1:
        return _root_of(_integer_power(base, exponent.numerator), exponent.denominator)
    return _integer_power(base, exponent.numerator)


def _integer_power(base: Fraction, exponent: int) -> Fraction:
    if base in (0, 1, -1):
        if not base and exponent <= 0:
            raise Undefined("the answer has zero to a power that is not positive")
        return base if exponent % 2 else base * base
    bits = max(base.numerator.bit_length(), base.denominator.bit_length()) - 1
    if abs(exponent) > EXPONENT or (bits * abs(exponent)) > _BITS:
        raise Refused(f"a power has an exponent beyond {EXPONENT} or more than {VALUE_DIGITS} digits")
    return base**exponent


def _root(node: Node) -> Fraction:
    index = rational(node.args[1])
    if index.denominator != 1 or not 1 <= index <= 1000:
        raise NotRational
    return _root_of(rational(node.args[0]), int(index))


def _root_of(value: Fraction, index: int) -> Fraction:
    """The real root, if it is rational; odd roots of negative numbers are negative, as in school."""
    sign = -1 if value < 0 else 1
    if sign < 0 and index % 2 == 0:
        raise NotRational
    roots = [integer_root(abs(integer), index) for integer in (value.numerator, value.denominator)]
    if roots[0] ** index != abs(value.numerator) or roots[1] ** index != value.denominator:
        raise NotRational
    return sign * Fraction(*roots)


def integer_root(value: int, index: int) -> int:
    """The largest integer whose ``index``-th power is at most ``value`` >= 0; by Newton's method, exactly."""
    if index == 2:
        return math.isqrt(value)
    if value < 2 or index == 1:
        return value
    if value.bit_length() <= index:
        return 1
    guess = 1 << -(-value.bit_length() // index)
    while True:
        better = ((index - 1) * guess + value // guess ** (index - 1)) // index
        if better >= guess:
            return guess
        guess = better


def _factorial(node: Node) -> Fraction:
    argument = _natural(node.args[0])
    if argument > FACTORIAL:
        raise Refused(f"a factorial of more than {FACTORIAL}")
    return Fraction(math.factorial(argument))


def _natural(node: Node) -> int:
    value = rational(node)
    if value.denominator != 1 or value < 0:
        raise NotRational
    return value.numerator


def _modulo(node: Node) -> Fraction:
    left, right = rational(node.args[0]), rational(node.args[1])
    if not right:
        raise Undefined("the answer divides by zero")
    return left % right


def _terms(node: Node) -> Fraction:
    """A finite sum or product, written out."""
    body, lower, upper = node.args
    if body.has("sum", "product"):
        raise Refused("a sum or product inside of another")
    first, last = rational(lower), rational(upper)
    if first.denominator != 1 or last.denominator != 1:
        raise NotRational
    if last - first >= TERMS:
        raise Refused(f"a sum or product of more than {TERMS} terms")
    total = Fraction(node.head == "product")
    for index in range(int(first), int(last) + 1):
        term = rational(substituted(body, node.value, number_node(index)))
        total = _bounded(total + term if node.head == "sum" else total * term)
    return total


def substituted(node: Node, name: str, replacement: Node) -> Node:
    """The tree with every free ``name`` replaced."""
    if node.head == "symbol":
        return replacement if node.value == name else node
    if node.head in ("sum", "product") and node.value == name:
        return node
    return node.mapped(partial(substituted, name=name, replacement=replacement))


def _function(node: Node) -> Fraction:
    evaluate = _FUNCTIONS.get(node.value)
    if evaluate is None:
        raise NotRational
    return Fraction(evaluate([rational(argument) for argument in node.args]))


def _binomial(values: list[Fraction]) -> int:
    upper, lower = values
    if upper.denominator != 1 or lower.denominator != 1 or upper < 0:
        raise NotRational
    if min(lower, upper - lower) > FACTORIAL or upper > 10**12:
        raise Refused(f"a binomial coefficient beyond {FACTORIAL}")
    return math.comb(int(upper), int(lower)) if lower >= 0 else 0


def _whole(combine):
    def combined(values: list[Fraction]) -> int:
        if any(value.denominator != 1 for value in values):
            raise NotRational
        return combine(*(value.numerator for value in values))

    return combined


_FUNCTIONS = {
    "abs": lambda values: abs(values[0]),
    "floor": lambda values: math.floor(values[0]),
    "ceil": lambda values: math.ceil(values[0]),
    "max": max,
    "min": min,
    "gcd": _whole(math.gcd),
    "lcm": _whole(math.lcm),
    "binomial": _binomial,
    "sgn": lambda values: (values[0] > 0) - (values[0] < 0),
}
_EVALUATORS = {
    "number": lambda node: node.value,
    "decimal": lambda node: node.value[0],
    "add": _folded,
    "multiply": _folded,
    "divide": _divide,
    "negate": lambda node: -rational(node.args[0]),
    "power": _power,
    "root": _root,
    "factorial": _factorial,
    "modulo": _modulo,
    "sum": _terms,
    "product": _terms,
    "function": _function,
    "percent": lambda node: rational(node.args[0]) / 100,
    "degrees": lambda node: rational(node.args[0]),
}
