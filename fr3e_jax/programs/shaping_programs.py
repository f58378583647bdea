"""The shaping steps of a mini-batch, compiled: NumPy in, NumPy out, padded to powers of two so that few shapes exist.

Several processes each compute the same on a device of their own: the inputs are whole and equal everywhere.

Dimension key: T tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from fr3e_jax.objectives import distillation, selection
from fr3e_jax.objectives.divergence import KL_ESTIMATORS
from fr3e_jax.objectives.divergence import sequence_log_ratios as mean_log_ratios
from fr3e_jax.objectives.returns import generalised_advantages as gae
from fr3e_jax.objectives.shaping_steps import Tokens, apply_steps
from fr3e_jax.programs.program import Program
from fr3e_jax.programs.size_buckets import padded, power_of_two

Steps = tuple[tuple[Callable, tuple[tuple[str, Any], ...]], ...]  # function and keywords, hashable


class Shaped(NamedTuple):
    """A mini-batch after the shaping steps; each ``[sequences, T]``, see `Tokens`."""

    advantages: np.ndarray
    counted: np.ndarray
    weights: np.ndarray
    penalised: np.ndarray


@partial(Program, static_argnames="steps")
def _shape(tokens: Tokens, *, steps: Steps):
    shaped, metrics = apply_steps(tokens, [(step, dict(keywords)) for step, keywords in steps])
    return Shaped(*shaped[: len(Shaped._fields)]), metrics


def shape_tokens(tokens: Tokens, steps: Steps) -> tuple[Shaped, dict[str, float]]:
    """`fr3e_jax.objectives.shaping_steps.apply_steps` on the host; padding is not counted."""
    (count, length), sizes = tokens.counted.shape, _sizes(tokens.counted)
    batch = Tokens(*(padded(x, *sizes[: np.ndim(x)]) if np.ndim(x) else x for x in tokens))
    batch = batch._replace(group=padded(tokens.group, sizes[0], fill=-1))
    shaped, metrics = jax.device_get(_shape(batch, steps=steps))
    return Shaped(*(x[:count, :length] for x in shaped)), {name: float(value) for name, value in metrics.items()}


def _sizes(x: np.ndarray) -> list[int]:
    return [power_of_two(size, 16) for size in x.shape]


_sequence_log_ratios = Program(mean_log_ratios)


def sequence_log_ratios(logprobs: np.ndarray, old_logprobs: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """`fr3e_jax.objectives.divergence.sequence_log_ratios` of sequences ``[N, T]``: float32 ``[N]``."""
    ratios = _sequence_log_ratios(*(padded(x, *_sizes(mask)) for x in (logprobs, old_logprobs, mask)))
    return np.asarray(ratios)[: len(mask)]


@partial(Program, static_argnames="estimator")
def _divergences(logprobs, reference, *, estimator):
    return KL_ESTIMATORS[estimator](logprobs, reference)


def token_divergences(logprobs: np.ndarray, reference: np.ndarray, *, estimator: str) -> np.ndarray:
    """Estimates of KL(π ‖ π_ref) per token, float32 ``[sequences, T]`` in nats; ``estimator``: k1, k2 or k3."""
    (count, length), sizes = logprobs.shape, _sizes(logprobs)
    divergences = _divergences(padded(logprobs, *sizes), padded(reference, *sizes), estimator=estimator)
    return np.asarray(divergences)[:count, :length]


_teacher_advantages = Program(distillation.teacher_advantages)


def teacher_advantages(logprobs: np.ndarray, teacher: np.ndarray) -> np.ndarray:
    """`fr3e_jax.objectives.distillation.teacher_advantages` of sequences, float32 ``[N, T]``."""
    (count, length), sizes = logprobs.shape, _sizes(logprobs)
    return np.asarray(_teacher_advantages(padded(logprobs, *sizes), padded(teacher, *sizes)))[:count, :length]


_forking_tokens = Program(selection.forking_tokens, static_argnames="share")


def forking_tokens(entropies: np.ndarray, mask: np.ndarray, *, share: float) -> np.ndarray:
    """`fr3e_jax.objectives.selection.forking_tokens` of sequences, bool ``[N, T]``; padding is not counted."""
    (count, length), sizes = mask.shape, _sizes(mask)
    chosen = _forking_tokens(padded(entropies, *sizes), padded(mask, *sizes), share=share)
    return np.asarray(chosen)[:count, :length]


@partial(Program, static_argnames=("gamma", "lam"))
def _generalised(rewards, values, mask, *, gamma, lam):
    return gae(rewards, values, mask, gamma=gamma, lam=lam)


def generalised_advantages(
    rewards: np.ndarray, values: np.ndarray, mask: np.ndarray, *, gamma: float, lam: float
) -> tuple[np.ndarray, np.ndarray]:
    """`fr3e_jax.objectives.returns.generalised_advantages` of sequences ``[N, T]``."""
    (count, length), sizes = mask.shape, _sizes(mask)
    inputs = (padded(x, *sizes) for x in (rewards, values, mask))
    estimates = jax.device_get(_generalised(*inputs, gamma=gamma, lam=lam))
    return tuple(x[:count, :length] for x in estimates)
