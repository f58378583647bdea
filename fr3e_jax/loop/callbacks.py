"""Callbacks: a user's functions that the training loop calls."""

from __future__ import annotations

import difflib
import inspect
import numbers
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Callback:
    """Called by the training loop on the first process; override what you need.

    Metrics are those of metrics.jsonl. What a callback raises ends the run with the callback's own traceback; the
    newest checkpoint stays. `on_step` and `on_evaluation` may return True to stop the run after the step under way,
    which is saved, as Ctrl-C does; or metrics by name, which the record of the step or evaluation gets.
    """

    def on_start(self, run_dir: Path, step: int) -> None:
        """The run begins, or goes on, after ``step`` steps; its directory exists."""

    def on_step(self, step: int, metrics: Mapping[str, float]) -> bool | Mapping[str, float] | None:
        """A step has ended: the weights are new, the metrics are complete."""

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> bool | Mapping[str, float] | None:
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


HOOKS = {name: hook for name, hook in vars(Callback).items() if name.startswith("on_")}
_SIMILAR = 0.8  # of names, from which on a method is a misspelt hook


def check_callbacks(members: Sequence[Callback]) -> None:
    """Refuse callbacks that the loop could not call, before anything is compiled.

    Raises:
      TypeError: a member is no `Callback`, one of its methods does not take what the loop gives, or the name of one is
        nearly that of a hook.
    """
    for member in members:
        if not isinstance(member, Callback):
            raise TypeError(
                f"{member!r} is no fr3e.Callback; expected an object of a class that derives from fr3e.Callback"
            )
        kind = type(member).__name__
        own_names = {*dir(member)} - HOOKS.keys() - {hook.removeprefix("on_") for hook in HOOKS}
        for name in sorted(name for name in own_names if not name.startswith("_") and callable(getattr(member, name))):
            if nearest := _misspelt_hook(name):
                raise TypeError(f"the loop calls no {kind}.{name}; {nearest}, or another name for a method of your own")
        for name, expected in HOOKS.items():
            method, parameters = getattr(member, name), list(inspect.signature(expected).parameters)[1:]
            if not callable(method) or inspect.iscoroutinefunction(method):
                what = "is async" if callable(method) else f"is {method!r}"
                raise TypeError(f"the callback {kind}.{name} {what}; expected an ordinary method")
            try:
                inspect.signature(method).bind(*parameters)
            except TypeError:
                raise TypeError(
                    f"the callback {kind}.{name}{inspect.signature(method)} cannot be called; expected "
                    f"{name}(self, {', '.join(parameters)})"
                ) from None


def _misspelt_hook(name: str) -> str:
    """Advice for a name that is meant for a hook, which the loop would never call; "" for any other."""
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()  # onStep
    extended = [hook for hook in HOOKS if snake.startswith(hook)]  # on_step_end
    if nearest := extended or difflib.get_close_matches(snake, HOOKS, n=1, cutoff=_SIMILAR):
        return f"nearest: {nearest[0]}"
    return f"expected one of {', '.join(HOOKS)}" if snake.startswith("on_") else ""


class CallbackAnswer(NamedTuple):
    """The metrics that callbacks return, and whether one of them stops the run."""

    metrics: dict[str, float]
    stop: bool


class Callbacks:
    """Several callbacks, called in their order."""

    def __init__(self, members: Sequence[Callback] = ()):
        self.members = members

    def on_start(self, run_dir: Path, step: int) -> None:
        for member in self.members:
            member.on_start(run_dir, step)

    def on_step(self, step: int, metrics: Mapping[str, float]) -> CallbackAnswer:
        return self._ask("on_step", step, metrics)

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> CallbackAnswer:
        return self._ask("on_evaluation", step, metrics)

    def on_checkpoint(self, step: int) -> None:
        for member in self.members:
            member.on_checkpoint(step)

    def on_end(self, state: str, reason: str) -> None:
        for member in self.members:
            member.on_end(state, reason)

    def _ask(self, hook: str, step: int, metrics: Mapping[str, float]) -> CallbackAnswer:
        metrics, returned, stop = StepMetrics(metrics), {}, False
        for member in self.members:
            answer = getattr(member, hook)(step, metrics)
            source = f"the callback {type(member).__name__}.{hook}"
            if isinstance(answer, Mapping):
                returned |= _checked(answer, {*metrics, *returned}, source)
            elif answer is None or isinstance(answer, bool | np.bool_):
                stop = stop or bool(answer)
            else:
                expected = "True to stop, None, or metrics by name: {'mine/score': 0.5}"
                raise TypeError(f"{source} returned {answer!r:.80}; expected {expected}")
        return CallbackAnswer(returned, stop)


def _checked(metrics: Mapping[Any, Any], taken: set[str], source: str) -> dict[str, float]:
    """The metrics of a callback; raises TypeError or ValueError if a record cannot have them."""
    for name, value in metrics.items():
        if not isinstance(name, str) or not name or name in ("step", "kind") or name in taken:
            reason = "is in the record already" if name in taken else "is no name for a metric"
            raise ValueError(f"{source} returned the metric {name!r}, which {reason}; rename it, as mine/score")
        number = value.item() if hasattr(value, "item") and np.ndim(value) == 0 else value
        if not isinstance(number, numbers.Real):
            raise TypeError(f"{source} returned {value!r:.80} for the metric {name!r}; expected a number")
    return {name: float(value) for name, value in metrics.items()}
