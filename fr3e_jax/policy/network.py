"""The network of Qwen2, Qwen2.5 and dense Qwen3: a Flax module used as a pure function of ``graphdef`` and ``params``.

``params`` is a plain nested dict of arrays (``params["layers"][0]["attention"]["query"]["kernel"]``); every parameter
is declared once, with its shape, its logical axes (for sharding) and its initial scale.

Dimension key: B trunks, N lanes, T tokens, C own positions, V vocabulary, K/G/D heads as in `attention`, E width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from fr3e_jax.policy.architecture import Architecture
from fr3e_jax.policy.attention import (
    KeyValue,
    Rotation,
    RowView,
    rotary,
    rotation,
    row_attention,
    trunk_branch_attention,
)
from fr3e_jax.policy.decode_attention import OwnPart, decode_attention

Params = dict[str, Any]


class OwnCache(NamedTuple):
    """The lanes' own keys and values in a decode step; L = B * N lanes."""

    ring: tuple[KeyValue, ...]  # of each layer, only read: key [L, K, D, C], value [L, K, C, D]; () if all is recent
    ring_seen: jax.Array  # bool [L, C]
    recent: tuple[KeyValue, ...]  # of each layer, written into: key [L, K, D, R], value [L, K, R, D]
    recent_seen: jax.Array  # bool [L, R], the new token's column included
    column: jax.Array  # int32 scalar, where in ``recent`` the new token goes
    writes: jax.Array  # bool [L]; other lanes keep what stands in the column

    def of_layer(self, number: int) -> OwnCache:
        """With the ring and the recent columns of this layer alone."""
        one = slice(number, number + 1)
        return self._replace(ring=self.ring[one], recent=self.recent[one])


def _parameter(rngs: nnx.Rngs, shape: tuple[int, ...], axes: tuple[str | None, ...], std: float, dtype: str):
    if std == 0:
        return nnx.Param(jnp.zeros(shape, dtype), axes=axes)
    return nnx.Param((jax.random.normal(rngs.params(), shape) * std).astype(dtype), axes=axes)


def _along_last(vector: nnx.Param | jax.Array, x: jax.Array) -> jax.Array:
    """``vector`` with as many axes as ``x``: broadcasting is never left to differing ranks."""
    return vector[...].reshape((1,) * (x.ndim - 1) + (-1,))


class Linear(nnx.Module):
    def __init__(self, rngs, size_in: int, size_out: int, axes: tuple[str, str], dtype: str, *, bias: bool = False):
        self.kernel = _parameter(rngs, (size_in, size_out), axes, size_in**-0.5, dtype)
        self.bias = _parameter(rngs, (size_out,), axes[1:], 0.0, dtype) if bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        # As one matrix: with several token axes XLA on CPU copies y's gradient, transposed, for the kernel's gradient.
        y = (x.reshape(-1, x.shape[-1]) @ self.kernel[...].astype(x.dtype)).reshape(*x.shape[:-1], -1)
        return y if self.bias is None else y + _along_last(self.bias, y).astype(x.dtype)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def rms_norm(x: jax.Array, scale: jax.Array, epsilon: float) -> jax.Array:
    """``scale * x / sqrt(mean(x**2) + epsilon)`` over the last axis, in x's dtype, computed in float32."""
    return _normalise(x, scale, epsilon)[0]


def _normalise(x, scale, epsilon):
    wide = x.astype(jnp.float32)
    inverse = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + epsilon)
    return (wide * inverse * _along_last(scale, wide).astype(jnp.float32)).astype(x.dtype), (x, inverse, scale)


def _normalise_backward(epsilon, saved, cotangent):
    """Both sums over products of three as matrix products: XLA on CPU takes ten times as long over its own loop."""
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
    def __init__(self, size: int, epsilon: float, dtype: str):
        self.scale = nnx.Param(jnp.ones((size,), dtype), axes=(None,))
        self.epsilon = epsilon

    def __call__(self, x: jax.Array) -> jax.Array:
        return rms_norm(x, self.scale[...], self.epsilon)


