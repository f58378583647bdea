"""Environments of Gymnasium whose observations are texts as environments of this package.

``data.task=gymnasium data.environment=ID environment.kind=task`` plays one that ``gymnasium.make`` makes;
``data.environment_options`` are its arguments. `GymnasiumTask` takes whatever has Gymnasium's ``reset`` and ``step``,
such as those of ``gem-llm``, from a function that makes it::

    from fr3e_jax.tools.gymnasium_environment import GymnasiumTask

    def task(config):  # data.task=mine.py:task
        return GymnasiumTask(lambda: gem.make("game:GuessTheNumber-v0-easy"))

A problem is a seed of ``reset``: all rollouts of a prompt begin in the same state, and equal actions have equal
results.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.schema import DataConfig
from fr3e_jax.problem import Problem
from fr3e_jax.tools.environment import shown
from fr3e_jax.tools.environment_task import EnvironmentTask, arguments_of

_FIRST_SEEDS = {"train": 0, "test": 10**6, "development": 2 * 10**6}
_MOST_NUMBERS = 64  # of an observation that is written as numbers
_COLOUR = re.compile(r"\x1b\[([0-9;]*)m(.*?)\x1b\[0?m", re.DOTALL)
_BLUE = "34"
_HERE = ("actions", "instructions", "problems", "held_out")  # options that are not Gymnasium's
_seeding = threading.Lock()  # environments may seed the process's own generators in reset()

ReadAction = Callable[[str], Any]
WriteObservation = Callable[[Any], str]


class GymnasiumEnvironment:
    """An episode in an environment of Gymnasium; see `fr3e_jax.tools.environment.Environment`.

    A text that is no action is answered by a text that says so, with reward 0; it counts as a turn, and the
    environment does not see it. ``info["action_mask"]``, where there is one, is told with the observation.

    Args:
      environment: has ``reset(seed=)`` and ``step(action)``, as Gymnasium's, or as the older Gym's.
      actions: names of the actions of a discrete space, in order; (): their numbers. The last one in a text is played.
      instructions: the text before the first observation; None: the list of actions.
      action: the action that a text stands for, or None for no action; None: that of a discrete space or a text space.
      text: the text of an observation; None: the observation if it is a text, else the picture of
        ``render_mode="ansi"``, else its numbers.

    Raises:
      ValueError: the environment has actions or several copies that no text stands for.
    """

    def __init__(
        self,
        environment: Any,
        actions: Sequence[str] = (),
        instructions: str | None = None,
        action: ReadAction | None = None,
        text: WriteObservation | None = None,
    ):
        self._environment, self._text = environment, text
        self._names = list(actions)
        space: Any = getattr(environment, "action_space", None)
        kind = "" if space is None else type(space).__name__
        if hasattr(environment, "single_action_space"):
            raise ValueError("it is a vector of environments; expected a single one, which gymnasium.make makes")
        if kind == "Discrete":
            self._start = int(getattr(space, "start", 0))
            self._names = self._names or [str(self._start + number) for number in range(int(space.n))]
            if len(self._names) != space.n:
                raise ValueError(f"it has {space.n} actions, but {len(self._names)} names; expected one for each")
            self._read = action or self._named
        elif action is not None or kind in ("", "Text"):
            self._read = action or (lambda played: played if kind == "" or space.contains(played) else None)
        else:
            raise ValueError(
                f"its actions are a {kind} space, which no text stands for; give GymnasiumTask(action=...), a function "
                "of the policy's text, or choose an environment with a Discrete or Text space"
            )
        actions_told = f"Reply with an action: {', '.join(self._names)}.\n\n" if self._names else ""
        self._instructions = actions_told if instructions is None else instructions and f"{instructions}\n\n"

    def reset(self, problem: Problem, seed: int) -> str:
        """Begin the episode in the state that the problem's seed gives."""
        with _seeding:
            result = self._environment.reset(seed=problem.extra["seed"])
        pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)
        return self._instructions + self._written(*(result if pair else (result, {})))

    def step(self, text: str) -> tuple[Any, ...]:
        """Play a turn."""
        action = self._read(text.strip())
        if action is None:
            expected = f"one of {', '.join(self._names)}" if self._names else "a text of its action space"
            return f"That is no action; expected {expected}.", 0.0, False
        observation, *rest = self._environment.step(action)
        if observation is None:
            return observation, *rest
        info = rest[-1] if len(rest) > 2 else {}
        return self._written(observation, info), *rest

    def close(self) -> None:
        """Free what the environment holds."""
        if close := getattr(self._environment, "close", None):
            close()

    def _named(self, text: str) -> int | None:
        """The action whose name is the last in ``text``."""
        names = sorted(self._names, key=len, reverse=True)
        pattern = "|".join(re.escape(name) for name in names)
        matches = re.findall(rf"(?<![\w.-])(?:{pattern})(?!\w)", text, re.IGNORECASE)
        lowered = [name.lower() for name in self._names]
        return self._start + lowered.index(matches[-1].lower()) if matches else None

    def _written(self, observation: Any, info: Any) -> str:
        text = self._observation(observation)
        mask = info.get("action_mask") if isinstance(info, Mapping) else None
        if mask is None or np.shape(mask) != (len(self._names),):
            return text
        return (
            f"{text}\nPossible: {', '.join(name for name, allowed in zip(self._names, mask, strict=True) if allowed)}"
        )

    def _observation(self, observation: Any) -> str:
        if self._text is not None:
            return self._text(observation)
        if isinstance(observation, str):
            return observation
        if getattr(self._environment, "render_mode", None) == "ansi":
            picture = self._environment.render()
            lines = "".join(picture) if isinstance(picture, list) else str(picture)
            return _COLOUR.sub(_bracketed, lines).strip("\n")
        values = _plain(observation)
        if values is None:
            raise ValueError(
                f"the observation is {shown(observation)}, no text; give GymnasiumTask(text=...), a function that "
                "writes it, or choose an environment with Text observations or render_mode='ansi'"
            )
        return str(values)


