"""The shaping steps of a recipe on a mini-batch: collect its tokens, shape them, write them into the packed rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fr3e_jax.configuration.options import configured_call
from fr3e_jax.configuration.schema import Config, ShapingConfig
from fr3e_jax.configuration.shaping_sections import SHAPING_STEPS
from fr3e_jax.learning.configured_programs import loss_settings
from fr3e_jax.learning.dispatch import Work
from fr3e_jax.learning.experience import TrainingTrunk
from fr3e_jax.learning.learner import Learner
from fr3e_jax.learning.mini_batches import MiniBatch, PerToken, fill, stacked
from fr3e_jax.learning.scoring import Scores, score_packed
from fr3e_jax.learning.setup import LearningSetup
from fr3e_jax.objectives.losses import token_divisors
from fr3e_jax.objectives.shaping_steps import CURRENT_POLICY, Tokens
from fr3e_jax.programs.shaping_programs import Shaped, Steps, sequence_log_ratios, shape_tokens
from fr3e_jax.rollouts.noise import SHUFFLE


def mini_batch_steps(shaping: ShapingConfig) -> Steps:
    """The steps that `shape_mini_batch` applies, with their settings."""
    return tuple(configured_call(shaping, name) for name in _names(shaping))


def _names(shaping: ShapingConfig) -> list[str]:
    """``shaping.steps`` less a last step that the loss applies."""
    names = shaping.steps
    return names[:-1] if names and SHAPING_STEPS[names[-1]].in_loss else names


def reads_scores(config: Config) -> bool:
    """True if a mini-batch reads scores before its update, for shaping steps or numbers of whole responses."""
    return bool(_names(config.shaping)) or bool(loss_settings(config).sequence_fields)


def needs_entropies(shaping: ShapingConfig) -> bool:
    """True if a step reads entropies of the scoring pass."""
    return any(SHAPING_STEPS[name].reads for name in _names(shaping))


def shape_mini_batch(
    setup: LearningSetup, learner: Learner, step: int, batch: list[TrainingTrunk], mini_batch: MiniBatch, old: Scores
) -> Work[dict[str, float]]:
    """Apply the shaping steps, write their results into the packed rows, and return the steps' metrics.

    A step (or a loss that reads the ratio of whole responses) may read the current policy. The mini-batch is then
    scored again if an update has passed since the scoring pass.
    """
    shaping = setup.config.shaping
    steps, of_sequences = mini_batch_steps(shaping), loss_settings(setup.config).sequence_fields
    if not steps and not of_sequences:
        return {}
    reads_current = "sequence_log_ratios" in of_sequences or any(
        CURRENT_POLICY & {*SHAPING_STEPS[name].reads} for name in _names(shaping)
    )
    current = old
    if reads_current and learner.updates != old.updates:
        current = yield from score_packed(setup, learner, learner.params, batch, [mini_batch], entropies=True)
    before = _of_members(mini_batch, old.logprobs)
    if "sequence_log_ratios" in of_sequences:
        now = _of_members(mini_batch, current.logprobs)
        fill([mini_batch], "sequence_log_ratios", _sequence_log_ratios(batch, mini_batch, now, before))
    if "sequence_sampler_gaps" in of_sequences:
        sampled = [[branch.sampler_logprobs for branch in trunk.branches] for trunk in mini_batch.trunks]
        fill([mini_batch], "sequence_sampler_gaps", _sequence_log_ratios(batch, mini_batch, before, sampled))
    if not steps:
        return {}
    tokens = _tokens(setup, learner, step, mini_batch, old, current)
    shaped, metrics = shape_tokens(tokens, steps)
    _write(setup, batch, mini_batch, shaped)
    return {f"shaping/{name}": value for name, value in metrics.items()}


def _of_members(mini_batch: MiniBatch, values: PerToken) -> PerToken:
    """Those of a batch's values that belong to the mini-batch's trunks."""
    return [values[position] for position in mini_batch.members]


def _sequence_log_ratios(
    batch: list[TrainingTrunk], mini_batch: MiniBatch, logprobs: PerToken, others: PerToken
) -> PerToken:
    """Mean over a branch's trained tokens of a log-ratio, at each of its tokens. (GSPO, eq. 7.)"""
    trains = [[branch.trains for branch in trunk.branches] for trunk in mini_batch.trunks]
    ratios = iter(sequence_log_ratios(stacked(logprobs), stacked(others), stacked(trains)))
    ratios_by_branch: PerToken = [[] for _ in batch]
    for position, trunk in zip(mini_batch.members, mini_batch.trunks, strict=True):
        lengths = [len(branch.token_ids) for branch in trunk.branches]
        ratios_by_branch[position] = [np.full(length, next(ratios), np.float32) for length in lengths]
    return ratios_by_branch


