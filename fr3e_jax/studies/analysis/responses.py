"""Stored rollouts as columns: a bounded, seeded, stratified part of a run, read file by file.

Dimension key: R responses, T tokens of all of them, one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fr3e_jax.runs.rollout_store import RolloutRecord
from fr3e_jax.studies.analysis.stored_run import Stem, StoredRun, drawn_steps
from fr3e_jax.verdict import UNGRADED

BYTES_PER_TOKEN = 10.0  # of a compressed file, as float32 numbers hardly compress
SUCCESS = 1.0  # least reward of a right response, if the verifier gave no outcome


@dataclass(frozen=True)
class ReadLimits:
    """The most that is read of a run, so that time and memory do not grow with it."""

    read_bytes: int = 300 * 2**20
    """Compressed bytes of the files that are read."""
    tokens: int = 4_000_000
    """Tokens that are kept."""


@dataclass(frozen=True, eq=False)
class Responses:
    """Responses as columns. A response that left a base rollout begins with the tokens that it shares with it."""

    starts: np.ndarray
    """int64 ``[R + 1]``: response i has the tokens ``starts[i]`` to ``starts[i + 1] - 1``."""
    tokens: np.ndarray
    """int32 ``[T]``, with the stop token."""
    entropies: np.ndarray
    """float32 ``[T]``, of the full vocabulary, in nats."""
    counted: np.ndarray
    """bool ``[T]``: the policy sampled the token in this very response: neither a shared prefix nor a tool's answer."""
    records: Sequence[RolloutRecord]
    """``[R]``, without their tokens."""
    note: str = ""
    """The part of the run that was read."""

    def __len__(self) -> int:
        return len(self.records)

    def column(self, read: Callable[[RolloutRecord], Any], dtype: type = bool) -> np.ndarray:
        """``read`` of each response → ``[R]``."""
        return np.array([read(record) for record in self.records], dtype)

    @cached_property
    def step(self) -> np.ndarray:
        """int64 ``[R]``."""
        return self.column(lambda record: record.step, np.int64)

    @cached_property
    def right(self) -> np.ndarray:
        """bool ``[R]``: the verifier accepts it."""
        return self.column(is_right)

    @cached_property
    def graded(self) -> np.ndarray:
        """bool ``[R]``; in evaluations, a judge that failed counts as a verdict."""
        return self.column(_is_graded)

    @cached_property
    def lengths(self) -> np.ndarray:
        """int64 ``[R]``: tokens of the whole response."""
        return np.diff(self.starts)

    @cached_property
    def owner(self) -> np.ndarray:
        """int32 ``[T]``: index of the response of each token."""
        return np.repeat(np.arange(len(self), dtype=np.int32), self.lengths)

    @cached_property
    def position(self) -> np.ndarray:
        """int64 ``[T]``: 0-based place of each token in its whole response."""
        return np.arange(len(self.tokens)) - np.repeat(self.starts[:-1], self.lengths)

    @cached_property
    def by_outcome(self) -> dict[str, np.ndarray]:
        """Masks ``[R]`` of the graded responses that are right and of those that are wrong, if there are any."""
        masks = {"right": self.right & self.graded, "wrong": ~self.right & self.graded}
        return {name: mask for name, mask in masks.items() if mask.any()}


_TOKEN_COLUMNS = {"tokens": np.int32, "entropies": np.float32, "counted": bool}


def responses_of(rollouts: Iterable[RolloutRecord], *, note: str = "") -> Responses:
    """The rollouts as columns, in their order. Parents come before the rollouts that branch from them.

    A rollout whose parent is not among them keeps only its own tokens.
    """
    token_columns: dict[str, list[np.ndarray]] = {name: [np.zeros(0, dtype)] for name, dtype in _TOKEN_COLUMNS.items()}
    records: list[RolloutRecord] = []
    bases: dict[str, int] = {}
    for record in rollouts:
        parent = bases.get(record.parent or "", -1)
        fork = record.fork if parent >= 0 else 0
        written = np.ones(len(record.token_ids), bool)
        for start, end in record.answers:
            written[start:end] = False
        values = (record.token_ids, record.entropies, written)
        for (name, column), response in zip(token_columns.items(), values, strict=True):
            prefix = np.zeros(fork, bool) if name == "counted" else column[parent + 1][:fork]
            column.append(np.concatenate([prefix, np.asarray(response, _TOKEN_COLUMNS[name])]))
        if record.kind != "eval":
            bases[record.id] = len(records)
        record.token_ids, record.logprobs, record.entropies, record.prompt_ids = (), (), (), ()  # now in the columns
        records.append(record)
    lengths = [len(tokens) for tokens in token_columns["tokens"]]

    return Responses(
        starts=np.cumsum(lengths, dtype=np.int64),
        **{name: np.concatenate(parts) for name, parts in token_columns.items()},
        records=records,
        note=note,
    )


def read_responses(
    run: StoredRun, stem: Stem = "step", *, seed: int = 0, limits: ReadLimits | None = None
) -> Responses:
    """The stored rollouts of a run within the limits; all of them if they fit.

    Steps: see `drawn_steps`. Prompts: a seeded share of each step, whole groups, so that every statistic of a prompt
    has all its rollouts.

    Raises:
      ConfigError: a file is damaged.
    """
    limits = limits or ReadLimits()
    sizes = run.stored_bytes(stem)
    steps = drawn_steps(sizes, limits.read_bytes, seed)
    expected = sum(sizes[step] for step in steps) / BYTES_PER_TOKEN
    share = min(1.0, limits.tokens / expected) if expected else 1.0
    limited = [] if len(steps) == len(sizes) else [f"{len(steps)} of {len(sizes)} steps, drawn from equal parts"]
    limited += [f"{share:.0%} of the prompts of each step"] if share < 1 else []
    note = f"{', '.join(limited)} (seed {seed})" if limited else f"all {len(steps)} steps"

    def drawn() -> Iterator[RolloutRecord]:
        for step in steps:
            yield from (record for record in run.rollouts(step, stem) if share >= 1 or _draw(record, seed) < share)

    return responses_of(drawn(), note=note)


def _draw(record: RolloutRecord, seed: int) -> float:
    """A number from 0 to 1, the same for all rollouts of a prompt, and for a held-out problem at every evaluation."""
    key = 0 if record.kind == "eval" else record.step
    return float(np.random.default_rng([seed, key, record.prompt_position]).random())


def problem_of(record: RolloutRecord) -> str:
    """The name of the problem; those of two evaluation sets differ."""
    return f"{record.benchmark}/{record.problem_id}" if record.benchmark else record.problem_id


def _is_graded(record: RolloutRecord) -> bool:
    if record.kind != "eval" and record.outcome in UNGRADED:
        return False
    return record.outcome is not None or math.isfinite(record.reward)


def is_right(record: RolloutRecord) -> bool:
    """Return whether the verifier accepts a rollout: by its outcome; without one, by a reward of 1 or more."""
    return record.outcome == "right" if record.outcome is not None else record.reward >= SUCCESS


def by_step(
    steps: np.ndarray, values: np.ndarray, quantiles: Sequence[float]
) -> tuple[list[int], list[list[float]], list[float]]:
    """Of finite ``values`` ``[R]`` at ``steps`` ``[R]``: the steps, each quantile at all steps, and the means."""
    valid = np.isfinite(values)
    sampled_steps = np.unique(steps[valid]).tolist()
    rows = [values[valid & (steps == step)] for step in sampled_steps]
    lines = [[float(np.quantile(row, quantile)) for row in rows] for quantile in quantiles]
    return sampled_steps, lines, [float(row.mean()) for row in rows]
