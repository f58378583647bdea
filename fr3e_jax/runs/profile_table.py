"""The table of ``fr3e train --profile``: seconds by stage, and in each stage by program, transfer, grading and host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

PROGRAM, TRANSFER, GRADING, COMPILATION, HOST = "program", "transfer", "grading", "compilation", "host"
_BETWEEN = "between stages"
_TOTALS = (
    (PROGRAM, "device programs"),
    (GRADING, "grading"),
    (TRANSFER, "transfers"),
    (HOST, "host"),
    (COMPILATION, "compilation"),
)


@dataclass
class Cell:
    """Calls of one name in one stage, and their wall seconds."""

    calls: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        self.calls += 1
        self.seconds += seconds


@dataclass(frozen=True)
class Profile:
    """The time that some steps took; all seconds are wall seconds of all ``steps`` together.

    The keys of ``cells`` are stage ("" outside all stages), kind and name. The rest of a stage's seconds is the host's.
    """

    steps: list[int]
    seconds: float
    stages: dict[str, float]
    cells: dict[tuple[str, str, str], Cell]
    background_seconds: float

    def totals(self) -> dict[str, float]:
        """Seconds by kind; their sum is ``seconds``."""
        totals = {kind: 0.0 for kind, _ in _TOTALS}
        for (_, kind, _), cell in self.cells.items():
            totals[kind] += cell.seconds
        totals[HOST] = self.seconds - sum(totals.values())
        return totals

    def outside_share(self) -> float:
        """Share of the time without compilation that is neither device programs nor grading."""
        totals = self.totals()
        seconds = self.seconds - totals[COMPILATION]
        return (totals[HOST] + totals[TRANSFER]) / seconds if seconds > 0 else 0.0

    def rows(self) -> list[dict[str, Any]]:
        """One row per stage; after it its cells, longest first, and the host's rest last."""
        stages = {name: seconds for name, seconds in self.stages.items() if seconds > 0}
        stages[""] = self.seconds - sum(stages.values())
        rows: list[dict[str, Any]] = []
        for stage, seconds in stages.items():
            stage_cells = {(kind, name): cell for (where, kind, name), cell in self.cells.items() if where == stage}
            parts = [
                {"kind": kind, "name": name, "calls": cell.calls, "seconds": cell.seconds}
                for (kind, name), cell in sorted(stage_cells.items(), key=lambda item: -item[1].seconds)
            ]
            rest = seconds - sum(cell.seconds for cell in stage_cells.values())
            parts.append({"kind": HOST, "name": "", "calls": 0, "seconds": rest})
            name = stage or _BETWEEN
            rows.append({"stage": name, "kind": "stage", "name": "", "calls": 0, "seconds": seconds})
            rows += [{"stage": name, **cells} for cells in parts]
        return [row | {"share": self._share(row["seconds"])} for row in rows]

    def _share(self, seconds: float) -> float:
        return seconds / self.seconds if self.seconds > 0 else 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "seconds": self.seconds,
            "totals": self.totals(),
            "outside_programs_and_grading": self.outside_share(),
            "background_seconds": self.background_seconds,
            "rows": self.rows(),
        }

    def lines(self) -> list[str]:
        """The table as text, with times per step."""
        count = len(self.steps)
        seconds = f"{self.seconds / count:.3f} s a step; each program was waited for"
        lines = [
            f"where the time of {_span(self.steps)} went ({seconds})",
            f"{'':<34}{'calls':>8}{'ms':>11}{'share':>8}   a step",
        ]
        for row in self.rows():
            label = row["stage"] if row["kind"] == "stage" else f"  {_label(row['kind'], row['name'])}"
            lines.append(self._line(label, row["seconds"], row["calls"]))
        totals = self.totals()
        lines += ["together", *(self._line(f"  {label}", totals[kind]) for kind, label in _TOTALS)]
        lines.append(
            f"outside device programs and grading: {self.outside_share():.1%} of the time without compilation; "
            f"the background thread was busy for {1000 * self.background_seconds / count:.1f} ms a step meanwhile"
        )
        return lines

    def _line(self, label: str, seconds: float, calls: int = 0) -> str:
        count = len(self.steps)
        shown = f"{calls / count:.1f}" if calls else ""
        return f"{label:<34}{shown:>8}{1000 * seconds / count:>11.1f}{self._share(seconds):>8.1%}"


def _span(steps: list[int]) -> str:
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"


def _label(kind: str, name: str) -> str:
    match kind:
        case "compilation":
            return f"compiling {name}"
        case "host":
            return "host: the rest"
        case _:
            return name
