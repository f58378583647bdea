"""Building blocks of the network: linear map, RMSNorm, gated SiLU and GELU.

Norm and gate have hand-written gradients. Each comment says what XLA would otherwise do.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx


def parameter(rngs: nnx.Rngs, shape: tuple[int, ...], axes: tuple[str | None, ...], std: float, dtype: str):
    """A parameter drawn from normal(0, std), or zeros for ``std=0``; ``axes``: its logical axes, for sharding."""
    if std == 0:
        return nnx.Param(jnp.zeros(shape, dtype), axes=axes)
    return nnx.Param((jax.random.normal(rngs.params(), shape) * std).astype(dtype), axes=axes)


def _along_last(vector: nnx.Param | jax.Array, x: jax.Array) -> jax.Array:
    """``vector`` reshaped to as many axes as ``x`` has, so that no broadcast promotes a rank."""
    return vector[...].reshape((1,) * (x.ndim - 1) + (-1,))


_FEW_ROWS = 256
_LARGE_KERNEL = 1 << 16


def product(x: jax.Array, kernel: jax.Array, out_type: jnp.dtype | None = None) -> jax.Array:
    """``x [rows, in] @ kernel [in, out]``; a decode step's few rows in the way that is fastest on CPU.

    XLA on CPU leaves a product to YNNPACK, but to Eigen where x lies as ``[in, rows]``. With few rows of x and a kernel
    that no cache holds, Eigen takes a sixth to a quarter less time (docs/developers/performance_notebook.md).
    """
    multiply = partial(jnp.matmul, preferred_element_type=out_type)
    if x.shape[0] > _FEW_ROWS or kernel.size < _LARGE_KERNEL:
        return multiply(x, kernel)

    def by_columns(x, kernel):
        columns = jax.lax.optimization_barrier(x.T)  # else XLA folds the transposition into the product
        return jax.lax.dot_general(columns, kernel, (((0,), (0,)), ((), ())), preferred_element_type=out_type)

    return jax.lax.platform_dependent(x, kernel, cpu=by_columns, default=multiply)


def scaled_product(x: jax.Array, kernel: jax.Array, scale: jax.Array) -> jax.Array:
    """``(x @ kernel) * scale`` in x's type, for an int8 kernel with a scale for each column (`fr3e_jax.policy.int8`).

    The kernel's whole numbers are exact in x's type, and the result is rounded once, after the scales.
    """
    return (product(x, kernel.astype(x.dtype), jnp.float32) * scale[None]).astype(x.dtype)


class LowRank(nnx.Module):
    """``scale * (x @ a) @ b`` over the last axis, in x's dtype: the product of a low-rank adapter.

    ``a [in, rank]``, ``b [rank, out]``; `fr3e_jax.policy.lora.initial_adapters` draws them. (Hu et al. 2021.)
    """

    def __init__(self, size_in: int, size_out: int, axes: tuple[str, str], rank: int, scale: float, dtype: str):
        self.a = nnx.Param(jnp.zeros((size_in, rank), dtype), axes=(axes[0], None))
        self.b = nnx.Param(jnp.zeros((rank, size_out), dtype), axes=(None, axes[1]))
        self.scale = scale

    def __call__(self, x: jax.Array) -> jax.Array:
        return product(product(x, self.a[...].astype(x.dtype)), self.b[...].astype(x.dtype)) * self.scale


class Linear(nnx.Module):
    """``x @ kernel + bias`` over the last axis, in x's dtype; with an adapter also its product.

    With ``channel_scale`` the kernel is int8.
    """

    def __init__(self, rngs, size_in: int, size_out: int, axes: tuple[str, str], dtype: str, *, bias: bool = False):
        self.kernel = parameter(rngs, (size_in, size_out), axes, size_in**-0.5, dtype)
        self.bias = parameter(rngs, (size_out,), axes[1:], 0.0, dtype) if bias else None
        self.adapter: LowRank | None = nnx.data(None)  # `fr3e_jax.policy.lora` adds it
        self.channel_scale: nnx.Param | None = nnx.data(None)  # `fr3e_jax.policy.int8` adds it

    def __call__(self, x: jax.Array) -> jax.Array:
        # One matrix: with several token axes XLA on CPU copies y's gradient, transposed, for the kernel's gradient.
        flat = x.reshape(-1, x.shape[-1])
        if self.channel_scale is None:
            y = product(flat, self.kernel[...].astype(x.dtype))
        else:
            y = scaled_product(flat, self.kernel[...], self.channel_scale[...])
        if self.adapter is not None:
            y = y + self.adapter(flat)
        y = y.reshape(*x.shape[:-1], -1)
        return y if self.bias is None else y + _along_last(self.bias, y).astype(x.dtype)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def rms_norm(x: jax.Array, scale: jax.Array, epsilon: float) -> jax.Array:
    """``scale * x / sqrt(mean(x**2) + epsilon)`` over the last axis, in x's dtype, computed in float32.

    (Zhang and Sennrich 2019, eq. 4.) A mean that overflows gives NaN. Divided by an infinite root, x would become 0,
    and the network would go on with uniform distributions.
    """
    return _normalise(x, scale, epsilon)[0]


def _normalise(x, scale, epsilon):
    wide = x.astype(jnp.float32)
    mean = jnp.mean(wide * wide, axis=-1, keepdims=True)
    inverse = jnp.where(mean < jnp.inf, jax.lax.rsqrt(mean + epsilon), jnp.nan)
    return (wide * inverse * _along_last(scale, wide).astype(jnp.float32)).astype(x.dtype), (x, inverse, scale)


def _normalise_backward(epsilon, saved, cotangent):
    """Both sums over products of three factors are matrix products: XLA on CPU's own loop takes ten times as long."""
    (x, inverse, scale), wide_slope = saved, cotangent.astype(jnp.float32)
    wide, wide_scale, size = x.astype(jnp.float32), scale.astype(jnp.float32), x.shape[-1]
    product = wide_slope * wide
    leading = tuple(range(x.ndim - 1))
    exact = partial(jax.lax.dot_general, precision="highest")
    d_scale = exact(inverse[..., 0], product, ((leading, leading), ((), ())))
    along = exact(product, wide_scale / size, (((x.ndim - 1,), (0,)), ((), ())))[..., None]
    d_x = (wide_slope * _along_last(wide_scale, wide) - wide * (along * inverse * inverse)) * inverse
    return d_x.astype(x.dtype), d_scale.astype(scale.dtype)


