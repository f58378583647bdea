"""The decoder's compiled programs: prefill, insert trunks, fill lanes, decode a chunk, grow, promote.

State of the decoder: some *trunk slots*, each with the cached keys and values of one trunk, and in each slot some
*lanes*, each decoding one branch of that trunk. A lane's own keys and values are a ring buffer with one write column
common to all lanes, so a decode step updates the buffers in place with a single slice:

    column    0  1  2  3  4  5  6  7      capacity 8, the write column is 3
    lane A   x2 x3 x4  .  .  .  x0 x1     start 6, generated 5
    lane B    .  . y0  .  .  .  .  .      start 2, generated 1

Keys carry their position, so their order in memory does not matter. A chunk of steps only reads the rings: it takes an
aligned window of R columns out (the recent ones), writes its steps into that, and puts the window back at its end.

A branch's first token is drawn from the trunk's hidden state at ``fork - 1``: no prefix position is computed again.

Dimension key: G trunk slots, N lanes, S trunk positions, C ring columns, E width, I stream names, M stop ids, n steps.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from fr3e_jax.objectives.entropy import update_magnitude
from fr3e_jax.policy.attention import KeyValue, Rotation
from fr3e_jax.policy.network import OwnCache, Params, Placement, bind
from fr3e_jax.policy.rows import Trunks, run_trunks
from fr3e_jax.policy.sampling import draw_tokens, stream_keys, uniform


class LaneSettings(NamedTuple):
    """What the host says of each lane; all ``[G, N, ...]``."""

    fork: jax.Array  # int32, trunk tokens that the branch sees, at least 1
    limit: jax.Array  # int32, tokens after which it ends without a stop token
    stream: jax.Array  # uint32 [G, N, I], names of its noise stream
    temperature: jax.Array  # float32
    top_p: jax.Array  # float32
    top_k: jax.Array  # int32
    stop_ids: jax.Array  # int32 [G, N, M], -1 = none


class DecodeState(NamedTuple):
    trunks: Trunks  # key [G, K, D, S], value [G, K, S, D], hidden [G, S, E]
    # With L = G * N in one axis: with an axis N = 1 between, XLA on CPU would copy every cache at every step.
    lanes: tuple[KeyValue, ...]  # key [L, K, D, C], value [L, K, C, D]
    lane_hidden: (
        jax.Array | None
    )  # [L, C, E], hidden states of the lane's own tokens, in ring order; None: no promotion
    hidden: jax.Array  # [G, N, E], the state from which the next token is drawn
    settings: LaneSettings
    keys: jax.Array  # uint32 [G, N, 2]
    start: jax.Array  # int32 [G, N], ring column of the lane's first token
    generated: jax.Array  # int32 [G, N]
    active: jax.Array  # bool [G, N]
    column: jax.Array  # int32 scalar

    @property
    def capacity(self) -> int:
        """Columns of the rings: tokens that a lane can hold."""
        return self.lanes[0].key.shape[-1]


class Interruptions(NamedTuple):
    """Where lanes pause for a tool's answer, and what they read instead of drawing.

    ``table`` is that of `fr3e_jax.tools.automaton.CallTable`: in its last state but one a call is complete, and the
    lane that wrote it ends as by a stop token. Its next chunk can go on from there, once `resize_ring` has made the
    tokens of all lanes end at the same column again.
    """

    table: jax.Array  # int16 [A, V], the state of a lane after a token
    states: jax.Array  # int32 [G, N], at the start of the chunk
    given: jax.Array  # int32 [n, G, N], the tokens to take; -1: draw
    resumed: jax.Array  # bool [G, N], paused lanes that go on


class Emitted(NamedTuple):
    """What a chunk drew; all ``[n, G, N]``. Where ``emitted`` is false the rest is meaningless."""

    emitted: jax.Array
    token_ids: jax.Array
    logprobs: jax.Array
    entropies: jax.Array
    magnitudes: jax.Array
    stopped: jax.Array  # the token is a stop token


def prefill(graphdef: nnx.GraphDef, place: Placement, params: Params, trunk_ids: jax.Array) -> Trunks:
    """Keys, values and hidden states of ``trunk_ids [B, S]``, padded on the right; ``place``: onto the mesh."""
    return run_trunks(graphdef, params, trunk_ids, place)


class CacheShape(NamedTuple):
    """What the caches of a decoder look like besides their capacities; hashable."""

    layers: int
    kv_heads: int
    head_dim: int
    width: int
    kv_type: str
    hidden_type: str


def cache_shape(like: Trunks) -> CacheShape:
    """Of the caches in ``like``, a result of `prefill` or `promote`."""
    _, kv_heads, head_dim, _ = like.layers[0].key.shape
    types = like.layers[0].key.dtype.name, like.hidden.dtype.name
    return CacheShape(len(like.layers), kv_heads, head_dim, like.hidden.shape[-1], *types)


def empty_state(
    shape: CacheShape,
    slots: int,
    lanes: int,
    trunk_capacity: int,
    capacity: int,
    names: int,
    stops: int,
    promotable: bool,
) -> DecodeState:
    """A decoder with every lane idle.

    ``promotable``: whether lanes keep what `promote` needs of them besides their keys and values.
    """
    layers, kv_heads, head_dim, width, kv_type, hidden_type = shape
    trunk = lambda: KeyValue(
        jnp.zeros((slots, kv_heads, head_dim, trunk_capacity), kv_type),
        jnp.zeros((slots, kv_heads, trunk_capacity, head_dim), kv_type),
    )
    lane = lambda: KeyValue(
        jnp.zeros((slots * lanes, kv_heads, head_dim, capacity), kv_type),
        jnp.zeros((slots * lanes, kv_heads, capacity, head_dim), kv_type),
    )
    per_lane = lambda dtype, *tail: jnp.zeros((slots, lanes, *tail), dtype)
    return DecodeState(
        trunks=Trunks(tuple(trunk() for _ in range(layers)), jnp.zeros((slots, trunk_capacity, width), hidden_type)),
        lanes=tuple(lane() for _ in range(layers)),
        lane_hidden=jnp.zeros((slots * lanes, capacity, width), hidden_type) if promotable else None,
        hidden=per_lane(hidden_type, width),
        settings=LaneSettings(
            fork=per_lane(jnp.int32),
            limit=per_lane(jnp.int32),
            stream=per_lane(jnp.uint32, names),
            temperature=per_lane(jnp.float32),
            top_p=per_lane(jnp.float32),
            top_k=per_lane(jnp.int32),
            stop_ids=per_lane(jnp.int32, stops),
        ),
        keys=per_lane(jnp.uint32, 2),
        start=per_lane(jnp.int32),
        generated=per_lane(jnp.int32),
        active=per_lane(bool),
        column=jnp.zeros((), jnp.int32),
    )


def _fit(x: jax.Array, capacity: int, axis: int) -> jax.Array:
    """Cut or zero-pad an axis to ``capacity``; what is cut lies beyond every fork."""
    if x.shape[axis] >= capacity:
        return jax.lax.slice_in_dim(x, 0, capacity, axis=axis)
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, capacity - x.shape[axis])
    return jnp.pad(x, widths)


def insert_trunks(trunks: Trunks, source: Trunks, rows: jax.Array, slots: jax.Array) -> Trunks:
    """Copy trunks ``source[rows]`` into ``slots`` (both int ``[B]``); a slot number out of range is skipped."""
    capacity = trunks.hidden.shape[1]
    put = lambda old, new, axis: old.at[slots].set(_fit(new[rows], capacity, axis).astype(old.dtype), mode="drop")
    layers = tuple(
        KeyValue(put(old.key, new.key, 3), put(old.value, new.value, 2))
        for old, new in zip(trunks.layers, source.layers, strict=True)
    )
    return Trunks(layers, put(trunks.hidden, source.hidden, 1))


def copy_trunk(trunks: Trunks, source: jax.Array, target: jax.Array) -> Trunks:
    """Copy the trunk in slot ``source`` into slot ``target`` (int32 scalars)."""

    def put(x):
        return jax.lax.dynamic_update_slice_in_dim(x, jax.lax.dynamic_slice_in_dim(x, source, 1, 0), target, 0)

    return jax.tree.map(put, trunks)


def fill_lanes(state: DecodeState, base_key: jax.Array, new: jax.Array, settings: LaneSettings) -> DecodeState:
    """Start a branch in every lane where ``new [G, N]`` is true; the other lanes go on as they are.

    Reads and changes no cache but ``trunks.hidden``: a state without the others will do.
    """

    def choose(fresh, old):
        return jnp.where(new.reshape(new.shape + (1,) * (old.ndim - 2)), fresh, old)

    at_fork = jnp.take_along_axis(state.trunks.hidden, jnp.maximum(settings.fork - 1, 0)[..., None], axis=1)
    return state._replace(
        hidden=choose(at_fork, state.hidden),
        settings=jax.tree.map(choose, settings, state.settings),
        keys=choose(stream_keys(base_key, settings.stream), state.keys),
        start=choose(jnp.broadcast_to(state.column, new.shape), state.start),
        generated=choose(jnp.zeros_like(state.generated), state.generated),
        active=state.active | new,
    )


def _chunk_rotations(network, state: DecodeState, steps: int) -> Rotation:
    """The rotary angles ``[steps, G, N, 1, D / 2]`` of a chunk's tokens."""
    first = state.settings.fork + state.generated
    turns = network.rotation(first[..., None] + jnp.arange(steps).reshape(1, 1, -1))
    return jax.tree.map(lambda x: jnp.moveaxis(x, 2, 0)[..., None, :], turns)


