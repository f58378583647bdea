"""Everything that the page of a run shows, collected from its files in one pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fr3e_jax.studies.analysis.figure import Finding
from fr3e_jax.studies.analysis.finding_content import finding_fields
from fr3e_jax.studies.analysis.run_curves import AXES, run_curves
from fr3e_jax.studies.analysis.stored_run import StoredRun
from fr3e_jax.studies.reports.embedding import embed, significant
from fr3e_jax.studies.reports.headline import headline
from fr3e_jax.studies.reports.held_out_problems import held_out_problems
from fr3e_jax.studies.reports.list_items import HELD_OUT_CHOICES, entitle, prompt_choices
from fr3e_jax.studies.reports.outcome_marks import MARKS
from fr3e_jax.studies.reports.page_limits import PageLimits, evenly
from fr3e_jax.studies.reports.rollout_trees import DECIMALS, TRAINED
from fr3e_jax.studies.reports.run_charts import DrawnChart, measured_charts
from fr3e_jax.studies.reports.settings_table import settings_tables
from fr3e_jax.studies.reports.shown_prompts import shown_prompts
from fr3e_jax.studies.reports.token_pieces import pieces_of

PAGE_AXES = ("step", "sampled_tokens", "wall_seconds")
"""Axes of the curves, names of `AXES`."""


@dataclass
class RunData:
    """The content of a page: the main data, and chunks that the page unpacks when they are looked at."""

    main: dict[str, Any]
    prompt_chunks: list[str] = field(default_factory=list)
    """Embedded columns of each prompt, in the order of ``main["prompts"]``."""
    trunk_chunks: list[str] = field(default_factory=list)
    """Embedded columns of each kept success, by the numbers of ``main["trunks"]``."""
    held_out_chunks: list[str] = field(default_factory=list)


def collect(run: StoredRun, findings: Iterable[Finding] = (), limits: PageLimits | None = None) -> RunData:
    """Read a run.

    Args:
      run: the run; it may still be training.
      findings: figures to show.
      limits: of what is read and shown.

    Raises:
      ConfigError: a file is damaged.
    """
    limits = limits or PageLimits()
    used_ids: set[int] = set()
    shown_trees = shown_prompts(run, limits, used_ids)
    held_out, held_out_chunks = held_out_problems(run, limits, used_ids)
    shown_findings, findings_note = _findings(findings, limits)
    codec, training = run.codec, run.training
    drawn = evenly(training, limits.metric_records)
    metrics = {"train": columns(drawn), "eval": columns(run.evaluations)}
    shown_charts = measured_charts(metrics)
    shown_headline = headline(run, held_out.pop("change_error") if held_out else None)
    shown_headline["facts"] += _scores(shown_charts, metrics["eval"])
    spent = run_curves(run.records).spent
    axes = [name for name in PAGE_AXES if name == "step" or any(spent.get(name, {}).values())]
    main = {
        "run": _description(run),
        "headline": shown_headline,
        "metrics": metrics,
        "charts": shown_charts,
        "axes": [(name, AXES[name]) for name in axes],
        "spent": {
            kind: {name: [significant(_total_at(spent[name], step)) for step in table["step"]] for name in axes}
            for kind, table in metrics.items()
        },
        "steps_note": f"{len(drawn)} of {len(training)} steps, at equal distances." if drawn != training else "",
        "decimals": DECIMALS,
        "vocabulary": {str(token): piece for token, piece in pieces_of(codec, used_ids).items()} if codec else None,
        "prompts": entitle(shown_trees.summaries),
        "trunks": {identity: n for n, identity in enumerate(shown_trees.trunks)},
        "visits": shown_trees.visits,
        "sampling": shown_trees.account | {"sentence": shown_trees.sentence},
        "lists": {"prompts": prompt_choices(shown_trees.summaries), "held_out": HELD_OUT_CHOICES},
        "outcomes": MARKS,
        "trained": TRAINED,
        "settings": settings_tables(run.settings, run.provenance),
        "held_out": held_out,
        "findings": shown_findings,
        "findings_note": findings_note,
    }
    return RunData(main, shown_trees.chunks, list(shown_trees.trunks.values()), held_out_chunks)


def columns(records: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Metrics as columns of equal length, ``step`` first; None where a record lacks a metric."""
    names = dict.fromkeys(["step", *(name for record in records for name in record)])
    return {name: [significant(record.get(name)) for record in records] for name in names if name != "kind"}


def _scores(charts: Iterable[DrawnChart], table: Mapping[str, Sequence[Any]]) -> list[tuple[str, str]]:
    """The course of each held-out score of the first chart of evaluations, as in ("greedy", "10.0 % → 20.0 %")."""
    first = next((chart["metrics"] for chart in charts if chart["kind"] == "eval" and chart["first"]), [])
    courses = {name: [value for value in table[name] if value is not None] for name in first}
    ends = {name: dict.fromkeys((values[0], values[-1])) for name, values in courses.items()}
    return [
        (f"held-out {name}", "\u00a0→\u00a0".join(f"{value:.1%}" for value in values)) for name, values in ends.items()
    ]


def _total_at(totals: Mapping[int, float], step: int) -> float:
    """The total up to a step, or up to the one on record before it."""
    return totals[step] if step in totals else max(total for at, total in totals.items() if at <= step)


def _description(run: StoredRun) -> dict[str, Any]:
    environment = run.settings.get("environment.kind", "none")
    observation = "answer of the tool" if environment == "none" else "observation"
    return {"name": run.name, "recipe": str(run.settings.get("name", "")), "observation": observation}


def _findings(findings: Iterable[Finding], limits: PageLimits) -> tuple[list[dict[str, Any]], str]:
    """The fields of the findings, in their order, as many as the limit allows; and a note of the others."""
    shown, left_out, left = [], [], limits.finding_bytes
    for finding in findings:
        fields = finding_fields(finding)
        size = len(embed(fields))
        if size <= left:
            left -= size
            shown.append(fields)
        else:
            left_out.append(finding.title)
    large = f"Too large for this page, see fr3e analyse: {'; '.join(left_out)}" if left_out else ""
    return shown, large or ("" if shown else "There are no figures for this run.")
