"""Floating-point operations of a program, counted in its jaxpr: 2·m·n·k of every matrix product, times loop lengths.

XLA's own ``cost_analysis`` counts the body of a loop once: no use for programs that loop over layers or tokens.
Everything but matrix products is left out: what is reported is a lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from jax.extend import core


def count_flops(jaxpr: core.Jaxpr, trips: int = 1) -> int:
    """Of all devices together.

    Args:
      jaxpr: of the whole program.
      trips: how often a loop runs whose length is known at run time only (``while``); nested ones multiply.
    """
    total = 0
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name == "dot_general":
            total += _dot_flops(equation)
        elif name == "scan":
            total += equation.params["length"] * count_flops(equation.params["jaxpr"].jaxpr, trips)
        elif name == "while":
            total += trips * count_flops(equation.params["body_jaxpr"].jaxpr, trips)
        elif name == "cond":
            total += max(count_flops(branch.jaxpr, trips) for branch in equation.params["branches"])
        else:
            total += sum(count_flops(inner, trips) for inner in _jaxprs_of(equation))
    return total


def _dot_flops(equation) -> int:
    """Of a product of two matrices, or of many; 0 where one of them is a vector, which is a pass over the other."""
    (contracted, _), (batch, _) = equation.params["dimension_numbers"]
    left, right = (variable.aval for variable in equation.invars)
    if min(left.ndim, right.ndim) == len(contracted) + len(batch):
        return 0
    depth = math.prod(left.shape[axis] for axis in contracted)
    shared = math.prod(left.shape[axis] for axis in batch)
    return 2 * left.size * right.size // max(depth * shared, 1)


def _jaxprs_of(equation) -> Iterator[core.Jaxpr]:
    """The programs that an equation calls once: jit, checkpoint, custom derivatives."""
    for value in equation.params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, core.ClosedJaxpr):
                yield item.jaxpr
            elif isinstance(item, core.Jaxpr):
                yield item
