"""The declaration of a metric: name, unit, meaning, good direction, occasion; the check that every name has one.

The table itself is `fr3e_jax.runs.metric_meanings`. Pages, reports and ``fr3e metrics`` read it, so a metric is
described once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Literal

STRICT = "FR3E_STRICT_METRICS"
"""Environment variable; not empty: an undeclared name is an error. The tests set it."""

Kind = Literal["train", "eval"]
Direction = Literal["", "higher", "lower"]

_PLACEHOLDERS = {"{j}": r"\d+", "{k}": r"\d+", "{set}": r".+", "{f}": r"\w+"}


def is_score(name: str) -> bool:
    """Return whether a held-out metric is a share of right answers, of a benchmark (``aime24/avg@32``) or over all."""
    return name.rpartition("/")[2].partition("@")[0] in ("avg", "pass", "greedy")


@dataclass(frozen=True)
class Metric:
    """One row of the table.

    ``name`` may have placeholders: ``{j}`` and ``{k}`` stand for whole numbers, ``{set}`` for a benchmark's name,
    ``{f}`` for that of a function.
    """

    name: str
    unit: str
    """Empty for plain numbers without a unit."""
    meaning: str
    better: Direction = ""
    """The direction that is good by itself; empty: none, or it depends on the run."""
    when: str = ""
    """The setting or verb with which it appears; empty: that of its group."""
    label: str = ""
    """A title for charts; empty: the name."""

    @property
    def is_pattern(self) -> bool:
        """Return whether the name stands for many."""
        return "{" in self.name

    @property
    def pattern(self) -> re.Pattern[str]:
        """The pattern of this row's names."""
        pieces = re.split(r"(\{\w+\})", self.name)
        return re.compile("".join(_PLACEHOLDERS.get(piece) or re.escape(piece) for piece in pieces))

    @property
    def explanation(self) -> str:
        """Meaning, unit and good direction in one line."""
        notes = [self.unit, f"{self.better} is better" if self.better else ""]
        details = ", ".join(note for note in notes if note)
        return f"{self.meaning} ({details})" if details else self.meaning


@dataclass(frozen=True)
class MetricGroup:
    """Rows that appear together; ``when`` says with which setting or verb."""

    title: str
    kind: Kind
    when: str
    metrics: tuple[Metric, ...]


class UndeclaredMetric(ValueError):
    """A metric that the table does not describe."""


def find(name: str, kind: str = "train") -> Metric | None:
    """The row of a metric; None for a name that the table does not have, such as one of a user's own."""
    plain, patterns = _rows(kind)
    return plain.get(name) or next((row for pattern, row in patterns if pattern.fullmatch(name)), None)


def check_declared(names: Iterable[str], kind: str) -> None:
    """Refuse names that the table does not have if `STRICT` is set; else do nothing, for a user may add names.

    Raises:
      UndeclaredMetric: names the metrics.
    """
    if not os.environ.get(STRICT):
        return
    unknown = [name for name in names if find(name, kind) is None]
    if unknown:
        raise UndeclaredMetric(
            f"found the undeclared {kind} metrics {', '.join(unknown)}; expected names of "
            "fr3e_jax/runs/metric_meanings.py: add a row for each"
        )


@cache
def _rows(kind: str) -> tuple[dict[str, Metric], list[tuple[re.Pattern[str], Metric]]]:
    from fr3e_jax.runs.metric_meanings import GROUPS  # the table imports this module

    rows = [metric for group in GROUPS if group.kind == kind for metric in group.metrics]
    return {row.name: row for row in rows}, [(row.pattern, row) for row in rows if row.is_pattern]