def _chunk_uniforms(state: DecodeState, steps: int) -> jax.Array:
    """The random numbers ``[steps, G * N]`` of a chunk: a lane that is active at step i has drawn i tokens in it.

    All at once, because one step's hashing is some hundred operations on a few numbers each.
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
    cut = lambda x, axis: jax.lax.dynamic_slice_in_dim(x, base, size, axis)
    layers = tuple(KeyValue(cut(kv.key, 3), cut(kv.value, 2)) for kv in state.lanes)
    return _Window(layers, None if state.lane_hidden is None else cut(state.lane_hidden, 1))


def _close_window(state: DecodeState, base: jax.Array, window: _Window) -> DecodeState:
    put = lambda x, new, axis: jax.lax.dynamic_update_slice_in_dim(x, new, base, axis)
    lanes = tuple(
        KeyValue(put(kv.key, new.key, 3), put(kv.value, new.value, 2))
        for kv, new in zip(state.lanes, window.layers, strict=True)
    )
    hidden = None if window.hidden is None else put(state.lane_hidden, window.hidden, 1)
    return state._replace(lanes=lanes, lane_hidden=hidden)


class _Reading(NamedTuple):
    """`Interruptions` at one step."""

    table: jax.Array
    states: jax.Array  # int32 [G, N]
    given: jax.Array  # int32 [G, N]

    def after(self, token_ids: jax.Array) -> jax.Array:
        """The states after ``token_ids [G, N]``; a tool's answer opens and closes no call."""
        return jnp.where(self.given >= 0, self.states, self.table[self.states, token_ids].astype(jnp.int32))


