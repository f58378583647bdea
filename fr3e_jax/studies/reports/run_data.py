"""Everything that the page of a run shows, collected from its files in one pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from fr3e_jax.runs.declared_metrics import find
from fr3e_jax.runs.run_state import run_state
from fr3e_jax.studies.analysis.figure import Finding
from fr3e_jax.studies.analysis.finding_content import finding_fields
from fr3e_jax.studies.analysis.stored_run import StoredRun, drawn_steps
from fr3e_jax.studies.reports.embedding import embed, significant
from fr3e_jax.studies.reports.held_out_problems import held_out_problems
from fr3e_jax.studies.reports.page_limits import PageLimits, evenly, in_turns, priority
from fr3e_jax.studies.reports.rollout_trees import DECIMALS, STRATA, prompt_summary, prompt_tree
from fr3e_jax.studies.reports.token_pieces import pieces_of

QUESTION_CHARACTERS = 160


@dataclass
class RunData:
    """The content of a page: the main data, and chunks that the page unpacks when they are looked at."""

    main: dict[str, Any]
    prompt_chunks: list[str] = field(default_factory=list)
    """Embedded columns of each prompt, in the order of ``main["prompts"]``."""
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
    prompts, chunks, sampling = _prompts(run, limits, used_ids)
    held_out, held_out_chunks = held_out_problems(run, limits, used_ids)
    shown, left_out = _findings(findings, limits)
    codec, training = run.codec, run.training
    for summary in prompts:
        ids = summary.pop("question_ids")
        text = codec.decode(ids, special_tokens=True) if codec else ""
        summary["question"] = text[:QUESTION_CHARACTERS] + "…" * (len(text) > QUESTION_CHARACTERS)
    metrics = {"train": columns(evenly(training, limits.metric_records)), "eval": columns(run.evaluations)}
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
    return {name: [significant(record.get(name)) for record in records] for name in names if name != "kind"}


def explanations(names: Iterable[str], kind: str) -> dict[str, str]:
    """The meaning of each metric, from the table of all metrics; names without a row are left out."""
    return {name: row.explanation for name in names if (row := find(name, kind))}


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


@dataclass(frozen=True)
class ShownPrompt:
    """A prompt of a step that may be shown."""

    rank: int
    summary: dict[str, Any]
    tree: dict[str, Any]
    """The columns of its rollouts."""

    @property
    def size(self) -> int:
        """Bytes that its embedded columns take at least, by experience."""
        return 2 * len(self.tree["token_ids"]) + 10 * len(self.tree["id"])


def _prompts(run: StoredRun, limits: PageLimits, used_ids: set[int]) -> tuple[list[dict], list[str], dict[str, Any]]:
    """Summaries of the shown prompts, their embedded columns, and an account of the choice.

    Each step has an equal share of the bytes, and what the steps before it left.
    """
    sizes = run.stored_bytes()
    steps = drawn_steps(sizes, limits.read_bytes, limits.seed)
    summaries: list[dict[str, Any]] = []
    chunks: list[str] = []
    read = dict.fromkeys(STRATA, 0)
    left = 0.0
    for step in steps:
        left += limits.prompt_bytes / len(steps)
        shortlists: dict[str, list[ShownPrompt]] = {stratum: [] for stratum in STRATA}
        # The rollouts from kept bases come last in a step: they are prompts of their own.
        for _, group in groupby(run.rollouts(step), key=lambda record: record.prompt_position):
            records = list(group)
            summary = prompt_summary(records) | {"question_ids": list(records[0].prompt_ids)}
            read[summary["stratum"]] += 1
            shortlist = shortlists[summary["stratum"]]
            rank = priority(limits.seed, step, summary["position"])
            shortlist.append(ShownPrompt(rank, summary, prompt_tree(records, limits.prompt_tokens)))
            shortlist.sort(key=lambda prompt: prompt.rank)
            while len(shortlist) > 1 and sum(prompt.size for prompt in shortlist) > left:
                shortlist.pop()  # bounds the memory of a large step
        chosen = []
        waiting = [prompt for shortlist in shortlists.values() for prompt in shortlist]
        for prompt in in_turns(waiting, lambda prompt: prompt.summary["stratum"]):
            if prompt.size <= left and len(encoded := embed(prompt.tree)) <= left:
                left -= len(encoded)
                chosen.append((prompt, encoded))
        for prompt, encoded in sorted(chosen, key=lambda pair: pair[0].summary["position"]):
            summaries.append(prompt.summary)
            chunks.append(encoded)
            used_ids.update(prompt.tree["token_ids"], prompt.tree["prompt_ids"])
    account = {
        "steps_stored": len(sizes),
        "steps_read": steps,
        "prompts_read": read,
        "prompts_shown": len(summaries),
        "prompt_tokens": limits.prompt_tokens,
        "seed": limits.seed,
    }
    return summaries, chunks, account


def _findings(findings: Iterable[Finding], limits: PageLimits) -> tuple[list[dict[str, Any]], list[str]]:
    """The fields of the findings, in their order, as many as the limit allows; and the titles of the others."""
    shown, left_out, left = [], [], limits.finding_bytes
    for finding in findings:
        fields = finding_fields(finding)
        size = len(embed(fields))
        if size <= left:
            left -= size
            shown.append(fields)
        else:
            left_out.append(finding.title)
    return shown, left_out
