"""Prefill of trunks, and a chunk of decode steps: the functions that draw tokens, before they are compiled.

`decoder_state` describes the state; `decoder_programs` compiles the functions. A chunk of steps only reads the rings.
It takes an aligned window of R columns out (the recent ones), writes its steps into that, and puts the window back at
its end.

A branch's first token is drawn from the trunk's hidden state at ``fork - 1``: no prefix position is computed again.

Dimension key: B trunk slots, N lanes of each, L = B·N lanes, S trunk positions, C ring columns, R recent columns,
K key/value heads, D head size, E width, V vocabulary, A states of the call table, n steps.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from fr3e_jax.objectives.entropy import branching_factor, token_entropy, update_magnitude
from fr3e_jax.policy.attention import KeyValue
from fr3e_jax.policy.decode_attention import OwnCache, RingSpan
from fr3e_jax.policy.network import Decoder, MeshLayout, Params, bind
from fr3e_jax.policy.rotary import Rotation
from fr3e_jax.policy.rows import Trunks, run_trunks
from fr3e_jax.policy.sampling import draw_tokens, uniform
from fr3e_jax.programs.decoder_state import DecodeState


class Interruptions(NamedTuple):
    """Pauses of lanes for a tool's answer, and the answers' tokens, which lanes read instead of sampling.

    ``table`` is that of `fr3e_jax.tools.automaton.CallTable`. In its last two states a stop text or a call is
    complete, and the lane that wrote it ends as by a stop token. After a call the lane's next chunk can go on from
    there, after `resize_ring` has made the tokens of all lanes end at the same column again.
    """

    table: jax.Array  # int16 [A, V], the state of a lane after a token
    states: jax.Array  # int32 [B, N], at the start of the chunk
    tool_written: jax.Array  # int32 [n, B, N], token ids of answers; -1: sample
    resumed: jax.Array  # bool [B, N], paused lanes that go on


class Emitted(NamedTuple):
    """Tokens of a chunk ``[B, N, n]``: a lane has ``counts`` of them, and its entries after these are meaningless."""

    counts: jax.Array  # int32 [B, N]
    stopped: jax.Array  # bool [B, N], the lane's last token is a stop token
    ruined: jax.Array  # int32 [B, N], tokens of logits that are NaN or infinite; some of -inf are allowed
    token_ids: jax.Array
    logprobs: jax.Array
    entropies: jax.Array
    magnitudes: jax.Array
    routes: jax.Array | None = None  # [B, N, n, Q], the experts that the tokens passed, where they are recorded


class Drawn(NamedTuple):
    """Tokens of a step ``[B, N]``, or of all steps of a chunk ``[n, B, N]``, as in `Emitted`."""

    active: jax.Array  # the lane emits the token
    stopped: jax.Array
    token_ids: jax.Array
    logprobs: jax.Array
    entropies: jax.Array
    magnitudes: jax.Array
    routes: jax.Array | None = None

    def emitted(self) -> Emitted:
        """The tokens of all steps, by lane."""
        by_lane = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 2), self)
        ruined = self.active & ~jnp.isfinite(self.entropies)
        counts, ruined = (x.sum(axis=0, dtype=jnp.int32) for x in (self.active, ruined))
        return Emitted(counts, (self.active & self.stopped).any(axis=0), ruined, *by_lane[2:])


def prefill(
    graphdef: nnx.GraphDef, layout: MeshLayout, params: Params, trunk_ids: jax.Array, *, recorded: bool = False
) -> Trunks:
    """Keys, values and hidden states of ``trunk_ids [B, S]``, padded on the right; if ``recorded`` also its routes."""
    trunks = run_trunks(graphdef, params, trunk_ids, layout)
    return trunks if recorded else trunks._replace(routes=None)


class Alternatives(NamedTuple):
    """Tokens under the policy, and what it could have chosen in their place; all ``[T]``."""

    token_ids: jax.Array  # the likeliest other token (Deng et al. 2025, eq. 5)
    logprobs: jax.Array  # its log-prob
    candidates: jax.Array  # tokens within the top 95 % of the mass (Deng et al. 2025, 2.2)
    own_logprobs: jax.Array  # of the tokens themselves
    entropies: jax.Array  # nats


def alternatives(
    graphdef: nnx.GraphDef, params: Params, trunks: Trunks, rows: jax.Array, positions: jax.Array, token_ids: jax.Array
) -> Alternatives:
    """``token_ids [T]``, which stand at ``positions [T]`` (at least 1) of trunks, and the likeliest other tokens.

    ``rows [T]``: the trunk of each token.
    """
    logits = bind(graphdef, params).logits(trunks.hidden[rows, positions - 1]).astype(jnp.float32)
    logprobs = jax.nn.log_softmax(logits)
    others = jnp.where(jax.nn.one_hot(token_ids, logits.shape[-1], dtype=bool), -jnp.inf, logprobs)
    best = jnp.argmax(others, axis=-1)

    def of(ids):
        return jnp.take_along_axis(logprobs, ids[:, None], axis=-1)[:, 0]

    return Alternatives(
        best.astype(jnp.int32), of(best), branching_factor(logits), of(token_ids), token_entropy(logits)
    )


class Likeliest(NamedTuple):
    """The likeliest tokens of some places, the first one first, and the tokens that stand there."""

    token_ids: jax.Array  # int32 [T, k]
    logprobs: jax.Array  # [T, k], of the network: no temperature, no filter
    own_logprobs: jax.Array  # [T]


def likeliest(
    graphdef: nnx.GraphDef,
    params: Params,
    hidden: jax.Array,
    rows: jax.Array,
    positions: jax.Array,
    token_ids: jax.Array,
    *,
    count: int,
) -> Likeliest:
    """The ``count`` likeliest tokens after ``hidden[rows, positions]``, and the log-probs of ``token_ids [T]`` there.

    ``hidden [B, S, E]``: `Trunks.hidden`, or `DecodeState.lane_hidden`.
    """
    logits = bind(graphdef, params).logits(hidden[rows, positions]).astype(jnp.float32)
    logprobs = jax.nn.log_softmax(logits)
    top, ids = jax.lax.top_k(logprobs, count)
    return Likeliest(ids.astype(jnp.int32), top, jnp.take_along_axis(logprobs, token_ids[:, None], axis=-1)[:, 0])


def _chunk_rotations(network, state: DecodeState, steps: int) -> tuple[Rotation, ...]:
    """The rotary angles ``[n, B, N, 1, D / 2]`` of a chunk's tokens, of each kind of layer."""
    first = state.settings.fork + state.generated
    turns = network.rotations(first[..., None] + jnp.arange(steps).reshape(1, 1, -1))
    return jax.tree.map(lambda x: jnp.moveaxis(x, 2, 0)[..., None, :], turns)


