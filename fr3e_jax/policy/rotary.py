"""Rotary position embedding, and the scalings of its frequencies for contexts longer than those of pretraining.

Dimension key: B rows or trunk slots, N lanes of each, T tokens of a lane, D head size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Rotation(NamedTuple):
    """The rotary angles of tokens, float32 ``[B, N, T, D / 2]``: the same for every head of every layer of a kind."""

    cos: jax.Array
    sin: jax.Array


@dataclass(frozen=True)
class RopeScaling:
    """A scaling of the rotary frequencies, with Hugging Face's names.

    ``linear`` divides all frequencies by ``factor`` (Chen et al. 2023). ``llama3`` divides the low ones and leaves the
    high ones (Llama Team 2024). ``yarn`` does so by the number of turns in the pretraining context, and multiplies
    sine and cosine by ``attention_factor`` (Peng et al. 2023, YaRN, section 3.4).
    """

    kind: Literal["linear", "llama3", "yarn"]
    factor: float
    original_max_position_embeddings: int = 0  # positions of pretraining; llama3 and yarn
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn: turns from which a frequency stays as it is
    beta_slow: float = 1.0  # yarn: turns up to which a frequency is divided by the factor
    attention_factor: float = 0.0  # yarn; 0: 0.1 ln(factor) + 1

    @property
    def amplitude(self) -> float:
        """By which sine and cosine are multiplied."""
        if self.kind != "yarn":
            return 1.0
        return self.attention_factor or (0.1 * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0)


def rotary_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None = None) -> np.ndarray:
    """``theta ** (-2 i / head_dim)``, float32 ``[head_dim / 2]``, each operation rounded as transformers rounds it.

    At position 100,000 one bit of a frequency turns a head by 0.01. The power is of float64: numpy's of float32 differs
    by a bit between processors (with AVX-512 for every fifth frequency), torch's for one in a hundred.
    """
    exponents = np.arange(head_dim // 2, dtype=np.float32) / np.float32(head_dim // 2)
    periods = np.power(np.float64(np.float32(theta)), exponents.astype(np.float64)).astype(np.float32)
    if scaling is None:
        return np.float32(1) / periods
    if scaling.kind == "linear":
        return np.float32(1) / periods / np.float32(scaling.factor)
    return _LONG_CONTEXT[scaling.kind](periods, theta, scaling)


def _llama3(periods: np.ndarray, theta: float, s: RopeScaling) -> np.ndarray:
    frequencies = np.float32(1) / periods
    lengths = np.float32(2 * math.pi) / frequencies
    turns = np.float32(s.original_max_position_embeddings) / lengths
    smooth = (turns - np.float32(s.low_freq_factor)) / np.float32(s.high_freq_factor - s.low_freq_factor)
    divided = frequencies / np.float32(s.factor)
    between = (np.float32(1) - smooth) * frequencies / np.float32(s.factor) + smooth * frequencies
    low = lengths > s.original_max_position_embeddings / s.low_freq_factor
    high = lengths < s.original_max_position_embeddings / s.high_freq_factor
    return np.where(low, divided, np.where(high, frequencies, between)).astype(np.float32)


def _yarn(periods: np.ndarray, theta: float, s: RopeScaling) -> np.ndarray:
    size = 2 * len(periods)

    def dimension_of(turns):
        return size * math.log(s.original_max_position_embeddings / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = max(math.floor(dimension_of(s.beta_fast)), 0), min(math.ceil(dimension_of(s.beta_slow)), size - 1)
    ramp = (np.arange(size // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low if high > low else 0.001)
    extrapolated = np.float32(1) - np.clip(ramp, 0, 1)
    divided = np.float32(1) / (np.float32(s.factor) * periods)
    return (divided * (np.float32(1) - extrapolated) + np.float32(1) / periods * extrapolated).astype(np.float32)


_LONG_CONTEXT = {"llama3": _llama3, "yarn": _yarn}


def rotation(positions: jax.Array, head_dim: int, theta: float, scaling: RopeScaling | None = None) -> Rotation:
    """The rotary angles of tokens at ``positions [B, N, T]``."""
    frequencies = jnp.asarray(rotary_frequencies(head_dim, theta, scaling)).reshape(1, 1, 1, -1)
    angles = positions[..., None].astype(jnp.float32) * frequencies

    # XLA on CPU fuses everything but a loop with its consumers. Fused, sine and cosine would be computed again for each
    # head of each layer, forward and backward.
    def of_turn(is_sine):
        return jnp.where(is_sine, jnp.sin(angles), jnp.cos(angles))

    turns = jax.lax.map(of_turn, jnp.array([False, True]))
    return Rotation(*(turns if scaling is None or scaling.amplitude == 1 else turns * scaling.amplitude))


def rotary(x: jax.Array, turn: Rotation) -> jax.Array:
    """Turn the heads of ``x [B, N, T, heads, D]`` by their positions, in x's dtype.

    Pairs are half a head apart, as in Hugging Face's implementation. (Su et al. 2021, RoFormer.)
    """
    # Reverse both halves instead of slicing them: the gradient of a slice is an array padded with zeros.
    cos, sin = (x[..., None, None, :] for x in turn)
    halves = x.astype(jnp.float32).reshape(*x.shape[:-1], 2, x.shape[-1] // 2)
    sign = jnp.asarray([-1.0, 1.0], jnp.float32).reshape(1, 1, 1, 1, 2, 1)
    turned = halves * cos + jnp.flip(halves, axis=-2) * (sign * sin)
    return turned.reshape(x.shape).astype(x.dtype)
