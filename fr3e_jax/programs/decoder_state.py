"""The decoder's state, and the functions that change it between chunks of steps: insert, fill, resize, promote.

State of the decoder: some *trunk slots*, each with the cached keys and values of one trunk, and in each slot some
*lanes*, each decoding one branch of that trunk. A lane's own keys and values are a ring buffer with one write column
common to all lanes, so a decode step updates the buffers in place with a single slice:

    column    0  1  2  3  4  5  6  7      capacity 8, the write column is 3
    lane A   x2 x3 x4  .  .  .  x0 x1     start 6, generated 5
    lane B    .  . y0  .  .  .  .  .      start 2, generated 1

Keys carry their position, so their order in memory does not matter. `decode_steps` draws the tokens;
`decoder_programs` compiles the functions of both modules.

Dimension key: B trunk slots, N lanes of each, L = B·N lanes, S trunk positions, C ring columns, K key/value heads,
D head size, E width, I stream names, M stop ids.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fr3e_jax.policy.attention import KeyValue
from fr3e_jax.policy.rows import Trunks
from fr3e_jax.policy.sampling import stream_keys


class LaneSettings(NamedTuple):
    """Settings of each lane, set by the host; all ``[B, N, ...]``."""

    fork: jax.Array  # int32, trunk tokens that the branch sees, at least 1
    limit: jax.Array  # int32, number of tokens after which the branch ends without a stop token
    stream: jax.Array  # uint32 [B, N, I], names of its noise stream
    temperature: jax.Array  # float32
    top_p: jax.Array  # float32
    top_k: jax.Array  # int32
    stop_ids: jax.Array  # int32 [B, N, M], -1 = none


class DecodeState(NamedTuple):
    """Trunk slots, lanes and their caches."""

    trunks: Trunks  # key [B, K, D, S], value [B, K, S, D], hidden [B, S, E]
    # L = B·N in one axis: with an axis N = 1 between, XLA on CPU would copy every cache at every step.
    lanes: tuple[KeyValue, ...]  # key [L, K, D, C], value [L, K, C, D]
    # [L, C, E]: hidden states of the lane's own tokens, in ring order; None: nothing can be promoted.
    lane_hidden: jax.Array | None
    hidden: jax.Array  # [B, N, E], the state from which the next token is drawn
    settings: LaneSettings
    keys: jax.Array  # uint32 [B, N, 2]
    start: jax.Array  # int32 [B, N], ring column of the lane's first token
    generated: jax.Array  # int32 [B, N], tokens that the lane holds
    active: jax.Array  # bool [B, N]
    column: jax.Array  # int32 scalar, the write column

    @property
    def capacity(self) -> int:
        """Columns of the rings: tokens that a lane can hold."""
        return self.lanes[0].key.shape[-1]


class CacheShape(NamedTuple):
    """Shape and types of a decoder's caches, without their capacities; hashable."""

    layers: int
    kv_heads: int
    head_dim: int
    width: int
    kv_type: str
    hidden_type: str


def cache_shape(like: Trunks) -> CacheShape:
    """The `CacheShape` of ``like``, a result of `prefill` or `promote`."""
    _, kv_heads, head_dim, _ = like.layers[0].key.shape
    types = like.layers[0].key.dtype.name, like.hidden.dtype.name
    return CacheShape(len(like.layers), kv_heads, head_dim, like.hidden.shape[-1], *types)


class DecoderSizes(NamedTuple):
    """Sizes of a decoder; hashable."""

    slots: int  # B
    lanes: int  # N, of each slot
    trunk_capacity: int  # S
    capacity: int  # C, columns of the rings
    names: int  # I, integers that name a noise stream
    stops: int  # M, stop ids of a lane
    promotable: bool  # whether lanes keep their hidden states, which `promote` needs


