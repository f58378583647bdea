"""Integrals, limits and derivatives, by sympy: the tree is built by sympy's constructors, never from text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

import mpmath
import sympy
from mpmath import mp

from fr3e_jax.answers.exact_numbers import Undefined
from fr3e_jax.answers.expression_tree import Node
from fr3e_jax.answers.limits import EXPONENT, FACTORIAL, Refused, Unreadable

# sympy raises these where it cannot go on.
_FAILURES = (NotImplementedError, TypeError, AttributeError, ArithmeticError, RecursionError, KeyError, IndexError)


def calculus_value(node: Node, point: Mapping[str, mpmath.mpf]):
    """The value of an integral, limit or derivative at ``point``.

    Raises:
      Unreadable: sympy does not find a value, or a part has no counterpart in sympy.
      Undefined: there is none.
    """
    try:
        result = _number(_done(node), point)
    except (Refused, Unreadable):
        raise
    except (*_FAILURES, ValueError) as error:
        raise Unreadable(f"sympy finds no value: {error}") from None
    if not result.is_finite:
        raise Undefined("the answer has no finite value")
    real, imaginary = (mpmath.mpmathify(component) for component in result.as_real_imag())
    return mpmath.mpc(real, imaginary) if imaginary else real


def _number(expression: sympy.Expr, point: Mapping[str, mpmath.mpf]) -> sympy.Expr:
    coordinates = {_symbol(name): sympy.Float(coordinate, mp.dps) for name, coordinate in point.items()}
    result = sympy.N(expression.subs(coordinates), mp.dps)
    if result.has(sympy.Integral, sympy.Limit, sympy.Derivative, sympy.Sum, sympy.Product, sympy.AccumBounds):
        raise Unreadable("sympy finds no value")
    if not result.is_number:
        raise Unreadable("sympy finds no number")
    return result


@lru_cache(maxsize=64)
def _done(node: Node) -> sympy.Expr:
    return to_sympy(node).doit()


def to_sympy(node: Node) -> sympy.Expr:
    """The tree as a sympy expression.

    Raises:
      Unreadable: a head that has no counterpart here.
      Refused: beyond a limit.
    """
    build = _BUILDERS.get(node.head)
    if build is None:
        raise Unreadable(f"sympy is given no {node.head}")
    return build(node, *map(to_sympy, node.args))


def _power(node: Node, base: sympy.Expr, exponent: sympy.Expr) -> sympy.Expr:
    if exponent.is_number and abs(exponent.evalf(15)) > EXPONENT // 20:
        raise Refused(f"a power beyond {EXPONENT // 20}")
    return sympy.Pow(base, exponent)


def _factorial(node: Node, argument: sympy.Expr) -> sympy.Expr:
    if argument.is_number and not abs(argument) <= FACTORIAL:
        raise Refused(f"a factorial of more than {FACTORIAL}")
    return sympy.factorial(argument)


def _symbol(name: str) -> sympy.Symbol:
    return sympy.Symbol(name, real=True)


def _integral(node: Node, body: sympy.Expr, *bounds: sympy.Expr) -> sympy.Expr:
    variable = _symbol(node.value)
    return sympy.Integral(body, (variable, *bounds) if bounds else variable)


def _function(node: Node, *arguments: sympy.Expr) -> sympy.Expr:
    build = _FUNCTIONS.get(node.value)
    if build is None:
        raise Unreadable(f"sympy is given no {node.value}")
    return build(*arguments)


def _sum_or_product(node: Node, body: sympy.Expr, lower: sympy.Expr, upper: sympy.Expr) -> sympy.Expr:
    build = sympy.Sum if node.head == "sum" else sympy.Product
    return build(body, (_symbol(node.value), lower, upper))


def _rational(node: Node) -> sympy.Expr:
    value = node.value if node.head == "number" else node.value[0]
    return sympy.Rational(value.numerator, value.denominator)


_CONSTANTS = {"pi": sympy.pi, "e": sympy.E, "i": sympy.I, "infinity": sympy.oo}
_FUNCTIONS: dict[str, Callable] = {
    **{
        name: getattr(sympy, name) for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "exp")
    },
    **{f"arc{name}": getattr(sympy, f"a{name}") for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "tanh")},
    **{
        "ln": sympy.log,
        "log": lambda argument, base=10: sympy.log(argument, base),
        "abs": sympy.Abs,
        "floor": sympy.floor,
        "ceil": sympy.ceiling,
    },
}
_BUILDERS: dict[str, Callable[..., sympy.Expr]] = {
    "number": _rational,
    "decimal": _rational,
    "symbol": lambda node: _symbol(node.value),
    "constant": lambda node: _CONSTANTS[node.value],
    "add": lambda node, *parts: sympy.Add(*parts),
    "multiply": lambda node, *parts: sympy.Mul(*parts),
    "negate": lambda node, operand: -operand,
    "divide": lambda node, upper, lower: upper / lower,
    "power": _power,
    "root": lambda node, radicand, index: sympy.root(radicand, index),
    "factorial": _factorial,
    "function": _function,
    "sum": _sum_or_product,
    "product": _sum_or_product,
    "integral": _integral,
    "limit": lambda node, body, point: sympy.Limit(body, _symbol(node.value[0]), point, node.value[1]),
    "derivative": lambda node, body: sympy.Derivative(body, _symbol(node.value)),
}
