"""Stored rollouts as columns: a bounded, seeded, stratified part of a run, read file by file.

Dimension key: R responses, T tokens of all of them, one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fr3e_jax.runs.rollout_parts import rollout_path, stored_bytes
from fr3e_jax.runs.rollout_store import RolloutRecord
from fr3e_jax.studies.analysis.stored_run import Stem, StoredRun

if TYPE_CHECKING:
    from fr3e_jax.data.tokenizer import TextCodec

BYTES_PER_TOKEN = 10.0  # of a compressed file, as float32 numbers hardly compress
SUCCESS = 1.0  # least reward of a right response, if the verifier gave no outcome


@dataclass(frozen=True)
class Budget:
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
    logprobs: np.ndarray
    """float32 ``[T]``, under the distribution that the token was sampled from."""
    entropies: np.ndarray
    """float32 ``[T]``, of the full vocabulary, in nats."""
    counted: np.ndarray
    """bool ``[T]``: the policy sampled the token in this very response: neither a shared prefix nor a tool's answer."""
    written: np.ndarray
    """bool ``[T]``: the policy wrote the token; False in tool answers."""
    step: np.ndarray
    """int64 ``[R]``."""
    reward: np.ndarray
    """float64 ``[R]``."""
    right: np.ndarray
    """bool ``[R]``: the verifier accepts it."""
    graded: np.ndarray
    """bool ``[R]``."""
    finished: np.ndarray
    """bool ``[R]``: a stop token ended it."""
    advantage: np.ndarray
    """float64 ``[R]``, NaN where the response was not trained."""
    base: np.ndarray
    """int64 ``[R]``; of an evaluation 0 is the greedy answer."""
    kind: Sequence[str]
    outcome: Sequence[str | None]
    problem: Sequence[str]
    """Names of the problems; those of two evaluation sets differ."""
    benchmark: Sequence[str]
    group: Sequence[tuple[int, int]]
    """Step and position of the prompt: responses of one prompt of a step."""
    note: str = ""
    """The part of the run that was read."""

    def __len__(self) -> int:
        return len(self.step)

    @cached_property
    def lengths(self) -> np.ndarray:
        """int64 ``[R]``: tokens of the whole response."""
        return np.diff(self.starts)

    @cached_property
    def owner(self) -> np.ndarray:
        """int32 ``[T]``: index of the response of each token."""
        return np.repeat(np.arange(len(self), dtype=np.int32), self.lengths)

    @cached_property
    def place(self) -> np.ndarray:
        """int64 ``[T]``: 0-based place of each token in its whole response."""
        return np.arange(len(self.tokens)) - np.repeat(self.starts[:-1], self.lengths)

    def span(self, response: int) -> slice:
        """The tokens of a response in the columns."""
        return slice(int(self.starts[response]), int(self.starts[response + 1]))

    def mean_by_response(self, values: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Mean of ``values`` ``[T]`` over the masked tokens of each response → float64 ``[R]``, NaN where none is."""
        counts = np.bincount(self.owner[mask], minlength=len(self))
        sums = np.bincount(self.owner[mask], weights=values[mask].astype(np.float64), minlength=len(self))
        return np.divide(sums, counts, out=np.full(len(self), math.nan), where=counts > 0)

    def texts(self, codec: TextCodec) -> list[str]:
        """The text of each response, without special tokens."""
        return [codec.decode(self.tokens[self.span(i)].tolist()) for i in range(len(self))]


@dataclass
class _Columns:
    tokens: list[np.ndarray] = field(default_factory=list)
    logprobs: list[np.ndarray] = field(default_factory=list)
    entropies: list[np.ndarray] = field(default_factory=list)
    counted: list[np.ndarray] = field(default_factory=list)
    written: list[np.ndarray] = field(default_factory=list)
    records: list[tuple[RolloutRecord, int]] = field(default_factory=list)


def responses_of(rollouts: Iterable[RolloutRecord], *, note: str = "") -> Responses:
    """The rollouts as columns, in their order. Parents come before the rollouts that branch from them.

    A rollout whose parent is not among them keeps only its own tokens.
    """
    columns = _Columns()
    _append(columns, rollouts)
    return _finish(columns, note)


def read_responses(run: StoredRun, stem: Stem = "step", *, seed: int = 0, budget: Budget | None = None) -> Responses:
    """A part of a run's stored rollouts that fits the budget; all of them if they do.

    Steps: one seeded draw from each of equal parts of the run, with the first and the last step. Prompts: a seeded
    share of each step, whole groups, so that every statistic of a prompt has all its rollouts.

    Raises:
      ConfigError: a file is damaged.
    """
    budget = budget or Budget()
    steps = run.steps(stem)
    sizes = {step: stored_bytes(rollout_path(run.directory, step, stem=stem)) for step in steps}
    chosen = choose_steps(steps, sizes, budget.read_bytes, seed)
    expected = sum(sizes[step] for step in chosen) / BYTES_PER_TOKEN
    share = min(1.0, budget.tokens / expected) if expected else 1.0
    columns = _Columns()
    for step in chosen:
        _append(columns, (one for one in run.rollouts(step, stem) if _drawn(one, seed, share)))
    parts = [] if len(chosen) == len(steps) else [f"{len(chosen)} of {len(steps)} steps, drawn from equal parts"]
    parts += [f"{share:.0%} of the prompts of each step"] if share < 1 else []
    note = f"{', '.join(parts)} (seed {seed})" if parts else f"all {len(steps)} steps"
    return _finish(columns, note)


def choose_steps(steps: Sequence[int], sizes: dict[int, int], read_bytes: int, seed: int) -> list[int]:
    """Steps whose files together hold about ``read_bytes``: the first, the last, and one of each part between."""
    total = sum(sizes.values())
    if total <= read_bytes or len(steps) <= 2:
        return list(steps)
    wanted = max(2, int(len(steps) * read_bytes / total))
    inner = np.array_split(np.asarray(steps[1:-1]), wanted - 2) if wanted > 2 else []
    generator = np.random.default_rng([seed, len(steps)])
    drawn = [int(part[generator.integers(len(part))]) for part in inner if len(part)]
    return [steps[0], *drawn, steps[-1]]


def _drawn(record: RolloutRecord, seed: int, share: float) -> bool:
    """Whether the prompt of a rollout is in the drawn share; the same answer for all rollouts of the prompt."""
    if share >= 1:
        return True
    key = 0 if record.kind == "eval" else record.step  # the same held-out problems at every evaluation
    return float(np.random.default_rng([seed, key, record.prompt_position]).random()) < share


def _append(columns: _Columns, rollouts: Iterable[RolloutRecord]) -> None:
    bases: dict[str, int] = {}
    for record in rollouts:
        parent = bases.get(record.parent or "", -1)
        fork = record.fork if parent >= 0 else 0
        length = len(record.token_ids)
        for name, values, dtype in (
            ("tokens", record.token_ids, np.int32),
            ("logprobs", record.logprobs, np.float32),
            ("entropies", record.entropies, np.float32),
        ):
            column, own = getattr(columns, name), np.asarray(values, dtype)
            column.append(np.concatenate([column[parent][:fork], own]) if fork else own)
        written = np.ones(length, bool)
        for start, end in record.answers:
            written[start:end] = False
        counted = np.concatenate([np.zeros(fork, bool), written])
        columns.counted.append(counted)
        columns.written.append(np.concatenate([columns.written[parent][:fork], written]) if fork else written)
        if record.kind != "eval":
            bases[record.id] = len(columns.records)
        record.token_ids, record.logprobs, record.entropies, record.prompt_ids = (), (), (), ()  # held in the columns
        columns.records.append((record, fork))


def _finish(columns: _Columns, note: str) -> Responses:
    records = [record for record, _ in columns.records]

    def joined(name: str, dtype: type) -> np.ndarray:
        values = getattr(columns, name)
        return np.concatenate(values) if values else np.zeros(0, dtype)

    def column(read: Callable[[RolloutRecord], object], dtype: type) -> np.ndarray:
        return np.array([read(record) for record in records], dtype)

    starts = np.concatenate([[0], np.cumsum([len(one) for one in columns.tokens], dtype=np.int64)]).astype(np.int64)
    return Responses(
        starts=starts,
        tokens=joined("tokens", np.int32),
        logprobs=joined("logprobs", np.float32),
        entropies=joined("entropies", np.float32),
        counted=joined("counted", bool),
        written=joined("written", bool),
        step=column(lambda r: r.step, np.int64),
        reward=column(lambda r: r.reward, np.float64),
        right=column(is_right, bool),
        graded=column(lambda r: r.outcome is not None or math.isfinite(r.reward), bool),
        finished=column(lambda r: r.finished, bool),
        advantage=column(lambda r: math.nan if r.advantage is None else r.advantage, np.float64),
        base=column(lambda r: r.base, np.int64),
        kind=[record.kind for record in records],
        outcome=[record.outcome for record in records],
        problem=[f"{r.benchmark}/{r.problem_id}" if r.benchmark else r.problem_id for r in records],
        benchmark=[record.benchmark for record in records],
        group=[(record.step, record.prompt_position) for record in records],
        note=note,
    )


def is_right(record: RolloutRecord) -> bool:
    """Whether the verifier accepts a rollout: by its outcome; without one, by a reward of 1 or more."""
    return record.outcome == "right" if record.outcome is not None else record.reward >= SUCCESS
