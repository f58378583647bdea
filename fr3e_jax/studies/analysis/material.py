"""The input of an analysis: one run, with its rollouts read once for all analyses."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fr3e_jax.studies.analysis.responses import Budget, Responses, read_responses
from fr3e_jax.studies.analysis.stored_run import Stem, StoredRun

if TYPE_CHECKING:
    from fr3e_jax.data.tokenizer import TextCodec


class NothingToShow(Exception):
    """A run lacks the data of an analysis; the message says which, in a few words."""


@dataclass(frozen=True)
class Material:
    """A run and how much of it is read. A property is read when it is first asked for."""

    run: StoredRun
    seed: int = 0
    budget: Budget = field(default_factory=Budget)
    behaviours_file: Path | None = None
    """Words and patterns that replace those of the package."""
    label: str = ""
    """The run's name among several."""

    @cached_property
    def training(self) -> Responses:
        """Rollouts of training.

        Raises:
          NothingToShow: none is stored.
        """
        return self._read("step", "no stored rollouts of training")

    @cached_property
    def evaluation(self) -> Responses:
        """Samples of the evaluations.

        Raises:
          NothingToShow: none is stored.
        """
        return self._read("eval", "no stored evaluation samples (evaluation.keep_samples)")

    @cached_property
    def sampled_problems(self) -> tuple[Responses, str]:
        """Independent samples of problems and their origin: evaluation samples, else base rollouts of training.

        Raises:
          NothingToShow: none is stored.
        """
        try:
            if (self.evaluation.base > 0).any():
                return self.evaluation, "evaluation samples, without the greedy answer"
        except NothingToShow:
            pass
        return self.training, "base rollouts of training"

    @cached_property
    def training_texts(self) -> list[str]:
        """The text of each response of ``training``.

        Raises:
          NothingToShow: no rollout is stored, or the tokenizer is gone.
        """
        return self.training.texts(self.codec)

    @property
    def codec(self) -> TextCodec:
        """The run's tokenizer.

        Raises:
          NothingToShow: it is no longer where the settings say.
        """
        codec = self.run.codec
        if codec is None:
            raise NothingToShow("the tokenizer is no longer where the settings say")
        return codec

    def curve(self, name: str) -> tuple[list[int], list[float]]:
        """Steps and values of a metric of training, without gaps.

        Raises:
          NothingToShow: the run has not written it.
        """
        rows = [(record["step"], record[name]) for record in self.run.training if record.get(name) is not None]
        if not rows:
            raise NothingToShow(f"no metric {name}")
        return [step for step, _ in rows], [float(value) for _, value in rows]

    def _read(self, stem: Stem, missing: str) -> Responses:
        if not self.run.steps(stem):
            raise NothingToShow(missing)
        responses = read_responses(self.run, stem, seed=self.seed, budget=self.budget)
        if not len(responses):
            raise NothingToShow(missing)
        return responses
