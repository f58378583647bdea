"""Values of the states of a base trajectory, and the factors on advantages that follow from them.

A trajectory has the states S_0 = q, S_1 .. S_J. Values are computed over *all* of them, before any group is filtered:
V(S_{j−1}) is the previous state of the same trajectory, also when that state's own group leaves the loss. States that
do not exist (a response with fewer anchors) are not ``valid``; they are skipped, and have difference 0 and factor 1.

Dimension key: J states S_1..S_J, M branches per state; `batch` is any leading axes (prompts, base rollouts).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Float, Shaped

from fr3e_jax.objectives.arrays import AnyArray, Number, checked_shapes
from fr3e_jax.objectives.reductions import masked_mean


@checked_shapes
def state_values(
    rewards: Shaped[AnyArray, "*batch J M"], mask: Shaped[AnyArray, "*batch J M"]
) -> Float[jax.Array, "*batch J"]:
    """V(S_j) = (1/M) Σ_m r_{j,m}; 0 for a state without rollouts. (FR3E, eq. 13.)"""
    return masked_mean(rewards, mask, axis=-1)


@checked_shapes
def value_differences(
    values: Float[AnyArray, "*batch J"],
    initial_value: Number | Shaped[AnyArray, "*batch"],
    valid: Shaped[AnyArray, "*batch J"],
) -> Float[jax.Array, "*batch J"]:
    """δ_j = V(S_j) − V(S_{j−1}), from the previous valid state or, for the first, from V(S_0). (FR3E, 4.3.)"""
    values, valid = jnp.asarray(values, jnp.float32), jnp.asarray(valid, bool)
    order = jnp.where(valid, jnp.broadcast_to(jnp.arange(values.shape[-1]), values.shape), -1)
    latest = jax.lax.cummax(order, axis=values.ndim - 1)
    before = jnp.concatenate([jnp.full_like(latest[..., :1], -1), latest[..., :-1]], axis=-1)
    previous = jnp.take_along_axis(values, jnp.maximum(before, 0), axis=-1)
    start = jnp.broadcast_to(jnp.asarray(initial_value, jnp.float32), values.shape[:-1])[..., None]
    previous = jnp.where(before >= 0, previous, start)
    return jnp.where(valid, values - previous, 0.0)


@checked_shapes
def sharpened(differences: Float[AnyArray, "*batch J"]) -> Float[jax.Array, "*batch J"]:
    """δ_j → sign(δ_j) |δ_j|^1.5 / Σ_i |δ_i|^1.5 over the trajectory; 0 where all δ are 0. (The FR3E authors' code.)

    A single state with δ ≠ 0 becomes ±1 whatever its size: a property of the variant, not an effect of filtering.
    """
    differences = jnp.asarray(differences, jnp.float32)
    powers = jnp.abs(differences) ** 1.5
    total = jnp.sum(powers, axis=-1, keepdims=True)
    return jnp.sign(differences) * powers / jnp.where(total > 0, total, 1.0)


@checked_shapes
def trajectory_modulation(
    values: Float[AnyArray, "*batch J"],
    initial_value: Number | Shaped[AnyArray, "*batch"],
    valid: Shaped[AnyArray, "*batch J"],
    *,
    variant: str,
    fresh: bool = False,
) -> Float[jax.Array, "*batch J+1"]:
    """α_j = exp(−δ_j) of S_0, S_1 .. S_J, with δ_0 = 0. (FR3E, eq. 14; it leaves the δ_0 of a trained S_0 undefined.)

    ``sharpen`` puts `sharpened` differences there, and if S_0 trains (``fresh``), the authors' δ_0 = 1 − V(S_0) among
    them; ``none`` is α = 1.
    """
    differences = value_differences(values, initial_value, valid)
    start = 1.0 - jnp.asarray(initial_value, jnp.float32) if fresh and variant == "sharpen" else 0.0
    start = jnp.broadcast_to(start, differences.shape[:-1])
    differences = jnp.concatenate([start[..., None], differences], axis=-1)
    if variant == "none":
        return jnp.ones_like(differences)
    if variant == "exp":
        return jnp.exp(-differences)
    if variant == "sharpen":
        return jnp.exp(-sharpened(differences))
    raise ValueError(f"unknown modulation {variant!r}; expected none, exp, sharpen")