class Attention(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, a: Architecture, dtype: str):
        inner, kv = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
        self.query = Linear(rngs, a.hidden_size, inner, ("embed", "heads"), dtype, bias=a.qkv_bias)
        self.key = Linear(rngs, a.hidden_size, kv, ("embed", "kv_heads"), dtype, bias=a.qkv_bias)
        self.value = Linear(rngs, a.hidden_size, kv, ("embed", "kv_heads"), dtype, bias=a.qkv_bias)
        self.out = Linear(rngs, inner, a.hidden_size, ("heads", "embed"), dtype, bias=a.out_bias)
        self.query_norm = RMSNorm(a.head_dim, a.rms_norm_eps, dtype) if a.qk_norm else None
        self.key_norm = RMSNorm(a.head_dim, a.rms_norm_eps, dtype) if a.qk_norm else None
        self.sizes = (a.num_kv_heads, a.heads_per_kv_head, a.head_dim)

    def __call__(
        self, x, turn, own_mask=None, cache: OwnCache | None = None, trunk: KeyValue | None = None, fork=None, rows=None
    ):
        kv_heads, group, head_dim = self.sizes
        query = self.query(x).reshape(*x.shape[:3], kv_heads * group, head_dim)
        key = self.key(x).reshape(*x.shape[:3], kv_heads, head_dim)
        if self.query_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        query, key = rotary(query, turn), rotary(key, turn)
        value = self.value(x).reshape(*x.shape[:3], kv_heads, head_dim)
        own = KeyValue(jnp.transpose(key, (0, 1, 3, 4, 2)), jnp.swapaxes(value, 2, 3))
        query = query.reshape(*x.shape[:3], kv_heads, group, head_dim)
        if rows is not None:
            view, block = rows
            mixed = row_attention(query, own, view, block=block)
        elif cache is None:
            mixed = trunk_branch_attention(query, own, own_mask, trunk, fork)
        else:
            own = _write_column(cache.recent[0], own, cache)
            parts = [OwnPart(own, cache.recent_seen), *(OwnPart(ring, cache.ring_seen) for ring in cache.ring)]
            mixed = decode_attention(query[:, :, 0], parts, trunk, fork[:, :, 0])
        return self.out(mixed.reshape(*x.shape[:3], -1)), own


def _write_column(old: KeyValue, new: KeyValue, cache: OwnCache) -> KeyValue:
    """Put one token per lane into its column; lanes that do not write keep their content (it may be promoted)."""
    writes = cache.writes[:, None, None, None]

    def put(buffer, fresh, axis):
        kept = jax.lax.dynamic_slice_in_dim(buffer, cache.column, 1, axis)
        fresh = fresh.reshape(kept.shape).astype(buffer.dtype)
        return jax.lax.dynamic_update_slice_in_dim(buffer, jnp.where(writes, fresh, kept), cache.column, axis)

    return KeyValue(put(old.key, new.key, 3), put(old.value, new.value, 2))


def through_block(graphdef, state, x, turn, own_mask, cache, trunk, fork, view, *, place, window, block):
    """A `Block` from its parts: the same function for every layer; ``graphdef`` and the keywords are static."""
    rows = None if view is None else (view._replace(window=window), block)
    return nnx.merge(graphdef, state)(x, turn, own_mask, cache, trunk, fork, rows, place=place)


@dataclass(frozen=True)
class Placement:
    """How the arrays of a pass lie on a mesh, and how a layer is called; the default leaves both to the compiler."""

    hidden: Callable[[jax.Array], jax.Array] = lambda x: x  # hidden states [B, N, T, E]
    between: Callable[[jax.Array], jax.Array] = lambda x: x  # the same where they are kept or added to, not multiplied
    embedding: Callable[[jax.Array], jax.Array] = lambda x: x  # the embedding [V, E] that tokens are looked up in
    head: Callable[[jax.Array, int], jax.Array] = lambda x, axis: x  # the head, whose axis ``axis`` is the vocabulary
    by_shard: Callable[[jax.Array], jax.Array] = lambda x: x  # what exists once for each shard of rows, [shards, ...]
    layer: Callable = through_block  # or a version of it that is traced once for all layers


