"""What learns: the policy, and where the method has them its critic and its reference policy."""

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
    """The value network of PPO; its arrays are donated to each update and replaced by its result."""

    programs: CriticPrograms
    params: Any
    optimizer_state: Any

    def arrays(self) -> dict[str, Any]:
        return {"params": self.params, "optimizer": self.optimizer_state}


@dataclass
class Learner:
    """Weights and optimizer state; both are donated to each update and replaced by its result."""

    programs: TrainPrograms
    params: Params
    optimizer_state: object
    updates: int = 0  # optimizer steps so far
    reference: Params | None = None  # weights that a divergence is taken from, where there is one
    critic: Critic | None = None

    def arrays(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        held = {"params": self.params, "optimizer": self.optimizer_state}
        if self.reference is not None:
            held["reference"] = self.reference
        if self.critic is not None:
            held["critic"] = self.critic.arrays()
        return held

    def restart_optimizer(self) -> None:
        """Moments, and with them the schedule, begin anew."""
        self.optimizer_state = self.programs.init_optimizer(self.params)

    def reset_reference(self) -> None:
        """The policy becomes its own reference."""
        self.reference = copied(self.params)


def copied(params: Params) -> Params:
    """The same weights, lying alike, in memory of their own: an update donates the policy's."""
    return jax.tree.map(jnp.copy, params)


def fresh_learner(
    programs: TrainPrograms, params: Params, critic: CriticPrograms | None, *, reference: bool
) -> Learner:
    """A run's start: the critic is a copy of the policy with a new value head, the reference another."""
    learner = Learner(programs, params, programs.init_optimizer(params))
    if reference:
        learner.reset_reference()
    if critic is not None:
        start = critic.initial_params(params)
        learner.critic = Critic(critic, start, critic.init_optimizer(start))
    return learner


def abstract_learner(programs: TrainPrograms, critic: CriticPrograms | None, *, reference: bool) -> dict[str, Any]:
    """Shapes, types and shardings of `Learner.arrays`, to restore a checkpoint into."""
    held = programs.abstract_arrays()
    if reference:
        held["reference"] = held["params"]
    if critic is not None:
        held["critic"] = critic.abstract_arrays()
    return held


def restored_learner(
    programs: TrainPrograms, critic: CriticPrograms | None, arrays: dict[str, Any], updates: int
) -> Learner:
    """From the arrays of a checkpoint, as `abstract_learner` describes them."""
    learner = Learner(programs, arrays["params"], arrays["optimizer"], updates, arrays.get("reference"))
    if critic is not None:
        learner.critic = Critic(critic, arrays["critic"]["params"], arrays["critic"]["optimizer"])
    return learner