rms_norm.defvjp(_normalise, _normalise_backward)


class RMSNorm(nnx.Module):
    """`rms_norm` with a trained scale; with ``unit_offset`` 1 is added to it in float32."""

    def __init__(self, size: int, epsilon: float, dtype: str, *, unit_offset: bool = False):
        self.scale = nnx.Param((jnp.zeros if unit_offset else jnp.ones)((size,), dtype), axes=(None,))
        self.epsilon, self.unit_offset = epsilon, unit_offset

    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.scale[...]
        return rms_norm(x, 1 + scale.astype(jnp.float32) if self.unit_offset else scale, self.epsilon)


@jax.custom_vjp
def gated_silu(gate: jax.Array, up: jax.Array) -> jax.Array:
    """``SiLU(gate) * up``. (Shazeer 2020, SwiGLU.)

    The backward pass computes the sigmoid again: a tenth less to store, in the same time.
    """
    return jax.nn.silu(gate) * up


def _gated_silu_backward(saved, cotangent):
    gate, up = saved
    gate = jax.lax.optimization_barrier(gate)  # else XLA finds the sigmoid of the forward pass equal, and stores it
    sigmoid = jax.nn.sigmoid(gate)
    return cotangent * up * (sigmoid * (1 + gate * (1 - sigmoid))), cotangent * (gate * sigmoid)


gated_silu.defvjp(lambda gate, up: (gated_silu(gate, up), (gate, up)), _gated_silu_backward)


@jax.custom_vjp
def gated_gelu(gate: jax.Array, up: jax.Array) -> jax.Array:
    """``GELU(gate) * up`` in the approximation by tanh. (Shazeer 2020, GEGLU.) Nothing but its inputs is stored."""
    return _gelu(gate) * up


_gelu = partial(jax.nn.gelu, approximate=True)


def _gated_gelu_backward(saved, cotangent):
    gate, up = saved
    value, pull = jax.vjp(_gelu, jax.lax.optimization_barrier(gate))
    return pull(cotangent * up)[0], cotangent * value


gated_gelu.defvjp(lambda gate, up: (gated_gelu(gate, up), (gate, up)), _gated_gelu_backward)

GATES = {"silu": gated_silu, "gelu_pytorch_tanh": gated_gelu}