def _draw(network, state: DecodeState, uniforms: jax.Array, reading: _Reading | None, *, filtered: bool) -> Emitted:
    """The next token of every lane, from the hidden states in the state."""
    s, shape = state.settings, state.active.shape
    flat = lambda x: x.reshape(-1, *x.shape[2:])
    logits = network.logits(flat(state.hidden))
    given = None if reading is None else flat(reading.given)
    draw = draw_tokens(logits, uniforms, flat(s.temperature), flat(s.top_p), flat(s.top_k), given, filtered=filtered)
    hidden_norms = jnp.linalg.norm(flat(state.hidden).astype(jnp.float32), axis=-1)
    magnitudes = update_magnitude(logits, draw.token_ids, hidden_norms).reshape(shape)
    draw = jax.tree.map(lambda x: x.reshape(shape), draw)
    stopped = (draw.token_ids[..., None] == s.stop_ids).any(axis=-1)
    if reading is not None:
        done = reading.table.shape[0] - 2
        stopped = (reading.given < 0) & (stopped | (reading.after(draw.token_ids) == done))
    return Emitted(state.active, draw.token_ids, draw.logprobs, draw.entropies, magnitudes, stopped)


def _own_cache(state: DecodeState, ring: tuple[KeyValue, ...], base: jax.Array, window: _Window) -> OwnCache:
    """What each lane sees of its own: in the ring the columns before the window, in the window up to this step's."""
    active, generated, start = (x.reshape(-1) for x in (state.active, state.generated, state.start))
    size, capacity = window.layers[0].key.shape[-1], ring[0].key.shape[-1]
    age = (jnp.arange(capacity)[None] - start[:, None]) % capacity
    seen = age <= generated[:, None]  # the column being written has age == generated
    inside = (jnp.arange(capacity) >= base) & (jnp.arange(capacity) < base + size)
    return OwnCache(
        ring=ring if capacity > size else (),
        ring_seen=seen & ~inside[None],
        recent=window.layers,
        recent_seen=jax.lax.dynamic_slice_in_dim(seen, base, size, 1),
        column=state.column - base,
        writes=active,
    )


