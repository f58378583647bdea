"""The frame of the analyses: their input, one run whose rollouts are read once for all, and their declaration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from fr3e_jax.studies.analysis.figure import Finding
from fr3e_jax.studies.analysis.responses import ReadLimits, Responses, read_responses
from fr3e_jax.studies.analysis.stored_run import Stem, StoredRun


class NothingToShow(Exception):
    """A run lacks the data of an analysis; the message says which, in a few words."""


@dataclass(frozen=True)
class Material:
    """A run and the limits of what is read. A property is read when it is first asked for."""

    run: StoredRun
    seed: int = 0
    limits: ReadLimits = field(default_factory=ReadLimits)

    @cached_property
    def training(self) -> Responses:
        """Rollouts of training.

        Raises:
          NothingToShow: none is stored.
        """
        return self._read("step", "no stored rollouts of training")

    @cached_property
    def graded_training(self) -> Responses:
        """``training``, with a graded rollout.

        Raises:
          NothingToShow: there is none.
        """
        if not self.training.by_outcome:
            raise NothingToShow("no graded rollout")
        return self.training

    @cached_property
    def evaluation(self) -> Responses:
        """Samples of the evaluations, with one that is no greedy answer.

        Raises:
          NothingToShow: there is none.
        """
        responses = self._read("eval", "no stored evaluation samples (runtime.store_rollouts)")
        if not any(record.base > 0 for record in responses.records):
            raise NothingToShow("no evaluation sample but greedy answers (evaluation.samples)")
        return responses

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
    """Data of a run: training rollouts, or samples of evaluations."""
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
