"""The critic of PPO: its values of a batch, its updates, and their metrics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import jax
import numpy as np

from fr3e_jax.learning.dispatch import Work
from fr3e_jax.learning.experience import TrainingTrunk
from fr3e_jax.learning.finiteness import check_figures
from fr3e_jax.learning.learner import Critic
from fr3e_jax.learning.mini_batches import MiniBatch, PerToken, placed, read_placed, trained_tokens
from fr3e_jax.learning.packing import counted_tokens
from fr3e_jax.programs.critic_programs import ValueRows


@dataclass
class CriticBatch:
    """A full batch for the critic: returns, and the critic's values before the first update, per token."""

    batch: list[TrainingTrunk]
    returns: PerToken
    values: PerToken

    def metrics(self, sums: list[dict[str, float]]) -> dict[str, float]:
        """Metrics of the values before the updates, and means over the updates; ``sums``: from `update_critic`."""
        values, returns = (trained_tokens(self.batch, x) for x in (self.values, self.returns))
        spread = float(np.var(returns)) if returns.size else 0.0
        explained = 1.0 - float(np.var(returns - values)) / spread if spread > 0 else 0.0
        names = sums[0] if sums else ()
        means = {f"critic/{name}": float(np.mean([update[name] for update in sums])) for name in names}
        mean = float(values.mean()) if values.size else 0.0
        return means | {"critic/value": mean, "critic/explained_variance": explained}


def values_of(critic: Critic, batch: list[TrainingTrunk], packed: Iterable[MiniBatch]) -> Work[PerToken]:
    """V of the state in which each token is sampled, ``[trunk][branch] -> [T]``."""

    def compute(micro):
        return [critic.programs.values(critic.params, micro.batch.rows)]

    (values,) = yield from read_placed(batch, packed, compute, 1, critic.programs.fetched, everywhere=True)
    return values


def update_critic(critic: Critic, mini_batch: MiniBatch, learns: CriticBatch) -> Work[dict[str, float]]:
    """Take one optimizer step of the critic on a mini-batch: the token mean of the clipped value loss.

    Call it before the shaping steps: they select tokens for the policy only. Returns the loss and the gradient norm.

    Raises:
      NonFiniteUpdate: one of them is NaN or infinite.
    """
    denominator = float(max(counted_tokens(mini_batch.trunks).sum(), 1))
    gradients = critic.programs.zero_gradients(critic.params)
    losses = []
    returns, values = placed(mini_batch, learns.returns), placed(mini_batch, learns.values)
    for micro, *learned in zip(mini_batch.micros, returns, values, strict=True):
        rows = ValueRows(micro.batch.rows, micro.batch.loss_mask, *learned)
        gradients, sums = critic.programs.accumulate(critic.params, gradients, rows, denominator)
        losses.append(sums["loss"])
        critic.trained_on = (rows, denominator)
    critic.params, critic.optimizer_state, norm = critic.programs.apply(
        critic.params, critic.optimizer_state, gradients
    )
    yield norm, losses
    norm, losses = jax.device_get((norm, losses))
    figures = {"loss": float(sum(losses)), "gradient_norm": float(norm)}
    check_figures("the critic", figures)
    return figures
