"""Environments: a policy writes a text, reads an observation, writes again, and earns rewards on the way.

To write one, write a class and name it by ``environment.kind=FILE.py:NAME``::

    class Guess:
        def reset(self, problem, seed):
            self.secret = int(problem.gold)
            return f"Guess a number from 0 to {problem.extra['most']}."

        def step(self, text):
            if text.strip() == str(self.secret):
                return "", 1.0, True
            below = text.strip().isdecimal() and int(text) < self.secret
            return "higher" if below else "lower", 0.0, False

Each episode has an object of its own, made without arguments. Its state must follow from the problem, the seed and the
texts so far alone: a branch inside an episode makes a new object and gives it the same texts again.
"""

from __future__ import annotations

import contextlib
import numbers
import traceback
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from fr3e_jax.configuration.schema import EnvironmentConfig
from fr3e_jax.tools.answer import Answer
from fr3e_jax.tools.tool import Tool
from fr3e_jax.trusted_code import is_interrupt, users_code
from fr3e_jax.user_code import parse_reference

if TYPE_CHECKING:
    from fr3e_jax.problem import Problem

MOST_REWARD = 1e100  # of a turn; sums of them stay finite
_LONGEST_SHOWN = 80  # characters of a wrong result


class Step(NamedTuple):
    """The result of a turn; a plain tuple of the first three or of all four will do, and so will Gym's (`read_step`).

    Attributes:
      observation: the text that the policy reads next; nobody reads it once ``done``.
      reward: of this turn, any finite number; an episode earns the sum.
      done: the episode ends with this turn.
      right: whether the episode has succeeded; None: if its reward is 1 (``environment.reward_range``).
    """

    observation: str
    reward: float = 0.0
    done: bool = False
    right: bool | None = None


def read_step(result: object) -> Step:
    """The result of ``step`` as a `Step`, or as one of Gym's tuples.

    Gym's are (observation, reward, done, info) and (observation, reward, terminated, truncated, info). An episode that
    is truncated ends, with no word on its success, and ``info`` is not read.

    Raises:
      ValueError: it is something else.
    """
    expected = "(observation, reward, done), a text first"
    if not isinstance(result, tuple) or len(result) not in (3, 4, 5) or (len(result) == 5 and not _is_info(result[4])):
        raise ValueError(f"returned {shown(result)}; expected {expected}")
    observation, reward, done, *rest = result
    done = _truth(done, "done")
    right = None
    if len(rest) == 2:
        done = _truth(rest[0], "truncated") or done
    elif rest and not _is_info(rest[0]):
        if not isinstance(rest[0], bool | np.bool_):
            raise ValueError(f"returned {shown(rest[0])} for right; expected True, False, None or Gym's info, a dict")
        right = bool(rest[0])
    if not isinstance(observation, str) and not (observation is None and done):
        raise ValueError(f"returned the observation {shown(observation)}; expected {expected}")
    if not isinstance(reward, numbers.Real | np.bool_) or not abs(float(reward)) <= MOST_REWARD:
        raise ValueError(f"returned the reward {shown(reward)}; expected a finite number, up to {MOST_REWARD:g}")
    return Step(observation or "", float(reward), done, right)


def _is_info(value: object) -> bool:
    return value is None or isinstance(value, Mapping)


def _truth(value: object, name: str) -> bool:
    if not isinstance(value, bool | np.bool_) and not (isinstance(value, int) and value in (0, 1)):
        raise ValueError(f"returned {shown(value)} for {name}; expected True or False")
    return bool(value)


class Environment(Protocol):
    """One episode. ``at_once``, if it is there and true, says that a step takes microseconds: it is called in place.

    It is read from what makes the environment: from a class, or from a factory that has this attribute itself.

    A method ``close()``, if there is one, is called once for each object, after the episode or a fault in it.

    ``limit_turns(most)``, if what makes the environment has it, is told ``environment.max_turns``, for an environment
    that gives its reward at the end.
    """

    def reset(self, problem: Problem, seed: int) -> str:
        """Begin the episode; return the first observation, which takes the place of the problem's prompt.

        All rollouts of a problem share a prompt, so this text must not depend on ``seed``. "" keeps the prompt.
        """

    def step(self, text: str) -> Step | tuple[str, float, bool]:
        """Play the policy's text of one turn, without its stop token and without ``environment.turn_end``."""


MakeEnvironment = Callable[[], Environment]


class EpisodeFault(RuntimeError):
    """The environment raised, returned something else than it must, or did not repeat an episode."""


def load_environment(config: EnvironmentConfig, task: Any) -> MakeEnvironment | None:
    """The function that makes an episode's environment; None for ``none``.

    Args:
      config: names it.
      task: the run's task, whose attribute ``environment`` serves ``environment.kind=task``.

    Raises:
      ValueError: there is no such class, or the task has none.
      FileNotFoundError: there is no such file.
    """
    if not config.enabled:
        return None
    if config.kind != "task":
        reference = parse_reference(config.kind, "environment.kind", built_in=("none", "task"))
        result: Any = reference.load(
            "a class that is called without arguments, with reset(problem, seed) and step(text)"
        )
    elif not callable(result := getattr(task, "environment", None)):
        raise ValueError(
            f"environment.kind=task, but task {task.name!r} has no environment; give the task an attribute "
            "environment (a class) or Trainer(environment=...), or set environment.kind=FILE.py:NAME or none"
        )
    if limit_turns := getattr(result, "limit_turns", None):
        limit_turns(config.max_turns)
    return result


