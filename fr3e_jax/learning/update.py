"""From a full batch to new weights: scores, advantages that read them, mini-batches with an optimizer step each."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import jax
import numpy as np
import optax

from fr3e_jax.configuration.schema import Config
from fr3e_jax.learning.batch_shaping import needs_entropies, reads_scores, shape_mini_batch
from fr3e_jax.learning.critic import CriticBatch, update_critic, values_of
from fr3e_jax.learning.dispatch import Work, finished
from fr3e_jax.learning.experience import TrainingTrunk
from fr3e_jax.learning.finiteness import check_figures, check_scores
from fr3e_jax.learning.learner import Learner
from fr3e_jax.learning.mini_batches import MiniBatch, Packing, PerToken, counted_here, fill, read_spans
from fr3e_jax.learning.routers import ROUTER_LOSS, ROUTER_MEANS, balance_of, load_metrics, mean_loads
from fr3e_jax.learning.scoring import Scores, gap_metrics, score_packed
from fr3e_jax.learning.setup import LearningSetup
from fr3e_jax.learning.teaching import (
    changes_advantages,
    reads_scores_first,
    selects_tokens,
    taught_tokens,
    teacher_credit,
)
from fr3e_jax.learning.token_advantages import estimate_advantages, estimates_after_scoring
from fr3e_jax.objectives.losses import aggregation_denominator
from fr3e_jax.policy.network import Params
from fr3e_jax.programs.optimizer_programs import learning_rate_at
from fr3e_jax.runs.ledger import TokenLedger


@dataclass
class Sums:
    """Sums over the updates of a full batch, for its metrics."""

    totals: Counter = field(default_factory=Counter)
    loss_tokens: int = 0
    gradient_norms: list[float] = field(default_factory=list)
    positions: int = 0
    padded_positions: int = 0
    shaping: list[dict[str, float]] = field(default_factory=list)  # of each mini-batch
    empty: int = 0  # mini-batches without a token to train on
    routers: list[dict[str, float]] = field(default_factory=list)  # of each update, `load_metrics`


@dataclass
class Scored:
    """A full batch with the scores that its mini-batches read."""

    batch: list[TrainingTrunk]
    old: Scores
    reference: PerToken | None
    critic: CriticBatch | None
    taught: PerToken | None = None  # bool, where the teacher's term counts in the loss; None: everywhere, or nowhere
    unscored: MiniBatch | None = None  # the first one, whose gradient pass has the old log-probs; None: all are scored


def update_policy(
    setup: LearningSetup, learner: Learner, step: int, batch: list[TrainingTrunk], ledger: TokenLedger
) -> dict[str, float]:
    """Train on a full batch: ``epochs`` passes of mini-batches of about ``mini_batch_rollouts`` rollouts.

    Advantages that depend on log-probs, a critic or the whole batch replace those of ``batch`` first. While a critic
    warms up, the policy does not change. Returns the metrics of the updates.

    Raises:
      NonFiniteUpdate: a score, a loss or a gradient norm is NaN or infinite; the weights must not be saved.
    """
    return finished(dispatch_update(setup, learner, step, batch, ledger))


def dispatch_update(
    setup: LearningSetup, learner: Learner, step: int, batch: list[TrainingTrunk], ledger: TokenLedger
) -> Work[dict[str, float]]:
    """`update_policy` as work that one thread dispatches beside other work."""
    with ledger.stage("score"):
        packed = Packing(setup, learner, step, 0, batch)
        scored, estimates = yield from score_full_batch(setup, learner, step, batch, packed)
    with ledger.stage("update"):
        sums, critic_sums = yield from _train(setup, learner, step, batch, packed, scored, ledger)
    old = counted_here(packed, learner.programs.counted_rows, scored.old.logprobs)
    metrics = gap_metrics(setup.config.loss, batch, old, step, setup.gather) | estimates
    if (change := learner.programs.relative_change(learner.params)) is not None:
        yield change
        metrics["lora/relative_change"] = float(change)
    if scored.critic is not None:
        warming_up = _warms_up(setup, learner, step)
        metrics |= scored.critic.metrics(critic_sums) | {"critic/warming_up": float(warming_up)}
    return metrics | _update_metrics(sums) | {"learning_rate": _last_rate(setup, learner)}


def _last_rate(setup: LearningSetup, learner: Learner) -> float:
    """The learning rate of the last optimizer step; the optimizer's own count starts anew when it is restarted."""
    o = setup.config.optimizer
    done = optax.tree_utils.tree_get_all_with_path(learner.optimizer_state, "count")[0][1]
    return learning_rate_at(max(int(done) - 1, 0), o.learning_rate, o.warmup_updates, o.decay_updates)


