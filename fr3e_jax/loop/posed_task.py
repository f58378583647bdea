"""A task whose problems an environment poses: its first observation is the question."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fr3e_jax.data.problem import Problem
from fr3e_jax.data.task import Demonstration, Split, Task
from fr3e_jax.rewards.verifier import Verifier
from fr3e_jax.tools.environment import Episode, MakeEnvironment, check_by_playing


@dataclass(frozen=True)
class PosedProblem(Problem):
    """A problem whose prompt is an environment's first observation; ``original``: as its task gives it."""

    original: Problem | None = dataclasses.field(default=None, hash=False)


@dataclass(frozen=True)
class PosedProblems(Sequence[Problem]):
    """The problems of a split, each posed when it is asked for."""

    problems: Sequence[Problem]
    make: MakeEnvironment

    def __len__(self) -> int:
        return len(self.problems)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        problem = self.problems[index]
        episode = Episode(self.make, problem, seed=0)
        episode.close()
        own = {entry.name: getattr(problem, entry.name) for entry in dataclasses.fields(Problem)}
        return PosedProblem(**own | {"prompt": episode.first or problem.prompt}, original=problem)


class PosedTask:
    """``task`` with the questions of an environment; the environment gives the rewards, so no verifier is called."""

    def __init__(self, task: Task, make: MakeEnvironment, poses: bool):
        self.name, self.dropped = task.name, task.dropped
        self._task, self._make, self._poses = task, make, poses

    def problems(self, split: Split) -> Sequence[Problem]:
        found = self._task.problems(split)
        return PosedProblems(found, self._make) if self._poses else found

    def demonstration(self, index: int, step_fraction: float) -> Demonstration:
        return self._task.demonstration(index, step_fraction)

    def verifier(self) -> Verifier:
        return _not_played


def _not_played(problem: Problem, response: str, finished: bool) -> float:
    raise RuntimeError(f"the response to problem {problem.id} has no episode; expected one from the environment")


def posed_task(task: Task, make: MakeEnvironment, kind: str, check_prompt: Callable[[str], Any]) -> PosedTask:
    """The task in its environment, after a turn of its first problem.

    Args:
      task: its problems.
      make: makes the environment of an episode.
      kind: the setting ``environment.kind``, for messages.
      check_prompt: raises ValueError if a first observation cannot be a prompt.

    Raises:
      ValueError: the environment fails, or its first observation cannot be a prompt.
    """
    problems = task.problems("train")
    poses = False
    if len(problems):
        first = check_by_playing(make, problems[0], kind)
        poses = bool(first)
        check_prompt(first or problems[0].prompt)
    return PosedTask(task, make, poses)
