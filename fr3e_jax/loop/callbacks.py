"""Callbacks: a user's functions that the training loop calls."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path


class Callback:
    """Called by the training loop on the first process; override what you need.

    Metrics are those of metrics.jsonl. What a callback raises ends the run with the callback's own traceback; the
    newest checkpoint stays. `on_step` and `on_evaluation` may return True to stop the run after the step under way,
    which is saved, as Ctrl-C does.
    """

    def on_start(self, run_dir: Path, step: int) -> None:
        """The run begins, or goes on, after ``step`` steps; its directory exists."""

    def on_step(self, step: int, metrics: Mapping[str, float]) -> bool | None:
        """A step has ended: the weights are new, the metrics are complete."""

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> bool | None:
        """The held-out problems were evaluated after ``step`` steps, before the first one included."""

    def on_checkpoint(self, step: int) -> None:
        """The state after ``step`` steps is saved, or is being written in the background."""

    def on_end(self, state: str, reason: str) -> None:
        """The run ends: ``finished``, ``stopped`` or ``failed``, with the reason. Exceptions pass without it."""


class StepMetrics(dict[str, float]):
    """Metrics of one step or evaluation. A name that is missing says why, since not every step writes every metric."""

    def __missing__(self, name: str) -> float:
        missing = f"this step did not write {name}: `fr3e metrics {name}` says when it is written"
        raise KeyError(f"{missing}; metrics.get('{name}') is None then")


def check_callbacks(members: Sequence[Callback]) -> None:
    """Refuse callbacks that the loop could not call, before anything is compiled.

    Raises:
      TypeError: a member is no `Callback`, or one of its methods does not take what the loop gives.
    """
    for member in members:
        if not isinstance(member, Callback):
            raise TypeError(
                f"{member!r} is no fr3e.Callback; expected an object of a class that derives from fr3e.Callback"
            )
        for name, expected in inspect.getmembers(Callback, inspect.isfunction):
            signature = inspect.signature(getattr(member, name))
            parameters = list(inspect.signature(expected).parameters)[1:]
            try:
                signature.bind(*parameters)
            except TypeError:
                raise TypeError(
                    f"the callback {type(member).__name__}.{name}{signature} cannot be called; expected "
                    f"{name}(self, {', '.join(parameters)})"
                ) from None


class Callbacks(Callback):
    """Several callbacks as one, called in their order."""

    def __init__(self, members: Sequence[Callback] = ()):
        self.members = members

    def on_start(self, run_dir: Path, step: int) -> None:
        for member in self.members:
            member.on_start(run_dir, step)

    def on_step(self, step: int, metrics: Mapping[str, float]) -> bool:
        metrics = StepMetrics(metrics)
        return any([member.on_step(step, metrics) for member in self.members])

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> bool:
        metrics = StepMetrics(metrics)
        return any([member.on_evaluation(step, metrics) for member in self.members])

    def on_checkpoint(self, step: int) -> None:
        for member in self.members:
            member.on_checkpoint(step)

    def on_end(self, state: str, reason: str) -> None:
        for member in self.members:
            member.on_end(state, reason)
