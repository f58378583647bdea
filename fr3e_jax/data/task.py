"""The interface of a task, and how a run finds the one it names.

A task of one's own is a callable that takes the run's ``DataConfig`` and returns an object with the attributes of
``Task``. For example, in ``doubling.py``, started with ``data.task=doubling.py:Doubling``::

    from fr3e_jax.data.task import Demonstration, Problem

    class Doubling:
        name = "doubling"

        def __init__(self, config):
            self.dropped = {}

        def problems(self, split):
            numbers = range(900) if split == "train" else range(900, 1000)
            return [Problem(id=f"{split}/{n}", prompt=f"{n}*2=", gold=str(2 * n)) for n in numbers]

        def demonstration(self, index, step_fraction):
            n = index % 900
            return Demonstration(prompt=f"{n}*2=", response=str(2 * n))

        def verifier(self):
            return lambda problem, response, finished: float(finished and response == problem.gold)
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Protocol

from fr3e_jax.configuration.schema import DataConfig
from fr3e_jax.data.problem import Problem
from fr3e_jax.rewards.verifier import Verifier

Split = Literal["train", "test"]

BUILT_IN = {
    "order": "fr3e_jax.data.order_task:OrderTask",
    "gsm8k_calculator": "fr3e_jax.data.gsm8k_calculator:CalculatorTask",
    "datasets": "fr3e_jax.data.datasets:DatasetsTask",
}


@dataclass(frozen=True)
class Demonstration:
    """One example for supervised fine-tuning; the trainer appends the stop token to ``response``."""

    prompt: str
    response: str


class Task(Protocol):
    """Problems, demonstrations and a reward that belong together. ``dropped`` counts unusable rows by reason."""

    name: str
    dropped: Mapping[str, int]

    def problems(self, split: Split) -> Sequence[Problem]:
        """The problems of a split, indexable in any order; may be computed on access and be very long."""

    def demonstration(self, index: int, step_fraction: float) -> Demonstration:
        """The ``index``-th (0, 1, 2, ... without end) demonstration: the same for the same arguments.

        ``step_fraction`` is how much of the curriculum (``sft.curriculum_steps``) has passed, from 0 to 1; 1 is also
        what a run without a curriculum passes. A task without easier problems ignores it.
        """

    def verifier(self) -> Verifier:
        """The reward of a full response, see ``fr3e_jax.rewards.verifier``."""


def load_task(config: DataConfig) -> Task:
    """Builds the task that ``config.task`` names.

    Raises:
      ValueError: the name is not a task's, or what it names is not a task.
      FileNotFoundError: the Python file, or a file that the task reads, does not exist.
    """
    source, colon, attribute = BUILT_IN.get(config.task, config.task).rpartition(":")
    if not (source and colon and attribute):
        close = difflib.get_close_matches(config.task, BUILT_IN, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(
            f"data.task is {config.task!r}; expected one of {sorted(BUILT_IN)}, FILE.py:NAME or "
            f"package.module:NAME.{hint}"
        )
    module = _load_file(source) if source.endswith(".py") else _load_module(source)
    factory = getattr(module, attribute, None)
    if not callable(factory):
        found = "has no such name" if factory is None else f"has {factory!r} there, which cannot be called"
        raise ValueError(f"data.task is {config.task!r}, but {source} {found}; expected a class or function")
    return _checked(factory(config), config.task)


def _load_file(source: str) -> ModuleType:
    path = Path(source).expanduser().resolve()
    if not path.is_file():
        raise FileNotFoundError(f"data.task names the file {source}, but {path} does not exist; give its path")
    name = f"fr3e_jax_task_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader  # a path that ends in .py has both
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up by name
    spec.loader.exec_module(module)
    return module


def _load_module(source: str) -> ModuleType:
    try:
        return importlib.import_module(source)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{source}.".startswith(f"{error.name}."):
            raise  # the task's module exists, but something that it imports does not
        raise ValueError(
            f"data.task names the module {source}, but there is no module {error.name}; install it, put its folder on "
            "PYTHONPATH, or name a file instead: FILE.py:NAME"
        ) from None


def _checked(task: Any, name: str) -> Task:
    missing = [part for part in ("name", "dropped", "problems", "demonstration", "verifier") if not hasattr(task, part)]
    if missing:
        raise ValueError(
            f"data.task is {name!r}; it returned a {type(task).__name__} without {', '.join(missing)}; expected an "
            "object with the attributes of fr3e_jax.data.task.Task"
        )
    return task
