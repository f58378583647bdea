"""The tables of a comparison, ready to be printed: final scores, differences, price of a score, settings, runs."""

from __future__ import annotations

from collections.abc import Sequence

from fr3e_jax.configuration.provenance import NO_GIT
from fr3e_jax.studies.analysis.comparison import REACH_AXES, Comparison, Spread, axes_of
from fr3e_jax.studies.analysis.figure import TextTable
from fr3e_jax.studies.analysis.problem_by_problem import problem_table
from fr3e_jax.studies.analysis.run_curves import ALL_RIGHT, ALL_WRONG, AXES, WASTED
from fr3e_jax.studies.analysis.run_groups import ComparedRun, RunGroup, shown

NOTHING = "-"
_SHORT = {
    "entropy/mean": "entropy",
    "reward/mean": "reward",
    ALL_RIGHT: "All-Right",
    ALL_WRONG: "All-Wrong",
    WASTED: "wasted",
}


def tables(comparison: Comparison) -> list[TextTable]:
    """All tables that have content, in the order of reading."""
    makers = (
        final_table,
        difference_table,
        problem_table,
        reach_table,
        cost_table,
        sets_table,
        settings_table,
        runs_table,
    )
    return [table for make in makers if (table := make(comparison)) is not None]


def final_table(comparison: Comparison) -> TextTable:
    """A row for each group: held-out scores, entropy, All-Right, All-Wrong, wasted tokens; mean ± deviation."""
    scores = [name for name in comparison.evaluation_metrics if "/" not in name]
    others = [name for name in ("entropy/mean", ALL_RIGHT, ALL_WRONG, WASTED) if _any(comparison, name)]
    start = [comparison.metric] if comparison.metric in scores else []
    others = [*_extra(comparison, [*scores, *others]), *others]
    rows: list[list[str]] = []
    for group in comparison.groups:
        before = [_spread(comparison.start(group, name)) for name in start]
        cells = [_spread(comparison.final(group, name)) for name in [*scores, *others]]
        rows.append([group.label, _seeds(group), *before, *cells])
    headings = [*("start" for _ in start), *scores, *(_SHORT.get(name, name) for name in others)]
    return TextTable(
        name="final",
        title="Final values",
        columns=["group", "seeds", *headings],
        cells=rows,
        note="Mean ± standard deviation over runs. Scores: the last evaluation; start: "
        f"{comparison.metric} before training. Entropy (nats a token) and reward: the "
        "last tenth of the steps. All-Right, All-Wrong: share of all prompts. Wasted: share of the sampled tokens that "
        "entered no policy loss.",
    )


def difference_table(comparison: Comparison) -> TextTable | None:
    """A row for each other group and metric: difference to the baseline, with its intervals."""
    others = [group for group in comparison.groups if group is not comparison.baseline]
    if not others:
        return None
    metrics = [name for name in comparison.evaluation_metrics if "/" not in name]
    metrics += [name for name in ("entropy/mean", WASTED) if _any(comparison, name)]
    metrics = [*_extra(comparison, metrics), *metrics]
    rows, few, problems = [], False, 0
    for group in others:
        for name in metrics:
            difference = comparison.difference(group, name)
            pairs = len(difference.values)
            few, problems = few or 1 < pairs < 5, max(problems, difference.problems)
            mean = NOTHING if difference.mean is None else f"{difference.mean:+.3f}"
            over_seeds = "one pair: no interval" if pairs == 1 else _interval(difference.over_seeds)
            by_seed = ", ".join(f"{value:+.3f}" for value in difference.values) or "no pair"
            over_problems = _interval(difference.over_problems)
            rows.append([group.label, _SHORT.get(name, name), mean, over_seeds, over_problems, by_seed])
    note = "Final value minus the baseline's, paired by seed; bootstrap over the pairs."
    note += " With fewer than five pairs this interval is too narrow." if few else ""
    if problems:
        note += f" Over problems: {problems} held-out problems drawn again, the runs as they are."
    headings = ["group", "metric", "difference", "95 % over seeds", "95 % over problems", "by seed"]
    if not problems:
        headings, rows = headings[:4] + headings[5:], [row[:4] + row[5:] for row in rows]
    title = f"Differences to {comparison.baseline.label}"
    return TextTable(name="differences", title=title, columns=headings, cells=rows, note=note)


def reach_table(comparison: Comparison) -> TextTable | None:
    """A row for each group: what it had spent at the score to reach."""
    if comparison.score is None:
        return None
    axes = [axis for axis in REACH_AXES if axis in axes_of(comparison)]
    rows = []
    for group in comparison.groups:
        cells = []
        for axis in axes:
            spent = comparison.reach(group, axis)
            mean, base = (_mean_of_all(values) for values in (spent, comparison.reach(comparison.baseline, axis)))
            ratio = ""
            if group is not comparison.baseline and mean is not None and base:
                ratio = f" (× {mean / base:.2f})"
            cells.append(_reach(spent) + ratio if comparison.final(group, comparison.metric).values else NOTHING)
        rows.append([group.label, *cells])
    return TextTable(
        name="reach",
        title=f"Spent to reach {comparison.metric} = {comparison.score:.3f}",
        columns=["group", *(AXES[axis] for axis in axes)],
        cells=rows,
        note="Mean over runs, on the straight line between evaluations; × is the ratio to the baseline. Evaluations "
        "themselves cost no sampled tokens, but seconds.",
    )


