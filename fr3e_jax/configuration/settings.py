"""The schema read as a table: every leaf by its dotted path, with its type, bounds and default; nearest spellings."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import re
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fr3e_jax.configuration.schema import Config

COMMAND_LINE = "command line"
"""Where a setting comes from that no file gives."""
_CLOSE = 0.7  # ratio of equal characters from which a spelling is a likely one
_LONGEST_RANGE = 20  # values of a range that a message writes out


class ConfigError(ValueError):
    """A configuration that cannot be used; the message is one line: place, mistake and nearest valid choice."""

    def __init__(self, message: str):
        super().__init__(" ".join(message.split()))


def flat_settings(settings: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The settings of nested sections by their dotted names."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from flat_settings(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


@dataclass(frozen=True)
class Setting:
    """One leaf of the configuration: ``path`` is dotted, ``kind`` its type, ``bounds`` as given to ``option``."""

    path: str
    kind: Any
    default: Any
    meaning: str
    bounds: dict[str, float]

    @property
    def choices(self) -> tuple[str, ...]:
        return typing.get_args(self.kind) if typing.get_origin(self.kind) is Literal else ()

    def describe_kind(self) -> str:
        """Type and bounds in words: ``int >= 1``, ``[int >= 1, ...]``, ``exp | none``, ``true | false``, ``text``."""
        if self.choices:
            return " | ".join(self.choices)
        signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
        item = typing.get_args(self.kind)[0] if typing.get_origin(self.kind) is list else self.kind
        name = {bool: "true | false", str: "text"}.get(item, item.__name__)
        text = " ".join([name, " and ".join(f"{signs[sign]} {bound:g}" for sign, bound in self.bounds.items())]).strip()
        return text if item is self.kind else f"[{text}, ...]"

    def allows(self, value: float) -> bool:
        """true if one number is finite and within the bounds."""
        tests = {"ge": value.__ge__, "gt": value.__gt__, "le": value.__le__, "lt": value.__lt__}
        return math.isfinite(value) and all(tests[sign](type(value)(bound)) for sign, bound in self.bounds.items())

    def nearest(self, value: object) -> object:
        """The valid choice to propose instead of ``value``: closest spelling, bound or number, else the default."""
        if isinstance(value, str) and value and typing.get_origin(self.kind) is list:
            return [value]
        if self.choices:
            return next(iter(difflib.get_close_matches(str(value), self.choices, n=1, cutoff=0.3)), self.default)
        if isinstance(value, float) and self.kind is int and math.isfinite(value):
            value = round(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and self.kind in (int, float):
            clamped = min(max(value, self.bounds.get("ge", -math.inf)), self.bounds.get("le", math.inf))
            if self.allows(clamped):
                return clamped
        return self.default

    def refuse(self, value: object) -> str:
        """The message about a value of the wrong type or outside the bounds."""
        advice = f"nearest: {self.path}={as_yaml(self.nearest(value))}"
        if isinstance(value, str) and (several := _several(value)) and typing.get_origin(self.kind) is not list:
            advice = f"several values make a sweep: fr3e sweep RECIPE {self.path}={several}"
        return f"{self.path}={as_yaml(value)} is not valid; expected {self.describe_kind()}; {advice}"


def _several(text: str) -> str:
    """The values of a list ``1,2`` or a range ``0:3``, ``0..2``, ``0-2`` as a sweep has them; empty for other text."""
    if "," in text:
        return text.strip("[]() ")
    match = re.fullmatch(r"(\d+)(:|\.\.\.?|-)(\d+)", text.strip())
    if match is None:
        return ""
    first, last = int(match[1]), int(match[3]) - (match[2] == ":")  # Python's ranges leave out their end
    return ",".join(map(str, range(first, last + 1))) if first < last < first + _LONGEST_RANGE else ""


def as_yaml(value: object) -> str:
    """A value as it is written in an override."""
    if isinstance(value, list):
        return f"[{','.join(map(as_yaml, value))}]"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return str(value)


@functools.cache
def settings(config_class: type = Config, prefix: str = "") -> dict[str, Setting]:
    """All leaves by dotted path, in declaration order."""
    kinds = typing.get_type_hints(config_class)
    leaves: dict[str, Setting] = {}
    for entry in dataclasses.fields(config_class):
        path, kind = prefix + entry.name, kinds[entry.name]
        if dataclasses.is_dataclass(kind):
            leaves |= settings(kinds[entry.name], path + ".")
        else:
            default = entry.default if entry.default_factory is dataclasses.MISSING else entry.default_factory()
            leaves[path] = Setting(path, kind, default, entry.metadata["meaning"], entry.metadata["bounds"])
    return leaves


@functools.cache
def sections(config_class: type = Config, prefix: str = "") -> dict[str, type]:
    """All sections by dotted path, in declaration order."""
    kinds = typing.get_type_hints(config_class)
    by_path: dict[str, type] = {}
    for entry in dataclasses.fields(config_class):
        if dataclasses.is_dataclass(kinds[entry.name]):
            path = prefix + entry.name
            by_path |= {path: kinds[entry.name]} | sections(kinds[entry.name], path + ".")
    return by_path


def setting_value(config: Config, path: str) -> Any:
    """The value at a dotted path."""
    value = config
    for name in path.split("."):
        value = getattr(value, name)
    return value


def nearest_paths(path: str, paths: typing.Iterable[str]) -> list[str]:
    """The existing paths most like ``path``: all with the same last part, else one that is close; none is likely.

    Of those with the same last part, one that is close as a whole stands alone; if none is, any other may be.
    """
    candidates = list(paths)
    last = path.rsplit(".", 1)[-1]
    if same := [candidate for candidate in candidates if candidate.rsplit(".", 1)[-1] == last]:
        if "." not in path:
            return same
        return difflib.get_close_matches(path, same, n=1, cutoff=_CLOSE) or difflib.get_close_matches(
            path, candidates, n=1, cutoff=_CLOSE
        )
    lasts = {candidate.rsplit(".", 1)[-1]: candidate for candidate in reversed(candidates)}
    return difflib.get_close_matches(path, candidates, n=1, cutoff=_CLOSE) or [
        lasts[name] for name in difflib.get_close_matches(last, lasts, n=1, cutoff=_CLOSE)
    ]
