"""The result of an analysis: numbers with names and units, from which a page, JSON and CSV are made."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Number = int | float | None
"""A value of a figure; None where there is nothing to show."""


def finite(value: float) -> Number:
    """A float for a figure: None where it is not finite."""
    return float(value) if math.isfinite(value) else None


_STORED: Any = {"allow_inf_nan": False}


@dataclass(frozen=True)
class Series:
    """One line, or set of bars."""

    name: str
    x: Sequence[float | str]
    """Places on the axis; names, if the axis has no scale."""
    y: Sequence[Number]
    low: Sequence[Number] | None = None
    """Lower end of an interval at each place; given together with ``high``."""
    high: Sequence[Number] | None = None

    def __post_init__(self) -> None:
        columns = {"x": self.x, "y": self.y, "low": self.low, "high": self.high}
        lengths = {name: len(column) for name, column in columns.items() if column is not None}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"series {self.name!r}: found lengths {lengths}, expected equal ones")
        if (self.low is None) != (self.high is None):
            raise ValueError(f"series {self.name!r}: low and high must be given together")

    __pydantic_config__ = _STORED


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Any result of an analysis. Its texts may come from models: they are data, not markup."""

    name: str = ""
    """Name of its files and of its place in a page: lower case and underscores."""
    title: str
    source: str = ""
    """Paper and equation or figure, as in "Deng et al. 2025, figure 6a"."""
    note: str = ""
    """How the numbers came about: which rollouts, how many, which interval."""

    __pydantic_config__ = _STORED

    def rows(self) -> Iterator[dict[str, Any]]:
        """The numbers as rows of a table with named columns."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Figure(Finding):
    """Series over one axis."""

    kind: Literal["lines", "bars"] = "lines"
    x_label: str = "training step"
    """With the unit, as in "position (tokens)"."""
    y_label: str
    series: Sequence[Series]
    log_x: bool = False

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row for each point: series, x, y, and low and high where there is an interval."""
        for series in self.series:
            for i, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
                row = {"series": series.name, "x": x, "y": y}
                if series.low is not None and series.high is not None:
                    row |= {"low": series.low[i], "high": series.high[i]}
                yield row


@dataclass(frozen=True, kw_only=True)
class HeatMap(Finding):
    """Values at the crossings of two axes."""

    x_label: str
    y_label: str
    columns: Sequence[float | str]
    """Places on the x axis."""
    lines: Sequence[float | str]
    """Places on the y axis, from the top."""
    values: Sequence[Sequence[Number]]
    """``[lines][columns]``."""
    unit: str = ""

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row for each crossing that has a value: y, x, value."""
        for line, values in zip(self.lines, self.values, strict=True):
            for column, value in zip(self.columns, values, strict=True):
                if value is not None:
                    yield {"y": line, "x": column, "value": value}


@dataclass(frozen=True, kw_only=True)
class TextTable(Finding):
    """Rows under named columns, such as tokens with their counts."""

    columns: Sequence[str]
    cells: Sequence[Sequence[str | Number]]
    """``[rows][columns]``."""

    def rows(self) -> Iterator[dict[str, Any]]:
        """Each row by the names of its columns."""
        for row in self.cells:
            yield dict(zip(self.columns, row, strict=True))
