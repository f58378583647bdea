"""Scores of a full batch under the weights before its first update, and their gap to the sampler's log-probs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import jax
import numpy as np

from fr3e_jax.configuration.schema import LossConfig
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

    ``into``: the field of its `TrainRows` that gets the log-probs. Tokens that are not in ``packed`` have 0.
    """

    def score(micro: MicroBatch) -> tuple[jax.Array, ...]:
        scores = learner.programs.score(params, micro.batch.rows, setup.loss_temperature)
        return scores if entropies else scores[:1]

    logprobs, *others = read_placed(batch, packed, score, 1 + entropies, into)
    return Scores(logprobs, others[0] if others else None, learner.updates)


def gap_metrics(loss: LossConfig, batch: list[TrainingTrunk], old: PerToken, step: int) -> dict[str, float]:
    """The distance of the trainer's log-probs ``old``, under the weights before the update, from the sampler's.

    All metrics are over the tokens that train, of trunks that were sampled in ``step`` (fresh) and before (carried). A
    kind without such a token has no metrics.

    Returns:
      ``sampler_ratio``: of either kind the mean of |log ratio| (nats), and the share of tokens whose ratio is outside
      [1 - ``loss.epsilon_low``, 1 + ``loss.epsilon_high``]; ``logprob_gap``: of fresh trunks ``mean`` and ``max`` of
      |log π_trainer − log π_sampler|, and ``kl``, the estimate of KL(π_sampler ‖ π_trainer) per token by k3
      (`fr3e_jax.objectives.divergence.kl_k3`, whose samples come from the sampler), in nats.
    """
    log_ratios: dict[str, list[np.ndarray]] = {"fresh": [], "carried": []}
    for trunk, row in zip(batch, old, strict=True):
        for branch, logprobs in zip(trunk.branches, row, strict=True):
            log_ratio = branch.trained(logprobs) - branch.trained(branch.sampler_logprobs)
            log_ratios["fresh" if trunk.step == step else "carried"].append(log_ratio)
    metrics: dict[str, float] = {}
    for kind, rows in log_ratios.items():
        flat = np.concatenate([np.zeros(0, np.float32), *rows])
        if not flat.size:
            continue
        outside = (flat < np.log1p(-loss.epsilon_low)) | (flat > np.log1p(loss.epsilon_high))
        metrics[f"sampler_ratio/{kind}"] = float(np.abs(flat).mean())
        metrics[f"sampler_ratio/{kind}_outside"] = float(outside.mean())
        if kind == "fresh":
            exact = flat.astype(np.float64)
            bounded = np.clip(exact, -LOG_RATIO_BOUND, LOG_RATIO_BOUND)
            metrics["logprob_gap/mean"] = float(np.abs(exact).mean())
            metrics["logprob_gap/max"] = float(np.abs(exact).max())
            metrics["logprob_gap/kl"] = float(np.mean(np.expm1(bounded) - bounded))
    return metrics
