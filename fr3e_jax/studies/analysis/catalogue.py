"""All analyses of stored runs: the table of names, and the findings of a run or of several.

`findings` is what the report shows; `analyse` also says which analysis was left out, and why.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from fr3e_jax.configuration import ConfigError
from fr3e_jax.studies.analysis import (
    diversity,
    entropy_profiles,
    fr3e_figures,
    perplexity,
    reflection,
    response_quality,
    stages,
    success,
    token_frequency,
)
from fr3e_jax.studies.analysis.figure import Figure, Finding
from fr3e_jax.studies.analysis.material import Material, NothingToShow
from fr3e_jax.studies.analysis.responses import Budget
from fr3e_jax.studies.analysis.stored_run import StoredRun

Need = Literal[
    "metrics",
    "training rollouts",
    "rollouts and tokenizer",
    "samples",  # of an evaluation, else base rollouts of training
    "samples and tokenizer",
    "evaluation samples",
]
"""Data of a run."""


@dataclass(frozen=True)
class Analysis:
    """One analysis: its name is that of its finding."""

    name: str
    need: Need
    source: str
    of_run: Callable[[Material], Finding] | None = None
    of_runs: Callable[[Sequence[Material]], Finding] | None = None
    """Instead: one finding of all runs together."""


@dataclass(frozen=True)
class LeftOut:
    """An analysis for which a run lacks the data."""

    name: str
    run: str
    reason: str


ANALYSES = {
    analysis.name: analysis
    for analysis in (
        Analysis("pass_at_k", "samples", "Deng et al. 2025, equation 2, figure 1a", success.pass_at_k_curve),
        Analysis(
            "unsolvable_overlap",
            "evaluation samples",
            "Deng et al. 2025, 2.1, figure 1c",
            of_runs=success.unsolvable_overlap,
        ),
        Analysis("maj_at_k", "samples and tokenizer", "Deng et al. 2025, table 4", diversity.majority_vote),
        Analysis(
            "answer_diversity", "samples and tokenizer", "Deng et al. 2025, figure 1b", diversity.answer_diversity
        ),
        Analysis(
            "effective_branching",
            "training rollouts",
            "Deng et al. 2025, 2.2, figure 1d",
            diversity.effective_branching,
        ),
        Analysis("length_by_outcome", "training rollouts", "Deng et al. 2025, table 5", diversity.length_by_outcome),
        Analysis("stages_of_entropy", "metrics", "Deng et al. 2025, 3.2.2, figure 3a", stages.stages_of_entropy),
        Analysis("stages_of_reward", "metrics", "Deng et al. 2025, 3.2.2, figure 3a", stages.stages_of_reward),
        Analysis(
            "entropy_by_sign",
            "training rollouts",
            "Deng et al. 2025, 3.2.2, figure 3c",
            entropy_profiles.entropy_by_sign,
        ),
        Analysis(
            "fastest_entropy_drop",
            "training rollouts",
            "Deng et al. 2025, figure 3c",
            entropy_profiles.fastest_entropy_drop,
        ),
        Analysis("token_clouds", "rollouts and tokenizer", "Deng et al. 2025, table 3b", token_frequency.token_clouds),
        Analysis(
            "low_quality_responses",
            "training rollouts",
            "Deng et al. 2025, figure 3d",
            response_quality.low_quality_responses,
        ),
        Analysis(
            "perplexity_by_outcome",
            "training rollouts",
            "Deng et al. 2025, 3.2.3, equation 7",
            perplexity.perplexity_by_outcome,
        ),
        Analysis(
            "entropy_by_relative_position",
            "training rollouts",
            "Deng et al. 2025, figure 6a",
            entropy_profiles.entropy_by_relative_position,
        ),
        Analysis(
            "entropy_by_position",
            "training rollouts",
            "Deng et al. 2025, figure 6a",
            entropy_profiles.entropy_by_position,
        ),
        Analysis(
            "pivotal_tokens",
            "rollouts and tokenizer",
            "Cheng et al. 2025, section 2, figures 2, 8",
            reflection.pivotal_tokens,
        ),
        Analysis(
            "reflective_actions",
            "rollouts and tokenizer",
            "Cheng et al. 2025, section 2, figures 2, 8",
            reflection.reflective_actions,
        ),
        Analysis(
            "rare_behaviours",
            "rollouts and tokenizer",
            "Cheng et al. 2025, section 2, figures 2, 3",
            reflection.rare_behaviours,
        ),
        Analysis("entropy_over_steps", "metrics", "FR3E, figure 3", fr3e_figures.entropy_over_steps),
        Analysis("reward_over_steps", "metrics", "Vanlioglu 2025, figures 1 and 3", fr3e_figures.reward_over_steps),
        Analysis(
            "length_over_steps",
            "metrics",
            "FR3E, figure 4; Vanlioglu 2025, figures 2, 4",
            fr3e_figures.length_over_steps,
        ),
        Analysis("all_right_all_wrong", "metrics", "FR3E, figure 5", fr3e_figures.all_right_all_wrong),
        Analysis("reward_by_problem", "samples", "FR3E, figure 6", fr3e_figures.reward_by_problem),
        Analysis("advantages_over_steps", "training rollouts", "FR3E, figure 7", fr3e_figures.advantages_over_steps),
    )
}


def findings(
    run: StoredRun, *, seed: int = 0, only: Collection[str] = (), budget: Budget | None = None
) -> list[Finding]:
    """The findings of one run, in the order of the table; an analysis for which the run lacks the data is left out.

    Raises:
      ConfigError: a file of the run is damaged, or a name in ``only`` is unknown.
    """
    return analyse([run], seed=seed, only=only, budget=budget)[0]


def analyse(
    runs: Sequence[StoredRun],
    *,
    baseline: StoredRun | None = None,
    seed: int = 0,
    only: Collection[str] = (),
    budget: Budget | None = None,
    behaviours_file: Path | None = None,
) -> tuple[list[Finding], list[LeftOut]]:
    """The findings of one run or of several, laid over each other, and the analyses that were left out.

    Args:
      baseline: one more run, named as such.
      seed: of the draws of steps and prompts, of bootstraps and of votes.
      only: names of analyses; empty: all.
      budget: the most that is read of each run.
      behaviours_file: words of pivotal tokens and reflection, in place of the package's.

    Raises:
      ConfigError: a file is damaged, or a name in ``only`` is unknown.
    """
    unknown = sorted(set(only) - set(ANALYSES))
    if unknown:
        raise ConfigError(f"found no analysis {', '.join(unknown)}; expected some of {', '.join(ANALYSES)}")
    named = dict(zip(labels(runs), runs, strict=True)) | ({f"{baseline.name} (baseline)": baseline} if baseline else {})
    materials = {name: Material(run, seed, budget or Budget(), behaviours_file, name) for name, run in named.items()}
    found: list[Finding] = []
    left_out: list[LeftOut] = []
    for analysis in ANALYSES.values():
        if only and analysis.name not in only:
            continue
        if analysis.of_runs is not None:
            try:
                found.append(analysis.of_runs(list(materials.values())))
            except NothingToShow as missing:
                left_out.append(LeftOut(analysis.name, " and ".join(named), str(missing)))
            continue
        assert analysis.of_run is not None
        of_runs: dict[str, Finding] = {}
        for name, material in materials.items():
            try:
                of_runs[name] = analysis.of_run(material)
            except NothingToShow as missing:
                left_out.append(LeftOut(analysis.name, name, str(missing)))
        found += overlaid(of_runs) if len(named) > 1 else of_runs.values()
    return found, left_out


def labels(runs: Sequence[StoredRun]) -> list[str]:
    """Names of the runs; runs of one name are numbered."""
    names = [run.name for run in runs]
    return [
        name if names.count(name) == 1 else f"{name} ({names[: i + 1].count(name)})" for i, name in enumerate(names)
    ]


def overlaid(of_runs: dict[str, Finding]) -> list[Finding]:
    """One figure with the series of all runs; of heat maps and tables one for each run."""
    figures = {name: one for name, one in of_runs.items() if isinstance(one, Figure)}
    if len(figures) < len(of_runs):
        return [
            replace(one, name=f"{one.name}_{i}", title=f"{one.title}: {name}")
            for i, (name, one) in enumerate(of_runs.items(), 1)
        ]
    if not figures:
        return []
    first = next(iter(figures.values()))
    series = [replace(one, name=f"{name}: {one.name}") for name, figure in figures.items() for one in figure.series]
    notes = dict.fromkeys(figure.note for figure in figures.values())
    note = "; ".join(notes) if len(notes) == 1 else "; ".join(f"{n}: {figure.note}" for n, figure in figures.items())
    return [replace(first, series=series, note=note)]
