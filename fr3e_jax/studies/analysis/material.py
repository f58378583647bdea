"""The frame of the analyses: their input, one run whose rollouts are read once for all, and their declaration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fr3e_jax.studies.analysis.figure import Finding, Number, Series, finite
from fr3e_jax.studies.analysis.responses import ReadLimits, Responses, read_responses
from fr3e_jax.studies.analysis.stored_run import Stem, StoredRun

if TYPE_CHECKING:
    from fr3e_jax.data.tokenizer import TextCodec


class NothingToShow(Exception):
    """A run lacks the data of an analysis; the message says which, in a few words."""


@dataclass(frozen=True)
class Material:
    """A run and the limits of what is read. A property is read when it is first asked for."""

    run: StoredRun
    seed: int = 0
    limits: ReadLimits = field(default_factory=ReadLimits)
    behaviours_file: Path | None = None
    """Words and patterns that replace those of the package."""

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
        return self._read("eval", "no stored evaluation samples (runtime.store_rollouts)")

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

    def curve(self, metric: str) -> tuple[list[int], list[Number]]:
        """Steps and values of a metric of training; no steps if the run has not written it."""
        records = [record for record in self.run.training if record.get(metric) is not None]
        return [record["step"] for record in records], [finite(record[metric]) for record in records]

    def curves(self, names: dict[str, str]) -> list[Series]:
        """A line for each metric that the run has written; ``names``: metric → name of its line.

        Raises:
          NothingToShow: it has written none.
        """
        lines = [Series(name, *self.curve(metric)) for metric, name in names.items()]
        if not any(line.x for line in lines):
            raise NothingToShow(f"no metric {' or '.join(names)}")
        return [line for line in lines if line.x]

    def _read(self, stem: Stem, missing: str) -> Responses:
        responses = read_responses(self.run, stem, seed=self.seed, limits=self.limits)
        if not len(responses):
            raise NothingToShow(missing)
        return responses


@dataclass(frozen=True)
class Analysis:
    """A function from a run to a finding, with the name and source that its findings carry."""

    name: str
    need: str
    """Data of a run: metrics, training rollouts, samples; with "and tokenizer" also their texts.

    Samples are those of an evaluation, else base rollouts of training.
    """
    source: str
    find: Callable[[Material], Finding]

    def __call__(self, material: Material) -> Finding:
        """The finding.

        Raises:
          NothingToShow: the run lacks the data.
        """
        return replace(self.find(material), name=self.name, source=self.source)


def analysis(need: str, source: str) -> Callable[[Callable[[Material], Finding]], Analysis]:
    """Declare a function as the analysis of its name; the fields are those of `Analysis`."""
    return lambda find: Analysis(find.__name__, need, source, find)
