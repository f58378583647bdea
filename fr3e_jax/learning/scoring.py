"""Scores of a full batch under the weights before its first update, and their gap to the sampler's log-probs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import jax
import numpy as np

from fr3e_jax.learning.experience import TrainingTrunk
from fr3e_jax.learning.learner import Learner
from fr3e_jax.learning.mini_batches import MiniBatch, PerToken, read_placed
from fr3e_jax.learning.packing import MicroBatch
from fr3e_jax.learning.setup import LearningSetup
from fr3e_jax.objectives.divergence import LOG_RATIO_BOUND
from fr3e_jax.policy.network import Params


@dataclass
class Scores:
    """Log-probs (at the training temperature) and entropies (nats) of a batch's tokens under one set of weights."""

    logprobs: PerToken
    entropies: PerToken | None  # None: not requested
    updates: int  # optimizer steps that the weights had seen


def score_packed(
    setup: LearningSetup,
    learner: Learner,
    params: Params,
    batch: list[TrainingTrunk],
    packed: Iterable[MiniBatch],
    *,
    into: str = "",
    entropies: bool = False,
) -> Scores:
    """Log-probs, and with ``entropies`` also entropies, of the batch's tokens in ``packed`` under ``params``.

    ``into``: the field of its `TrainRows` that gets the log-probs.
    """

    def score(micro: MicroBatch) -> tuple[jax.Array, ...]:
        scores = learner.programs.score(params, micro.batch.rows, setup.loss_temperature)
        return scores if entropies else scores[:1]

    logprobs, *others = read_placed(batch, packed, score, 1 + entropies, into)
    return Scores(logprobs, others[0] if others else None, learner.updates)


def score_batch(
    setup: LearningSetup,
    learner: Learner,
    batch: list[TrainingTrunk],
    packed: Iterable[MiniBatch],
    *,
    entropies: bool = False,
    skip: Collection[int] = (),
) -> Scores:
    """Scores of ``packed`` under the weights before the batch's first update, written into its rows.

    The rows are scored as they will be trained on. Trunks in ``skip`` (indices) lie in none of them; their log-probs
    are 0 here.
    """
    options = {"into": "old_logprobs", "entropies": entropies}
    scores = score_packed(setup, learner, learner.params, batch, packed, **options)
    for i in skip:
        scores.logprobs[i] = [np.zeros_like(branch.sampler_logprobs) for branch in batch[i].branches]
    return scores


def gap_metrics(setup: LearningSetup, batch: list[TrainingTrunk], old: Scores, step: int) -> dict[str, float]:
    """The distance of the sampler's log-probs from the trainer's."""
    loss = setup.config.loss
    return logprob_gap(batch, old.logprobs, step) | sampler_ratio(
        batch, old.logprobs, step, loss.epsilon_low, loss.epsilon_high
    )


def sampler_ratio(batch: list[TrainingTrunk], old: PerToken, step: int, low: float, high: float) -> dict[str, float]:
    """The distance of the weights before the update from those that sampled, for fresh and carried trunks apart.

    ``old``: the log-probs under these weights. Over the tokens that train: the mean of |log ratio| (nats), and the
    share of tokens whose ratio is outside [1 - ``low``, 1 + ``high``]. A kind without such a token has no metrics.
    """
    ratios: dict[str, list[np.ndarray]] = {"fresh": [], "carried": []}
    for trunk, row in zip(batch, old, strict=True):
        for branch, logprobs in zip(trunk.branches, row, strict=True):
            ratios["fresh" if trunk.step == step else "carried"].append(
                branch.trained(logprobs) - branch.trained(branch.sampler_logprobs)
            )
    metrics = {}
    for kind, parts in ratios.items():
        flat = np.concatenate([np.zeros(0, np.float32), *parts])
        if flat.size:
            outside = (flat < np.log1p(-low)) | (flat > np.log1p(high))
            metrics |= {f"sampler_ratio/{kind}": float(np.abs(flat).mean())}
            metrics |= {f"sampler_ratio/{kind}_outside": float(outside.mean())}
    return metrics


def logprob_gap(batch: list[TrainingTrunk], old: PerToken, step: int) -> dict[str, float]:
    """The gap between trainer's and sampler's log-probs, over the tokens that train and were sampled in ``step``.

    Carried trunks are left out, because older weights sampled them.

    Returns:
      ``mean`` and ``max`` of |log π_trainer − log π_sampler|, and ``kl``, the estimate of KL(π_sampler ‖ π_trainer) per
      token by k3 (`fr3e_jax.objectives.divergence.kl_k3`, whose samples come from the sampler), in nats.
    """
    fresh = [
        (branch.trained(logprobs), branch.trained(branch.sampler_logprobs))
        for trunk, row in zip(batch, old, strict=True)
        if trunk.step == step
        for branch, logprobs in zip(trunk.branches, row, strict=True)
    ]
    if not fresh:
        return {}
    trainers, samplers = map(np.concatenate, zip(*fresh, strict=True))
    log_ratio = (trainers - samplers).astype(np.float64)
    if not log_ratio.size:
        return {}
    flat, bounded = np.abs(log_ratio), np.clip(log_ratio, -LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    kl = np.mean(np.expm1(bounded) - bounded)
    return {"logprob_gap/mean": float(flat.mean()), "logprob_gap/max": float(flat.max()), "logprob_gap/kl": float(kl)}
