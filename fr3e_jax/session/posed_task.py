"""A task whose problems an environment poses: its first observation is the question."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fr3e_jax.configuration.environment_section import EnvironmentConfig
from fr3e_jax.data.task import Demonstration, Split, Task
from fr3e_jax.problem import Problem
from fr3e_jax.rewards.verifier import Verifier
from fr3e_jax.rollouts.background_calls import start
from fr3e_jax.tools.environment import Episode, EpisodeFault, MakeEnvironment, check_by_playing


@dataclass(frozen=True)
class PosedProblem(Problem):
    """A problem whose prompt is an environment's first observation; ``original``: as its task gives it."""

    original: Problem | None = dataclasses.field(default=None, hash=False)


@dataclass(frozen=True)
class PosedProblems(Sequence[Problem]):
    """The problems of a split, each posed once, when it is first asked for.

    A problem that the environment cannot pose within ``seconds`` keeps its own prompt, or has ``otherwise`` if that is
    empty. Its episodes fail, with the fault as the outcome.
    """

    problems: Sequence[Problem]
    make: MakeEnvironment
    seconds: float
    otherwise: str
    clean: Callable[[str], str] = str
    _first: dict[int, str] = field(default_factory=dict, repr=False, compare=False)  # observations, by index

    def __len__(self) -> int:
        return len(self.problems)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        problem, position = self.problems[index], int(index) % len(self)
        if position not in self._first:
            self._first[position] = self._posed(problem)
        fields = {entry.name: getattr(problem, entry.name) for entry in dataclasses.fields(Problem)}
        return PosedProblem(
            **fields | {"prompt": self._first[position] or problem.prompt or self.otherwise}, original=problem
        )

    def _posed(self, problem: Problem) -> str:
        """The first observation; "" without one, or where it takes too long."""
        return self.clean(_within(self.make, self.seconds, lambda: self._begun(problem)) or "")

    def _begun(self, problem: Problem) -> str:
        try:
            episode = Episode(self.make, problem, seed=0)
        except EpisodeFault:
            return ""
        episode.abandon()
        return episode.first


class PosedTask:
    """``task`` with the questions of an environment; the environment gives the rewards, so no verifier is called.

    Args:
      task: its problems.
      make: makes the environment of an episode.
      seconds: in which it must pose a question.
      first: the first observation of the first problem; "": the environment poses no questions.
      clean: drops the marks of turns from an observation.
    """

    def __init__(self, task: Task, make: MakeEnvironment, seconds: float, first: str, clean: Callable[[str], str]):
        self.name, self.dropped = task.name, task.dropped
        self._task, self._make, self._seconds, self._first, self._clean = task, make, seconds, first, clean
        self._posed: dict[Split, PosedProblems] = {}

    def problems(self, split: Split) -> Sequence[Problem]:
        if not self._first:
            return self._task.problems(split)
        if split not in self._posed:
            problems = self._task.problems(split)
            self._posed[split] = PosedProblems(problems, self._make, self._seconds, self._first, self._clean)
        return self._posed[split]

    def demonstration(self, index: int, step_fraction: float) -> Demonstration:
        return self._task.demonstration(index, step_fraction)

    def verifier(self) -> Verifier:
        return _not_played


def _not_played(problem: Problem, response: str, finished: bool) -> float:
    raise RuntimeError(f"the response to problem {problem.id} has no episode; expected one from the environment")


def _within(make: MakeEnvironment, seconds: float, play: Callable[[], str]) -> str | None:
    """The result of ``play``; None after ``seconds``, unless the environment is played in place (``at_once``)."""
    return start(play, at_once=bool(getattr(make, "at_once", False))).wait(seconds)


def posed_task(
    task: Task,
    make: MakeEnvironment,
    config: EnvironmentConfig,
    check_prompt: Callable[[str], Any],
    clean: Callable[[str], str] = str,
) -> PosedTask:
    """The task in its environment, after a turn of its first problem.

    Args:
      task: its problems.
      make: makes the environment of an episode.
      config: names it, and limits its time.
      check_prompt: raises ValueError if a first observation cannot be a prompt.
      clean: drops the marks of turns from an observation.

    Raises:
      ValueError: the environment fails or takes too long, or its first observation cannot be a prompt.
    """
    problems, kind, seconds = task.problems("train"), config.kind, config.seconds
    first: str | None = ""
    if len(problems):
        stages: list[str] = []
        first = _within(make, 2 * seconds, lambda: check_by_playing(make, problems[0], kind, stages))
        if first is None:
            raise ValueError(
                f"environment.kind={kind}: the first turns of two episodes of problem {problems[0].id} did not end "
                f"after twice environment.seconds={seconds:g}; let {stages[-1]} return sooner, or raise it"
            )
        first = clean(first)
        check_prompt(first or problems[0].prompt)
    return PosedTask(task, make, seconds, first, clean)
