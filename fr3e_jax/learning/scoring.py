"""What a full batch looks like to the weights before its first update, and how far that is from the sampler's view."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import jax
import numpy as np

from fr3e_jax.learning.experience import TrainingTrunk
from fr3e_jax.learning.learner import Learner
from fr3e_jax.learning.mini_batches import MiniBatch, PerToken, fill, read_placed, row_options
from fr3e_jax.learning.packing import MicroBatch, pack
from fr3e_jax.learning.setup import LearningSetup
from fr3e_jax.policy.network import Params

_PROBE_EVERY = 8  # trunks: one of so many is scored to see whether the sampler's log-probs are exact enough


@dataclass
class Scores:
    """Log-probs (at the training temperature) and entropies (nats) of the trained tokens under one set of weights."""

    logprobs: PerToken
    entropies: PerToken | None  # None: not asked for
    updates: int  # optimizer steps that the weights had seen


def score_trunks(setup: LearningSetup, learner: Learner, batch: list[TrainingTrunk]) -> PerToken:
    """Log-probs of the batch under the learner's weights, packed for this alone."""
    members = list(range(len(batch)))
    packed = [MiniBatch(members, batch, pack(batch, **row_options(setup, learner)))]
    return score_packed(setup, learner, learner.params, batch, packed).logprobs


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
    """Log-probs, and ``entropies``, under ``params`` of what ``packed`` holds of the batch.

    ``into``: the field of its `TrainRows` that gets the log-probs.
    """

    def score(micro: MicroBatch) -> tuple[jax.Array, ...]:
        found = learner.programs.score(params, micro.batch.rows, setup.loss_temperature)
        return found if entropies else found[:1]

    logprobs, *others = read_placed(batch, packed, score, 1 + entropies, into)
    return Scores(logprobs, others[0] if others else None, learner.updates)


def score_batch(
    setup: LearningSetup,
    learner: Learner,
    step: int,
    batch: list[TrainingTrunk],
    packed: Iterable[MiniBatch],
    *,
    entropies: bool = False,
) -> tuple[Scores, dict[str, float]]:
    """Scores under the weights before the batch's first update, and metrics: their gap to the sampler's log-probs.

    The rows of ``packed`` are scored as they will be trained on, and get the log-probs written into them.

    With ``training.sampler_logprob_tolerance``, every eighth trunk sampled in this step is scored first, and all that
    are older. Where no token's gap is larger than that, the sampler's own log-probs serve for the others: most of a
    pass saved.
    """
    tolerance = setup.config.training.sampler_logprob_tolerance
    fresh = [i for i, trunk in enumerate(batch) if trunk.step == step]
    spared = {i for n, i in enumerate(fresh) if n % _PROBE_EVERY} if tolerance else set()
    if spared:
        old, gap = _probe(setup, learner, step, batch, spared)
        if gap["logprob_gap/max"] <= tolerance:
            fill(packed, "old_logprobs", old)
            return Scores(old, None, learner.updates), gap | {
                "logprob_gap/taken_from_sampler": len(spared) / len(batch)
            }
    options = {"into": "old_logprobs", "entropies": entropies}
    scores = score_packed(setup, learner, learner.params, batch, packed, **options)
    return scores, logprob_gap(batch, scores.logprobs, step) | {"logprob_gap/taken_from_sampler": 0.0}


def _probe(setup: LearningSetup, learner: Learner, step: int, batch: list[TrainingTrunk], spared: set[int]):
    """Scored log-probs of all trunks but the ``spared``, of those the sampler's; and the gap of the scored ones."""
    scored = [i for i in range(len(batch)) if i not in spared]
    trunks = [batch[i] for i in scored]
    found = score_trunks(setup, learner, trunks)
    old = [[branch.sampler_logprobs for branch in trunk.branches] for trunk in batch]
    for i, row in zip(scored, found, strict=True):
        old[i] = row
    return old, logprob_gap(trunks, found, step)


def logprob_gap(batch: list[TrainingTrunk], old: PerToken, step: int) -> dict[str, float]:
    """|log-prob of the trainer - of the sampler| over the tokens sampled in this step (carried ones are older)."""
    fresh = [
        (logprobs[branch.trains], branch.sampler_logprobs[branch.trains])
        for trunk, row in zip(batch, old, strict=True)
        if trunk.step == step
        for branch, logprobs in zip(trunk.branches, row, strict=True)
    ]
    if not fresh:
        return {}
    trainers, samplers = map(np.concatenate, zip(*fresh, strict=True))
    flat = np.abs(trainers - samplers)
    if not flat.size:
        return {}
    return {"logprob_gap/mean": float(flat.mean()), "logprob_gap/max": float(flat.max())}
