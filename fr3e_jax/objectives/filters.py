"""Filters: groups that carry signal, prompts that are explored, and the state of the archive.

Dimension key: M rewards of a group (base rollouts of a prompt, or branches of a state); `batch` is any leading axes.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Shaped

from fr3e_jax.objectives.arrays import AnyArray, Number


def degenerate_groups(
    rewards: Shaped[AnyArray, "*batch M"],
    mask: Shaped[AnyArray, "*batch M"] | None = None,
    *,
    success_threshold: float = 1.0,
) -> tuple[Bool[jax.Array, "*batch"], Bool[jax.Array, "*batch"]]:
    """(all_right, all_wrong): groups whose rewards are all equal, r_1 = … = r_M. (FR3E, 3.2 and Fig. 5.)

    All-Right if that reward is at least ``success_threshold``, else All-Wrong. An empty group is neither.
    """
    rewards = jnp.asarray(rewards, jnp.float32)
    present = jnp.ones_like(rewards, bool) if mask is None else jnp.asarray(mask, bool)
    largest = jnp.max(rewards, axis=-1, where=present, initial=-jnp.inf)
    smallest = jnp.min(rewards, axis=-1, where=present, initial=jnp.inf)
    equal = largest == smallest
    return equal & (largest >= success_threshold), equal & (largest < success_threshold)


def expandable(success_rate: Number | Shaped[AnyArray, "*batch"], max_success_rate: float) -> Bool[jax.Array, "*batch"]:
    """0 < rate ≤ p_max: a prompt with a right answer to return to, and hard enough to be worth it (hybrid)."""
    rate = jnp.asarray(success_rate, jnp.float32)
    return (rate > 0) & (rate <= max_success_rate)


def running_share(
    previous: Number | Shaped[AnyArray, "*batch"], observed: Number | Shaped[AnyArray, "*batch"], decay: float
) -> Float[jax.Array, "*batch"]:
    """s ← decay · s + (1 − decay) · observed; start it from the first observation."""
    return decay * jnp.asarray(previous, jnp.float32) + (1.0 - decay) * jnp.asarray(observed, jnp.float32)


def archive_open(all_wrong_share: Number | Shaped[AnyArray, "*batch"], threshold: float) -> Bool[jax.Array, "*batch"]:
    """share ≥ threshold: the archive of hard prompts is revisited only while most prompts are All-Wrong."""
    return jnp.asarray(all_wrong_share, jnp.float32) >= threshold