def _chunk_uniforms(state: DecodeState, steps: int) -> jax.Array:
    """The random numbers ``[n, L]`` of a chunk: a lane that is active at step i has taken i tokens in it.

    They are computed at once, because one step's hashing is some hundred operations on a few numbers each.
    """
    positions = state.generated.reshape(1, -1) + jnp.arange(steps)[:, None]
    return jax.vmap(uniform, in_axes=(None, 0))(state.keys.reshape(-1, 2), positions)


class _Window(NamedTuple):
    """The R ring columns that a chunk writes into."""

    layers: tuple[KeyValue, ...]  # key [L, K, D, R], value [L, K, R, D]
    hidden: jax.Array | None  # [L, R, E]


def _window_size(capacity: int, steps: int) -> int:
    """The largest power of two up to ``steps`` that divides the capacity."""
    return math.gcd(capacity, 1 << (steps.bit_length() - 1))


def _open_window(state: DecodeState, base: jax.Array, size: int) -> _Window:
    def cut(x, axis):
        return jax.lax.dynamic_slice_in_dim(x, base, size, axis)

    layers = tuple(KeyValue(cut(kv.key, 3), cut(kv.value, 2)) for kv in state.lanes)
    return _Window(layers, None if state.lane_hidden is None else cut(state.lane_hidden, 1))


