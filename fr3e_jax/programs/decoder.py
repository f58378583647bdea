"""The decoder's programs, compiled: every `jax.jit` of decoding, with its shardings and donations, stands here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from fr3e_jax.policy.architecture import Architecture
from fr3e_jax.policy.attention import KeyValue
from fr3e_jax.policy.network import Params
from fr3e_jax.policy.rows import Trunks
from fr3e_jax.programs import decode
from fr3e_jax.programs.decode import DecodeState, Emitted, Interruptions, LaneSettings
from fr3e_jax.programs.mesh import (
    batch_sharding,
    batch_shards,
    cache_sharding,
    kept_hidden_sharding,
    placement,
    replicated,
)
from fr3e_jax.programs.placement import on_mesh

_LEAST_RING = 16  # columns


def power_of_two(n: int, least: int = 1) -> int:
    """The smallest power of two that is at least ``n`` and ``least``: the sizes that programs are compiled for."""
    return 1 << int(max(n - 1, least - 1, 0)).bit_length()


def size_bucket(size: int, least: int = 4) -> int:
    """The next of 4, 6, 8, 12, 16, 24, 32, ...: at most a third of it is empty, above ``least``."""
    whole = power_of_two(size, least)
    return whole * 3 // 4 if whole > least and size <= whole * 3 // 4 else whole


def ring_size(tokens: int, most: int) -> int:
    """Columns of rings that are to hold ``tokens`` tokens now and ``most`` in the end: of 16, 64, 128, 256, 512, ...

    Each size is a compiled program more, of some 20 MB on CPU; 32 would save less than that costs. Never more than
    ``most`` tokens need.
    """
    size = power_of_two(tokens, _LEAST_RING)
    return min(64 if size == 32 else size, power_of_two(most, _LEAST_RING))


def _without_caches(state: DecodeState) -> DecodeState:
    """What `decode.fill_lanes` needs: its program then does not depend on the capacities of the rings."""
    return state._replace(trunks=state.trunks._replace(layers=()), lanes=(), lane_hidden=None)


class DecoderPrograms:
    """Compiled decoder programs for one network on one mesh.

    Caches are split over ``(replica, fsdp)`` by trunk slot, and over ``tensor`` by key/value head where that divides.
    Every program that changes a `DecodeState` donates what it changes: the caller keeps the returned one only.
    """

    def __init__(self, graphdef: nnx.GraphDef, architecture: Architecture, mesh: Mesh):
        by_slot, whole, cache = batch_sharding(mesh), replicated(mesh), cache_sharding(mesh, architecture)
        kept = kept_hidden_sharding(mesh, architecture)
        trunks = Trunks((KeyValue(cache, cache),) * architecture.num_layers, kept)
        state = DecodeState(
            trunks=trunks,
            lanes=(KeyValue(cache, cache),) * architecture.num_layers,
            lane_hidden=kept,
            hidden=by_slot,
            settings=LaneSettings(*(by_slot,) * len(LaneSettings._fields)),
            keys=by_slot,
            start=by_slot,
            generated=by_slot,
            active=by_slot,
            column=whole,
        )
        emitted = Emitted(*(whole,) * len(Emitted._fields))
        self.mesh, self.shards, self._by_slot, self._whole = mesh, batch_shards(mesh), by_slot, whole
        place = placement(mesh)
        self._prefill = jax.jit(partial(decode.prefill, graphdef, place), out_shardings=trunks)
        self._empty = jax.jit(decode.empty_state, static_argnums=range(8), out_shardings=state)
        self._insert = jax.jit(decode.insert_trunks, donate_argnums=0, out_shardings=trunks)
        self._copy = jax.jit(decode.copy_trunk, donate_argnums=0, out_shardings=trunks)
        self._fill = jax.jit(decode.fill_lanes, donate_argnums=0, out_shardings=_without_caches(state))
        self._chunk = jax.jit(
            partial(decode.decode_chunk, graphdef, place),
            static_argnames=("steps", "filtered"),
            donate_argnums=1,
            out_shardings=(state, emitted),
        )
        self._resize_cache = jax.jit(decode.resize_ring, static_argnames=("capacity", "axis"), out_shardings=cache)
        self._resize_hidden = jax.jit(decode.resize_ring, static_argnames=("capacity", "axis"), out_shardings=kept)
        self._restart = jax.jit(decode.resized_start, static_argnums=1, out_shardings=(by_slot, whole))
        self._promote = jax.jit(decode.promote, static_argnames="capacity", out_shardings=trunks)

    def jitted(self) -> dict[str, Callable]:
        """The programs by name, to lower without running them (`fr3e_jax.planning`)."""
        return {
            "prefill": self._prefill,
            "empty": self._empty,
            "insert": self._insert,
            "decode": self._chunk,
            "promote": self._promote,
        }

    def round_up(self, count: int) -> int:
        """The next count that splits evenly over the batch shards of the mesh."""
        return -(-count // self.shards) * self.shards

    def prefill(self, params: Params, trunk_ids: np.ndarray) -> Trunks:
        """`decode.prefill`; the number of rows must be a multiple of the batch shards."""
        return self._prefill(params, on_mesh(trunk_ids, self._by_slot))

    def empty_state(
        self, like: Trunks, *, slots, lanes, trunk_capacity, capacity, names, stops, promotable
    ) -> DecodeState:
        return self._empty(decode.cache_shape(like), slots, lanes, trunk_capacity, capacity, names, stops, promotable)

    def insert_trunks(self, state: DecodeState, source: Trunks, rows: list[int], slots: list[int]) -> DecodeState:
        """Copy ``source[rows]`` into ``slots``; padded to a power of two, so that few sizes are compiled."""
        size = power_of_two(len(rows))
        padded_rows = np.zeros(size, np.int32)
        padded_slots = np.full(size, state.active.shape[0], np.int32)  # out of range: skipped
        padded_rows[: len(rows)], padded_slots[: len(slots)] = rows, slots
        return state._replace(trunks=self._insert(state.trunks, source, padded_rows, padded_slots))

    def copy_trunk(self, state: DecodeState, source: int, target: int) -> DecodeState:
        return state._replace(trunks=self._copy(state.trunks, np.int32(source), np.int32(target)))

    def fill_lanes(self, state, base_key: np.ndarray, new: np.ndarray, settings: LaneSettings) -> DecodeState:
        filled = self._fill(_without_caches(state), base_key, new, settings)
        trunks = state.trunks._replace(hidden=filled.trunks.hidden)
        return filled._replace(trunks=trunks, lanes=state.lanes, lane_hidden=state.lane_hidden)

    def on_all_devices(self, array: np.ndarray) -> jax.Array:
        """A constant of several programs, such as the table of `Interruptions`, to be moved once."""
        return on_mesh(array, self._whole)

    def decode_chunk(
        self,
        params: Params,
        state: DecodeState,
        *,
        steps: int,
        patience: int,
        filtered: bool,
        interruptions: Interruptions | None = None,
    ) -> tuple[DecodeState, Emitted]:
        """`decode.decode_chunk`; returns while it runs, `fetch` waits for what it drew."""
        return self._chunk(params, state, np.int32(patience), interruptions, steps=steps, filtered=filtered)

    def fetch(self, emitted: Emitted) -> Emitted:
        """As NumPy arrays."""
        return Emitted(*jax.device_get(tuple(emitted)))

    def resize(self, state: DecodeState, *, capacity: int) -> DecodeState:
        """Rings of another capacity; see `decode.resize_ring`. Like a donated state, the given one is gone.

        One buffer after another, so that old and new rings never exist together as wholes.
        """

        def resized(ring: jax.Array, axis: int) -> jax.Array:
            program = self._resize_hidden if ring.ndim == 3 else self._resize_cache
            new = program(ring, state.start, state.generated, capacity=capacity, axis=axis)
            jax.block_until_ready(new)
            ring.delete()
            return new

        lanes = tuple(KeyValue(resized(kv.key, 3), resized(kv.value, 2)) for kv in state.lanes)
        hidden = None if state.lane_hidden is None else resized(state.lane_hidden, 1)
        start, column = self._restart(state.generated, capacity)
        return state._replace(lanes=lanes, lane_hidden=hidden, start=start, column=column)

    def promote(self, state: DecodeState, slots: list[int], lanes: list[int], *, capacity: int) -> Trunks:
        """Trunks of the branches in ``(slots[i], lanes[i])``; rows beyond ``len(slots)`` are padding."""
        size = self.round_up(power_of_two(len(slots)))
        padded = np.zeros((2, size), np.int32)
        padded[0, : len(slots)], padded[1, : len(lanes)] = slots, lanes
        return self._promote(state, padded[0], padded[1], capacity=capacity)
