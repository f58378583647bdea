"""Advantages from a value function: GAE and the critic's loss. (PPO; Cheng et al. 2025, 3.1.)

Dimension key: T tokens of a response; `batch` is any leading axes. Tokens outside the mask (padding, a tool's answer)
are skipped: the token before them is followed by the token after them.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Float, Shaped

from fr3e_jax.objectives.arrays import AnyArray, checked_shapes

_Pair = tuple[jax.Array, jax.Array]


@checked_shapes
def generalised_advantages(
    rewards: Float[AnyArray, "*batch T"],
    values: Float[AnyArray, "*batch T"],
    mask: Shaped[AnyArray, "*batch T"],
    *,
    gamma: float,
    lam: float,
) -> tuple[Float[jax.Array, "*batch T"], Float[jax.Array, "*batch T"]]:
    """A_t = Σ_k (γλ)^k δ_{t+k}, δ_t = r_t + γ V_{t+1} − V_t, V = 0 after the last token.

    (Schulman et al. 2016, eq. 16.) ``values[t]`` is V of the state that token t is drawn from. With γ = λ = 1 it is the
    sum of the rewards from t on, less V_t.

    Returns:
      advantages and returns A + V, both 0 outside the mask and without gradient.
    """
    mask = jnp.asarray(mask, bool)
    rewards, values = (
        jax.lax.stop_gradient(jnp.where(mask, jnp.asarray(x, jnp.float32), 0.0)) for x in (rewards, values)
    )

    def back(carry: _Pair, now: tuple[jax.Array, ...]) -> tuple[_Pair, jax.Array]:
        advantage, after = carry
        reward, value, inside = now
        fresh = reward + gamma * after - value + gamma * lam * advantage
        return (jnp.where(inside, fresh, advantage), jnp.where(inside, value, after)), jnp.where(inside, fresh, 0.0)

    start = (jnp.zeros(mask.shape[:-1], jnp.float32),) * 2
    by_token = tuple(jnp.moveaxis(x, -1, 0) for x in (rewards, values, mask))
    advantages = jnp.moveaxis(jax.lax.scan(back, start, by_token, reverse=True)[1], 0, -1)
    return advantages, jnp.where(mask, advantages + values, 0.0)


@checked_shapes
def clipped_value_losses(
    values: Float[AnyArray, "*batch T"],
    old_values: Float[AnyArray, "*batch T"],
    returns: Float[AnyArray, "*batch T"],
    mask: Shaped[AnyArray, "*batch T"],
    *,
    clip: float,
) -> Float[jax.Array, "*batch T"]:
    """½ max((V − R)², (clip(V, V_old ± clip) − R)²), 0 outside the mask; ``clip=0``: ½ (V − R)². (PPO.)"""
    mask = jnp.asarray(mask, bool)
    values, old_values, returns = (
        jnp.where(mask, jnp.asarray(x, jnp.float32), 0.0) for x in (values, old_values, returns)
    )
    squares = (values - returns) ** 2
    if clip:
        squares = jnp.maximum(squares, (jnp.clip(values, old_values - clip, old_values + clip) - returns) ** 2)
    return 0.5 * squares
