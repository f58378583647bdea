"""Numerical values of trees to any precision, and a test of equality by such values.

Two expressions are equal if they agree to ``DIGITS`` digits and to as many more as their size asks for: at one point if
they have no variables, at several pseudo-random points if they have (Schwartz-Zippel; the points depend on the names of
the variables alone, so equal trees always get equal values). A tiny difference needs long numbers or large exponents to
be written: by Richardson's uniformity conjecture (ISSAC 1997) expressions that agree to 1.3 times their length, with
large exponents written out, are equal. What needs more than ``VALUE_DIGITS`` digits is not decided. Nothing is
simplified: every step costs a bounded number of operations on numbers of bounded size.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence

import mpmath
from mpmath import mp

from fr3e_jax.answers.calculus import calculus_value
from fr3e_jax.answers.exact_numbers import NotRational, Undefined, rational, substituted
from fr3e_jax.answers.expression_tree import Node, number_node, symbols
from fr3e_jax.answers.limits import EXPONENT_LOG, INEXACT_ARGUMENT, TERMS, VALUE_DIGITS, Refused, Unreadable

DIGITS = (30, 90)  # of the first comparison and, at least, of the confirming one
_DIGITS_PER_WEIGHT = 1.5
_CALCULUS_WEIGHT = 5
_WORK = 400_000  # digits times nodes of a comparison
POINTS = 6  # the first half positive, where roots and logarithms are real
_STEPS_SPREAD, _STEPS_POINTS = 11, 64  # where a value is constant over long ranges
_FAR = 100  # trials from this one on are far from zero, of both signs
_CORNERS = {"abs", "max", "min", "sgn"}
_GROWING = {"exp", "sinh", "cosh", "tanh", "coth", "binomial"}
_SERIES_TERMS, _SERIES_BLOCK = 400, 8
_INTEGERS = set("kmnKMN")  # names that stand for integers where floors are taken
_REQUIRED = 3  # points at which both sides must have a value

Point = Mapping[str, mpmath.mpf]


def equal(left: Node, right: Node) -> bool:
    """Return whether two expressions have the same value, for all values of their variables.

    Points with negative values are ignored where a side is not real there, so that ``\\ln x^2`` is ``2\\ln x``. Sides
    that depend on different variables are different.

    Raises:
      Refused: a value on the way is beyond a limit.
      Undefined: a side has no value anywhere.
      Unreadable: a part has no numerical meaning.
    """
    names = sorted(symbols(left) | symbols(right))
    if not names:
        return _equal_at({}, left, right) is True
    verdicts = []
    nodes = [*left.walk(), *right.walk()]
    # Values at near points are often equal with steps, and smooth with corners.
    steps = any(node.head == "modulo" or node.value in ("floor", "ceil") for node in nodes)
    corners = any(node.head == "function" and node.value in _CORNERS and symbols(node) for node in nodes)
    series = any(node.head == "sum" and node.args[2].value == "infinity" for node in nodes)
    far = range(_FAR, _FAR + 4) if corners else ()
    for trial in (*range(_STEPS_POINTS if steps else POINTS), *far):
        point = _point(names, trial, steps, series)
        try:
            verdict = _equal_at(point, left, right, trial < POINTS // 2 or POINTS <= trial < _FAR)
        except Refused:
            if trial < _FAR:
                raise
            verdict = None
        if verdict is False:
            return False
        verdicts.append(verdict)
    if sum(verdict is True for verdict in verdicts) < _REQUIRED:
        raise Undefined("the answer has no value at enough points to compare")
    return True


def is_less(left: Node, right: Node) -> bool:
    """Return whether the first of two different real numbers is the smaller one."""
    with mp.workdps(_digits({}, left, right)):
        return bool(real_value(left) < real_value(right))


def _digits(point: Point, *sides: Node) -> int:
    """The digits to which two sides of this size have to agree.

    Raises:
      Refused: more than ``VALUE_DIGITS``, or than the work of a comparison allows.
    """
    with mp.workdps(15):
        digits = DIGITS[1] + int(_DIGITS_PER_WEIGHT * sum(_weight(side, point) for side in sides))
    if digits > VALUE_DIGITS or (digits > 2 * DIGITS[1] and digits * sum(len(side.walk()) for side in sides) > _WORK):
        raise Refused(f"equality is not decided by {VALUE_DIGITS} digits")
    return digits


def _weight(node: Node, point: Point) -> float:
    """The number of digits of an expression whose powers are written out."""
    if node.head in ("number", "decimal"):
        number = node.value if node.head == "number" else node.value[0]
        return 0.301 * (number.numerator.bit_length() + number.denominator.bit_length())
    if node.head in ("sum", "product"):
        return 1 + sum(_weight(substituted(node.args[0], node.value, end), point) for end in node.args[1:])
    if node.head in ("integral", "limit", "derivative"):
        return _CALCULUS_WEIGHT  # their variables have no value here
    weights = [_weight(child, point) for child in node.args]
    if node.head == "power":
        return max(1.0, _magnitude(node.args[1], point)) * weights[0] + weights[1]
    if node.head == "factorial" or (node.head == "function" and node.value in _GROWING):
        return sum(weights) + sum(
            size * max(1.0, math.log10(size + 1)) for size in (_magnitude(c, point) for c in node.args)
        )
    return 1 + sum(weights)


def _magnitude(node: Node, point: Point) -> float:
    """The size of an exponent at a point; 1 where it has none."""
    result = _value_or_none(node, point)
    return 1.0 if result is None else float(abs(result))


def proportional(left: Node, right: Node, positive: bool = False) -> bool:
    """Return whether ``left = c * right`` for a constant c != 0 (c > 0 if ``positive``), and no side is constant.

    Then the equations ``left = 0`` and ``right = 0`` are the same up to a factor. Raises as ``equal``.
    """
    names = sorted(symbols(left) | symbols(right))
    if not names or symbols(left) != symbols(right):
        return False
    factors, values = [], []
    digits = _digits(_point(names, 0), left, right)
    with mp.workdps(digits + 10):
        for trial in range(POINTS):
            point = _point(names, trial)
            a, b = _value_or_none(left, point), _value_or_none(right, point)
            if trial >= POINTS // 2 and (a is None or b is None or _is_complex(a) or _is_complex(b)):
                continue
            if a is None or b is None or abs(a) < 1e-20 or abs(b) < 1e-20:
                return False
            factors.append(a / b)
            values.append(a)
        spread = max(abs(factor - factors[0]) for factor in factors)
        same = spread <= abs(factors[0]) * mpmath.mpf(10) ** (6 - digits)
        varies = max(abs(value - values[0]) for value in values) > abs(values[0]) * mpmath.mpf(10) ** (6 - DIGITS[0])
    return bool(same and varies and (not positive or (not _is_complex(factors[0]) and mpmath.re(factors[0]) > 0)))


def _point(names: Sequence[str], trial: int, steps: bool = False, series: bool = False) -> Point:
    """A coordinate for each name: positive in the first half of the trials, negative in the last one.

    In the trials between, the signs of any two of four names are different once: ``|xy|`` is not ``xy``. With ``steps``
    the coordinates are in a wider range; each second one is an integer, and all for names that usually are integers.
    """
    point = {}
    for index, name in enumerate(names):
        coordinate = -_size(name, trial) if _is_negative(names[0], index, trial) else _size(name, trial)
        if steps:
            coordinate *= _STEPS_SPREAD
            coordinate = mpmath.nint(coordinate) if trial % 2 or name in _INTEGERS else coordinate
        if series:
            coordinate /= 16
        if trial >= _FAR:
            coordinate = abs(coordinate) * (-1) ** trial * 10 ** (trial - _FAR + 2)
        point[name] = coordinate
    return point


def _is_negative(first: str, index: int, trial: int) -> bool:
    between = trial - POINTS // 2
    if not 0 <= between < POINTS // 2 - 1:
        return trial == POINTS - 1
    return bool((_seed(first, trial) >> 3) % 2 ^ (index >> between) % 2)


def _size(name: str, trial: int) -> mpmath.mpf:
    """A pseudo-random number between 0.3 and 3.4."""
    return mpmath.mpf(3 * 10**9 + 31 * 10**9 * _seed(name, trial) // 2**32) / 10**10


def _seed(name: str, trial: int) -> int:
    return zlib.crc32(f"{name}/{trial}".encode())


def _equal_at(point: Point, left: Node, right: Node, decisive: bool = True) -> bool | None:
    """Return whether the sides are equal at a point; None where the point says nothing."""
    differences = []
    for attempt in range(2):
        digits = _digits(point, left, right) if attempt else DIGITS[0]
        with mp.workdps(digits + 10):
            a, b = (_value_or_none(side, point) for side in (left, right))
            if a is None or b is None:
                if point:
                    return None
                raise Undefined("the answer has no value")
            if not decisive and (_is_complex(a) or _is_complex(b)):
                return None
            difference, scale = abs(a - b), max(abs(a), abs(b))
            differences.append(difference)
            vanishes = difference <= scale * mpmath.mpf(10) ** (6 - digits)
            if not vanishes and difference > mpmath.mpf(10) ** (6 - digits):
                return False
    # Sides that cancel to zero are equal if their difference shrinks with the precision. The first may be 0 by chance.
    first = max(differences[0], mpmath.mpf(10) ** -DIGITS[0])
    return bool(vanishes or (differences[1] <= first * mpmath.mpf(10) ** -40))


def _value_or_none(node: Node, point: Point) -> mpmath.mpf | mpmath.mpc | None:
    try:
        result = value(node, point)
    except (Undefined, ZeroDivisionError):
        return None
    return result if mpmath.isfinite(result) else None


def _is_complex(result) -> bool:
    return isinstance(result, mpmath.mpc) and abs(result.imag) > abs(result) * mpmath.mpf(10) ** (8 - mp.dps)


def real_value(node: Node) -> mpmath.mpf:
    """The value of an expression without variables, which must be real, to ``mp.dps`` digits."""
    result = value(node, {})
    if _is_complex(result) or not mpmath.isfinite(result):
        raise Undefined("the answer is not a real number")
    return mpmath.re(result)


def value(node: Node, point: Point):
    """The value at ``point`` (name to coordinate), to ``mp.dps`` digits: real where it can be.

    Raises as ``equal``.
    """
    evaluate = _EVALUATORS.get(node.head)
    if evaluate is None:
        raise Unreadable(f"a {node.head} has no numerical value")
    return evaluate(node, point)


def _fraction(value) -> mpmath.mpf:
    return mpmath.mpf(value.numerator) / value.denominator


def _constant(node: Node, point: Point):
    if node.value in _CONSTANTS:
        return _CONSTANTS[node.value]()
    raise Undefined(f"{node.value} is not a number")


def _product(node: Node, point: Point):
    product = mpmath.mpf(1)
    for factor in node.args:
        product *= value(factor, point)
    return product


def _quotient(node: Node, point: Point):
    lower = value(node.args[1], point)
    if not lower:
        raise Undefined("the answer divides by zero")
    return value(node.args[0], point) / lower


def _power(node: Node, point: Point):
    base_node, exponent_node = node.args
    base = value(base_node, point)
    try:
        exponent = rational(exponent_node)
    except NotRational:
        return _checked_power(base, value(exponent_node, point))
    if exponent.denominator == 1:
        return _checked_power(base, mpmath.mpf(exponent.numerator))
    return _checked_power(_real_root(base, exponent.denominator), mpmath.mpf(exponent.numerator))


def _root(node: Node, point: Point):
    base = value(node.args[0], point)
    try:
        index = rational(node.args[1])
    except NotRational:
        return _checked_power(base, 1 / value(node.args[1], point))
    if index.denominator != 1 or index < 1:
        raise Unreadable("a root has an index that is no natural number")
    return _real_root(base, int(index))


def _real_root(base, index: int):
    """The real root where there is one: odd roots of negative numbers are negative, as in school."""
    if not _is_complex(base) and mpmath.re(base) < 0 and index % 2:
        return -mpmath.root(-mpmath.re(base), index)
    return mpmath.root(base, index)


def _checked_power(base, exponent):
    if not base:
        if mpmath.re(exponent) <= 0:
            raise Undefined("the answer has zero to a power that is not positive")
        return mpmath.mpf(0)
    if abs(exponent) * (abs(mpmath.log10(abs(base))) + 1) > EXPONENT_LOG:
        raise Refused(f"a power of more than {EXPONENT_LOG} digits")
    return mpmath.power(base, exponent)


def _modulo(node: Node, point: Point):
    left, right = value(node.args[0], point), value(node.args[1], point)
    if _is_complex(left) or _is_complex(right) or not right:
        raise Undefined("a remainder of numbers that are not real")
    return mpmath.fmod(mpmath.re(left), mpmath.re(right)) % mpmath.re(right)


def _factorial(node: Node, point: Point):
    return _gamma_like(mpmath.factorial, value(node.args[0], point))


def _gamma_like(function: Callable, *arguments):
    if any(abs(argument) > TERMS * 10 for argument in arguments):
        raise Refused("a factorial or binomial coefficient of large numbers")
    try:
        return function(*arguments)
    except ValueError:
        raise Undefined("a factorial at a negative integer") from None


def _terms(node: Node, point: Point):
    body, lower, upper = node.args
    if body.has("sum", "product"):
        raise Refused("a sum or product inside of another")
    try:
        first, last = rational(lower), rational(upper)
    except NotRational:
        return _series(node, point) if symbols(node) else calculus_value(node, point)
    if last - first > TERMS or first.denominator != 1 or last.denominator != 1:
        raise Refused(f"a sum or product of more than {TERMS} terms")
    values = [value(substituted(body, node.value, number_node(i)), point) for i in range(int(first), int(last) + 1)]
    return mpmath.fsum(values) if node.head == "sum" else mpmath.fprod(values)


def _series(node: Node, point: Point):
    """An infinite sum whose terms soon fall as those of a geometric series, summed to its last digit.

    Raises:
      Undefined: they do not, at this point.
    """
    body, lower, upper = node.args
    if node.head != "sum" or getattr(upper, "value", None) != "infinity":
        return calculus_value(node, point)
    total, start, block = mpmath.mpf(0), int(rational(lower)), None
    for first in range(start, start + _SERIES_TERMS, _SERIES_BLOCK):
        terms = [
            value(substituted(body, node.value, number_node(index)), point)
            for index in range(first, first + _SERIES_BLOCK)
        ]
        total += mpmath.fsum(terms)
        before, block = block, max(map(abs, terms))
        if before is not None and block > before / 2:
            break
        if block < mpmath.mpf(10) ** (-mp.dps - 5):
            return total
    raise Undefined("an infinite sum does not converge fast enough")


def _function(node: Node, point: Point):
    if node.value in ("gcd", "lcm"):
        return _common(node, point)
    evaluate = _FUNCTIONS.get(node.value)
    if evaluate is None:
        raise Unreadable(f"{node.value} has no numerical value")
    arguments = [value(_in_radians(operand), point) for operand in node.args]
    if node.value in _ANGULAR and any(abs(argument) > INEXACT_ARGUMENT for argument in arguments):
        raise Refused(f"a function of a number beyond {INEXACT_ARGUMENT}")
    if node.value in _ORDERED and any(_is_complex(argument) for argument in arguments):
        raise Undefined(f"{node.value} of a number that is not real")
    try:
        return evaluate(*arguments)
    except (ValueError, ZeroDivisionError):
        raise Undefined(f"{node.value} has no value there") from None
    except TypeError:
        raise Unreadable(f"{node.value} has another number of arguments") from None


def _in_radians(node: Node) -> Node:
    if node.head == "degrees":
        return Node("multiply", (node.args[0], Node("divide", (Node("constant", (), "pi"), number_node(180)))))
    return node.mapped(_in_radians)


def _common(node: Node, point: Point):
    """gcd or lcm: of numbers, or, as polynomials have it, 1 or the product of different variables."""
    try:
        return _fraction(rational(node))
    except NotRational:
        pass
    if len({argument.value for argument in node.args if argument.head == "symbol"}) != len(node.args):
        raise Unreadable(f"{node.value} of expressions is left to sympy")
    return mpmath.mpf(1) if node.value == "gcd" else mpmath.fprod(point[argument.value] for argument in node.args)


def _apply(node: Node, point: Point):
    """The value of a function that nobody defined: a smooth function, which depends on its name alone."""
    total = _size(node.value, 90)
    for index, operand in enumerate(node.args):
        argument = value(operand, point)
        total += _size(f"{node.value}{index}", 91) * mpmath.sin(argument + _size(node.value, index))
    return total


def _logarithm(argument, base=10):
    if not argument or not base or base == 1:
        raise Undefined("a logarithm has no value there")
    return mpmath.log(argument) / mpmath.log(base)


def _natural_logarithm(argument):
    if not argument:
        raise Undefined("a logarithm has no value there")
    return mpmath.log(argument)


def _exponential(argument):
    if abs(argument) > EXPONENT_LOG:
        raise Refused(f"a power of more than {EXPONENT_LOG} digits")
    return mpmath.exp(argument)


def _hyperbolic(function: Callable) -> Callable:
    def checked(argument):
        _exponential(argument)
        return function(argument)

    return checked


_CONSTANTS = {"pi": lambda: +mpmath.pi, "e": lambda: +mpmath.e, "i": lambda: mpmath.mpc(0, 1)}
_ANGULAR = {"sin", "cos", "tan", "cot", "sec", "csc"}
_ORDERED = {"floor", "ceil", "max", "min", "sgn"}
_FUNCTIONS: dict[str, Callable] = {
    **{name: getattr(mpmath, name) for name in ("sin", "cos", "tan", "cot", "sec", "csc")},
    **{f"arc{name}": getattr(mpmath, f"a{name}") for name in ("sin", "cos", "tan", "cot", "sec", "csc")},
    **{name: _hyperbolic(getattr(mpmath, name)) for name in ("sinh", "cosh", "tanh", "coth")},
    **{f"arc{name}": getattr(mpmath, f"a{name}") for name in ("sinh", "cosh", "tanh")},
    **{"exp": _exponential, "ln": _natural_logarithm, "log": _logarithm, "lg": _logarithm},
    **{"lb": lambda argument: _logarithm(argument, 2), "abs": abs, "sgn": mpmath.sign},
    **{"floor": lambda x: mpmath.floor(mpmath.re(x)), "ceil": lambda x: mpmath.ceil(mpmath.re(x))},
    **{"max": lambda *xs: max(map(mpmath.re, xs)), "min": lambda *xs: min(map(mpmath.re, xs))},
    "cis": mpmath.expj,
    "binomial": lambda n, k: _gamma_like(mpmath.binomial, n, k),
}
_EVALUATORS: dict[str, Callable] = {
    "number": lambda node, point: _fraction(node.value),
    "decimal": lambda node, point: _fraction(node.value[0]),
    "symbol": lambda node, point: point[node.value],
    "constant": _constant,
    "add": lambda node, point: mpmath.fsum(value(term, point) for term in node.args),
    "multiply": _product,
    "divide": _quotient,
    "negate": lambda node, point: -value(node.args[0], point),
    "power": _power,
    "root": _root,
    "factorial": _factorial,
    "modulo": _modulo,
    "sum": _terms,
    "product": _terms,
    "function": _function,
    "apply": _apply,
    "percent": lambda node, point: value(node.args[0], point) / 100,
    "degrees": lambda node, point: value(node.args[0], point),
    "measured": lambda node, point: value(node.args[0], point),
    **dict.fromkeys(("integral", "limit", "derivative"), calculus_value),
}
