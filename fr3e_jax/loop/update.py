"""From a full batch to new weights: old log-probs, mini-batches, one optimizer step each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import jax
import numpy as np

from fr3e_jax.loop.experience import TrainingTrunk, count_rollouts, split_full_batch
from fr3e_jax.loop.ledger import TokenLedger
from fr3e_jax.loop.packing import aggregation_denominator, pack
from fr3e_jax.loop.session import SHUFFLE, Session
from fr3e_jax.policy.network import Params
from fr3e_jax.programs.train import TrainPrograms

_PROBE_EVERY = 8  # trunks: one of so many is scored to see whether the sampler's log-probs are exact enough


@dataclass
class Learner:
    """Weights and optimizer state; both are donated to each update and replaced by its result."""

    programs: TrainPrograms
    params: Params
    optimizer_state: object
    updates: int = 0  # optimizer steps so far

    def arrays(self) -> dict:
        return {"params": self.params, "optimizer": self.optimizer_state}


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
        old, metrics = old_logprobs(session, learner, step, batch)
    sums = _Sums()
    with ledger.stage("update"):
        for epoch in range(training.epochs):
            order = session.generator(SHUFFLE, step, epoch).permutation(len(batch))
            for members in split_mini_batches([(int(i), batch[i]) for i in order], training.mini_batch_rollouts):
                update_on_mini_batch(session, learner, members, old, sums, ledger)
    return metrics | _update_metrics(sums)


def split_mini_batches(
    members: list[tuple[int, TrainingTrunk]], rollouts: int
) -> Iterator[list[tuple[int, TrainingTrunk]]]:
    """Whole trunks until ``rollouts`` rollouts are together; less than half of that at the end joins the last one.

    A rest of one or two trunks would otherwise get an optimizer step as large as any other.
    """
    while members:
        taken, rest = split_full_batch([trunk for _, trunk in members], rollouts)
        cut = len(taken) if 2 * count_rollouts(rest) >= rollouts else len(members)
        yield members[:cut]
        members = members[cut:]


def _cut(session: Session, learner: Learner) -> dict[str, int]:
    """How `pack` is to cut a batch."""
    tokens = session.config.training.micro_batch_tokens
    return {"tokens": tokens, "shards": learner.programs.shards, "pad_id": session.codec.pad_id}


def _temperature(session: Session) -> float:
    return session.config.rollout.temperature or 1.0


def score_old_logprobs(session: Session, learner: Learner, batch: list[TrainingTrunk]) -> list[list[np.ndarray]]:
    """Log-probs ``[trunk][branch] -> [T]`` of the batch under the weights before its first update."""
    old: list[list[np.ndarray]] = [[np.zeros(0)] * len(trunk.branches) for trunk in batch]
    for micro in pack(batch, **_cut(session, learner)):
        logprobs, _ = learner.programs.score(learner.params, micro.batch.rows, _temperature(session))
        for placement in micro.placements:
            old[placement.trunk][placement.branch] = logprobs[placement.where]
    return old


def old_logprobs(session: Session, learner: Learner, step: int, batch: list[TrainingTrunk]):
    """Log-probs as of `score_old_logprobs`, and metrics: their gap to the sampler's, and whose were taken.

    With ``training.sampler_logprob_tolerance``, every eighth trunk sampled in this step is scored, and all that are
    older. Where no token's gap is larger than that, the sampler's own log-probs serve for the others: a pass saved.
    """
    tolerance = session.config.training.sampler_logprob_tolerance
    fresh = [i for i, trunk in enumerate(batch) if trunk.step == step]
    spared = [i for n, i in enumerate(fresh) if n % _PROBE_EVERY] if tolerance else []
    old: list[list[np.ndarray]] = [[branch.sampler_logprobs for branch in trunk.branches] for trunk in batch]

    def score_these(indices: list[int]) -> None:
        scored = score_old_logprobs(session, learner, [batch[i] for i in indices])
        for i, row in zip(indices, scored, strict=True):
            old[i] = row

    left_out = set(spared)
    scored = [i for i in range(len(batch)) if i not in left_out]
    score_these(scored)
    gap = logprob_gap([batch[i] for i in scored], [old[i] for i in scored], step)
    if not spared or gap["logprob_gap/max"] <= tolerance:
        return old, gap | {"logprob_gap/taken_from_sampler": len(spared) / len(batch)}
    score_these(spared)
    return old, logprob_gap(batch, old, step) | {"logprob_gap/taken_from_sampler": 0.0}


def update_on_mini_batch(session, learner: Learner, members, old, sums: _Sums, ledger: TokenLedger) -> None:
    """One optimizer step on ``members``, pairs of index in the full batch and trunk."""
    trunks = [trunk for _, trunk in members]
    loss = session.config.loss
    denominator = aggregation_denominator(trunks, loss.aggregation, session.config.rollout.max_response_tokens)
    gradients = learner.programs.zero_gradients(learner.params)
    micro_sums = []
    for micro in pack(
        trunks,
        **_cut(session, learner),
        aggregation=loss.aggregation,
        old_logprobs=lambda trunk, branch: old[members[trunk][0]][branch],
    ):
        gradients, part = learner.programs.accumulate(
            learner.params, gradients, micro.batch, denominator, _temperature(session)
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
    tokens = sum(len(branch.token_ids) for trunk in trunks for branch in trunk.branches)
    ledger.loss_tokens += tokens
    sums.loss_tokens += tokens
    for part in jax.device_get(micro_sums):
        sums.totals.update({name: float(value) for name, value in part.items()})
    sums.gradient_norms.append(float(norm))
    if not np.isfinite(sums.gradient_norms[-1]):
        raise NonFiniteUpdate(
            f"the gradient norm of update {learner.updates} is {sums.gradient_norms[-1]}; expected a finite number. "
            "The last checkpoint is intact: lower optimizer.learning_rate or optimizer.max_grad_norm, or set "
            "model.compute_dtype=float32, and --resume"
        )


def logprob_gap(batch: list[TrainingTrunk], old: list[list[np.ndarray]], step: int) -> dict[str, float]:
    """|log-prob of the trainer - of the sampler| over the tokens sampled in this step (carried ones are older)."""
    gaps = [
        np.abs(logprobs - branch.sampler_logprobs)
        for trunk, row in zip(batch, old, strict=True)
        if trunk.step == step
        for branch, logprobs in zip(trunk.branches, row, strict=True)
    ]
    if not gaps:
        return {}
    flat = np.concatenate(gaps)
    return {"logprob_gap/mean": float(flat.mean()), "logprob_gap/max": float(flat.max())}


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
