"""Scores of a full batch under the weights before its first update, and their gap to the sampler's log-probs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import jax
import numpy as np

from fr3e_jax.configuration.schema import LossConfig
from fr3e_jax.learning.dispatch import Work
from fr3e_jax.learning.experience import TrainingTrunk
from fr3e_jax.learning.learner import Learner
from fr3e_jax.learning.mini_batches import MiniBatch, PerToken, read_placed, trained_values
from fr3e_jax.learning.packing import MicroBatch
from fr3e_jax.learning.setup import Gather, LearningSetup, alone
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
    params: Params | None,
    batch: list[TrainingTrunk],
    packed: Iterable[MiniBatch],
    *,
    into: str = "",
    entropies: bool = False,
    everywhere: bool = True,
) -> Work[Scores]:
    """Log-probs, and with ``entropies`` also entropies, of the batch's tokens in ``packed`` under ``params``.

    Args:
      params: weights of the policy; None: those of the teacher, whose log-probs alone are computed.
      into: the field of its `TrainRows` that gets the log-probs.
      entropies: see above.
      everywhere: each of several processes gets the scores of all rows; otherwise those of its own rows alone.
    """

    def score(micro: MicroBatch) -> tuple[jax.Array, ...]:
        if params is None:
            return (learner.programs.teacher_score(micro.batch.rows, setup.loss_temperature),)
        scores = learner.programs.score(params, micro.batch.rows, setup.loss_temperature)
        return scores if entropies else scores[:1]

    fetch = learner.programs.fetched
    scored = read_placed(batch, packed, score, 1 + entropies, fetch, everywhere=everywhere, into=into)
    logprobs, *others = yield from scored
    return Scores(logprobs, others[0] if others else None, learner.updates)


def gap_metrics(
    loss: LossConfig, batch: list[TrainingTrunk], old: PerToken, step: int, gather: Gather = alone
) -> dict[str, float]:
    """The distance of the trainer's log-probs ``old``, under the weights before the update, from the sampler's.

    All metrics are over the tokens that train, of branches sampled in ``step`` (fresh) and before (carried). A
    kind without such a token has no metrics. ``old``: of the branches that this process counts, and None for others;
    the sums of all processes are gathered.

    Returns:
      ``sampler_ratio``: of either kind the mean of |log ratio| (nats), and the share of tokens whose ratio is outside
      [1 - ``loss.epsilon_low``, 1 + ``loss.epsilon_high``]; ``logprob_gap``: of fresh branches ``mean`` and ``max`` of
      |log π_trainer − log π_sampler|, and ``kl``, the estimate of KL(π_sampler ‖ π_trainer) per token by k3
      (`fr3e_jax.objectives.divergence.kl_k3`, whose samples come from the sampler), in nats.
    """
    log_ratios: dict[str, list[np.ndarray]] = {"fresh": [], "carried": []}
    for trunk, branch, logprobs in trained_values(batch, old):
        kind = "fresh" if trunk.sampled(branch) == step else "carried"
        log_ratios[kind].append(logprobs - np.asarray(branch.trained(branch.sampler_logprobs)))
    parts = gather([_gap_sums(np.concatenate([np.empty(0), *of_kind]), loss) for of_kind in log_ratios.values()])
    metrics: dict[str, float] = {}
    for kind, parts_of_kind in zip(log_ratios, zip(*parts, strict=True), strict=True):
        tokens, outside, total, divergence, _ = (math.fsum(column) for column in zip(*parts_of_kind, strict=True))
        if not tokens:
            continue
        metrics[f"sampler_ratio/{kind}"] = total / tokens
        metrics[f"sampler_ratio/{kind}_outside"] = outside / tokens
        if kind == "fresh":
            metrics["logprob_gap/mean"] = total / tokens
            metrics["logprob_gap/max"] = max(part[-1] for part in parts_of_kind)
            metrics["logprob_gap/kl"] = divergence / tokens
    return metrics


def _gap_sums(log_ratio: np.ndarray, loss: LossConfig) -> tuple[int, int, float, float, float]:
    """Of log ratios ``[T]``: their number, those outside the clip range, sums of sizes and of k3, and largest size."""
    size = np.abs(log_ratio)
    bounded = np.clip(log_ratio, -LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    outside = (log_ratio < np.log1p(-loss.epsilon_low)) | (log_ratio > np.log1p(loss.epsilon_high))
    divergence = float((np.expm1(bounded) - bounded).sum())
    return len(size), int(np.count_nonzero(outside)), float(size.sum()), divergence, float(size.max(initial=0))