def score_full_batch(
    setup: LearningSetup, learner: Learner, step: int, batch: list[TrainingTrunk], packed: Iterable[MiniBatch]
) -> Work[tuple[Scored, dict[str, float]]]:
    """Score the batch by policy, reference, teacher and critic; replace advantages that depend on it, in place.

    The first mini-batch trains at the weights that scoring would use. Where nothing reads its log-probs earlier, the
    policy does not score it: `update_on_mini_batch` takes them from the gradient pass.
    """
    config, rest, unscored, metrics = setup.config, packed, None, {}
    if learner.critic is None and not reads_old_logprobs(config):
        unscored = next(iter(packed))
        rest = itertools.islice(packed, 1, None)
    everywhere, selects = reads_all_scores(config), selects_tokens(config.teacher)
    entropies = needs_entropies(config.shaping) or selects
    options = {"into": "old_logprobs", "entropies": entropies, "everywhere": everywhere}
    old = yield from score_packed(setup, learner, learner.params, batch, rest, **options)
    reference = teacher = critic = advantages = None
    if learner.reference is not None:
        scored_by_reference = score_packed(setup, learner, learner.reference, batch, packed, everywhere=everywhere)
        reference = (yield from scored_by_reference).logprobs
    if config.teacher.path and config.teacher.place == "advantage":
        scored_by_teacher = score_packed(setup, learner, None, batch, packed, everywhere=everywhere)
        teacher = (yield from scored_by_teacher).logprobs
    values = (yield from values_of(learner.critic, batch, packed)) if learner.critic is not None else None
    scores = {"the policy's log-probs": old.logprobs, "the reference's log-probs": reference}
    scores |= {"the teacher's log-probs": teacher, "the critic's values": values}
    _check_scores(setup, learner, batch, packed, scores)
    taught = taught_tokens(config.teacher.entropy_share, batch, old.entropies) if selects else None
    if estimates_after_scoring(config.kl, config.advantage):
        estimates = estimate_advantages(setup, batch, old.logprobs, reference, values)
        advantages, metrics = estimates.advantages, estimates.metrics
        critic = None if values is None else CriticBatch(batch, estimates.returns, values)
    if changes_advantages(config.teacher):
        credit = teacher_credit(config.teacher, batch, advantages, old.logprobs, teacher, taught)
        advantages, metrics = credit.advantages, metrics | credit.metrics
    if advantages is not None:
        for trunk, row in zip(batch, advantages, strict=True):
            for branch, of_branch in zip(trunk.branches, row, strict=True):
                branch.advantages = of_branch
        fill(packed, "advantages", advantages)
    scored = Scored(batch, old, reference, critic, taught, unscored)
    _write_scores(setup, packed, scored)
    return scored, metrics


def reads_old_logprobs(config: Config) -> bool:
    """True if shaping steps, numbers of whole responses, a reward's divergence or a teacher read them first."""
    in_reward = config.kl.coefficient > 0 and config.kl.place == "reward"
    return reads_scores(config) or in_reward or reads_scores_first(config.teacher)


def reads_all_scores(config: Config) -> bool:
    """True if each process reads the scores of all rows: for shaping, estimates or later epochs in other rows."""
    estimates = estimates_after_scoring(config.kl, config.advantage)
    return config.training.epochs > 1 or estimates or reads_old_logprobs(config)


def _check_scores(
    setup: LearningSetup,
    learner: Learner,
    batch: list[TrainingTrunk],
    packed: Iterable[MiniBatch],
    scores: dict[str, PerToken | None],
) -> None:
    """`check_scores` of the rows of all processes."""
    rows = learner.programs.counted_rows
    counted = {name: values and counted_here(packed, rows, values) for name, values in scores.items()}
    check_scores(batch, counted, setup.gather)


def _write_scores(setup: LearningSetup, packed: Iterable[MiniBatch], scored: Scored) -> None:
    if scored.taught is not None and setup.config.teacher.place == "loss":
        fill(packed, "taught", scored.taught)
    if scored.reference is not None and setup.config.kl.place == "loss":
        fill(packed, "reference_logprobs", scored.reference)


def _train(
    setup: LearningSetup,
    learner: Learner,
    step: int,
    batch: list[TrainingTrunk],
    packed: Packing,
    scored: Scored,
    ledger: TokenLedger,
) -> Work[tuple[Sums, list[dict[str, float]]]]:
    """The mini-batches of every epoch; each later epoch cuts and packs them in an order of its own.

    Returns the sums over the policy's updates, and the figures of each of the critic's.
    """
    sums, critic_sums = Sums(), []
    for epoch in range(setup.config.training.epochs):
        if epoch:
            packed = Packing(setup, learner, step, epoch, batch)
        for mini_batch in packed:
            if epoch:  # the scoring pass has filled those of the first epoch
                fill([mini_batch], "old_logprobs", scored.old.logprobs)
                _write_scores(setup, [mini_batch], scored)
            if scored.critic is not None:
                critic_sums.append((yield from update_critic(learner.critic, mini_batch, scored.critic)))
            if not _warms_up(setup, learner, step):
                shaped = yield from shape_mini_batch(setup, learner, step, batch, mini_batch, scored.old)
                yield from update_on_mini_batch(setup, learner, mini_batch, sums, ledger, scored)
                sums.shaping.append(shaped)
    return sums, critic_sums


def _warms_up(setup: LearningSetup, learner: Learner, step: int) -> bool:
    return learner.critic is not None and step <= setup.config.critic.warmup_steps


