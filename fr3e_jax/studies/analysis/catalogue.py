"""All analyses of stored runs: the table of names, and the findings of a run or of several.

`findings` is what the report shows; `analyse` also says which analysis was left out, and why.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from fr3e_jax.configuration import ConfigError
from fr3e_jax.studies.analysis import (
    entropy_profiles,
    fr3e_figures,
    majority,
    success,
)
from fr3e_jax.studies.analysis.figure import Figure, Finding
from fr3e_jax.studies.analysis.material import Material, NothingToShow
from fr3e_jax.studies.analysis.stored_run import StoredRun

ANALYSES = {
    analysis.name: analysis
    for analysis in (
        success.pass_at_k,
        majority.maj_at_k,
        entropy_profiles.entropy_by_sign,
        entropy_profiles.entropy_by_relative_position,
        fr3e_figures.reward_by_problem,
        fr3e_figures.advantages_over_steps,
    )
}
"""In the order in which a page shows them."""


@dataclass(frozen=True)
class LeftOut:
    """An analysis for which a run lacks the data."""

    name: str
    run: str
    reason: str


def findings(run: StoredRun, *, seed: int = 0, only: Collection[str] = ()) -> list[Finding]:
    """The findings of one run, in the order of the table; an analysis for which the run lacks the data is left out.

    Raises:
      ConfigError: a file of the run is damaged, or a name in ``only`` is unknown.
    """
    return analyse([run], seed=seed, only=only)[0]


def analyse(
    runs: Sequence[StoredRun],
    *,
    seed: int = 0,
    only: Collection[str] = (),
) -> tuple[list[Finding], list[LeftOut]]:
    """The findings of one run or of several, laid over each other, and the analyses that were left out.

    Args:
      seed: of the draws of steps and prompts, of bootstraps and of votes.
      only: names of analyses; empty: all.

    Raises:
      ConfigError: a file is damaged, or a name in ``only`` is unknown.
    """
    if unknown := sorted(set(only) - set(ANALYSES)):
        raise ConfigError(f"found no analysis {', '.join(unknown)}; expected some of {', '.join(ANALYSES)}")
    materials = {name: Material(run, seed) for name, run in zip(labels(runs), runs, strict=True)}
    results: list[Finding] = []
    left_out: list[LeftOut] = []
    for analysis in ANALYSES.values():
        if only and analysis.name not in only:
            continue
        by_run: dict[str, Finding] = {}
        for name, material in materials.items():
            try:
                by_run[name] = analysis(material)
            except NothingToShow as missing:
                left_out.append(LeftOut(analysis.name, name, str(missing)))
        results += overlaid(by_run) if len(materials) > 1 else by_run.values()
    return results, left_out


def labels(runs: Sequence[StoredRun]) -> list[str]:
    """Names of the runs; runs of one name are numbered."""
    names = [run.name for run in runs]
    return [
        name if names.count(name) == 1 else f"{name} ({names[: i + 1].count(name)})" for i, name in enumerate(names)
    ]


def overlaid(by_run: dict[str, Finding]) -> list[Finding]:
    """One figure with the series of all runs; of heat maps and tables one for each run."""
    figures = {name: finding for name, finding in by_run.items() if isinstance(finding, Figure)}
    if len(figures) < len(by_run):
        return [
            replace(finding, name=f"{finding.name}_{i}", title=f"{finding.title}: {name}")
            for i, (name, finding) in enumerate(by_run.items(), 1)
        ]
    if not figures:
        return []
    series = [replace(line, name=f"{name}: {line.name}") for name, figure in figures.items() for line in figure.series]
    notes = dict.fromkeys(figure.note for figure in figures.values())
    note = "; ".join(notes) if len(notes) == 1 else "; ".join(f"{n}: {figure.note}" for n, figure in figures.items())
    return [replace(next(iter(figures.values())), series=series, note=note)]
