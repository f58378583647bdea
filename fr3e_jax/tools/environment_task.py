"""A task of an environment that another package brings: its questions, played in it; no verifier, no demonstrations.

`gymnasium_environment.py` and `verifiers_environment.py` build it, for ``data.task=gymnasium`` and ``=verifiers``, with
``environment.kind=task``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.named_values import named_values
from fr3e_jax.configuration.schema import DataConfig
from fr3e_jax.problem import Problem

HELD_OUT_SHARE = 10  # one problem in so many is held out where the environment names none


class EnvironmentTask:
    """Problems and the environment that plays them; `fr3e_jax.data.task.Task` has the meaning of the methods.

    Args:
      name: of the task.
      environment: makes the environment of an episode.
      splits: problems of ``train`` and, where there are some, of ``test`` and ``development``. Without ``test``, every
        tenth problem is held out and does not train.

    Raises:
      ValueError: there are too few problems.
    """

    def __init__(self, name: str, environment: Callable[[], Any], splits: Mapping[str, Sequence[Problem]]):
        self.name, self.environment, self.dropped = name, environment, dict[str, int]()
        self._problems = dict(splits)
        train = self._problems["train"]
        if "test" not in self._problems:
            self._problems["test"] = train[::HELD_OUT_SHARE]
            self._problems["train"] = [problem for index, problem in enumerate(train) if index % HELD_OUT_SHARE]
        if not all(self._problems.values()):
            raise ValueError(f"{name} has {len(train)} problems; expected at least two, of which one is held out")

    def problems(self, split: str) -> Sequence[Problem]:
        return self._problems[split]

    def demonstration(self, index: int, step_fraction: float) -> Any:
        raise ConfigError(f"{self.name} has no demonstrations; start from a model that can play")

    def verifier(self) -> Callable[[Problem, str, bool], float]:
        return _graded_elsewhere


def _graded_elsewhere(problem: Problem, response: str, finished: bool) -> float:
    raise ConfigError(f"problem {problem.id} is graded by its environment alone; set environment.kind=task")


def arguments_of(data: DataConfig, what: str) -> dict[str, Any]:
    """The arguments in ``data.environment_options``.

    Raises:
      ConfigError: there are others than ``NAME=VALUE``, or ``data.environment`` names no environment.
    """
    if not data.environment:
        raise ConfigError(f"data.task={data.task} plays the environment that data.environment names; set it to {what}")
    return named_values(
        data.environment_options, "data.environment_options", "an argument of the environment, such as size=8"
    )
