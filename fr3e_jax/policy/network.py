"""The network of all families: a Flax module used as a pure function of ``graphdef`` and ``params``.

``params`` is a plain nested dict of arrays (``params["layers"][0]["attention"]["query"]["kernel"]``). Every parameter
is declared once, with its shape, its logical axes (for sharding) and its initial scale.

Tokens pass the network in one of three ways. `Attention`, `Block` and `Decoder` have a method for each:

    causal   whole sequences, each token seeing itself and the earlier ones; keeps keys and values (a trunk's prefill)
    rows     whole trunk-and-branch rows; keeps nothing but hidden states (scoring, training)
    decode   one new token per lane, over its trunk's cache and its own

Layers that attend to a window of positions are of another *kind* than those that attend to all. What depends on it is
computed once for each kind that occurs (`Architecture.kinds`): rotary angles, masks, and what a lane sees.

Dimension key: B rows or trunk slots, N lanes of each, L = B·N lanes, T tokens of a lane, S trunk positions,
P = S + N·T positions of a whole row, C ring columns, R recent columns, K key/value heads, G query heads per key/value
head, D head size, E width, V vocabulary, Q routes of a token: the experts of all its sparse layers, those of one layer
after those of another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from fr3e_jax.policy.architecture import Architecture
from fr3e_jax.policy.attention import (
    KeyValue,
    RowView,
    Scoring,
    row_attention,
    softcapped,
    trunk_branch_attention,
)
from fr3e_jax.policy.decode_attention import OwnCache, step_attention
from fr3e_jax.policy.experts import NO_ROUTES, Passed, RoutedExperts, Routes, apply_experts, routes_type
from fr3e_jax.policy.head import LOCAL_STATES, Head, StateTransfer
from fr3e_jax.policy.modules import GATES, Linear, RMSNorm, parameter, product
from fr3e_jax.policy.rotary import Rotation, rotary, rotation
from fr3e_jax.policy.router_sums import RouterSums, in_turn, of_layers

Params = dict[str, Any]


def _norm(a: Architecture, size: int, dtype: str) -> RMSNorm:
    return RMSNorm(size, a.rms_norm_eps, dtype, unit_offset=a.family.unit_offset)


class Attention(nnx.Module):
    """Grouped-query attention between its projections.

    ``x [B, N, T, E]`` are the normalised hidden states, ``turn`` the rotary angles of their positions.
    ``window``: see `Scoring`.
    """

    def __init__(self, rngs: nnx.Rngs, a: Architecture, dtype: str, window: int = 0):
        inner, kv = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
        self.query = Linear(rngs, a.hidden_size, inner, ("embed", "heads"), dtype, bias=a.qkv_bias)
        self.key = Linear(rngs, a.hidden_size, kv, ("embed", "kv_heads"), dtype, bias=a.qkv_bias)
        self.value = Linear(rngs, a.hidden_size, kv, ("embed", "kv_heads"), dtype, bias=a.qkv_bias)
        self.out = Linear(rngs, inner, a.hidden_size, ("heads", "embed"), dtype, bias=a.attention_bias)
        self.query_norm = _norm(a, a.head_dim, dtype) if a.family.qk_norm else None
        self.key_norm = _norm(a, a.head_dim, dtype) if a.family.qk_norm else None
        self.scoring = Scoring((a.query_scalar or a.head_dim) ** -0.5, a.attention_softcap, window)
        self.sizes = (a.num_kv_heads, a.num_heads // a.num_kv_heads, a.head_dim)

    def causal(self, x: jax.Array, turn: Rotation, mask: jax.Array) -> tuple[jax.Array, KeyValue]:
        """Attention of ``x`` over itself where ``mask`` (bool ``[B, N, T, T]``) is true; also its keys and values."""
        query, fresh = self._project(x, turn)
        return self._join_heads(trunk_branch_attention(query, fresh, mask, scoring=self.scoring)), fresh

    def rows(
        self, x: jax.Array, turn: Rotation, view: RowView, *, window: int, block: int, attend: Callable
    ) -> jax.Array:
        """Attention of whole rows ``[B, 1, P, E]`` by ``attend``, which computes `row_attention`."""
        query, fresh = self._project(x, turn)
        with jax.named_scope("attention"):
            mixed = attend(query, fresh, view, window=window, block=block, scoring=self.scoring)
        return self._join_heads(mixed)

    def decode(
        self, x: jax.Array, turn: Rotation, cache: OwnCache, trunk: KeyValue, fork: jax.Array, attend: Callable
    ) -> tuple[jax.Array, KeyValue]:
        """Attention of one new token per lane; also the recent columns with its keys and values written in.

        Args:
          x: ``[B, N, 1, E]``.
          turn: of the new tokens.
          cache: of this layer.
          trunk: ``key [B, K, D, S]``, ``value [B, K, S, D]``.
          fork: int ``[B, N]``, the trunk position before which each lane sees.
          attend: computes `step_attention`.
        """
        query, fresh = self._project(x, turn)
        recent = _write_column(cache.recent[0], fresh, cache)
        with jax.named_scope("attention"):
            mixed = attend(query[:, :, 0], cache._replace(recent=(recent,)), trunk, fork, self.scoring)
        return self._join_heads(mixed[:, :, None]), recent

    def _project(self, x: jax.Array, turn: Rotation) -> tuple[jax.Array, KeyValue]:
        """Queries ``[B, N, T, K, G, D]``, keys ``[B, N, K, D, T]`` and values ``[B, N, K, T, D]`` of ``x``."""
        kv_heads, group, head_dim = self.sizes
        query = self.query(x).reshape(*x.shape[:3], kv_heads * group, head_dim)
        key = self.key(x).reshape(*x.shape[:3], kv_heads, head_dim)
        if self.query_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        query, key = rotary(query, turn), rotary(key, turn)
        value = self.value(x).reshape(*x.shape[:3], kv_heads, head_dim)
        fresh = KeyValue(jnp.transpose(key, (0, 1, 3, 4, 2)), jnp.swapaxes(value, 2, 3))
        return query.reshape(*x.shape[:3], kv_heads, group, head_dim), fresh

    def _join_heads(self, mixed: jax.Array) -> jax.Array:
        """``[B, N, T, K, G, D]`` through the output projection."""
        return self.out(mixed.reshape(*mixed.shape[:3], -1))


def _write_column(old: KeyValue, new: KeyValue, cache: OwnCache) -> KeyValue:
    """Write one token per lane into its column. Lanes that do not write keep their content: it may be promoted."""
    writes = cache.writes[:, None, None, None]

    def put(buffer, fresh, axis):
        old_column = jax.lax.dynamic_slice_in_dim(buffer, cache.column, 1, axis)
        fresh = fresh.reshape(old_column.shape).astype(buffer.dtype)
        return jax.lax.dynamic_update_slice_in_dim(buffer, jnp.where(writes, fresh, old_column), cache.column, axis)

    return KeyValue(put(old.key, new.key, 3), put(old.value, new.value, 2))


def call_layer(method: Callable, graphdef: nnx.GraphDef, state: Any, *inputs: Any, **settings: Any) -> Any:
    """Call a method of the `Block` that ``graphdef`` and ``state`` make up.

    This is one function for all layers, so that a jitted version of it is traced and lowered once for all of them.
    ``method``, ``graphdef`` and ``settings`` are static.
    """
    return method(nnx.merge(graphdef, state), *inputs, **settings)


def _unchanged(x: Any, axis: int | None = None) -> Any:
    return x


@dataclass(frozen=True)
class MeshLayout:
    """Layout of a forward pass's arrays on a mesh, and the way a layer is called.

    The default leaves the layout to the compiler. (`fr3e_jax.programs.shardings.mesh_layout` makes that of a mesh.)
    """

    hidden: Callable[[jax.Array], jax.Array] = _unchanged  # hidden states [B, N, T, E] that a product reads
    between: Callable[[jax.Array], jax.Array] = _unchanged  # hidden states that are kept or added to
    embedding: Callable[[jax.Array], jax.Array] = _unchanged  # the embedding [V, E] that tokens are looked up in
    head: Callable[[jax.Array, int], jax.Array] = _unchanged  # the head, whose axis ``axis`` is the vocabulary
    by_shard: Callable[[jax.Array], jax.Array] = _unchanged  # arrays [shards, ...], one entry for each shard of rows
    layer: Callable = call_layer  # or a jitted version of it
    attend_rows: Callable = row_attention  # or the same in fused kernels, or of parts of rows
    attend_step: Callable = step_attention  # or the same in a fused kernel
    experts: Callable = apply_experts  # or the same with experts or their columns on several devices
    states: StateTransfer = LOCAL_STATES  # of rows to the head
    lay_out_head: bool = False  # whether a loop of decode steps first lays a tied head out as [E, V]

    @property
    def parts(self) -> int:
        """Parts that whole rows are cut into by position (`fr3e_jax.policy.row_parts`)."""
        return self.states.parts


DEFAULT_LAYOUT = MeshLayout()


class Block(nnx.Module):
    """A layer: attention and gated MLP, each on normalised hidden states and added to its input.

    Families with post-norms normalise what is added, too. ``kind``: of the layer, its place in `Architecture.kinds`.
    ``sparse``: its MLP is a choice of experts.
    The methods take hidden states ``x [B, N, T, E]`` and the arguments of `Attention`'s methods of the same names.
    """

    def __init__(self, rngs: nnx.Rngs, a: Architecture, dtype: str, window: int = 0, sparse: bool = False):
        def norm():
            return _norm(a, a.hidden_size, dtype)

        self.attention_norm = norm()
        self.attention = Attention(rngs, a, dtype, window)
        self.attention_post_norm = norm() if a.family.post_norms else None
        self.mlp_norm = norm()
        self.mlp_post_norm = norm() if a.family.post_norms else None
        self.kind, self.activation = a.kinds.index(window), a.family.activation
        self.experts = RoutedExperts(rngs, a, dtype) if sparse else None
        if sparse:
            return
        self.gate = Linear(rngs, a.hidden_size, a.intermediate_size, ("embed", "mlp"), dtype)
        self.up = Linear(rngs, a.hidden_size, a.intermediate_size, ("embed", "mlp"), dtype)
        self.down = Linear(rngs, a.intermediate_size, a.hidden_size, ("mlp", "embed"), dtype)

    def causal(
        self, x: jax.Array, turn: Rotation, mask: jax.Array, *, layout: MeshLayout = DEFAULT_LAYOUT
    ) -> tuple[jax.Array, KeyValue, jax.Array | None]:
        """Hidden states after this layer, the layer's keys and values, and the experts of each token."""
        mixed, key_value = self.attention.causal(self.attention_norm(x), turn, mask)
        x, passed = self._add(x, mixed, replace(DEFAULT_LAYOUT, experts=layout.experts))
        return x, key_value, passed and passed.experts

    def rows(
        self,
        x: jax.Array,
        turn: Rotation,
        view: RowView,
        routes: Routes = NO_ROUTES,
        *,
        window: int,
        block: int,
        layout: MeshLayout,
    ) -> tuple[jax.Array, RouterSums | None]:
        """Hidden states of whole rows after this layer, and sums over the tokens that ``routes`` counts."""
        settings = dict(window=window, block=block, attend=layout.attend_rows)
        mixed = self.attention.rows(layout.hidden(self.attention_norm(x)), turn, view, **settings)
        x, passed = self._add(x, mixed, layout, routes)
        return x, passed and passed.sums

    def decode(
        self,
        x: jax.Array,
        turn: Rotation,
        cache: OwnCache,
        trunk: KeyValue,
        fork: jax.Array,
        *,
        layout: MeshLayout = DEFAULT_LAYOUT,
    ) -> tuple[jax.Array, KeyValue, jax.Array | None]:
        """Hidden states of the new tokens after this layer, its recent columns, and the tokens' experts."""
        mixed, recent = self.attention.decode(self.attention_norm(x), turn, cache, trunk, fork, layout.attend_step)
        x, passed = self._add(x, mixed, replace(DEFAULT_LAYOUT, experts=layout.experts))
        return x, recent, passed and passed.experts

    def mlp(
        self, x: jax.Array, layout: MeshLayout = DEFAULT_LAYOUT, routes: Routes = NO_ROUTES
    ) -> tuple[jax.Array, Passed | None]:
        """The MLP's addition to ``x``, and how tokens passed its experts; None: the layer is dense."""
        # No reshape may stand between the products and the operations that are fused with them.
        flat = x.reshape(-1, x.shape[-1])
        if self.experts is not None:
            added, passed = self.experts(flat, layout.experts, routes)
            return added.reshape(x.shape), passed
        return self.down(GATES[self.activation](self.gate(flat), self.up(flat))).reshape(x.shape), None

    def _add(
        self, x: jax.Array, mixed: jax.Array, layout: MeshLayout, routes: Routes = NO_ROUTES
    ) -> tuple[jax.Array, Passed | None]:
        def after(norm, y):
            return y if norm is None else norm(y)

        x = x + layout.between(after(self.attention_post_norm, mixed))
        added, passed = self.mlp(layout.hidden(self.mlp_norm(x)), layout, routes)
        return x + layout.between(after(self.mlp_post_norm, added)), passed


