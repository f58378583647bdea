"""The learner: the policy with its optimizer and, if the method has them, a critic and a reference policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fr3e_jax.policy.network import Params
from fr3e_jax.programs.critic_programs import CriticPrograms
from fr3e_jax.programs.train_programs import TrainPrograms


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

    With adapters, ``params`` and ``reference`` are adapters on the base of ``programs``.
    """

    programs: TrainPrograms
    params: Params
    optimizer_state: object
    updates: int = 0  # optimizer steps so far
    reference: Params | None = None  # weights of the reference policy; None: the method has none
    critic: Critic | None = None
    trained_on: tuple[Any, ...] | None = None  # the last micro-batch and its numbers, for `accumulate`

    def arrays(self) -> dict[str, Any]:
        """The arrays that a checkpoint holds, by part of the learner."""
        arrays = {"params": self.params, "optimizer": self.optimizer_state}
        if self.reference is not None:
            arrays["reference"] = self.reference
        if self.critic is not None:
            arrays["critic"] = self.critic.arrays()
        return arrays

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
    programs: TrainPrograms, params: Params, critic: CriticPrograms | None, *, reference: bool
) -> Learner:
    """The learner at the start of a run: critic and reference copy the policy; the critic's head is new."""
    learner = Learner(programs, params, programs.init_optimizer(params))
    if reference:
        learner.reset_reference()
    if critic is not None:
        start = critic.initial_params(programs.whole(params))
        learner.critic = Critic(critic, start, critic.init_optimizer(start))
    return learner


def abstract_learner(programs: TrainPrograms, critic: CriticPrograms | None, *, reference: bool) -> dict[str, Any]:
    """Shapes, types and shardings of `Learner.arrays`, to restore a checkpoint into."""
    arrays = programs.abstract_arrays()
    if reference:
        arrays["reference"] = arrays["params"]
    if critic is not None:
        arrays["critic"] = critic.abstract_arrays()
    return arrays


def restored_learner(
    programs: TrainPrograms, critic: CriticPrograms | None, arrays: dict[str, Any], updates: int
) -> Learner:
    """The learner that a checkpoint's arrays hold; `abstract_learner` describes them."""
    learner = Learner(programs, arrays["params"], arrays["optimizer"], updates, arrays.get("reference"))
    if critic is not None:
        learner.critic = Critic(critic, arrays["critic"]["params"], arrays["critic"]["optimizer"])
    return learner
