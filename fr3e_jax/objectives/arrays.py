"""Arrays of this package: types for annotations, and the check that arguments have the annotated axes."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np
from jaxtyping import Shaped, jaxtyped

AnyArray = jax.Array | np.ndarray | np.floating | np.integer | np.bool_
Number = int | float

P = ParamSpec("P")
R = TypeVar("R")


def checked_shapes(function: Callable[P, R]) -> Callable[P, R]:
    """Check the axes of the arguments against the annotations at each call, which is once a trace under `jax.jit`.

    Axes of one name are equal: [B] would broadcast over [B, T] in silence where B equals T. Lists count as arrays.
    The types of elements are not checked.

    Raises:
      ValueError: an argument has other axes; the message has its name, its shape, and the axes with their sizes so far.
    """
    names = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        axes = _annotated_axes(function)
        shapes = {}
        with jaxtyped("context"):
            arguments: dict[str, Any] = {**dict(zip(names, args, strict=False)), **kwargs}
            for name, value in arguments.items():
                if name not in axes or value is None:
                    continue
                expected, others = axes[name]
                shape = np.shape(value)
                annotation: Any = Shaped[np.ndarray, expected]
                if isinstance(value, others) or isinstance(np.broadcast_to(False, shape), annotation):
                    shapes[name] = f"{name} {list(shape)}"
                    continue
                beside = f" beside {', '.join(shapes.values())}" if shapes else ""
                raise ValueError(
                    f"{function.__name__}: {name} has shape {list(shape)}; expected axes [{expected}]{beside}"
                )
        return function(*args, **kwargs)

    return call


@functools.cache
def _annotated_axes(function: Callable) -> dict[str, tuple[str, tuple[type, ...]]]:
    """The axes of each annotated array, and the types of other values that the parameter may have."""
    axes = {}
    for name, hint in typing.get_type_hints(function).items():
        is_union = typing.get_origin(hint) in (types.UnionType, typing.Union)
        options: tuple[Any, ...] = typing.get_args(hint) if is_union else (hint,)
        arrays = [option for option in options if hasattr(option, "dim_str")]
        if arrays:
            axes[name] = arrays[0].dim_str, tuple(option for option in options if option not in arrays)
    axes.pop("return", None)
    return axes
