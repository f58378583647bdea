"""Projections and MLP in int8, for rollouts: kernels of whole numbers with one scale for each output channel.

The scale of a channel lies beside its kernel, as ``params[...]["channel_scale"]``. Only the stored kernels are narrow:
a product reads them in its input's type and multiplies the result by the scales (`modules.Linear`). Embedding, head,
norms, biases and adapters stay as they are. `fr3e_jax.programs.reshard` makes the copy after each update.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from fr3e_jax.policy.architecture import UnsupportedModel
from fr3e_jax.policy.modules import Linear
from fr3e_jax.policy.network import Block, Params

SCALE = "channel_scale"
LARGEST = 127  # −128 is not used, so that a kernel and its negative have the same numbers


def quantise(kernel: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Whole numbers int8 ``[in, out]`` and scales float32 ``[out]`` whose product is nearest to ``kernel [in, out]``.

    ``scale_j = max_i |w_ij| / 127``, ``q_ij = round(w_ij / scale_j)`` with halves to even (symmetric, per channel;
    Nagel et al. 2021, section 2.2). So ``|w_ij - q_ij scale_j| <= scale_j / 2``, and the largest weight of a channel is
    ±127. A channel of zeros has scale 0, as has one whose scale float32 has no normal number for. With a weight that is
    NaN or infinite the channel's scale is NaN, and so is every logit.
    """
    wide = kernel.astype(jnp.float32)
    largest = jnp.max(jnp.abs(wide), axis=0)
    scale = jnp.where(jnp.isfinite(largest), largest / LARGEST, jnp.nan)
    normal = scale >= jnp.finfo(jnp.float32).tiny
    scale = jnp.where(normal | jnp.isnan(scale), scale, 0.0)
    rounded = jnp.round(wide / jnp.where(normal, scale, 1.0)[None])
    # A number that is not finite has no place in int8; its channel's scale says so.
    rounded = jnp.where(normal[None], jnp.clip(rounded, -LARGEST, LARGEST), 0.0)
    return rounded.astype(jnp.int8), scale


def quantised(like: Params, params: Params) -> Params:
    """``params`` with the kernels in int8 that ``like`` has a `SCALE` beside, and with these scales."""
    if SCALE in like:
        values, scale = quantise(params["kernel"])
        return params | {"kernel": values, SCALE: scale}
    return {key: quantised(like[key], value) if isinstance(value, dict) else value for key, value in params.items()}


def with_scales(network: nnx.Module) -> nnx.Module:
    """The network with int8 kernels and their scales, for `fr3e_jax.policy.network.build_network`.

    Raises:
      UnsupportedModel: a layer has a matrix that is no projection of attention or MLP, as experts have.
    """
    for layer in network.layers:
        for module in _projections(layer):
            values = module.kernel
            module.channel_scale = nnx.Param(jnp.zeros(values.shape[1:], jnp.float32), axes=values.axes[1:])
            module.kernel = nnx.Param(values[...].astype(jnp.int8), axes=values.axes)
        _check_whole(layer)
    return network


def _projections(layer: Block) -> Iterator[Linear]:
    attention = layer.attention
    yield from (attention.query, attention.key, attention.value, attention.out)
    for name in ("gate", "up", "down"):  # a layer of experts has none of them
        if hasattr(layer, name):
            yield getattr(layer, name)


def _check_whole(layer: Block) -> None:
    for path, leaf in nnx.to_flat_state(nnx.split(layer)[1]):
        if leaf[...].ndim > 1 and leaf[...].dtype != jnp.int8 and "adapter" not in path:
            raise UnsupportedModel(
                f"rollout.param_dtype=int8 stores the projections of attention and MLP in int8, and this network has "
                f"{'/'.join(map(str, path))} {list(leaf.shape)} in its layers; set rollout.param_dtype=bfloat16"
            )


def channel_elements(params: Any) -> tuple[int, int]:
    """Elements of all int8 kernels, and of all scales, of abstract parameters."""
    leaves = jax.tree.leaves_with_path(params)
    kernels = sum(leaf.size for _, leaf in leaves if leaf.dtype == jnp.int8)
    return kernels, sum(leaf.size for path, leaf in leaves if path[-1].key == SCALE)
