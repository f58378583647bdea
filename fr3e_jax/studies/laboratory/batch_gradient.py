"""The policy gradient of a batch at fixed weights: what its first update would hand to the optimizer."""

from __future__ import annotations

from dataclasses import dataclass

import jax

from fr3e_jax.learning.batch_shaping import shape_mini_batch
from fr3e_jax.learning.experience import TrainingTrunk
from fr3e_jax.learning.finiteness import check_figures
from fr3e_jax.learning.learner import Learner
from fr3e_jax.learning.mini_batches import pack_mini_batch
from fr3e_jax.learning.setup import LearningSetup
from fr3e_jax.learning.update import loss_tokens, mini_batch_gradient, score_full_batch
from fr3e_jax.policy.network import Params


@dataclass(frozen=True)
class BatchGradient:
    """The gradient of a batch's loss, with its cost in the ledger's units."""

    gradient: Params | None  # None: nothing was left to train on
    loss_tokens: int
    positions: int  # that passed through the network, without padding


def batch_gradient(setup: LearningSetup, learner: Learner, step: int, batch: list[TrainingTrunk]) -> BatchGradient:
    """The gradient of the loss on ``batch`` as one mini-batch, before any update; the learner does not change.

    Old log-probs are those of this pass, so that every ratio is 1. Advantages that depend on scores replace those of
    ``batch``, in place, as in an update.

    Raises:
      NonFiniteUpdate: a score or the loss is NaN or infinite.
    """
    if not batch:
        return BatchGradient(None, 0, 0)
    packed = [pack_mini_batch(setup, learner, list(enumerate(batch)))]
    scored, _ = score_full_batch(setup, learner, step, batch, packed)
    mini_batch = packed[0]
    shape_mini_batch(setup, learner, step, batch, mini_batch, scored.old)
    tokens = loss_tokens(mini_batch)
    if not tokens:
        return BatchGradient(None, 0, 0)
    gradient, sums = mini_batch_gradient(setup, learner, mini_batch, scored)
    loss = sum(float(jax.device_get(micro_sums["loss"])) for micro_sums in sums)
    check_figures(f"the gradient of step {step}", {"loss": loss})
    return BatchGradient(learner.programs.total(gradient), tokens, sum(micro.positions for micro in mini_batch.micros))
