"""The decoder's compiled programs: prefill, insert trunks, fill lanes, decode a chunk, grow, promote.

State of the decoder: some *trunk slots*, each with the cached keys and values of one trunk, and in each slot some
*lanes*, each decoding one branch of that trunk. A lane's own keys and values are a ring buffer with one write column
common to all lanes, so a decode step updates the buffers in place with a single slice:

    column    0  1  2  3  4  5  6  7      capacity 8, the write column is 3
    lane A   x2 x3 x4  .  .  .  x0 x1     start 6, generated 5
    lane B    .  . y0  .  .  .  .  .      start 2, generated 1

Keys carry their position, so their order in memory does not matter.

A branch's first token is drawn from the trunk's hidden state at ``fork - 1``: no prefix position is computed again.

Dimension key: G trunk slots, N lanes, S trunk positions, C ring columns, E width, I stream names, M stop ids, n steps.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from fr3e_jax.objectives.entropy import update_magnitude
from fr3e_jax.policy.attention import KeyValue
from fr3e_jax.policy.network import OwnCache, Params, bind
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
    lanes: tuple[KeyValue, ...]  # key [G, N, K, D, C], value [G, N, K, C, D]
    lane_hidden: jax.Array  # [G, N, C, E], hidden states of the lane's own tokens, in ring order
    hidden: jax.Array  # [G, N, E], the state from which the next token is drawn
    settings: LaneSettings
    keys: jax.Array  # uint32 [G, N, 2]
    start: jax.Array  # int32 [G, N], ring column of the lane's first token
    generated: jax.Array  # int32 [G, N]
    active: jax.Array  # bool [G, N]
    column: jax.Array  # int32 scalar


class Emitted(NamedTuple):
    """What a chunk drew; all ``[n, G, N]``. Where ``emitted`` is false the rest is meaningless."""

    emitted: jax.Array
    token_ids: jax.Array
    logprobs: jax.Array
    entropies: jax.Array
    magnitudes: jax.Array
    stopped: jax.Array  # the token is a stop token


def prefill(graphdef: nnx.GraphDef, params: Params, trunk_ids: jax.Array) -> Trunks:
    """Keys, values and hidden states of ``trunk_ids [B, S]``, padded on the right."""
    return run_trunks(graphdef, params, trunk_ids)


def empty_state(like: Trunks, slots: int, lanes: int, trunk_capacity: int, capacity: int, names: int, stops: int):
    """A decoder with every lane idle; shapes and dtypes of caches follow ``like`` (a result of `prefill`)."""
    _, kv_heads, head_dim, _ = like.layers[0].key.shape
    kv_type, width, hidden_type = like.layers[0].key.dtype, like.hidden.shape[-1], like.hidden.dtype
    trunk = lambda: KeyValue(
        jnp.zeros((slots, kv_heads, head_dim, trunk_capacity), kv_type),
        jnp.zeros((slots, kv_heads, trunk_capacity, head_dim), kv_type),
    )
    lane = lambda: KeyValue(
        jnp.zeros((slots, lanes, kv_heads, head_dim, capacity), kv_type),
        jnp.zeros((slots, lanes, kv_heads, capacity, head_dim), kv_type),
    )
    per_lane = lambda dtype, *tail: jnp.zeros((slots, lanes, *tail), dtype)
    return DecodeState(
        trunks=Trunks(tuple(trunk() for _ in like.layers), jnp.zeros((slots, trunk_capacity, width), hidden_type)),
        lanes=tuple(lane() for _ in like.layers),
        lane_hidden=per_lane(hidden_type, capacity, width),
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


def insert_trunks(state: DecodeState, source: Trunks, rows: jax.Array, slots: jax.Array) -> DecodeState:
    """Copy trunks ``source[rows]`` into ``slots`` (both int ``[B]``); a slot number out of range is skipped."""
    capacity = state.trunks.hidden.shape[1]
    put = lambda old, new, axis: old.at[slots].set(_fit(new[rows], capacity, axis).astype(old.dtype), mode="drop")
    layers = tuple(
        KeyValue(put(old.key, new.key, 3), put(old.value, new.value, 2))
        for old, new in zip(state.trunks.layers, source.layers, strict=True)
    )
    return state._replace(trunks=Trunks(layers, put(state.trunks.hidden, source.hidden, 1)))


def fill_lanes(state: DecodeState, base_key: jax.Array, new: jax.Array, settings: LaneSettings) -> DecodeState:
    """Start a branch in every lane where ``new [G, N]`` is true; the other lanes go on as they are."""

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


def _one_step(network, state: DecodeState, *, filtered: bool) -> tuple[DecodeState, Emitted]:
    s, shape = state.settings, state.active.shape
    flat = lambda x: x.reshape(-1, *x.shape[2:])
    logits = network.logits(flat(state.hidden))
    draw = draw_tokens(
        logits,
        uniform(flat(state.keys), flat(state.generated)),
        flat(s.temperature),
        flat(s.top_p),
        flat(s.top_k),
        filtered=filtered,
    )
    hidden_norms = jnp.linalg.norm(flat(state.hidden).astype(jnp.float32), axis=-1)
    magnitudes = update_magnitude(logits, draw.token_ids, hidden_norms).reshape(shape)
    draw = jax.tree.map(lambda x: x.reshape(shape), draw)
    stopped = (draw.token_ids[..., None] == s.stop_ids).any(axis=-1)
    emitted = Emitted(state.active, draw.token_ids, draw.logprobs, draw.entropies, magnitudes, stopped)

    capacity = state.lane_hidden.shape[2]
    age = (jnp.arange(capacity)[None, None] - state.start[..., None]) % capacity
    own_mask = age <= state.generated[..., None]  # the column being written has age == generated
    positions = s.fork + state.generated
    hidden, lanes = network(
        draw.token_ids[..., None],
        positions[..., None],
        own_mask[:, :, None],
        cache=OwnCache(state.lanes, state.column, state.active),
        trunk=state.trunks.layers,
        fork=s.fork[..., None],
    )
    hidden = jnp.where(state.active[..., None], hidden[:, :, 0], state.hidden)
    kept = jax.lax.dynamic_slice_in_dim(state.lane_hidden, state.column, 1, 2)
    written = jnp.where(state.active[..., None, None], hidden[:, :, None], kept)
    generated = state.generated + state.active
    return state._replace(
        lanes=lanes,
        lane_hidden=jax.lax.dynamic_update_slice_in_dim(state.lane_hidden, written, state.column, 2),
        hidden=hidden,
        generated=generated,
        active=state.active & ~stopped & (generated < s.limit),
        column=(state.column + 1) % capacity,
    ), emitted


def decode_chunk(
    graphdef: nnx.GraphDef, params: Params, state: DecodeState, *, steps: int, filtered: bool
) -> tuple[DecodeState, Emitted]:
    """Draw up to ``steps`` tokens in every active lane; ends early when no lane is active.

    The caller sees to it that no active lane can come to hold more tokens than the ring's capacity (`grow`).
    """
    network = bind(graphdef, params)
    empty = lambda dtype: jnp.zeros((steps, *state.active.shape), dtype)
    f32 = jnp.float32
    nothing = Emitted(empty(bool), empty(jnp.int32), empty(f32), empty(f32), empty(f32), empty(bool))

    def body(carry):
        step, state, out = carry
        state, one = _one_step(network, state, filtered=filtered)
        put = lambda buffer, row: jax.lax.dynamic_update_index_in_dim(buffer, row, step, 0)
        return step + 1, state, jax.tree.map(put, out, one)

    going = lambda carry: (carry[0] < steps) & carry[1].active.any()
    _, state, out = jax.lax.while_loop(going, body, (jnp.zeros((), jnp.int32), state, nothing))
    return state, out


def _take_columns(x: jax.Array, columns: jax.Array, axis: int) -> jax.Array:
    """``x`` with its ring axis (counted after the ``columns.ndim - 1`` leading ones) read at ``columns [..., new]``."""
    lead = columns.ndim - 1
    shape = columns.shape[:lead] + tuple(columns.shape[-1] if a == axis else 1 for a in range(lead, x.ndim))
    return jnp.take_along_axis(x, columns.reshape(shape), axis=axis)


def grow(state: DecodeState, *, capacity: int) -> DecodeState:
    """Ring buffers of another capacity with the same content; every lane's next column becomes 0."""
    old = state.lane_hidden.shape[2]
    start = (-state.generated) % capacity
    index = (
        jnp.arange(capacity)[None, None] - start[..., None]
    ) % capacity  # which of the lane's tokens goes to each column
    columns = (state.start[..., None] + index) % old  # garbage where index >= generated: never seen
    return state._replace(
        lanes=tuple(
            KeyValue(_take_columns(kv.key, columns, 4), _take_columns(kv.value, columns, 3)) for kv in state.lanes
        ),
        lane_hidden=_take_columns(state.lane_hidden, columns, 2),
        start=start,
        column=jnp.zeros((), jnp.int32),
    )


def promote(state: DecodeState, slots: jax.Array, lanes: jax.Array, *, capacity: int) -> Trunks:
    """Finished branches as trunks of their own: the trunk's cache up to the fork, then the lane's. Nothing is computed.

    ``slots``, ``lanes``: int ``[B]``. Returns `Trunks` of ``capacity`` positions.
    """
    position = jnp.arange(capacity)[None]
    fork, start = state.settings.fork[slots, lanes], state.start[slots, lanes]
    ring = state.lane_hidden.shape[2]
    columns = (start[:, None] + position - fork[:, None]) % ring
    from_trunk = position < fork[:, None]

    def join(trunk, lane, axis):
        own = _take_columns(lane[slots, lanes], columns, axis)
        seen = from_trunk.reshape(own.shape[0], *(capacity if a == axis else 1 for a in range(1, own.ndim)))
        return jnp.where(seen, _fit(trunk[slots], capacity, axis), own)

    layers = tuple(
        KeyValue(join(trunk.key, lane.key, 3), join(trunk.value, lane.value, 2))
        for trunk, lane in zip(state.trunks.layers, state.lanes, strict=True)
    )
    return Trunks(layers, join(state.trunks.hidden, state.lane_hidden, 1))