ANYWHERE = Placement()


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, a: Architecture, dtype: str):
        self.attention_norm = RMSNorm(a.hidden_size, a.rms_norm_eps, dtype)
        self.attention = Attention(rngs, a, dtype)
        self.mlp_norm = RMSNorm(a.hidden_size, a.rms_norm_eps, dtype)
        self.gate = Linear(rngs, a.hidden_size, a.intermediate_size, ("embed", "mlp"), dtype)
        self.up = Linear(rngs, a.hidden_size, a.intermediate_size, ("embed", "mlp"), dtype)
        self.down = Linear(rngs, a.intermediate_size, a.hidden_size, ("mlp", "embed"), dtype)

    def __call__(self, x, *attention_inputs, place: Placement = ANYWHERE):
        mixed, own = self.attention(place.hidden(self.attention_norm(x)), *attention_inputs)
        x = x + place.between(mixed)
        return x + place.between(self.mlp(place.hidden(self.mlp_norm(x)))), own

    def mlp(self, x: jax.Array) -> jax.Array:
        flat = x.reshape(-1, x.shape[-1])  # so that no reshape stands between the products and what is fused with them
        return self.down(_gated(self.gate(flat), self.up(flat))).reshape(x.shape)


@jax.custom_vjp
def _gated(gate: jax.Array, up: jax.Array) -> jax.Array:
    """SiLU(gate) * up. The backward pass computes the sigmoid again: a tenth less to store, in the same time."""
    return jax.nn.silu(gate) * up


def _gated_backward(saved, cotangent):
    gate, up = saved
    gate = jax.lax.optimization_barrier(gate)  # or XLA finds the forward pass's sigmoid equal, and keeps it
    sigmoid = jax.nn.sigmoid(gate)
    return cotangent * up * (sigmoid * (1 + gate * (1 - sigmoid))), cotangent * (gate * sigmoid)


_gated.defvjp(lambda gate, up: (_gated(gate, up), (gate, up)), _gated_backward)


