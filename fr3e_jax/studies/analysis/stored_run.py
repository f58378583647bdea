"""A run as it lies on disk: settings, metrics, rollouts, evaluation samples, and the texts of their tokens."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import yaml

from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.provenance import Provenance, read_provenance
from fr3e_jax.configuration.settings import flat_settings
from fr3e_jax.runs.metrics import read_metrics
from fr3e_jax.runs.rollout_parts import rollout_path, stored_bytes, stored_steps
from fr3e_jax.runs.rollout_store import RolloutRecord, iterate_rollouts
from fr3e_jax.runs.run_directory import RunDirectory
from fr3e_jax.runs.run_state import Summary, read_summary
from fr3e_jax.stores.objects import StoreFailed
from fr3e_jax.stores.reading import run_folder

if TYPE_CHECKING:
    from fr3e_jax.data.tokenizer import TextCodec

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Stem = Literal["step", "eval"]
"""Rollouts of a training step, or the samples of the evaluation after it."""


@dataclass(frozen=True)
class StoredRun:
    """A run that is read and never changed; it may still be training. A property is read when it is first asked for."""

    directory: RunDirectory

    @classmethod
    def open(cls, path: str | Path) -> StoredRun:
        """The run in a directory, or at an address in an object store, as it is now.

        Raises:
          ConfigError: there is no run, or it has another format.
        """
        try:
            return cls(RunDirectory.existing(run_folder(path), checkpoints=False))
        except (FileNotFoundError, StoreFailed) as error:
            raise ConfigError(str(error)) from error

    @property
    def name(self) -> str:
        """Name of the directory."""
        return self.directory.path.resolve().name

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """The settings by their dotted names, as ``{"explore.num_anchors": 4}``; lists stay lists.

        Raises:
          ConfigError: config.yaml is missing or damaged.
        """
        path = self.directory.config
        try:
            content = yaml.load(path.read_bytes(), Loader=_LOADER)
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise ConfigError(f"{path} cannot be read ({error}); expected the settings that a run saved") from error
        if not isinstance(content, dict):
            raise ConfigError(f"{path} holds no settings; expected those that a run saved")
        return dict(flat_settings(content))

    @cached_property
    def provenance(self) -> Provenance:
        """Verb, time, command, versions and commit; empty without the file. A damaged file is named on stderr."""
        return read_provenance(self.directory.path, lambda line: print(f"fr3e: {line}", file=sys.stderr))

    @property
    def has_advantages(self) -> bool:
        """False if the update makes other advantages than those of the rollouts, which are stored before it."""
        of = self.settings.get
        in_reward = of("kl.place") == "reward" and float(of("kl.coefficient") or 0) > 0
        taught = of("teacher.path") and (of("teacher.place") == "advantage" or of("teacher.alone"))
        return not (of("advantage.base_estimator") == "gae" or of("advantage.normalise_batch") or in_reward or taught)

    @cached_property
    def summary(self) -> Summary | None:
        """See `read_summary`."""
        return read_summary(self.directory.summary)

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """All metrics, in the order of writing; empty without the file.

        Raises:
          ConfigError: a line is damaged.
        """
        try:
            return read_metrics(self.directory.metrics)
        except FileNotFoundError:
            return []
        except ValueError as error:
            raise ConfigError(str(error)) from error

    @property
    def training(self) -> list[dict[str, Any]]:
        """The metrics of each training step."""
        return [record for record in self.records if record["kind"] == "train"]

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """The held-out metrics of each evaluation."""
        return [record for record in self.records if record["kind"] == "eval"]

    def steps(self, stem: Stem = "step") -> list[int]:
        """The steps whose rollouts, or evaluation samples, are on disk."""
        return stored_steps(self.directory, stem)

    def stored_bytes(self, stem: Stem = "step") -> dict[int, int]:
        """The compressed bytes of the rollouts of each of `steps`."""
        return {step: stored_bytes(rollout_path(self.directory, step, stem=stem)) for step in self.steps(stem)}

    def rollouts(self, step: int, stem: Stem = "step") -> Iterator[RolloutRecord]:
        """The rollouts of a step, one after the other, in the order of writing.

        Raises:
          ConfigError: the file is missing or damaged.
        """
        try:
            yield from iterate_rollouts(rollout_path(self.directory, step, stem=stem))
        except (OSError, ValueError) as error:
            raise ConfigError(str(error)) from error

    @cached_property
    def codec(self) -> TextCodec | None:
        """The run's tokenizer; None if it is no longer where the settings say."""
        from fr3e_jax.data.tokenizer import TextCodec  # transformers loads slowly

        model, tokenizer = (str(self.settings.get(f"model.{name}") or "") for name in ("path", "tokenizer"))
        try:
            return TextCodec.load(tokenizer or model, model=model)
        except (OSError, ValueError):
            return None


def drawn_steps(sizes: Mapping[int, int], read_bytes: int, seed: int) -> list[int]:
    """Steps whose files together hold about ``read_bytes``; all of them if they fit.

    Of a larger run the first step, the last, and one seeded draw from each of equal parts between.

    Args:
      sizes: bytes of each step, as `StoredRun.stored_bytes`.
      read_bytes: the limit, except that at least two steps are read.
      seed: of the draws.
    """
    steps = sorted(sizes)
    total = sum(sizes.values())
    if total <= read_bytes or len(steps) <= 2:
        return steps
    between = int(len(steps) * read_bytes / total) - 2
    stretches = np.array_split(np.asarray(steps[1:-1]), between) if between > 0 else []
    generator = np.random.default_rng([seed, len(steps)])
    drawn = [int(stretch[generator.integers(len(stretch))]) for stretch in stretches if len(stretch)]
    return [steps[0], *drawn, steps[-1]]
