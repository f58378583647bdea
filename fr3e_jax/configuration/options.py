"""Declarations of settings: meaning and bounds, and for a method's section the function that it configures.

A method that is one function has one settings section. The section names the function, the source and the state of the
policy that the function reads; its fields are the function's keywords, and their defaults stand nowhere else. From this
follow the help text, the names that a recipe may list, the checks, and the call itself (`configured_call`).
"""

from __future__ import annotations

import dataclasses
import importlib
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Call = tuple[Callable, tuple[tuple[str, Any], ...]]
"""A function and its keywords with their values, both hashable: a static argument of `jax.jit`."""


def option(default: Any, meaning: str, **bounds: float) -> Any:
    """A dataclass field with a meaning and optional bounds ``ge``, ``gt``, ``le``, ``lt`` (on each item of a list)."""
    unknown = set(bounds) - {"ge", "gt", "le", "lt"}
    if unknown:
        raise TypeError(f"option() got unknown bounds {sorted(unknown)}; expected ge, gt, le, lt")
    metadata = {"meaning": meaning, "bounds": bounds}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Implementation:
    """The function that a settings section configures."""

    function: str  # module:name, below fr3e_jax
    source: str  # paper, and equation or section
    reads: tuple[str, ...] = ()  # fields of `objectives.shaping_steps.Tokens` that cost a pass over the mini-batch
    in_loss: bool = False  # last in shaping.steps, the loss applies it and no pass is made

    def load(self) -> Callable:
        """The function itself. Its module is imported now: this package must not import jax at start-up."""
        module, _, name = self.function.partition(":")
        return getattr(importlib.import_module(f"fr3e_jax.{module}"), name)


def implemented_by(function: str, **details: Any) -> Callable[[type], type]:
    """Declare the function that a section configures; ``details`` are the other fields of `Implementation`."""

    def declare(section: Any) -> Any:
        section.implementation = Implementation(function, **details)
        return section

    return declare


def implementations(parent: type) -> dict[str, Implementation]:
    """The implementation of each field of ``parent`` that is a method's section, in declaration order."""
    kinds = typing.get_type_hints(parent)
    return {
        entry.name: kinds[entry.name].implementation
        for entry in dataclasses.fields(parent)
        if hasattr(kinds[entry.name], "implementation")
    }


def configured_call(parent: object, name: str) -> Call | None:
    """The function of the section ``name`` of ``parent`` with its settings; None if ``parent`` has no such section."""
    if name not in implementations(type(parent)):
        return None
    section = getattr(parent, name)
    values = {entry.name: getattr(section, entry.name) for entry in dataclasses.fields(section)}
    keywords = tuple((key, tuple(value) if isinstance(value, list) else value) for key, value in values.items())
    return section.implementation.load(), keywords


def changed(section: Any) -> list[str]:
    """Names of the settings of a section that differ from their defaults."""
    default = type(section)()
    names = [entry.name for entry in dataclasses.fields(section)]
    return [name for name in names if getattr(section, name) != getattr(default, name)]
