"""Records of a run, written in the background while it goes on: metrics, rollouts, and the tables of trackers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from fr3e_jax.loop.evaluate import Evaluation
from fr3e_jax.loop.expansion import Credited, PromptGroup
from fr3e_jax.loop.rollout_entries import Entry, bytes_of, of_part, records_of
from fr3e_jax.loop.state import Progress
from fr3e_jax.loop.step_report import rollout_entries
from fr3e_jax.runs import rollout_store
from fr3e_jax.runs.background import Background
from fr3e_jax.runs.metrics import MetricsWriter, recorded_evaluation
from fr3e_jax.runs.trackers import open_trackers
from fr3e_jax.session.opening import OpenedRun

TABLE_EVERY = 10  # steps between two tables of sampled rollouts for the trackers
TABLE_PROMPTS = 4  # of a table
TABLE_COLUMNS = (
    *("problem_id", "id", "kind", "prompt", "prefix", "response", "gold"),
    *("reward", "outcome", "advantage", "value", "alpha", "fork"),
)
"""Fields of a `RolloutRecord` that the trackers show."""


class Records:
    """The writers of a run; the first of several processes writes metrics and tables, each its part of the rollouts.

    Args:
      opened: the run.
      background: writes.
    """

    def __init__(self, opened: OpenedRun, background: Background):
        self._opened, self._background = opened, background
        self._runtime, self._first = opened.config.runtime, opened.session.processes.first
        self._metrics: MetricsWriter | None = None

    def go_on_after(self, step: int | None, state: Progress) -> list[str]:
        """Drop what an earlier process wrote after its last checkpoint, and go on writing.

        Checkpoint and metrics both get the evaluation of that step, if one of them has it. Returns a line for each
        record that was mended. ``step``: of the checkpoint; None: the run is fresh.
        """
        directory, lines = self._opened.directory, []
        self._trackers = open_trackers(self._opened.config, directory, step, writes=self._first)
        if self._first:
            rollout_store.drop_after(directory, step)
            self._metrics = MetricsWriter(directory, resume_step=step)
        if step is None:
            return lines
        recorded = self._opened.session.processes.on_first(partial(recorded_evaluation, directory.metrics, step))
        if self._metrics and state.evaluated and not recorded:
            self._metrics.write(step, state.evaluated, kind="eval")
            lines.append(f"{directory.metrics} lacked the evaluation of step {step}; the checkpoint had it")
        # A checkpoint lacks it where a signal interrupted the evaluation, and perhaps it was made since.
        state.evaluated = state.evaluated or recorded
        return lines

    def metrics(self, step: int, metrics: dict[str, float], kind: str = "train") -> None:
        """Write the metrics of a step or, with another ``kind``, of its evaluation."""
        content = "metrics" if kind == "train" else "evaluation"
        self._write(f"the {content} of step {step}", self._add_metrics, step, metrics, kind)

    def rollouts(self, step: int, groups: list[PromptGroup], credited: list[Credited]) -> None:
        """Store this process's part of a step's rollouts, and show trackers their trees where that is due."""
        self.store(step, rollout_entries(step, groups, credited))
        if self._runtime.trackers and step % TABLE_EVERY == 0:
            entries = rollout_entries(step, [group for group in groups if group.kept] or groups, credited)
            self._write(f"the table of step {step}", self._show_table, "rollouts", step, list(entries))

    def evaluation(self, step: int, evaluation: Evaluation, of_callbacks: Mapping[str, float]) -> None:
        """Write the metrics of an evaluation with those of callbacks, and its responses if they are kept."""
        self.store(step, evaluation.entries(step), "eval")
        if self._runtime.trackers:
            entries = list(evaluation.entries(step))
            self._write(f"the table of step {step}", self._show_table, "held_out", step, entries)
        self.metrics(step, {**evaluation.metrics, **of_callbacks}, kind="eval")

    def finish(self, failed: bool) -> None:
        """Tell trackers that the run has ended."""
        self._trackers.finish(failed=failed)

    def _write(self, content: str, function: Callable[..., None], *arguments: Any) -> None:
        if self._first:
            self._opened.lock.check()
            self._background.write(content, function, *arguments)

    def store(self, step: int, entries: Iterable[Entry], stem: str = "step") -> None:
        """Store this process's part of the rollouts ("step") or of the held-out responses ("eval") of a step."""
        if not self._runtime.store_rollouts:
            return
        self._opened.lock.check()
        write = partial(rollout_store.write_rollouts, self._opened.directory, step, stem=stem, part=self._opened.part)
        entries = of_part(entries, self._opened.part)
        records = records_of(entries, self._opened.session.texts)
        content = f"the {'rollouts' if stem == 'step' else 'evaluation'} of step {step}"
        self._background.write(content, write, records, size_bytes=bytes_of(entries))

    def _add_metrics(self, step: int, metrics: dict[str, float], kind: str) -> None:
        assert self._metrics is not None
        self._metrics.write(step, metrics, kind=kind)
        self._trackers.metrics(step, metrics, kind)

    def _show_table(self, name: str, step: int, entries: list[Entry]) -> None:
        """Pass the rollouts of the first prompts on, a row each."""
        prompts = list(dict.fromkeys(entry.fields["prompt_position"] for entry in entries))[:TABLE_PROMPTS]
        shown = [entry for entry in entries if entry.fields["prompt_position"] in prompts]
        records = records_of(shown, self._opened.session.texts)
        self._trackers.table(name, step, TABLE_COLUMNS, [[getattr(r, c) for c in TABLE_COLUMNS] for r in records])
