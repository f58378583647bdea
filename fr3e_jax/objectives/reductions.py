"""Sums, means and spreads over the entries where a mask holds, with the empty case defined once.

Entries outside the mask are replaced before any arithmetic: NaN or infinity there reaches neither value nor gradient.
An empty selection has sum, mean and standard deviation 0, with gradient 0. Masks are bool or numbers (not 0: in).

Dimension key: `shape` is any number of axes.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Float, Shaped

from fr3e_jax.objectives.arrays import AnyArray, checked_shapes

Axis = int | tuple[int, ...] | None


@checked_shapes
def masked_sum(
    x: Shaped[AnyArray, "*shape"], mask: Shaped[AnyArray, "*shape"], axis: Axis = None, *, keepdims: bool = False
) -> Float[jax.Array, "*reduced"]:
    """Σ_{i: mask_i} x_i over ``axis`` (None: all), in float32; 0 where nothing is selected."""
    selected = jnp.where(jnp.asarray(mask, bool), jnp.asarray(x, jnp.float32), 0.0)
    return jnp.sum(selected, axis=axis, keepdims=keepdims)


@checked_shapes
def masked_mean(
    x: Shaped[AnyArray, "*shape"], mask: Shaped[AnyArray, "*shape"], axis: Axis = None, *, keepdims: bool = False
) -> Float[jax.Array, "*reduced"]:
    """Σ_{i: mask_i} x_i / #{i: mask_i} over ``axis`` (None: all); 0 where nothing is selected."""
    total = masked_sum(x, mask, axis, keepdims=keepdims)
    return total / jnp.maximum(masked_sum(jnp.ones_like(x), mask, axis, keepdims=keepdims), 1.0)


@checked_shapes
def masked_std(
    x: Shaped[AnyArray, "*shape"], mask: Shaped[AnyArray, "*shape"], axis: Axis = None, unbiased: bool = False
) -> Float[jax.Array, "*reduced"]:
    """√( Σ_{i: mask_i} (x_i − mean)² / n ) over ``axis``; ``unbiased`` divides by n − 1.

    One selected entry, or none, has deviation 0 in both forms. The gradient at deviation 0 is 0.
    """
    x = jnp.where(jnp.asarray(mask, bool), jnp.asarray(x, jnp.float32), 0.0)  # before the square, whose slope at ∞ is ∞
    deviations = x - masked_mean(x, mask, axis, keepdims=True)
    count = masked_sum(jnp.ones_like(x), mask, axis)
    return safe_sqrt(masked_sum(deviations**2, mask, axis) / jnp.maximum(count - float(unbiased), 1.0))


@checked_shapes
def safe_sqrt(x: Float[AnyArray, "*shape"]) -> Float[jax.Array, "*shape"]:
    """√x for x > 0, else 0; the derivative at 0 is 0 and not infinite."""
    x = jnp.asarray(x, jnp.float32)
    return jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1.0)), 0.0)