def _bracketed(match: re.Match) -> str:
    codes = match[1].split(";")
    has_background = any(len(code) == 2 and code[0] == "4" for code in codes)
    opening, closing = "[]" if has_background else "()" if _BLUE in codes else "{}"
    return f"{opening}{match[2]}{closing}"


def _plain(value: Any) -> Any:
    """Numbers, texts and small arrays as plain Python; None for anything else."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist() if value.size <= _MOST_NUMBERS else None
    if isinstance(value, tuple | list):
        parts = [_plain(part) for part in value]
        return None if None in parts else tuple(parts) if isinstance(value, tuple) else parts
    if isinstance(value, Mapping):
        pairs = {key: _plain(part) for key, part in value.items()}
        return None if None in pairs.values() else pairs
    return value if isinstance(value, str | int | float) else None


class GymnasiumTask(EnvironmentTask):
    """Seeds of an environment of Gymnasium as a task with its environment.

    Args:
      make: makes an environment, without arguments.
      problems: seeds to train on; held-out ones are others.
      held_out: seeds to evaluate on.
      **options: see `GymnasiumEnvironment`.

    Raises:
      ValueError: see `GymnasiumEnvironment`.
    """

    def __init__(self, make: Callable[[], Any], problems: int = 1000, held_out: int = 128, **options: Any):
        def episode() -> GymnasiumEnvironment:
            return GymnasiumEnvironment(make(), **options)

        episode().close()
        super().__init__(
            "gymnasium",
            episode,
            {
                split: [
                    Problem(f"{split}/{seed}", "", f"seed {seed}", {"seed": seed})
                    for seed in range(first, first + (problems if split == "train" else held_out))
                ]
                for split, first in _FIRST_SEEDS.items()
            },
        )


def task(data: DataConfig) -> GymnasiumTask:
    """The task of ``data.task=gymnasium``.

    Raises:
      ConfigError: ``gymnasium`` is not installed, or it makes no such environment.
    """
    options = arguments_of(data, "the id of an environment that is registered with Gymnasium, such as FrozenLake-v1")
    try:
        import gymnasium
    except ImportError as error:
        raise ConfigError(f"data.task=gymnasium needs gymnasium: pip install 'fr3e-jax[gymnasium]' ({error})") from None

    def make() -> Any:
        environment = gymnasium.make(data.environment, **options)
        if "ansi" not in environment.metadata.get("render_modes", []) or "render_mode" in options:
            return environment
        environment.close()
        return gymnasium.make(data.environment, render_mode="ansi", **options)

    here = {name: options.pop(name) for name in _HERE if name in options}
    try:
        return GymnasiumTask(make, **here)
    except Exception as error:
        raise ConfigError(f"data.environment={data.environment}: {type(error).__name__}: {error}") from error
