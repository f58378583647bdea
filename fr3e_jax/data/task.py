"""The interface of a task, and the loading of the task that a run names.

To write a task, write a callable that takes the run's ``DataConfig`` and returns an object with the attributes of
``Task``. This one is in ``doubling.py`` and started with ``data.task=doubling.py:Doubling``::

    from fr3e_jax.data.task import Demonstration, Problem

    class Doubling:
        name = "doubling"

        def __init__(self, config):
            self.dropped = {}

        def problems(self, split):
            numbers = {"train": range(800), "development": range(800, 900), "test": range(900, 1000)}[split]
            return [Problem(id=f"{split}/{n}", prompt=f"{n}*2=", gold=str(2 * n)) for n in numbers]

        def demonstration(self, index, step_fraction):
            n = index % 800
            return Demonstration(prompt=f"{n}*2=", response=str(2 * n))

        def verifier(self):
            return lambda problem, response, finished: float(finished and response == problem.gold)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.schema import DataConfig
from fr3e_jax.data.cards import card_names
from fr3e_jax.problem import Problem
from fr3e_jax.rewards.verifier import Verifier
from fr3e_jax.user_code import parse_reference

_COMPARED = 256  # first problems of two splits that must differ
Split = Literal["train", "development", "test"]

BUILT_IN = {
    "order": "fr3e_jax.data.order_task:OrderTask",
    "lock": "fr3e_jax.data.lock_task:LockTask",
    "char_count": "fr3e_jax.data.char_count_task:CharCountTask",
    "maze": "fr3e_jax.data.maze_task:MazeTask",
    "datasets": "fr3e_jax.data.datasets:DatasetsTask",
    "python": "fr3e_jax.data.python_task:from_the_command_line",
    "gymnasium": "fr3e_jax.tools.gymnasium_environment:task",
    "verifiers": "fr3e_jax.tools.verifiers_environment:task",
}


@dataclass(frozen=True)
class Demonstration:
    """One example for supervised fine-tuning. The trainer appends the stop token to ``response``."""

    prompt: str
    response: str


class Task(Protocol):
    """Problems with their demonstrations and their verifier. ``dropped`` counts unusable rows by reason.

    A task may also have an attribute ``environment``: the class that ``environment.kind=task`` plays
    (`fr3e_jax.tools.environment`).
    """

    name: str
    dropped: Mapping[str, int]

    def problems(self, split: Split) -> Sequence[Problem]:
        """The problems of a split, indexable in any order. They may be computed on access, and very many.

        Settings are chosen on ``development`` (``evaluation.split``), and results are those of ``test``. A task without
        development problems raises KeyError or ValueError.
        """

    def demonstration(self, index: int, step_fraction: float) -> Demonstration:
        """The demonstration at ``index`` = 0, 1, 2, ... without end. Equal arguments give equal demonstrations.

        ``step_fraction`` is the share of the curriculum (``sft.curriculum_steps``) that has passed, from 0 to 1. It is
        1 in a run without a curriculum. A task without easier problems ignores it.
        """

    def verifier(self) -> Verifier:
        """The verifier that gives the reward of a full response; see ``fr3e_jax.rewards.verifier``."""


def load_task(config: DataConfig) -> Task:
    """Build the task that ``config.task`` names.

    Raises:
      ValueError: there is no such task, or the named code builds an object that is no task.
      FileNotFoundError: the Python file, or a file that the task reads, does not exist.
    """
    if config.task.isidentifier() and config.task not in BUILT_IN and config.task in card_names():
        raise ValueError(
            f"data.task is {config.task!r}, which is a dataset; set data.task=datasets data.train=[{config.task}]"
        )
    reference = parse_reference(BUILT_IN.get(config.task, config.task), "data.task", built_in=BUILT_IN)
    factory = reference.load("a class or function that takes the run's DataConfig")
    return _checked(factory(config), config.task)


def held_out_split(task: Task, split: Split) -> Sequence[Problem]:
    """The problems of ``development`` or ``test``.

    Raises:
      ValueError: the task has no development problems, or gives those of the test split in their place.
    """
    if split == "test":
        return task.problems("test")
    message = (
        f"evaluation.split={split}: task {task.name!r} has no development problems of its own ({{}}); give it some in "
        "problems('development'), or set evaluation.split=test"
    )
    try:
        held_out = task.problems(split)
    except (KeyError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ValueError(message.format(f"{type(error).__name__}: {error}")) from error
    test = task.problems("test")
    first = {(p.prompt, p.gold) for p in (test[i] for i in range(min(len(test), _COMPARED)))}
    shared = [p.id for p in (held_out[i] for i in range(min(len(held_out), _COMPARED))) if (p.prompt, p.gold) in first]
    if not len(held_out) or shared:
        raise ValueError(message.format(f"{shared[0]!r} is a test problem" if shared else "there are none"))
    return held_out


def _checked(task: Any, name: str) -> Task:
    missing = [
        attribute
        for attribute in ("name", "dropped", "problems", "demonstration", "verifier")
        if not hasattr(task, attribute)
    ]
    if missing:
        raise ValueError(
            f"data.task is {name!r}; it returned a {type(task).__name__} without {', '.join(missing)}; expected an "
            "object with the attributes of fr3e_jax.data.task.Task"
        )
    return task