REMATERIALISATION = {
    "block": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


@dataclass(frozen=True)
class ForwardOptions:
    """Options of the forward pass over whole rows. They change its results by rounding alone."""

    remat: str = "none"  # recomputed in the backward pass: none, dots (all but products with kernels) or block (all)
    attention_block: int = 0  # tokens of a row whose attention scores exist at once; 0: all
    scan: bool = False  # run one program over the stacked parameters of all layers, not one layer after another
    attention: str = "xla"  # of rows: xla (matrix products) or pallas (fused kernels)
    layout: MeshLayout = DEFAULT_LAYOUT


DEFAULT_OPTIONS = ForwardOptions()


def _rematerialised(function: Callable, remat: str) -> Callable:
    return function if remat == "none" else jax.checkpoint(function, policy=REMATERIALISATION[remat])


class Decoder(nnx.Module):
    """Decoder-only transformer: RMSNorm, rotary positions, grouped-query attention, gated MLP.

    The architecture's family says what else there is (`fr3e_jax.policy.families`).
    """

    def __init__(self, rngs: nnx.Rngs, a: Architecture, *, param_dtype: str, compute_dtype: str):
        self.embedding = parameter(rngs, (a.vocab_size, a.hidden_size), ("vocab", "embed"), 0.02, param_dtype)
        self.layers = nnx.List(
            [Block(rngs, a, param_dtype, a.window_of(n), a.is_sparse(n)) for n in range(a.num_layers)]
        )
        self.norm = _norm(a, a.hidden_size, param_dtype)
        tied = a.tie_word_embeddings
        self.head = (
            None if tied else parameter(rngs, (a.hidden_size, a.vocab_size), ("embed", "vocab"), 0.02, param_dtype)
        )
        self.compute_dtype = compute_dtype
        self.embedding_scale = a.hidden_size**0.5 if a.family.scaled_embedding else 1.0
        self.windows, self.period = a.kinds, len(a.windows)
        self.rotary = tuple((a.head_dim, *a.rope(window)) for window in a.kinds)
        self.softcap = a.final_softcap
        self.sparse, self.routes_type = tuple(map(a.is_sparse, range(a.num_layers))), routes_type(a.num_experts)
        self.experts_per_token = a.experts_per_token

    def causal(
        self, token_ids: jax.Array, layout: MeshLayout = DEFAULT_LAYOUT
    ) -> tuple[jax.Array, tuple[KeyValue, ...], jax.Array | None]:
        """Pass whole sequences ``token_ids [B, T]``; each token sees itself and the earlier ones.

        Returns:
          hidden ``[B, T, E]`` after the final norm; of each layer ``key [B, K, D, T]`` and ``value [B, K, T, D]``; the
          tokens' routes ``[B, T, Q]``, None without sparse layers.
        """
        batch, length = token_ids.shape
        turns = self.rotations(jnp.broadcast_to(jnp.arange(length), (batch, 1, length)))
        seen = jnp.tril(jnp.ones((length, length), bool))
        masks = [
            jnp.broadcast_to(seen & ~jnp.tril(seen, -window) if window else seen, (batch, 1, length, length))
            for window in self.windows
        ]
        x, owns, chosen = layout.hidden(self._embed(token_ids[:, None], layout)), [], []
        for layer in self.layers:
            x, key_value, experts = layout.layer(
                Block.causal, *nnx.split(layer), x, turns[layer.kind], masks[layer.kind], layout=layout
            )
            x = layout.hidden(x)
            owns.append(KeyValue(key_value.key[:, 0], key_value.value[:, 0]))
            chosen.append(experts)
        return self.norm(x)[:, 0], tuple(owns), self._routes(chosen, token_ids.shape)

    def _routes(self, chosen: list[jax.Array | None], shape: tuple[int, ...]) -> jax.Array | None:
        """The experts that tokens of ``shape`` passed, layer after layer: ``[*shape, Q]``; None: no layer is sparse."""
        parts = [experts.astype(self.routes_type).reshape(*shape, -1) for experts in chosen if experts is not None]
        return jnp.concatenate(parts, axis=-1) if parts else None

    def rows(
        self,
        token_ids: jax.Array,
        positions: jax.Array,
        view: RowView,
        offset: jax.Array,
        routes: jax.Array | None = None,
        counted: jax.Array | None = None,
        *,
        window: int = 1,
        options: ForwardOptions = DEFAULT_OPTIONS,
    ) -> tuple[jax.Array, RouterSums | None]:
        """Pass whole trunk-and-branch rows, each a sequence of P = S + N·T tokens.

        Trunk and lanes pass every layer together: one product with each kernel, forward and backward. Where the layout
        cuts rows into parts, B and P are those of the parts.

        Args:
          token_ids, positions: int ``[B, P]``.
          view: what each token sees where it sees all that precedes it.
          offset: int ``[B, N, T]``, how many tokens of its branch precede a token.
          routes: int ``[B, Q, P]``, the experts that tokens pass; None: those that the routers choose.
          counted: bool ``[B, P]``, the tokens that the routers' sums are over; None: there are no sums.
          window: number of lanes that a lane's token sees; see `row_attention`.
          options: how the pass is computed.

        Returns:
          hidden ``[B, P, E]`` after the final norm; of the layers with experts, if there are any, the routers' sums.
        """
        turns, layout = self.rotations(positions[:, None]), options.layout
        views = [view.within(seen, offset) for seen in self.windows]
        settings = dict(window=window, block=options.attention_block, layout=layout)

        counted = counted if counted is None else counted.reshape(-1)

        def through(layer: Block, x, experts):
            inputs = x, turns[layer.kind], views[layer.kind], Routes(experts, counted)
            return layout.layer(Block.rows, *nnx.split(layer), *inputs, **settings)

        chosen, sums = self._experts_of_layers(routes), []
        x = layout.between(self._embed(token_ids, layout)[:, None])
        if options.scan:
            x, sums = self._scan_layers(through, x, chosen, options.remat)
        else:
            for layer, experts in zip(self.layers, chosen, strict=True):
                layer_pass = _rematerialised(partial(through, layer, experts=experts), options.remat)
                x, routed = layer_pass(x)
                sums.append(routed)
        return layout.hidden(self.norm(x))[:, 0], of_layers(sums)

    def _experts_of_layers(self, routes: jax.Array | None) -> list[jax.Array | None]:
        """The experts ``[tokens, C]`` of each layer, from ``routes [B, Q, P]``."""
        if routes is None:
            return [None] * len(self.sparse)
        count = self.experts_per_token
        by_layer = jnp.split(routes, routes.shape[1] // count, axis=1)
        flat = iter([jnp.swapaxes(tensor, 1, 2).reshape(-1, count) for tensor in by_layer])
        return [next(flat) if sparse else None for sparse in self.sparse]

    def decode(
        self,
        token_ids: jax.Array,
        turns: tuple[Rotation, ...],
        cache: OwnCache,
        trunks: tuple[KeyValue, ...],
        fork: jax.Array,
        layout: MeshLayout = DEFAULT_LAYOUT,
    ) -> tuple[jax.Array, tuple[KeyValue, ...], jax.Array | None]:
        """Pass one new token per lane.

        Args:
          token_ids: int ``[B, N]``.
          turns: `rotations` of the tokens' positions, ``[B, N, 1, D / 2]``.
          cache: the lanes' own keys and values.
          trunks: of each layer ``key [B, K, D, S]``, ``value [B, K, S, D]``.
          fork: int ``[B, N]``, the trunk position before which each lane sees.

        Returns:
          hidden ``[B, N, E]`` after the final norm; of each layer the recent columns, the new tokens written in; the
          tokens' routes ``[B, N, Q]``, None without sparse layers.
        """
        x, recents, chosen = layout.hidden(self._embed(token_ids[..., None], layout)), [], []
        for i, (layer, trunk) in enumerate(zip(self.layers, trunks, strict=True)):
            turn, branch_cache = turns[layer.kind], cache.of_layer(i, layer.kind)
            inputs = x, turn, branch_cache, trunk, fork
            x, recent, experts = layout.layer(Block.decode, *nnx.split(layer), *inputs, layout=layout)
            x = layout.hidden(x)
            recents.append(recent)
            chosen.append(experts)
        return self.norm(x)[:, :, 0], tuple(recents), self._routes(chosen, token_ids.shape)

    def rotations(self, positions: jax.Array) -> tuple[Rotation, ...]:
        """The rotary angles at ``positions [B, N, T]``, of each kind of layer."""
        by_rope = {rope: rotation(positions, *rope) for rope in dict.fromkeys(self.rotary)}
        return tuple(by_rope[rope] for rope in self.rotary)

    def _embed(self, token_ids: jax.Array, layout: MeshLayout) -> jax.Array:
        x = layout.embedding(self.embedding[...].astype(self.compute_dtype))[token_ids]
        return x if self.embedding_scale == 1 else x * jnp.asarray(self.embedding_scale, x.dtype)

    def _scan_layers(self, through, x, chosen: list[jax.Array | None], remat: str):
        """`rows`'s hidden states and sums, by one program over stacked parameters, with matrices in the compute type.

        A period is one layer, or the layers after which the kinds repeat. The layers that make up no whole one follow.
        """
        size, in_periods = self.period, len(self.layers) // self.period * self.period
        graphdefs = [nnx.split(layer)[0] for layer in self.layers[:size]]

        def cast(leaf):
            return leaf.astype(self.compute_dtype) if leaf.ndim > 1 else leaf

        states = [
            (jax.tree.map(cast, nnx.split(layer)[1]), experts)
            for layer, experts in zip(self.layers, chosen, strict=True)
        ]

        def stack(offset):
            return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states[offset:in_periods:size])

        passes = [
            _rematerialised(
                lambda x, state, graphdef=graphdef: through(nnx.merge(graphdef, state[0]), x, state[1]), remat
            )
            for graphdef in graphdefs
        ]

        def period(x, states):
            sums = [None] * len(states)
            for n, (layer_pass, state) in enumerate(zip(passes, states, strict=False)):
                x, sums[n] = layer_pass(x, state)
            return x, sums

        if not in_periods:
            return period(x, states)
        x, stacked = jax.lax.scan(period, x, [stack(offset) for offset in range(size)])
        x, rest = period(x, states[in_periods:])
        return x, [*in_turn(stacked, in_periods), *rest]

    def output_weight(self) -> Head:
        """The head as stored."""
        tied = self.head is None
        return Head(self.embedding[...] if tied else self.head[...], tied, self.softcap)

    def decoding_head(self, layout: MeshLayout) -> jax.Array | None:
        """The head ``[E, V]`` for `logits` of a loop, if it pays to lay it out before the loop; else None.

        XLA on CPU takes a quarter less time for a few states with this layout than with the embedding's ``[V, E]``.
        """
        if self.head is not None or not layout.lay_out_head:
            return None
        return jax.lax.optimization_barrier(self.embedding[...].astype(self.compute_dtype).T)

    def logits(self, hidden: jax.Array, weight: jax.Array | None = None) -> jax.Array:
        """float32 logits ``[..., V]`` of hidden states ``[..., E]``; ``weight``: `decoding_head`."""
        if weight is not None:
            return softcapped(product(hidden, weight, jnp.float32), self.softcap)
        weight = self.embedding[...].T if self.head is None else self.head[...]
        logits = jnp.matmul(hidden, weight.astype(hidden.dtype), preferred_element_type=jnp.float32)
        return softcapped(logits, self.softcap)


def build_network(
    architecture: Architecture,
    *,
    param_dtype: str = "float32",
    compute_dtype: str = "float32",
    completed: Callable[[nnx.Module], nnx.Module] = lambda network: network,
) -> tuple[nnx.GraphDef, Params, Params]:
    """The network's static description, without allocating a weight.

    ``completed``: adds modules to the network (`fr3e_jax.policy.lora`).

    Returns:
      ``graphdef``, abstract parameters (`jax.ShapeDtypeStruct` leaves), and the logical axes of each parameter.
    """

    def make():
        return completed(Decoder(nnx.Rngs(0), architecture, param_dtype=param_dtype, compute_dtype=compute_dtype))

    graphdef, state = nnx.split(nnx.eval_shape(make))
    axes = jax.tree.map(lambda p: p.axes, state, is_leaf=lambda p: isinstance(p, nnx.Variable))
    abstract = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, p.dtype), nnx.to_pure_dict(state))
    return graphdef, abstract, nnx.to_pure_dict(axes)


def initial_params(architecture: Architecture, key: jax.Array, *, param_dtype: str = "float32") -> Params:
    """Random parameters: kernels normal with variance 1/fan-in, embeddings normal(0, 0.02), biases 0, norms 1."""
    network = Decoder(nnx.Rngs(params=key), architecture, param_dtype=param_dtype, compute_dtype=param_dtype)
    return nnx.to_pure_dict(nnx.split(network)[1])


def bind(graphdef: nnx.GraphDef, params: Params) -> Decoder:
    """The module with these parameters; free under `jax.jit` (no array is copied)."""
    return nnx.merge(graphdef, params)
