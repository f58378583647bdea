"""ARPO's decisions for many answers at once: the objective, compiled over padded batches.

NumPy in, NumPy out. Batches are padded to powers of two, so that few shapes are compiled.

Dimension key: T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fr3e_jax.objectives.tool_branching import branches_after_answer, entropy_from
from fr3e_jax.programs.program import Program
from fr3e_jax.programs.size_buckets import padded, power_of_two

_LEAST_ROWS = 16


def _decisions(entropies, sampled, starts, uniforms, *, tokens, vocabulary, weight, probability):
    def at(h, mask, start):
        return entropy_from(h, mask, start, tokens=tokens, vocabulary=vocabulary)

    change = jax.vmap(at)(entropies, sampled, starts) - jax.vmap(lambda h, mask: at(h, mask, 0))(entropies, sampled)
    changes = jnp.broadcast_to(change[:, None], uniforms.shape)
    return branches_after_answer(uniforms, changes, weight=weight, probability=probability)


_decide = Program(_decisions, static_argnames=("tokens", "vocabulary", "weight", "probability"))


def branching_decisions(
    entropies: Sequence[np.ndarray],
    sampled: Sequence[np.ndarray],
    starts: Sequence[int],
    uniforms: np.ndarray,
    *,
    most_tokens: int,
    tokens: int,
    vocabulary: int,
    weight: float,
    probability: float,
) -> np.ndarray:
    """Bool ``[answers, tries]``, whether to branch after each answer; see `fr3e_jax.objectives.tool_branching`.

    Args:
      entropies: float ``[T]`` for each answer, of the response that contains it; T at most ``most_tokens``.
      sampled: bool ``[T]`` for each answer, tokens that the policy wrote.
      starts: position after each answer.
      uniforms: ``[answers, tries]`` in [0, 1).
      most_tokens: the largest T; responses are padded to the power of two above it.
      tokens, vocabulary: of `fr3e_jax.objectives.entropy_from`.
      weight, probability: of `fr3e_jax.objectives.branches_after_answer`.
    """
    count = len(starts)
    rows, size = power_of_two(count, _LEAST_ROWS), power_of_two(most_tokens, 16)
    values, mask = np.zeros((rows, size), np.float32), np.zeros((rows, size), bool)
    for row, (entropy, mask_row) in enumerate(zip(entropies, sampled, strict=True)):
        values[row, : len(entropy)], mask[row, : len(mask_row)] = entropy, mask_row
    first, noise = padded(np.asarray(starts, np.int32), rows), padded(np.float32(uniforms), rows)
    options = {"tokens": tokens, "vocabulary": vocabulary, "weight": weight, "probability": probability}
    return np.asarray(_decide(values, mask, first, noise, **options))[:count]
