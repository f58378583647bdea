"""Shaping steps: each reads the tokens of an optimizer step and changes their advantages, weights or masks.

A step is a function ``(tokens, **settings) -> (tokens, metrics)``. The settings section of the same name holds its
keywords, their defaults and its source (``configuration/shaping_sections.py``); ``shaping.steps`` of a recipe lists the
steps in the order in which they are applied. A step sees the *whole* mini-batch of an optimizer step: the tokens of all
devices, whatever rows and micro-batches they are cut into.

Dimension key: N sequences of a mini-batch, T tokens of a sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fr3e_jax.objectives import selection, shaping, weighting
from fr3e_jax.objectives.divergence import bounded_log_ratio
from fr3e_jax.objectives.entropy import log_perplexity
from fr3e_jax.objectives.reductions import masked_mean, masked_sum


class Tokens(NamedTuple):
    """A mini-batch, a sequence a row. Steps change the first four fields."""

    advantages: jax.Array  # float32 [N, T]
    counted: jax.Array  # bool [N, T]: in the loss's denominator
    weights: jax.Array  # float32 [N, T]: factor of the token's loss; 0 leaves no gradient
    penalised: jax.Array  # bool [N, T]: pays the penalty of KL-Cov
    old_logprobs: jax.Array  # float32 [N, T], of the policy at the start of the full batch
    old_entropies: jax.Array  # float32 [N, T], nats, of the same
    logprobs: jax.Array  # float32 [N, T], of the policy that this mini-batch updates
    entropies: jax.Array  # float32 [N, T], nats, of the same
    sampler_logprobs: jax.Array  # float32 [N, T]
    places: jax.Array  # int32 [N, T], below N T: equal for tokens at the same position of their whole responses
    relative: jax.Array  # float32 [N, T]: place in the whole response, 0 at its first token, below 1 at its last
    uniforms: jax.Array  # float32 [N, T], random numbers in [0, 1)
    group: jax.Array  # int32 [N]: sequences with the same number share a baseline
    right: jax.Array  # bool [N]: the verifier accepted the response
    finished: jax.Array  # bool [N]: ended by themselves, not at the cap on their length
    step: jax.Array  # int32 scalar, full batches trained on, this one included
    epsilon_low: jax.Array  # float32 scalar, of the clipped surrogate
    epsilon_high: jax.Array
    log_vocabulary: jax.Array  # float32 scalar


CURRENT_POLICY = {"logprobs", "entropies"}
"""Fields of `Tokens` that need a pass with the weights that the mini-batch updates."""

Metrics = dict[str, jax.Array]
Step = Callable[..., tuple[Tokens, Metrics]]


def entropy_advantage(tokens: Tokens, *, alpha: float, kappa: float) -> tuple[Tokens, Metrics]:
    """A_t + min(α H_t, |A_t| / κ), H of the policy that is updated. (Cheng et al. 2025, eq. 5-7.)"""
    shaped, ratio = shaping.entropy_based_advantages(
        tokens.advantages, tokens.entropies, tokens.counted, alpha=alpha, kappa=kappa
    )
    return tokens._replace(advantages=shaped), {"ratio": masked_mean(ratio, tokens.counted)}


def perplexity(tokens: Tokens, *, alpha: float, variant: str) -> tuple[Tokens, Metrics]:
    """A (1 − α w), w the ln PPL of the sequence under the sampling policy, standardised in its group.

    (Deng et al. 2025, eq. 11.)
    """
    x, peers = log_perplexity(tokens.old_logprobs, tokens.counted), _peers(tokens)
    weights = jnp.diagonal(shaping.perplexity_weights(jnp.broadcast_to(x, peers.shape), peers, variant=variant))
    shaped = shaping.perplexity_shaped_advantages(tokens.advantages, weights, alpha=alpha, variant=variant)
    return tokens._replace(advantages=shaped), {"weight_abs": masked_mean(jnp.abs(weights), tokens.counted.any(-1))}


def position(
    tokens: Tokens,
    *,
    gamma: float,
    direction: float,
    steepness: float,
    centre: float,
    variant: str,
    window: tuple[int, int],
) -> tuple[Tokens, Metrics]:
    """A + sign(A) γ sigmoid(d m (l_t − n)), l_t the place in the whole response. (Deng et al. 2025, eq. 12.)

    Active from the first step of ``window`` on (paper: 200), until the second (paper: 300), or for good if that is 0.
    """
    shaped = shaping.position_shaped_advantages(
        tokens.advantages,
        tokens.counted,
        gamma=gamma,
        direction=direction,
        steepness=steepness,
        centre=centre,
        variant=variant,
        relative=tokens.relative,
    )
    shaped = jnp.where(_active(tokens, *window), shaped, tokens.advantages)
    added = masked_mean(jnp.abs(shaped) - jnp.abs(tokens.advantages), tokens.counted)
    return tokens._replace(advantages=shaped), {"added": added}


def sample_reinforcement(tokens: Tokens, *, positive: float, negative: float) -> tuple[Tokens, Metrics]:
    """Right responses times ``positive``, wrong ones times ``negative``. (Zhu et al. 2025; Deng et al. 2025, Table 2.)

    The metric is the share of right responses in the sum of |A|.
    """
    right = jnp.broadcast_to(tokens.right[:, None], tokens.advantages.shape)
    shaped = shaping.sample_reinforcement(tokens.advantages, right, positive=positive, negative=negative)
    share = masked_sum(jnp.abs(shaped), tokens.counted & right)
    total = masked_sum(jnp.abs(shaped), tokens.counted)
    return tokens._replace(advantages=shaped), {"positive_share": share / jnp.maximum(total, 1e-12)}


def sequence_weighting(
    tokens: Tokens,
    *,
    alpha: float,
    temperature: float,
    level: str,
) -> tuple[Tokens, Metrics]:
    """The token's loss times softmax_i((A_i + α H_i / log V) / P), see `entropy_guided_weights`.

    (Vanlioglu 2025, eq. 6-10; the paper's best runs normalise the entropy, and it leaves the divisor open.)

    A branch's step counts from the beginning of the response, not from its fork. The metric ``scale`` is the mean
    weight, the factor on the gradient.
    """
    weights = weighting.entropy_guided_weights(
        tokens.advantages,
        tokens.entropies / tokens.log_vocabulary,
        tokens.counted,
        alpha=alpha,
        temperature=temperature,
        level=level,
        steps=tokens.places,
    )
    return tokens._replace(weights=tokens.weights * weights), {"scale": masked_mean(weights, tokens.counted)}


def forking_tokens(tokens: Tokens, *, share: float) -> tuple[Tokens, Metrics]:
    """Only the ``share`` of tokens with the highest entropy carry gradient.

    (Wang et al. 2025; Deng et al. 2025, Table 2.)

    The entropies are those of the scoring pass, before the full batch's first update.
    """
    passing = selection.forking_tokens(tokens.old_entropies, tokens.counted, share=share)
    least = jnp.min(tokens.old_entropies, where=passing, initial=jnp.inf)
    return _keep(tokens, passing), _share("kept", passing, tokens) | {"threshold": jnp.where(passing.any(), least, 0.0)}


def clip_cov(tokens: Tokens, *, share: float, bounds: tuple[float, float]) -> tuple[Tokens, Metrics]:
    """A random ``share`` of the tokens with covariance within ``bounds`` leaves the gradient. (Cui et al. 2025.)"""
    low, high = bounds
    covariances = selection.token_covariances(tokens.logprobs, tokens.advantages, tokens.counted)
    ratio = jnp.exp(bounded_log_ratio(tokens.logprobs, tokens.old_logprobs))
    rising = (tokens.advantages > 0) & (ratio > 1.0 + tokens.epsilon_high)
    clipped = rising | ((tokens.advantages < 0) & (ratio < 1.0 - tokens.epsilon_low))
    masked = selection.clip_cov_tokens(
        covariances, tokens.counted, clipped, tokens.uniforms, share=share, low=low, high=high
    )
    return _keep(tokens, ~masked), _share("masked", masked, tokens)


def kl_cov(tokens: Tokens, *, share: float, coefficient: float) -> tuple[Tokens, Metrics]:
    """The ``share`` of tokens with the largest covariance pays coefficient · |log π − log π_old|. (Cui et al. 2025.)

    The loss becomes −ρ A, unclipped (`kl_cov_losses`), and reads ``coefficient``.
    """
    covariances = selection.token_covariances(tokens.logprobs, tokens.advantages, tokens.counted)
    penalised = selection.kl_cov_tokens(covariances, tokens.counted, share=share)
    return tokens._replace(penalised=tokens.penalised | penalised), _share("masked", penalised, tokens)


def mismatch_mask(tokens: Tokens, *, most: float) -> tuple[Tokens, Metrics]:
    """Tokens with π_trainer / π_sampler outside [1 / most, most] leave the gradient."""
    passing = selection.matching_tokens(
        tokens.old_logprobs, tokens.sampler_logprobs, tokens.counted, low=1 / most, high=most
    )
    return _keep(tokens, passing), _share("masked", tokens.counted & ~passing, tokens)


def overlong_mask(tokens: Tokens) -> tuple[Tokens, Metrics]:
    """Sequences cut at the cap on their length leave the loss, its denominator too. (DAPO, 3.4: overlong filtering.)"""
    cut = tokens.counted.any(axis=-1) & ~tokens.finished
    counted = tokens.counted & tokens.finished[:, None]
    return tokens._replace(counted=counted), {"masked": masked_mean(cut, tokens.counted.any(axis=-1))}


def apply_steps(tokens: Tokens, steps: Sequence[tuple[Step, Mapping[str, Any]]]) -> tuple[Tokens, Metrics]:
    """``steps``, pairs of a step and its keywords, one after the other; metrics as ``STEP/METRIC``."""
    metrics: Metrics = {}
    for step, keywords in steps:
        tokens, metrics_of_step = step(tokens, **keywords)
        metrics |= {f"{step.__name__}/{key}": value for key, value in metrics_of_step.items()}
    return tokens, metrics


def _peers(tokens: Tokens) -> jax.Array:
    """bool ``[N, N]``: the members of each sequence's group, itself included."""
    group = jnp.asarray(tokens.group)
    return (group[:, None] == group[None, :]) & tokens.counted.any(axis=-1)[None, :]


def _active(tokens: Tokens, from_step: int, until_step: int) -> jax.Array:
    step = jnp.asarray(tokens.step)
    return (step >= from_step) & ((step < until_step) if until_step else True)


def _keep(tokens: Tokens, passing: jax.Array) -> Tokens:
    return tokens._replace(weights=jnp.where(passing, tokens.weights, 0.0))


def _share(name: str, chosen: jax.Array, tokens: Tokens) -> Metrics:
    return {name: masked_mean(chosen, tokens.counted)}