def _one_step(
    network, place: Placement, state, ring, base, window: _Window, uniforms, turn: Rotation, reading, *, filtered
):
    """Draw a token in every active lane and pass it through the network; ``state`` comes without its rings."""
    s, emitted = state.settings, _draw(network, state, uniforms, reading, filtered=filtered)
    cache = _own_cache(state, ring, base, window)
    hidden, layers = network(
        emitted.token_ids[..., None],
        turn,
        None,
        cache=cache,
        trunk=state.trunks.layers,
        fork=s.fork[..., None],
        place=place,
    )
    hidden = jnp.where(state.active[..., None], hidden[:, :, 0], state.hidden)
    if window.hidden is not None:
        kept = jax.lax.dynamic_slice_in_dim(window.hidden, cache.column, 1, 1)
        written = jnp.where(cache.writes[:, None, None], hidden.reshape(kept.shape), kept)
        window = window._replace(hidden=jax.lax.dynamic_update_slice_in_dim(window.hidden, written, cache.column, 1))
    generated = state.generated + state.active
    state = state._replace(
        hidden=hidden,
        generated=generated,
        active=state.active & ~emitted.stopped & (generated < s.limit),
        column=state.column + 1,
    )
    return state, window._replace(layers=layers), emitted


def decode_chunk(
    graphdef: nnx.GraphDef,
    place: Placement,
    params: Params,
    state: DecodeState,
    patience: jax.Array,
    interruptions: Interruptions | None = None,
    *,
    steps: int,
    filtered: bool,
) -> tuple[DecodeState, Emitted]:
    """Draw up to ``steps`` tokens in every active lane.

    Ends early when no lane is active, when ``patience`` lanes have ended, or at the end of the window of ring columns
    that the chunk may write into. The caller sees to it that no active lane can come to hold more tokens than the
    ring's capacity (`resize_ring`).
    """
    network = bind(graphdef, params)
    if interruptions is not None:
        state = state._replace(active=state.active | interruptions.resumed)
    empty = lambda dtype: jnp.zeros((steps, *state.active.shape), dtype)
    f32 = jnp.float32
    nothing = Emitted(empty(bool), empty(jnp.int32), empty(f32), empty(f32), empty(f32), empty(bool))
    size = _window_size(state.capacity, steps)
    base = state.column // size * size
    before, uniforms, turns = state.active.sum(), _chunk_uniforms(state, steps), _chunk_rotations(network, state, steps)

    def going(carry):
        step, current, *_ = carry
        count = current.active.sum()
        return (step < steps) & (current.column < base + size) & (count > 0) & (before - count < patience)

    def body(carry):
        step, current, window, states, out = carry
        reading = interruptions and _Reading(interruptions.table, states, interruptions.given[step])
        was_active = current.active
        current, window, one = _one_step(
            network,
            place,
            current,
            state.lanes,
            base,
            window,
            uniforms[step],
            jax.tree.map(lambda x: x[step], turns),
            reading,
            filtered=filtered,
        )
        put = lambda buffer, row: jax.lax.dynamic_update_index_in_dim(buffer, row, step, 0)
        if reading is not None:
            states = jnp.where(was_active, reading.after(one.token_ids), states)
        return step + 1, current, window, states, jax.tree.map(put, out, one)

    light = state._replace(lanes=(), lane_hidden=None)
    states = None if interruptions is None else interruptions.states
    start = (jnp.zeros((), jnp.int32), light, _open_window(state, base, size), states, nothing)
    _, light, window, _, out = jax.lax.while_loop(going, body, start)
    light = light._replace(lanes=state.lanes, lane_hidden=state.lane_hidden, column=light.column % state.capacity)
    return _close_window(light, base, window), out


