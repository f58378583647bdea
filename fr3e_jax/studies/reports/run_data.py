"""Everything that the page of a run shows, collected from its files in one pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fr3e_jax.runs.declared_metrics import find
from fr3e_jax.runs.rollout_parts import rollout_path, stored_bytes
from fr3e_jax.runs.run_state import run_state
from fr3e_jax.studies.analysis.figure import Figure, Finding, HeatMap
from fr3e_jax.studies.analysis.stored_run import StoredRun
from fr3e_jax.studies.reports.embedding import embed, rounded
from fr3e_jax.studies.reports.held_out_problems import held_out_problems
from fr3e_jax.studies.reports.prompt_sampling import (
    Allowance,
    Budget,
    Candidate,
    Shortlist,
    by_prompt,
    chosen_steps,
    evenly,
    priority,
)
from fr3e_jax.studies.reports.rollout_trees import DECIMALS, STRATA, prompt_summary, prompt_tree
from fr3e_jax.studies.reports.token_pieces import pieces_of

QUESTION_CHARACTERS = 160
SIGNIFICANT = 7  # digits of a metric, as many as float32 has


@dataclass
class RunData:
    """The content of a page: the main data, and chunks that the page unpacks when they are looked at."""

    main: dict[str, Any]
    prompt_chunks: list[str] = field(default_factory=list)
    """Embedded columns of each prompt, in the order of ``main["prompts"]``."""
    held_out_chunks: list[str] = field(default_factory=list)


def collect(run: StoredRun, findings: Iterable[Finding] = (), budget: Budget | None = None) -> RunData:
    """Read a run.

    Args:
      run: the run; it may still be training.
      findings: figures to show.
      budget: limits of what is read and shown.

    Raises:
      ConfigError: a file is damaged.
    """
    budget = budget or Budget()
    used_ids: set[int] = set()
    prompts, chunks, sampling = _prompts(run, budget, used_ids)
    held_out, held_out_chunks = held_out_problems(run, budget, used_ids)
    shown, left_out = _findings(findings, budget)
    codec, training = run.codec, run.training
    for summary in prompts:
        ids = summary.pop("question_ids")
        text = codec.decode(ids, special_tokens=True) if codec else ""
        summary["question"] = text[:QUESTION_CHARACTERS] + "…" * (len(text) > QUESTION_CHARACTERS)
    metrics = {"train": columns(evenly(training, budget.metric_records)), "eval": columns(run.evaluations)}
    main = {
        "run": _description(run),
        "metrics": metrics,
        "explanations": {kind: explanations(table, kind) for kind, table in metrics.items()},
        "training_steps": len(training),
        "decimals": DECIMALS,
        "vocabulary": {str(token): piece for token, piece in pieces_of(codec, used_ids).items()} if codec else None,
        "prompts": prompts,
        "sampling": sampling,
        "held_out": held_out,
        "findings": shown,
        "findings_left_out": left_out,
    }
    return RunData(main, chunks, held_out_chunks)


def columns(records: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Metrics as columns of equal length, ``step`` first; None where a record lacks a metric."""
    names = dict.fromkeys(["step", *(name for record in records for name in record)])
    return {name: [_number(record.get(name)) for record in records] for name in names if name != "kind"}


def explanations(names: Iterable[str], kind: str) -> dict[str, str]:
    """What each metric is, from the table of all metrics; names without a row are left out."""
    return {name: row.explanation for name in names if (row := find(name, kind))}


def _number(value: Any) -> Any:
    return rounded(value, SIGNIFICANT) if isinstance(value, float) else value


def _description(run: StoredRun) -> dict[str, Any]:
    settings, ending = run.settings, run_state(run.directory)
    return {
        "name": run.name,
        "recipe": settings.get("name", ""),
        "provenance": dict(run.provenance),
        "summary": run.summary,
        "state": "finished" if run.summary else ending.state,  # a run writes its page before its state
        "reason": "" if run.summary else ending.reason,
        "settings": {name: settings[name] for name in sorted(settings)},
        "last_step": max([record["step"] for record in run.training], default=0),
    }


def _prompts(run: StoredRun, budget: Budget, used_ids: set[int]) -> tuple[list[dict], list[str], dict[str, Any]]:
    """Summaries of the shown prompts, their embedded columns, and an account of the choice."""
    sizes = {step: stored_bytes(rollout_path(run.directory, step)) for step in run.steps()}
    steps = chosen_steps(sizes, budget)
    allowance = Allowance(budget.prompt_bytes / max(1, len(steps)))
    summaries: list[dict[str, Any]] = []
    chunks: list[str] = []
    found = dict.fromkeys(STRATA, 0)
    for step in steps:
        allowance.next_step()
        shortlist = Shortlist(allowance.left)
        for records in by_prompt(run.rollouts(step)):
            summary = prompt_summary(records) | {"question_ids": list(records[0].prompt_ids)}
            found[summary["stratum"]] += 1
            rank = priority(budget.seed, step, summary["position"])
            shortlist.add(summary["stratum"], Candidate(rank, summary, prompt_tree(records, budget.prompt_tokens)))
        taken = []
        for one in shortlist.in_turns():
            if one.size <= allowance.left and allowance.spend(len(encoded := embed(one.tree))):
                taken.append((one, encoded))
        for one, encoded in sorted(taken, key=lambda pair: pair[0].summary["position"]):
            summaries.append(one.summary)
            chunks.append(encoded)
            used_ids.update(one.tree["token_ids"], one.tree["prompt_ids"])
    account = {
        "steps_stored": len(sizes),
        "steps_read": steps,
        "prompts_read": found,
        "prompts_shown": len(summaries),
        "prompt_tokens": budget.prompt_tokens,
        "seed": budget.seed,
        "last_step": max(sizes, default=0),
    }
    return summaries, chunks, account


def _findings(findings: Iterable[Finding], budget: Budget) -> tuple[list[dict[str, Any]], list[str]]:
    """The figures as columns, in their order, as many as the budget holds; and the titles of the others."""
    shown, left_out, left = [], [], budget.finding_bytes
    for finding in findings:
        content = described(finding)
        size = len(embed(content))
        if size <= left:
            left -= size
            shown.append(content)
        else:
            left_out.append(finding.title)
    return shown, left_out


def described(finding: Finding) -> dict[str, Any]:
    """A figure as plain data, with its class under ``type``."""
    common = {"name": finding.name, "title": finding.title, "source": finding.source, "note": finding.note}
    if isinstance(finding, Figure):
        series = [
            {"name": one.name, "x": list(one.x), "y": list(one.y), "low": _list(one.low), "high": _list(one.high)}
            for one in finding.series
        ]
        axes = {"x_label": finding.x_label, "y_label": finding.y_label, "log_x": finding.log_x}
        return common | axes | {"type": "figure", "kind": finding.kind, "series": series}
    if isinstance(finding, HeatMap):
        axes = {"x_label": finding.x_label, "y_label": finding.y_label, "unit": finding.unit}
        places = {"columns": list(finding.columns), "lines": list(finding.lines)}
        return common | axes | places | {"type": "heat_map", "values": [list(line) for line in finding.values]}
    return common | {"type": "table", "columns": list(finding.columns), "cells": [list(row) for row in finding.cells]}


def _list(values: Sequence[Any] | None) -> list[Any] | None:
    return None if values is None else list(values)