def loss_tokens(mini_batch: MiniBatch) -> int:
    """The tokens of a mini-batch that are left to train on."""
    return sum(micro.loss_tokens for micro in mini_batch.micros)


def mini_batch_gradient(
    setup: LearningSetup, learner: Learner, mini_batch: MiniBatch, scored: Scored
) -> tuple[Params, list[dict[str, jax.Array]]]:
    """The gradient of a mini-batch's loss, and what each micro-batch's pass found; returns while they are computed."""
    loss, longest = setup.config.loss, setup.config.rollout.max_response_tokens
    denominator = float(aggregation_denominator(mini_batch.counted, loss.aggregation, norm_length=longest))
    gradients = learner.programs.zero_gradients(learner.params)
    sums_of_calls, at_start = [], float(mini_batch is scored.unscored)
    numbers = (
        setup.loss_temperature,
        at_start,
        *balance_of(setup.config.model.experts.balance_coefficient, learner.programs, mini_batch.micros),
    )
    for micro in mini_batch.micros:
        learner.trained_on = (micro.batch, denominator, *numbers)
        gradients, sums_of_call = learner.programs.accumulate(learner.params, gradients, *learner.trained_on)
        sums_of_calls.append(sums_of_call)
    return gradients, sums_of_calls


def update_on_mini_batch(
    setup: LearningSetup,
    learner: Learner,
    mini_batch: MiniBatch,
    sums: Sums,
    ledger: TokenLedger,
    scored: Scored,
) -> Work[None]:
    """Take one optimizer step, or none if no token is left to train on.

    The unscored mini-batch's log-probs are added to ``scored``.
    """
    tokens = loss_tokens(mini_batch)
    if not tokens:
        sums.empty += 1
        return
    gradients, sums_of_calls = mini_batch_gradient(setup, learner, mini_batch, scored)
    for micro in mini_batch.micros:
        sums.positions += micro.positions
        sums.padded_positions += micro.padded_positions
        ledger.trained_positions += micro.positions
        ledger.padded_positions += micro.padded_positions
    learner.params, learner.optimizer_state, norm = learner.programs.apply(
        learner.params, learner.optimizer_state, gradients
    )
    learner.updates += 1
    ledger.loss_tokens += tokens
    sums.loss_tokens += tokens
    yield norm, sums_of_calls
    if mini_batch is scored.unscored:
        everywhere, on_device = reads_all_scores(setup.config), [each["logprobs"] for each in sums_of_calls]
        logprobs = learner.programs.fetched(on_device, everywhere=everywhere)
        read_spans(mini_batch, logprobs, scored.old.logprobs, everywhere=everywhere)
        _check_scores(setup, learner, scored.batch, [mini_batch], {"the policy's log-probs": scored.old.logprobs})

    def sums_of(sums_of_call):
        return {name: value for name, value in sums_of_call.items() if name != "logprobs"}

    norm, sums_of_calls = jax.device_get((norm, [sums_of(sums_of_call) for sums_of_call in sums_of_calls]))
    sums.routers.append(load_metrics(sums_of_calls))
    for sums_of_call in sums_of_calls:
        sums.totals.update({name: float(value) for name, value in sums_of_call.items()})
    sums.gradient_norms.append(float(norm))
    loss_of_update = sum(float(sums_of_call["loss"]) for sums_of_call in sums_of_calls)
    check_figures(f"update {learner.updates}", {"loss": loss_of_update, "gradient norm": sums.gradient_norms[-1]})


_TOKEN_MEANS = {
    "ratio": "ratio/mean",
    "clipped_low": "clip/low",
    "clipped_high": "clip/high",
    "clipped_dual": "clip/dual",
    "entropy": "entropy/trained",
    "kl": "kl/mean",
    "teacher_kl": "teacher/reverse_kl",
    "taught": "teacher/share",
    "entropy_advantage": "shaping/entropy_advantage/ratio",
} | ROUTER_MEANS
"""Sums over loss tokens that the gradient program returns -> metrics that hold their means."""


def _update_metrics(sums: Sums) -> dict[str, float]:
    tokens = max(sums.loss_tokens, 1)
    means = {metric: sums.totals[name] / tokens for name, metric in _TOKEN_MEANS.items() if name in sums.totals}
    means |= {name: total / tokens for name, total in sums.totals.items() if name.startswith("loss/")}
    names = sums.shaping[0] if sums.shaping else ()
    shaping = {name: float(np.mean([metrics[name] for metrics in sums.shaping])) for name in names}
    norms = sums.gradient_norms or [0.0]
    balance = {key: sums.totals[name] / len(norms) for name, key in ROUTER_LOSS.items() if name in sums.totals}
    return (
        {"loss/policy": sums.totals["loss"] / len(norms)}
        | balance
        | means
        | shaping
        | mean_loads(sums.routers)
        | {
            "gradient_norm/mean": float(np.mean(norms)),
            "gradient_norm/max": float(np.max(norms)),
            "updates": float(len(sums.gradient_norms)),
            "updates/empty": float(sums.empty),
            "packing/useful_share": sums.positions / max(sums.padded_positions, 1),
        }
    )