def _tokens(
    setup: LearningSetup, learner: Learner, step: int, mini_batch: MiniBatch, old: Scores, current: Scores
) -> Tokens:
    """The tokens of a mini-batch as the steps read them: a row for each branch, padded with 0."""
    members = [
        (position, index, branch, trunk)
        for position, trunk in zip(mini_batch.members, mini_batch.trunks, strict=True)
        for index, branch in enumerate(trunk.branches)
    ]

    def rows(values):
        return stacked([list(values)])

    def of(values):
        return rows(values[position][index] for position, index, *_ in members)

    advantages = rows(branch.advantages for *_, branch, _ in members)
    nothing = np.zeros_like(advantages)

    def entropies(scores):
        return nothing if scores.entropies is None else of(scores.entropies)

    groups = {key: i for i, key in enumerate(dict.fromkeys((position, b.group) for position, _, b, _ in members))}
    loss = setup.config.loss
    return Tokens(
        advantages=advantages,
        counted=rows(branch.trains for *_, branch, _ in members),
        weights=np.ones_like(nothing),
        penalised=np.zeros(nothing.shape, bool),
        old_logprobs=of(old.logprobs),
        old_entropies=entropies(old),
        logprobs=of(current.logprobs),
        entropies=entropies(current),
        sampler_logprobs=rows(branch.sampler_logprobs for *_, branch, _ in members),
        places=_places(members, nothing.shape),
        relative=rows(trunk.relative_positions(branch) for *_, branch, trunk in members),
        uniforms=setup.noise.generator(SHUFFLE, step, learner.updates, 1).random(nothing.shape).astype(np.float32),
        group=np.array([groups[position, branch.group] for position, _, branch, _ in members], np.int32),
        right=np.array([branch.right for *_, branch, _ in members]),
        finished=np.array([branch.finished for *_, branch, _ in members]),
        step=np.int32(step),
        epsilon_low=np.float32(loss.epsilon_low),
        epsilon_high=np.float32(loss.epsilon_high),
        log_vocabulary=np.float32(np.log(setup.vocab_size)),
    )


def _places(members: Sequence[tuple], shape: tuple[int, ...]) -> np.ndarray:
    """Numbers, int32 ``[N, T]`` below N T, equal for tokens at the same position of their whole responses.

    Positions count from the prompt's end. They are ranked, so that late forks give no large numbers.
    """
    first = np.array([branch.fork - trunk.prompt_tokens for *_, branch, trunk in members], np.int32)
    columns = first[:, None] + np.arange(shape[1], dtype=np.int32)
    return np.unique(columns, return_inverse=True)[1].reshape(shape).astype(np.int32)


def _write(setup: LearningSetup, batch: list[TrainingTrunk], mini_batch: MiniBatch, shaped: Shaped) -> None:
    """Write the shaped tokens into the rows.

    Tokens of weight 0 are masked from the loss but still counted in its denominator.
    """
    position = 0
    values = {name: [[] for _ in batch] for name in ("advantages", "loss_mask", "weights", "penalised")}
    for member, trunk in zip(mini_batch.members, mini_batch.trunks, strict=True):
        for branch in trunk.branches:
            size = slice(len(branch.token_ids))
            advantages, counted, weights, penalised = (array[position, size] for array in shaped)
            mini_batch.counted[position] = counted.sum()
            weights = weights / token_divisors(mini_batch.counted[position], setup.config.loss.aggregation)
            fresh = (advantages, counted & (weights != 0), weights.astype(np.float32), penalised)
            for name, array in zip(values, fresh, strict=True):
                values[name][member].append(array)
            position += 1
    for name, nested in values.items():
        if name != "penalised" or "kl_cov" in setup.config.shaping.steps:
            fill([mini_batch], name, nested)