def cost_table(comparison: Comparison) -> TextTable:
    """A row for each group: what its runs spent in all."""
    axes = [axis for axis in REACH_AXES if axis in axes_of(comparison)]
    rows = [[group.label, *(_amount(comparison.final(group, axis)) for axis in axes)] for group in comparison.groups]
    columns = ["group", *(AXES[axis] for axis in axes)]
    return TextTable(name="spent", title="Spent in all", columns=columns, cells=rows)


def sets_table(comparison: Comparison) -> TextTable | None:
    """A row for each score of a single evaluation set, where there are several sets."""
    names = [name for name in comparison.evaluation_metrics if "/" in name]
    if not names:
        return None
    rows = [[name, *(_spread(comparison.final(group, name)) for group in comparison.groups)] for name in names]
    headings = ["score", *(group.label for group in comparison.groups)]
    return TextTable(name="sets", title="Final scores by evaluation set", columns=headings, cells=rows)


def settings_table(comparison: Comparison) -> TextTable | None:
    """A row for each setting in which the groups differ."""
    if not comparison.differing or len(comparison.groups) < 2:
        return None
    rows = [
        [name, *(" | ".join(dict.fromkeys(_setting(run, name) for run in group.runs)) for group in comparison.groups)]
        for name in comparison.differing
    ]
    headings = ["setting", *(group.label for group in comparison.groups)]
    return TextTable(name="settings", title="Settings in which the groups differ", columns=headings, cells=rows)


def runs_table(comparison: Comparison) -> TextTable:
    """A row for each run: seed, state, spent, score, code."""
    rows = []
    for group in comparison.groups:
        for run in group.runs:
            tokens, seconds = (run.curves.totals.get(axis) for axis in ("sampled_tokens", "cpu_seconds"))
            rows.append(
                [
                    group.label,
                    str(run.seed),
                    run.name,
                    run.state,
                    f"{run.curves.last_step:,}",
                    NOTHING if tokens is None else f"{tokens:,.0f}",
                    NOTHING if seconds is None else f"{seconds:,.0f}",
                    _number(run.curves.final(comparison.metric)),
                    _code(run),
                ]
            )
    headings = ["group", "seed", "run", "state", "steps", "sampled tokens", "CPU seconds", comparison.metric, "code"]
    return TextTable(name="runs", title="Runs", columns=headings, cells=rows)


def _any(comparison: Comparison, metric: str) -> bool:
    return any(comparison.final(group, metric).values for group in comparison.groups)


def _extra(comparison: Comparison, shown: Sequence[str]) -> list[str]:
    """The main metric and those that the user named, without the ones that are shown anyway."""
    return [name for name in dict.fromkeys([comparison.metric, *comparison.more]) if name not in shown]


def _seeds(group: RunGroup) -> str:
    """The seeds, and the number of runs that are not finished."""
    unfinished = sum(run.state != "finished" for run in group.runs)
    return ", ".join(map(str, group.seeds)) + (f" ({unfinished} unfinished)" if unfinished else "")


def _setting(run: ComparedRun, name: str) -> str:
    return shown(run.settings[name]) if name in run.settings else NOTHING


def _code(run: ComparedRun) -> str:
    state = run.run.provenance.get("git") or NO_GIT
    return str(state.get("commit") or "unknown")[:10] + (" + changes" if state.get("dirty") else "")


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3f}"


def _spread(spread: Spread) -> str:
    missing = f" ({len(spread.values)} of {spread.runs})" if 0 < len(spread.values) < spread.runs else ""
    return _number(spread.mean) + ("" if spread.std is None else f" ± {spread.std:.3f}") + missing


def _amount(spread: Spread) -> str:
    if spread.mean is None:
        return NOTHING
    return f"{spread.mean:,.0f}" + ("" if spread.std is None else f" ± {spread.std:,.0f}")


def _interval(ends: Sequence[float] | None) -> str:
    return NOTHING if ends is None else f"{ends[0]:+.3f} to {ends[1]:+.3f}"


def _mean_of_all(spent: Sequence[float | None]) -> float | None:
    """The mean; None if a run has not reached the score, because the mean of the others would flatter."""
    reached = [value for value in spent if value is not None]
    return sum(reached) / len(reached) if reached and len(reached) == len(spent) else None


def _reach(spent: Sequence[float | None]) -> str:
    if (mean := _mean_of_all(spent)) is not None:
        return f"{mean:,.0f}"
    reached = [f"{value:,.0f}" for value in spent if value is not None]
    return f"{len(reached)} of {len(spent)} runs: {', '.join(reached)}" if reached else "not reached"