def environment_tool(make: MakeEnvironment, config: EnvironmentConfig, clean: Callable[[str], str] = str) -> Tool:
    """The environment of a run as a tool with state: a call is a turn, and its answer an observation.

    ``clean`` drops the marks of turns from an observation, as the first one lost them when it became a prompt.
    """

    def open_episode(problem: Problem | None, seed: int) -> Episode:
        assert problem is not None  # a run with an environment names the problem of every branch
        episode = Episode(make, original(problem), seed)
        if clean(episode.first) in ("", problem.prompt):
            return episode
        episode.abandon()
        raise EpisodeFault(
            f"in reset() of problem {problem.id}: returned another first observation than before; expected the same "
            "text for every seed and every time"
        )

    return Tool(
        kind=config.kind,
        open=open_episode,
        begin="",
        end=config.turn_end,
        before="",
        after="",
        seconds=config.seconds,
        deadline=config.seconds,
        max_calls=config.max_turns,
        max_answer_tokens=config.max_observation_tokens,
        at_once=bool(getattr(make, "at_once", False)),
        is_environment=True,
    )


def original(problem: Problem) -> Problem:
    """The problem as its task gives it, which an environment may have posed with a text of its own."""
    return getattr(problem, "original", None) or problem


class Episode:
    """The environment of one episode, guarded: every fault names the problem and the turn.

    Args:
      make: makes the environment.
      problem: of the episode, as its task gives it.
      seed: of the episode.

    Raises:
      EpisodeFault: the environment cannot be made or reset.
    """

    def __init__(self, make: MakeEnvironment, problem: Problem, seed: int):
        self._problem, self.turns = problem, 0
        self.environment = self._guarded("before its first turn", make)
        try:
            self.first = self._reset(seed)
        except EpisodeFault:
            self.abandon()
            raise

    def _reset(self, seed: int) -> str:
        """The first observation; "": the problem's prompt."""
        for name in ("reset", "step"):
            if not callable(getattr(self.environment, name, None)):
                fault = f"the environment is a {type(self.environment).__name__} without a method {name}()"
                raise self._fault("before its first turn", f"{fault}; expected reset(problem, seed) and step(text)")
        first = self._guarded("in reset()", self.environment.reset, self._problem, seed)
        if isinstance(first, tuple) and len(first) == 2 and isinstance(first[0], str) and isinstance(first[1], Mapping):
            first = first[0]  # Gym's (observation, info)
        if not isinstance(first, str | None):
            raise self._fault("in reset()", f"returned {shown(first)}; expected a text, the first observation")
        return first or ""

    def step(self, text: str) -> Step:
        """Play a turn.

        Raises:
          EpisodeFault: it raised, or returned no (observation, reward, done).
        """
        self.turns += 1
        where = f"in turn {self.turns}"
        result = self._guarded(where, self.environment.step, text)
        try:
            return read_step(result)
        except ValueError as error:
            raise self._fault(where, str(error)) from None

    def answer(self, call: str) -> Answer:
        """`step` as the answer of a tool."""
        step = self.step(call)
        return Answer(step.observation, "answered", step.reward, step.done, step.right)

    def close(self) -> None:
        """Call the environment's ``close()``, if it has one."""
        if close := getattr(self.environment, "close", None):
            self._guarded("in close()", close)

    def abandon(self) -> None:
        """Close the environment after a fault, or where its reward is not asked for; drop an error of ``close()``."""
        with contextlib.suppress(EpisodeFault):
            self.close()

    def _guarded(self, where: str, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            with users_code():
                return function(*arguments)
        except BaseException as error:  # a step that exits must not end the run unsaved
            if is_interrupt(error):
                raise
            raise self._fault(where, f"raised {_told(error)}") from error

    def _fault(self, where: str, what: str) -> EpisodeFault:
        return EpisodeFault(f"{where} of problem {self._problem.id}: {what}")


def check_by_playing(make: MakeEnvironment, problem: Problem, kind: str, stages: list[str]) -> str:
    """Play a turn of a problem with an empty text; return the first observation.

    ``stages`` gets the name of each method before it is called, for a caller that waits in vain.

    Raises:
      ValueError: the environment failed, or its first observation depends on the seed.
    """
    texts = []
    try:
        for seed in (0, 1):
            stages.append("reset()")
            episode = Episode(make, problem, seed)
            texts.append(episode.first)
            stages.append("step()")
            try:
                episode.step("")
            except EpisodeFault:
                episode.abandon()
                raise
            stages.append("close()")
            episode.close()
    except EpisodeFault as error:
        raise ValueError(f"environment.kind={kind} failed {error}") from error
    if texts[0] != texts[1]:
        raise ValueError(
            f"environment.kind={kind}: reset() of problem {problem.id} returned {shown(texts[0])} with seed 0 and "
            f"{shown(texts[1])} with seed 1; expected one text for all seeds, since all rollouts of a problem share "
            "their prompt; give what depends on the seed as an observation of step()"
        )
    return texts[0]


def _told(error: BaseException) -> str:
    """An error in one line, with its place; below it the traceback without the frame of this module."""
    line = f"{type(error).__name__}: {error}".strip(": ").partition("\n")[0]
    frames = error.__traceback__ and error.__traceback__.tb_next
    if frames is None:  # the call itself failed: wrong arguments
        return line
    last = traceback.extract_tb(frames)[-1]
    below = "".join(traceback.format_exception(type(error), error, frames)).rstrip()
    return f"{line} ({last.filename}, line {last.lineno}, in {last.name})\n{below}"


def shown(value: object) -> str:
    """A value as messages name it."""
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
