"""The learner: the policy with its optimizer and, if the method has them, a critic and a reference policy."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from fr3e_jax.learning.row_menu import RowMenu
from fr3e_jax.policy.network import Params
from fr3e_jax.programs.critic_programs import CriticPrograms
from fr3e_jax.programs.train_programs import TrainPrograms

Micro = TypeVar("Micro")

_IN_FLIGHT = 2  # micro-batches that the device has to do: it is never without work, and a stop waits for them


class LearningStopped(Exception):
    """All processes stop between two micro-batches or mini-batches; `Pace` raises it."""


@dataclass
class Pace:
    """Keeps the host two micro-batches ahead of the device, and stops where the run has been told to.

    ``stop_here(point)`` is asked at each safe point (`fr3e_jax.runs.safe_points`); all processes answer alike.
    """

    stop_here: Callable[[str], Any] = lambda point: False

    def check(self, point: str) -> None:
        """Raise `LearningStopped` if the run is to stop at this point."""
        if self.stop_here(point):
            raise LearningStopped(f"stopped at a safe point: {point}")

    def each(self, micros: Iterable[Micro], point: str, running: deque[Any]) -> Iterator[Micro]:
        """The micro-batches; each waits for the computation before the last one in ``running``.

        Raises:
          LearningStopped: the run is to stop before a micro-batch.
        """
        for micro in micros:
            while len(running) >= _IN_FLIGHT:
                jax.block_until_ready(running.popleft())
            self.check(point)
            yield micro


@dataclass
class Critic:
    """The value network of PPO; an update donates its arrays and replaces them by the result."""

    programs: CriticPrograms
    params: Any
    optimizer_state: Any
    trained_on: tuple[Any, ...] | None = None  # the last micro-batch and its numbers, for `accumulate`

    def arrays(self) -> dict[str, Any]:
        """The arrays that a checkpoint holds."""
        return {"params": self.params, "optimizer": self.optimizer_state}


@dataclass
class Learner:
    """Weights and optimizer state; an update donates both and replaces them by the result.

    With adapters, ``params``, ``reference`` and ``behaviour`` are adapters on the base of ``programs``.
    """

    programs: TrainPrograms
    params: Params
    optimizer_state: object
    updates: int = 0  # optimizer steps so far
    reference: Params | None = None  # weights of the reference policy; None: the method has none
    critic: Critic | None = None
    trained_on: tuple[Any, ...] | None = None  # the last micro-batch and its numbers, for `accumulate`
    menu: RowMenu = field(default_factory=RowMenu)  # the shapes of rows that the run has used
    pace: Pace = field(default_factory=Pace)
    behaviour: Params | None = None  # weights that sample ahead (`rollout.async_steps`); None: the policy's own

    def arrays(self) -> dict[str, Any]:
        """The arrays that a checkpoint holds, by part of the learner."""
        held = {"params": self.params, "optimizer": self.optimizer_state}
        if self.reference is not None:
            held["reference"] = self.reference
        if self.behaviour is not None:
            held["behaviour"] = self.behaviour
        if self.critic is not None:
            held["critic"] = self.critic.arrays()
        return held

    def restart_optimizer(self) -> None:
        """Reset the optimizer's moments and its schedule."""
        self.optimizer_state = self.programs.init_optimizer(self.params)

    def reset_reference(self) -> None:
        """Make a copy of the policy the reference."""
        self.reference = copied(self.params)


def copied(params: Params) -> Params:
    """A copy of the weights under the same sharding; updates donate the memory of the policy's own weights."""
    return jax.tree.map(jnp.copy, params)


def fresh_learner(
    programs: TrainPrograms, params: Params, critic: CriticPrograms | None, *, reference: bool, behaviour: bool = False
) -> Learner:
    """The learner at the start of a run: critic, reference and behaviour copy the policy; the critic's head is new."""
    learner = Learner(programs, params, programs.init_optimizer(params))
    if reference:
        learner.reset_reference()
    if behaviour:
        learner.behaviour = copied(params)
    if critic is not None:
        start = critic.initial_params(programs.whole(params))
        learner.critic = Critic(critic, start, critic.init_optimizer(start))
    return learner


def abstract_learner(
    programs: TrainPrograms, critic: CriticPrograms | None, *, reference: bool, behaviour: bool = False
) -> dict[str, Any]:
    """Shapes, types and shardings of `Learner.arrays`, to restore a checkpoint into."""
    held = programs.abstract_arrays()
    if reference:
        held["reference"] = held["params"]
    if behaviour:
        held["behaviour"] = held["params"]
    if critic is not None:
        held["critic"] = critic.abstract_arrays()
    return held


def restored_learner(
    programs: TrainPrograms, critic: CriticPrograms | None, arrays: dict[str, Any], updates: int
) -> Learner:
    """The learner that a checkpoint's arrays hold; `abstract_learner` describes them."""
    learner = Learner(programs, arrays["params"], arrays["optimizer"], updates, arrays.get("reference"))
    learner.behaviour = arrays.get("behaviour")
    if critic is not None:
        learner.critic = Critic(critic, arrays["critic"]["params"], arrays["critic"]["optimizer"])
    return learner