def _close_window(state: DecodeState, base: jax.Array, window: _Window) -> DecodeState:
    def put(x, new, axis):
        return jax.lax.dynamic_update_slice_in_dim(x, new, base, axis)

    lanes = tuple(
        KeyValue(put(kv.key, new.key, 3), put(kv.value, new.value, 2))
        for kv, new in zip(state.lanes, window.layers, strict=True)
    )
    hidden = None if window.hidden is None else put(state.lane_hidden, window.hidden, 1)
    return state._replace(lanes=lanes, lane_hidden=hidden)


class _Reading(NamedTuple):
    """`Interruptions` at one step."""

    table: jax.Array
    states: jax.Array  # int32 [B, N]
    tool_written: jax.Array  # int32 [B, N]

    def after(self, token_ids: jax.Array) -> jax.Array:
        """The states after ``token_ids [B, N]``; a tool's answer opens and closes no call."""
        return jnp.where(self.tool_written >= 0, self.states, self.table[self.states, token_ids].astype(jnp.int32))


class _Chunk(NamedTuple):
    """The inputs that all steps of a chunk share."""

    network: Decoder
    head: jax.Array | None  # `Decoder.decoding_head`
    layout: MeshLayout
    ring: tuple[KeyValue, ...]  # of each layer, only read
    base: jax.Array  # the first column of the window
    filtered: bool
    recorded: bool


def _draw(chunk: _Chunk, state: DecodeState, uniforms: jax.Array, reading: _Reading | None) -> Drawn:
    """The next token of every lane, from the hidden states in the state."""
    s, shape = state.settings, state.active.shape

    def flat(x):
        return x.reshape(-1, *x.shape[2:])

    logits = chunk.network.logits(flat(state.hidden), chunk.head)
    forced = None if reading is None else flat(reading.tool_written)
    filters = (flat(x) for x in (s.temperature, s.top_p, s.top_k))
    draw = draw_tokens(logits, uniforms, *filters, forced, filtered=chunk.filtered)
    hidden_norms = jnp.linalg.norm(flat(state.hidden).astype(jnp.float32), axis=-1)
    magnitudes = update_magnitude(logits, draw.token_ids, hidden_norms).reshape(shape)
    draw = jax.tree.map(lambda x: x.reshape(shape), draw)
    stopped = (draw.token_ids[..., None] == s.stop_ids).any(axis=-1)
    if reading is not None:
        last = reading.table.shape[0] - 2
        stopped = (reading.tool_written < 0) & (stopped | (reading.after(draw.token_ids) >= last))
    return Drawn(state.active, stopped, draw.token_ids, draw.logprobs, draw.entropies, magnitudes)


def _own_cache(
    sizes: tuple[int, ...], state: DecodeState, ring: tuple[KeyValue, ...], base: jax.Array, window: _Window
) -> OwnCache:
    """The caches that lanes see: of their own tokens ring columns outside the window, window columns up to this step's.

    ``sizes``: of each kind of layer, the positions that a token sees, its own included; 0: all.
    """
    active, generated, start = (x.reshape(-1) for x in (state.active, state.generated, state.start))
    size, capacity = window.layers[0].key.shape[-1], ring[0].key.shape[-1]
    age = (jnp.arange(capacity)[None] - start[:, None]) % capacity
    before = age <= generated[:, None]  # the column being written has age == generated
    inside = (jnp.arange(capacity) >= base) & (jnp.arange(capacity) < base + size)
    seen = [before & (age > generated[:, None] - limit) if limit else before for limit in sizes]
    fork = state.settings.fork

    def first(limit):
        return jnp.clip(fork + state.generated - limit + 1, 0, fork)

    def span(limit: int) -> RingSpan:  # ends where the window begins, whose columns are recent
        tokens = jnp.minimum(generated + 1, limit) if limit else generated + 1
        count = jnp.clip(tokens - (state.column - base + 1), 0, capacity - size) * active
        return RingSpan((base - count) % capacity, count)

    return OwnCache(
        ring=ring if capacity > size else (),
        ring_seen=tuple(mask & ~inside[None] for mask in seen),
        ring_span=tuple(map(span, sizes)),
        recent=window.layers,
        recent_seen=tuple(jax.lax.dynamic_slice_in_dim(mask, base, size, 1) for mask in seen),
        trunk_start=tuple(first(limit) if limit else None for limit in sizes),
        column=state.column - base,
        writes=active,
    )