def _take_columns(x: jax.Array, columns: jax.Array, axis: int) -> jax.Array:
    """``x`` with its ring axis (counted after the ``columns.ndim - 1`` leading ones) read at ``columns [..., new]``."""
    lead = columns.ndim - 1
    shape = columns.shape[:lead] + tuple(columns.shape[-1] if a == axis else 1 for a in range(lead, x.ndim))
    return jnp.take_along_axis(x, columns.reshape(shape), axis=axis)


def resized_start(generated: jax.Array, capacity: int) -> tuple[jax.Array, jax.Array]:
    """`DecodeState.start` and the next column, which is 0, in rings of ``capacity`` columns."""
    return (-generated) % capacity, jnp.zeros((), jnp.int32)


def resize_ring(ring: jax.Array, start: jax.Array, generated: jax.Array, *, capacity: int, axis: int) -> jax.Array:
    """One lane buffer ``[L, ...]`` in a ring of another capacity (on ``axis``), with the same content.

    ``start`` and ``generated`` ``[G, N]`` are the state's before; its start becomes `resized_start`, its column 0. A
    smaller capacity must hold the tokens of every lane that is still of use.
    """
    start, generated = start.reshape(-1, 1), generated.reshape(-1, 1)
    index = (jnp.arange(capacity)[None] - resized_start(generated, capacity)[0]) % capacity  # the token for each column
    columns = (start + index) % ring.shape[axis]  # garbage where index >= generated: never seen
    return _take_columns(ring, columns, axis)


def promote(state: DecodeState, slots: jax.Array, lanes: jax.Array, *, capacity: int) -> Trunks:
    """Finished branches as trunks of their own: the trunk's cache up to the fork, then the lane's. Nothing is computed.

    ``slots``, ``lanes``: int ``[B]``. Returns `Trunks` of ``capacity`` positions.
    """
    position = jnp.arange(capacity)[None]
    fork, start = state.settings.fork[slots, lanes], state.start[slots, lanes]
    columns = (start[:, None] + position - fork[:, None]) % state.capacity
    from_trunk, flat = position < fork[:, None], slots * state.active.shape[1] + lanes

    def join(trunk, lane, axis):
        own = _take_columns(lane[flat], columns, axis)
        seen = from_trunk.reshape(own.shape[0], *(capacity if a == axis else 1 for a in range(1, own.ndim)))
        return jnp.where(seen, _fit(trunk[slots], capacity, axis), own)

    layers = tuple(
        KeyValue(join(trunk.key, lane.key, 3), join(trunk.value, lane.value, 2))
        for trunk, lane in zip(state.trunks.layers, state.lanes, strict=True)
    )
    return Trunks(layers, join(state.trunks.hidden, state.lane_hidden, 1))