def empty_state(shape: CacheShape, sizes: DecoderSizes) -> DecodeState:
    """A decoder with every lane idle."""
    layers, kv_heads, head_dim, width, kv_type, hidden_type = shape
    slots, lanes, trunk_capacity, capacity, names, stops, promotable = sizes

    def trunk():
        return KeyValue(
            jnp.zeros((slots, kv_heads, head_dim, trunk_capacity), kv_type),
            jnp.zeros((slots, kv_heads, trunk_capacity, head_dim), kv_type),
        )

    def lane():
        return KeyValue(
            jnp.zeros((slots * lanes, kv_heads, head_dim, capacity), kv_type),
            jnp.zeros((slots * lanes, kv_heads, capacity, head_dim), kv_type),
        )

    def per_lane(dtype, *tail):
        return jnp.zeros((slots, lanes, *tail), dtype)

    return DecodeState(
        trunks=Trunks(tuple(trunk() for _ in range(layers)), jnp.zeros((slots, trunk_capacity, width), hidden_type)),
        lanes=tuple(lane() for _ in range(layers)),
        lane_hidden=jnp.zeros((slots * lanes, capacity, width), hidden_type) if promotable else None,
        hidden=per_lane(hidden_type, width),
        settings=LaneSettings(
            fork=per_lane(jnp.int32),
            limit=per_lane(jnp.int32),
            stream=per_lane(jnp.uint32, names),
            temperature=jnp.ones((slots, lanes), jnp.float32),  # 0 would make each step look for the likeliest tokens
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
    """Cut or zero-pad an axis to ``capacity``; the positions that are cut lie beyond every fork."""
    if x.shape[axis] >= capacity:
        return jax.lax.slice_in_dim(x, 0, capacity, axis=axis)
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, capacity - x.shape[axis])
    return jnp.pad(x, widths)


def insert_trunks(trunks: Trunks, source: Trunks, rows: jax.Array, slots: jax.Array) -> Trunks:
    """Copy trunk ``rows[i]`` of ``source`` into slot ``slots[i]``; a slot number out of range is skipped."""
    capacity = trunks.hidden.shape[1]

    def put(old, new, axis):
        return old.at[slots].set(_fit(new[rows], capacity, axis).astype(old.dtype), mode="drop")

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


def without_caches(state: DecodeState) -> DecodeState:
    """The part of the state that `fill_lanes` needs. Its shapes do not depend on the capacity of the rings."""
    return state._replace(trunks=state.trunks._replace(layers=()), lanes=(), lane_hidden=None)


def fill_lanes(state: DecodeState, base_key: jax.Array, new: jax.Array, settings: LaneSettings) -> DecodeState:
    """Start a branch in every lane where ``new [B, N]`` is true; the other lanes go on as they are.

    The only cache it reads or changes is ``trunks.hidden``; see `without_caches`.
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


def stop_lanes(active: jax.Array, over: jax.Array) -> jax.Array:
    """`DecodeState.active` without the lanes in ``over``, bool ``[B, N]``."""
    return active & ~over


def resize_layout(state: DecodeState, *, slots: int, lanes: int, trunk_capacity: int) -> DecodeState:
    """The state with another number of slots and of lanes in each, and of positions in a trunk.

    What is added is idle, what is cut must be: the last slots and lanes, and positions beyond every fork.
    """
    before = state.active.shape

    def per_lane(x: jax.Array) -> jax.Array:
        return _fit(_fit(x, slots, 0), lanes, 1)

    def flat(x: jax.Array) -> jax.Array:
        return per_lane(x.reshape(*before, *x.shape[1:])).reshape(slots * lanes, *x.shape[1:])

    def trunk(x: jax.Array, axis: int) -> jax.Array:
        return _fit(_fit(x, slots, 0), trunk_capacity, axis)

    layers = tuple(KeyValue(trunk(kv.key, 3), trunk(kv.value, 2)) for kv in state.trunks.layers)
    active, settings = per_lane(state.active), jax.tree.map(per_lane, state.settings)
    return DecodeState(
        trunks=Trunks(layers, trunk(state.trunks.hidden, 1)),
        lanes=jax.tree.map(flat, state.lanes),
        lane_hidden=None if state.lane_hidden is None else flat(state.lane_hidden),
        hidden=per_lane(state.hidden),
        settings=settings._replace(temperature=jnp.where(active, settings.temperature, 1.0)),  # as in `empty_state`
        keys=per_lane(state.keys),
        start=per_lane(state.start),
        generated=per_lane(state.generated),
        active=active,
        column=state.column,
    )


def _take_columns(x: jax.Array, columns: jax.Array, axis: int) -> jax.Array:
    """``x`` with its ring axis read at ``columns [..., new]``; ``axis`` counts from the first axis of ``x``."""
    lead = columns.ndim - 1
    shape = columns.shape[:lead] + tuple(columns.shape[-1] if a == axis else 1 for a in range(lead, x.ndim))
    return jnp.take_along_axis(x, columns.reshape(shape), axis=axis)


def resized_start(generated: jax.Array, capacity: int) -> tuple[jax.Array, jax.Array]:
    """`DecodeState.start` and the next column, which is 0, in rings of ``capacity`` columns."""
    return (-generated) % capacity, jnp.zeros((), jnp.int32)


def resize_ring(ring: jax.Array, start: jax.Array, generated: jax.Array, *, capacity: int, axis: int) -> jax.Array:
    """One lane buffer ``[L, ...]`` in a ring of another capacity (on ``axis``), with the same content.

    ``start`` and ``generated`` ``[B, N]`` are the state's before resizing; its start becomes `resized_start`, its
    column 0. A smaller capacity must hold the tokens of every lane that is still of use.
    """
    start, generated = start.reshape(-1, 1), generated.reshape(-1, 1)
    index = (jnp.arange(capacity)[None] - resized_start(generated, capacity)[0]) % capacity  # the token for each column
    columns = (start + index) % ring.shape[axis]  # garbage where index >= generated: never seen
    return _take_columns(ring, columns, axis)


def promote(state: DecodeState, slots: jax.Array, lanes: jax.Array, *, capacity: int) -> Trunks:
    """Finished branches as trunks of their own: the trunk's cache up to the fork, then the lane's. Nothing is computed.

    Branch i is the one in lane ``lanes[i]`` of slot ``slots[i]``. Returns `Trunks` of ``capacity`` positions.
    """
    position = jnp.arange(capacity)[None]
    fork, start = state.settings.fork[slots, lanes], state.start[slots, lanes]
    columns = (start[:, None] + position - fork[:, None]) % state.capacity
    from_trunk, flat = position < fork[:, None], slots * state.active.shape[1] + lanes

    def join(trunk, lane, axis):
        branch = _take_columns(lane[flat], columns, axis)
        seen = from_trunk.reshape(branch.shape[0], *(capacity if a == axis else 1 for a in range(1, branch.ndim)))
        return jnp.where(seen, _fit(trunk[slots], capacity, axis), branch)

    layers = tuple(
        KeyValue(join(trunk.key, lane.key, 3), join(trunk.value, lane.value, 2))
        for trunk, lane in zip(state.trunks.layers, state.lanes, strict=True)
    )
    return Trunks(layers, join(state.trunks.hidden, state.lane_hidden, 1))