def _one_step(
    chunk: _Chunk, state: DecodeState, window: _Window, uniforms, turns, reading: _Reading | None
) -> tuple[DecodeState, _Window, Drawn]:
    """Draw a token in every active lane and pass it through the network; ``state`` comes without its rings."""
    s = state.settings
    drawn = _draw(chunk, state, uniforms, reading)
    cache = _own_cache(chunk.network.windows, state, chunk.ring, chunk.base, window)
    inputs = drawn.token_ids, turns, cache, state.trunks.layers, s.fork
    hidden, layers, routes = chunk.network.decode(*inputs, chunk.layout)
    hidden = jnp.where(state.active[..., None], hidden, state.hidden)
    if window.hidden is not None:
        former = jax.lax.dynamic_slice_in_dim(window.hidden, cache.column, 1, 1)
        written = jnp.where(cache.writes[:, None, None], hidden.reshape(former.shape), former)
        window = window._replace(hidden=jax.lax.dynamic_update_slice_in_dim(window.hidden, written, cache.column, 1))
    generated = state.generated + state.active
    state = state._replace(
        hidden=hidden,
        generated=generated,
        active=state.active & ~drawn.stopped & (generated < s.limit),
        column=state.column + 1,
    )
    return state, window._replace(layers=layers), drawn._replace(routes=routes if chunk.recorded else None)


def decode_chunk(
    graphdef: nnx.GraphDef,
    layout: MeshLayout,
    params: Params,
    state: DecodeState,
    patience: jax.Array,
    interruptions: Interruptions | None = None,
    *,
    steps: int,
    filtered: bool,
    recorded: bool = False,
) -> tuple[DecodeState, Emitted]:
    """Draw up to ``steps`` tokens in every active lane.

    The chunk ends early when no lane is active, when ``patience`` lanes have ended, or at the end of the window of ring
    columns that it may write into. The caller must ensure that no active lane can come to hold more tokens than the
    ring's capacity (`resize_ring`). If ``recorded``, the tokens' routes are emitted, too.
    """
    network = bind(graphdef, params)
    head = network.decoding_head(layout)
    if interruptions is not None:
        state = state._replace(active=state.active | interruptions.resumed)

    def empty(dtype):
        return jnp.zeros((steps, *state.active.shape), dtype)

    f32 = jnp.float32
    nothing = Drawn(empty(bool), empty(bool), empty(jnp.int32), empty(f32), empty(f32), empty(f32))
    if recorded:
        count = sum(network.sparse) * network.experts_per_token
        nothing = nothing._replace(routes=jnp.zeros((*nothing.active.shape, count), network.routes_type))
    size = _window_size(state.capacity, steps)
    base = state.column // size * size
    chunk = _Chunk(network, head, layout, state.lanes, base, filtered, recorded)
    before, uniforms, turns = state.active.sum(), _chunk_uniforms(state, steps), _chunk_rotations(network, state, steps)

    def going(carry):
        step, current, *_ = carry
        count = current.active.sum()
        return (step < steps) & (current.column < base + size) & (count > 0) & (before - count < patience)

    def body(carry):
        step, current, window, states, out = carry
        reading = interruptions and _Reading(interruptions.table, states, interruptions.tool_written[step])
        was_active = current.active
        at_step = uniforms[step], jax.tree.map(lambda x: x[step], turns), reading
        current, window, drawn = _one_step(chunk, current, window, *at_step)

        def put(buffer, row):
            return jax.lax.dynamic_update_index_in_dim(buffer, row, step, 0)

        if reading is not None:
            states = jnp.where(was_active, reading.after(drawn.token_ids), states)
        return step + 1, current, window, states, jax.tree.map(put, out, drawn)

    light = state._replace(lanes=(), lane_hidden=None)
    states = None if interruptions is None else interruptions.states
    start = (jnp.zeros((), jnp.int32), light, _open_window(state, base, size), states, nothing)
    _, light, window, _, out = jax.lax.while_loop(going, body, start)
    light = light._replace(lanes=state.lanes, lane_hidden=state.lane_hidden, column=light.column % state.capacity)
    return _close_window(light, base, window), out.emitted()
