"""Log-probs of a full batch under the weights before its first update, and how far they are from the sampler's."""

from __future__ import annotations

import numpy as np

from fr3e_jax.loop.experience import TrainingTrunk
from fr3e_jax.loop.mini_batches import Learner, Logprobs, MiniBatch, loss_temperature, row_options
from fr3e_jax.loop.packing import pack
from fr3e_jax.loop.session import Session

_PROBE_EVERY = 8  # trunks: one of so many is scored to see whether the sampler's log-probs are exact enough


def score_old_logprobs(session: Session, learner: Learner, batch: list[TrainingTrunk]) -> Logprobs:
    """Log-probs ``[trunk][branch] -> [T]`` of the batch under the weights before its first update."""
    old = _no_logprobs(batch)
    for micro in pack(batch, **row_options(session, learner)):
        logprobs, _ = learner.programs.score(learner.params, micro.batch.rows, loss_temperature(session))
        for placement in micro.placements:
            old[placement.trunk][placement.branch] = logprobs[placement.where]
    return old


def old_logprobs(
    session: Session, learner: Learner, step: int, batch: list[TrainingTrunk], packed: list[MiniBatch]
) -> tuple[Logprobs, dict[str, float]]:
    """Log-probs as of `score_old_logprobs`, and metrics: their gap to the sampler's, and whose were taken.

    The rows of ``packed`` are scored as they will be trained on, and get the log-probs written into them.

    With ``training.sampler_logprob_tolerance``, every eighth trunk sampled in this step is scored first, and all that
    are older. Where no token's gap is larger than that, the sampler's own log-probs serve for the others: most of a
    pass saved.
    """
    tolerance = session.config.training.sampler_logprob_tolerance
    fresh = [i for i, trunk in enumerate(batch) if trunk.step == step]
    spared = {i for n, i in enumerate(fresh) if n % _PROBE_EVERY} if tolerance else set()
    if spared:
        old, gap = _probe(session, learner, step, batch, spared)
        if gap["logprob_gap/max"] <= tolerance:
            _write(old, packed)
            return old, gap | {"logprob_gap/taken_from_sampler": len(spared) / len(batch)}
    old = _score_rows(session, learner, batch, packed)
    return old, logprob_gap(batch, old, step) | {"logprob_gap/taken_from_sampler": 0.0}


def _probe(session: Session, learner: Learner, step: int, batch: list[TrainingTrunk], spared: set[int]):
    """Scored log-probs of all trunks but the ``spared``, of those the sampler's; and the gap of the scored ones."""
    scored = [i for i in range(len(batch)) if i not in spared]
    trunks = [batch[i] for i in scored]
    found = score_old_logprobs(session, learner, trunks)
    old = [[branch.sampler_logprobs for branch in trunk.branches] for trunk in batch]
    for i, row in zip(scored, found, strict=True):
        old[i] = row
    return old, logprob_gap(trunks, found, step)


def _write(old: Logprobs, packed: list[MiniBatch]) -> None:
    for mini_batch in packed:
        for micro in mini_batch.micros:
            for p in micro.placements:
                micro.batch.old_logprobs[p.where] = old[mini_batch.members[p.trunk]][p.branch]


def _score_rows(session: Session, learner: Learner, batch: list[TrainingTrunk], packed: list[MiniBatch]) -> Logprobs:
    old = _no_logprobs(batch)
    for mini_batch in packed:
        for micro in mini_batch.micros:
            logprobs, _ = learner.programs.score(learner.params, micro.batch.rows, loss_temperature(session))
            micro.batch.old_logprobs[...] = logprobs  # 0 on padding
            for p in micro.placements:
                old[mini_batch.members[p.trunk]][p.branch] = logprobs[p.where]
    return old


def _no_logprobs(batch: list[TrainingTrunk]) -> Logprobs:
    return [[np.zeros(0, np.float32)] * len(trunk.branches) for trunk in batch]


def logprob_gap(batch: list[TrainingTrunk], old: Logprobs, step: int) -> dict[str, float]:
    """|log-prob of the trainer - of the sampler| over the tokens sampled in this step (carried ones are older)."""
    fresh = [
        (logprobs, branch.sampler_logprobs)
        for trunk, row in zip(batch, old, strict=True)
        if trunk.step == step
        for branch, logprobs in zip(trunk.branches, row, strict=True)
    ]
    if not fresh:
        return {}
    trainers, samplers = map(np.concatenate, zip(*fresh, strict=True))
    flat = np.abs(trainers - samplers)
    return {"logprob_gap/mean": float(flat.mean()), "logprob_gap/max": float(flat.max())}
