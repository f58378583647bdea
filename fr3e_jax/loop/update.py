"""From a full batch to new weights: old log-probs, mini-batches, one optimizer step each."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import jax
import numpy as np

from fr3e_jax.loop.experience import TrainingTrunk
from fr3e_jax.loop.ledger import TokenLedger
from fr3e_jax.loop.mini_batches import Learner, MiniBatch, loss_temperature, mini_batches, pack_mini_batch
from fr3e_jax.loop.packing import aggregation_denominator
from fr3e_jax.loop.scoring import old_logprobs
from fr3e_jax.loop.session import Session


@dataclass
class _Sums:
    totals: Counter = field(default_factory=Counter)
    loss_tokens: int = 0
    gradient_norms: list[float] = field(default_factory=list)
    positions: int = 0
    padded_positions: int = 0


class NonFiniteUpdate(RuntimeError):
    """A gradient is NaN or infinite; the step that would have spread it to the weights was stopped after it ran."""


def update_policy(
    session: Session, learner: Learner, step: int, batch: list[TrainingTrunk], ledger: TokenLedger
) -> dict[str, float]:
    """Train on a full batch: ``epochs`` passes of mini-batches of about ``mini_batch_rollouts`` rollouts.

    Raises:
      NonFiniteUpdate: with the values found; the last checkpoint is untouched.
    """
    training = session.config.training
    with ledger.stage("score"):
        packed = [pack_mini_batch(session, learner, members) for members in mini_batches(session, step, 0, batch)]
        old, metrics = old_logprobs(session, learner, step, batch, packed)
    sums = _Sums()
    with ledger.stage("update"):
        for part in packed:
            update_on_mini_batch(session, learner, part, sums, ledger)
        for epoch in range(1, training.epochs):
            for members in mini_batches(session, step, epoch, batch):
                update_on_mini_batch(session, learner, pack_mini_batch(session, learner, members, old), sums, ledger)
    return metrics | _update_metrics(sums)


def update_on_mini_batch(
    session: Session, learner: Learner, mini_batch: MiniBatch, sums: _Sums, ledger: TokenLedger
) -> None:
    """One optimizer step."""
    trunks, loss = mini_batch.trunks, session.config.loss
    denominator = aggregation_denominator(trunks, loss.aggregation, session.config.rollout.max_response_tokens)
    gradients = learner.programs.zero_gradients(learner.params)
    micro_sums = []
    for micro in mini_batch.micros:
        gradients, part = learner.programs.accumulate(
            learner.params, gradients, micro.batch, denominator, loss_temperature(session)
        )
        micro_sums.append(part)
        sums.positions += micro.positions
        sums.padded_positions += micro.padded_positions
        ledger.trained_positions += micro.positions
        ledger.padded_positions += micro.padded_positions
    learner.params, learner.optimizer_state, norm = learner.programs.apply(
        learner.params, learner.optimizer_state, gradients
    )
    learner.updates += 1
    tokens = sum(p.length for micro in mini_batch.micros for p in micro.placements)
    ledger.loss_tokens += tokens
    sums.loss_tokens += tokens
    norm, micro_sums = jax.device_get((norm, micro_sums))
    for part in micro_sums:
        sums.totals.update({name: float(value) for name, value in part.items()})
    sums.gradient_norms.append(float(norm))
    if not np.isfinite(sums.gradient_norms[-1]):
        raise NonFiniteUpdate(
            f"the gradient norm of update {learner.updates} is {sums.gradient_norms[-1]}; expected a finite number. "
            "The last checkpoint is intact: lower optimizer.learning_rate or optimizer.max_grad_norm, or set "
            "model.compute_dtype=float32, and --resume"
        )


def _update_metrics(sums: _Sums) -> dict[str, float]:
    tokens = max(sums.loss_tokens, 1)
    return {
        "loss/policy": sums.totals["loss"] / max(len(sums.gradient_norms), 1),
        "ratio/mean": sums.totals["ratio"] / tokens,
        "clip/low": sums.totals["clipped_low"] / tokens,
        "clip/high": sums.totals["clipped_high"] / tokens,
        "clip/dual": sums.totals["clipped_dual"] / tokens,
        "entropy/trained": sums.totals["entropy"] / tokens,
        "gradient_norm/mean": float(np.mean(sums.gradient_norms)),
        "gradient_norm/max": float(np.max(sums.gradient_norms)),
        "updates": float(len(sums.gradient_norms)),
        "packing/useful_share": sums.positions / max(sums.padded_positions, 1),
    }
