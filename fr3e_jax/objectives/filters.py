"""Groups without signal, and the archive's running share of All-Wrong prompts.

Dimension key: M rewards of a group (base rollouts of a prompt, or branches of a state); `batch` is any leading axes.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Shaped

from fr3e_jax.objectives.arrays import AnyArray, Number


def is_degenerate(rewards: np.ndarray) -> bool:
    """Whether r_1 = … = r_M: the group has no advantage to learn from. (FR3E, 3.2.) ``rewards``: ``[M]``, M ≥ 1."""
    return bool(np.all(rewards == rewards[0]))


def running_share(
    previous: Number | Shaped[AnyArray, "*batch"], observed: Number | Shaped[AnyArray, "*batch"], decay: float
) -> Float[jax.Array, "*batch"]:
    """s ← decay · s + (1 − decay) · observed; start it from the first observation."""
    return decay * jnp.asarray(previous, jnp.float32) + (1.0 - decay) * jnp.asarray(observed, jnp.float32)


def archive_open(all_wrong_share: Number | Shaped[AnyArray, "*batch"], threshold: float) -> Bool[jax.Array, "*batch"]:
    """share ≥ threshold: the archive of hard prompts is revisited only while most prompts are All-Wrong."""
    return jnp.asarray(all_wrong_share, jnp.float32) >= threshold