REMATERIALISATION = {
    "block": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


@dataclass(frozen=True)
class Pass:
    """How a pass over whole rows is computed."""

    remat: str = "none"  # what the backward pass computes again: none, dots (all but products with kernels) or block
    attention_block: int = 0  # tokens of a row whose attention scores exist at once; 0: all
    scan: bool = False  # all layers by one program over stacked parameters, not one after another
    place: Placement = ANYWHERE


WHOLE = Pass()


def _rematerialised(function: Callable, remat: str) -> Callable:
    return function if remat == "none" else jax.checkpoint(function, policy=REMATERIALISATION[remat])


class Qwen(nnx.Module):
    """Qwen decoder: RMSNorm, rotary positions, grouped-query attention, gated SiLU MLP.

    Qwen2 and Qwen2.5 have biases on query, key and value; Qwen3 normalises query and key heads instead.
    """

    def __init__(self, rngs: nnx.Rngs, a: Architecture, *, param_dtype: str, compute_dtype: str):
        self.embedding = _parameter(rngs, (a.vocab_size, a.hidden_size), ("vocab", "embed"), 0.02, param_dtype)
        self.layers = nnx.List([Block(rngs, a, param_dtype) for _ in range(a.num_layers)])
        self.norm = RMSNorm(a.hidden_size, a.rms_norm_eps, param_dtype)
        tied = a.tie_word_embeddings
        self.head = (
            None if tied else _parameter(rngs, (a.hidden_size, a.vocab_size), ("embed", "vocab"), 0.02, param_dtype)
        )
        self.compute_dtype = compute_dtype
        self.rotary = (a.head_dim, a.rope_theta)

    def __call__(self, token_ids, positions, own_mask, *, cache=None, trunk=None, fork=None, place=ANYWHERE):
        """Hidden states of lanes of tokens.

        Args:
          token_ids: int ``[B, N, T]``.
          positions: int ``[B, N, T]``, or their `rotation` where many steps compute it at once.
          own_mask: bool ``[B, N, T, T]``; None with a cache, which says what is seen.
          cache: `OwnCache` of a decode step (T = 1), or None when the lanes' keys and values are those of this call.
          trunk: one `KeyValue` per layer (``[B, K, D, S]``, ``[B, K, S, D]``), or None.
          fork: int ``[B, N, T]``, trunk positions that each token sees.
          place: `Placement` on the mesh.

        Returns:
          hidden ``[B, N, T, E]`` after the final norm; the keys and values of this call by layer (with a cache: its
          recent columns).
        """
        x = place.hidden(place.embedding(self.embedding[...].astype(self.compute_dtype))[token_ids])
        owns = []
        turn = positions if isinstance(positions, Rotation) else self.rotation(positions)
        for i, layer in enumerate(self.layers):
            own_cache, its_trunk = None if cache is None else cache.of_layer(i), None if trunk is None else trunk[i]
            inputs = (x, turn, own_mask, own_cache, its_trunk, fork, None)
            x, own = place.layer(*nnx.split(layer), *inputs, place=ANYWHERE, window=1, block=0)
            x = place.hidden(x)
            owns.append(own)
        return self.norm(x), tuple(owns)

    def rotation(self, positions: jax.Array) -> Rotation:
        """The rotary angles at ``positions [B, N, T]``."""
        return rotation(positions, *self.rotary)

    def rows(self, token_ids, positions, view: RowView, passing: Pass) -> jax.Array:
        """Hidden states ``[B, P, E]`` of whole trunk-and-branch rows, each a sequence of P = S + N·T tokens.

        Trunk and lanes pass every layer together: one product with each kernel, forward and backward.

        Args:
          token_ids, positions: int ``[B, P]``.
          view: what each token sees.
          passing: how the pass is computed; changes nothing but rounding.
        """
        turn, place = self.rotation(positions[:, None]), passing.place
        arrays, window = view._replace(window=None), view.window

        def through(layer: Block, x):
            inputs = (x, turn, None, None, None, None, arrays)
            options = dict(place=place, window=window, block=passing.attention_block)
            return place.layer(*nnx.split(layer), *inputs, **options)[0]

        x = place.between(place.embedding(self.embedding[...].astype(self.compute_dtype))[token_ids][:, None])
        if passing.scan:
            x = self._scan_layers(through, x, passing.remat)
        else:
            for layer in self.layers:
                x = _rematerialised(lambda x, layer=layer: through(layer, x), passing.remat)(x)
        return place.hidden(self.norm(x))[:, 0]

    def _scan_layers(self, through, x, remat: str):
        """One layer's program for all of them, over their stacked parameters; matrices in the compute type."""
        graphdef = nnx.split(self.layers[0])[0]
        cast = lambda leaf: leaf.astype(self.compute_dtype) if leaf.ndim > 1 else leaf
        states = [jax.tree.map(cast, nnx.split(layer)[1]) for layer in self.layers]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
        step = _rematerialised(lambda x, state: through(nnx.merge(graphdef, state), x), remat)
        return jax.lax.scan(lambda x, state: (step(x, state), None), x, stacked)[0]

    def output_weight(self) -> tuple[jax.Array, bool]:
        """The head as it is stored: ``[V, E]`` and true where it is the embedding, else ``[E, V]`` and false."""
        return (self.embedding[...], True) if self.head is None else (self.head[...], False)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """float32 logits ``[..., V]`` of hidden states ``[..., E]``."""
        weight = self.embedding[...].T if self.head is None else self.head[...]
        return jnp.matmul(hidden, weight.astype(hidden.dtype), preferred_element_type=jnp.float32)


def build_network(
    architecture: Architecture, *, param_dtype: str = "float32", compute_dtype: str = "float32"
) -> tuple[nnx.GraphDef, Params, Params]:
    """The network's static description, without allocating a weight.

    Returns ``graphdef``, abstract parameters (`jax.ShapeDtypeStruct` leaves) and the logical axes of each parameter.
    """
    make = lambda: Qwen(nnx.Rngs(0), architecture, param_dtype=param_dtype, compute_dtype=compute_dtype)
    graphdef, state = nnx.split(nnx.eval_shape(make))
    axes = jax.tree.map(lambda p: p.axes, state, is_leaf=lambda p: isinstance(p, nnx.Variable))
    abstract = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, p.dtype), nnx.to_pure_dict(state))
    return graphdef, abstract, nnx.to_pure_dict(axes)


def initial_params(architecture: Architecture, key: jax.Array, *, param_dtype: str = "float32") -> Params:
    """Random parameters: kernels normal with variance 1/fan-in, embeddings normal(0, 0.02), biases 0, norms 1."""
    network = Qwen(nnx.Rngs(params=key), architecture, param_dtype=param_dtype, compute_dtype=param_dtype)
    return nnx.to_pure_dict(nnx.split(network)[1])


def bind(graphdef: nnx.GraphDef, params: Params) -> Qwen:
    """The module with these parameters; free under `jax.jit` (no array is copied)."""
    return nnx.merge(graphdef, params)
