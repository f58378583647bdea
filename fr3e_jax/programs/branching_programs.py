"""ARPO's decisions for many answers at once: the objective, compiled over padded batches. NumPy in, NumPy out."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fr3e_jax.objectives.tool_branching import branches_after_answer, entropy_from
from fr3e_jax.programs.decoder import power_of_two

_LEAST_ROWS = 16


def _decisions(entropies, drawn, starts, uniforms, *, tokens, vocabulary, weight, probability):
    at = lambda h, mask, start: entropy_from(h, mask, start, tokens=tokens, vocabulary=vocabulary)
    change = jax.vmap(at)(entropies, drawn, starts) - jax.vmap(lambda h, mask: at(h, mask, 0))(entropies, drawn)
    changes = jnp.broadcast_to(change[:, None], uniforms.shape)
    return branches_after_answer(uniforms, changes, weight=weight, probability=probability)


_decide = jax.jit(_decisions, static_argnames=("tokens", "vocabulary", "weight", "probability"))


def branching_decisions(
    entropies: Sequence[np.ndarray],
    drawn: Sequence[np.ndarray],
    starts: Sequence[int],
    uniforms: np.ndarray,
    *,
    most_tokens: int,
    tokens: int,
    vocabulary: int,
    weight: float,
    probability: float,
) -> np.ndarray:
    """Bool ``[answers, tries]``, whether to branch; see `fr3e_jax.objectives.tool_branching`.

    Args:
      entropies, drawn: ``[T]`` each, of the response that an answer stands in; T at most ``most_tokens``.
      starts: position behind each answer.
      uniforms: ``[answers, tries]``.
    """
    count = len(starts)
    rows, size = power_of_two(count, _LEAST_ROWS), power_of_two(most_tokens, 16)
    padded, mask = np.zeros((rows, size), np.float32), np.zeros((rows, size), bool)
    for row, (values, own) in enumerate(zip(entropies, drawn, strict=True)):
        padded[row, : len(values)], mask[row, : len(own)] = values, own
    first = np.zeros(rows, np.int32)
    first[:count] = starts
    noise = np.zeros((rows, uniforms.shape[1]), np.float32)
    noise[:count] = uniforms
    options = {"tokens": tokens, "vocabulary": vocabulary, "weight": weight, "probability": probability}
    return np.asarray(_decide(padded, mask, first, noise, **options))[:count]
