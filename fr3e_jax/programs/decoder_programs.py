"""The decoder's programs, compiled: every `jax.jit` of decoding, with its shardings and donations, stands here.

`decoder_state` and `decode_steps` have the functions, `optimizer_programs` explains how programs are declared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fr3e_jax.policy.architecture import Architecture
from fr3e_jax.policy.attention import KeyValue
from fr3e_jax.policy.experts import routes_type
from fr3e_jax.policy.network import Params
from fr3e_jax.policy.rows import Trunks
from fr3e_jax.programs import decode_steps, decoder_state
from fr3e_jax.programs.context_axis import batch_axes
from fr3e_jax.programs.decode_steps import Alternatives, Emitted, Interruptions, Likeliest
from fr3e_jax.programs.decoder_state import DecoderSizes, DecodeState, LaneSettings, cache_shape, without_caches
from fr3e_jax.programs.host_arrays import on_mesh
from fr3e_jax.programs.mesh import batch_shards
from fr3e_jax.programs.program import Declarations, Program, abstract
from fr3e_jax.programs.shapes import Shapes
from fr3e_jax.programs.shardings import batch_sharding, cache_sharding, kept_hidden_sharding, mesh_layout, replicated
from fr3e_jax.programs.size_buckets import padded, power_of_two

_TOKENS_AT_ONCE = 1024
_PLACES_AT_ONCE = 256
MOST_LIKELIEST = 20  # tokens of a place


def _state_shardings(mesh: Mesh, architecture: Architecture) -> DecodeState:
    """The sharding of every array of a `DecodeState`."""
    by_slot, cache = batch_sharding(mesh), cache_sharding(mesh, architecture)
    hidden, caches = kept_hidden_sharding(mesh, architecture), (KeyValue(cache, cache),) * architecture.num_layers
    return DecodeState(
        trunks=Trunks(caches, hidden),
        lanes=caches,
        lane_hidden=hidden,
        hidden=by_slot,
        settings=LaneSettings(*(by_slot,) * len(LaneSettings._fields)),
        keys=by_slot,
        start=by_slot,
        generated=by_slot,
        active=by_slot,
        column=replicated(mesh),
    )


def promoted_shardings(mesh: Mesh, architecture: Architecture) -> Trunks:
    """The sharding of every array of the trunks that `DecoderPrograms.promote` returns.

    On several batch shards their positions are split in place of their rows. Few rows are promoted at a time: two of
    them over 16 shards would be padded to 16, and take eight times their memory.
    """
    rows = _state_shardings(mesh, architecture).trunks
    if batch_shards(mesh) == 1:
        return rows
    heads, width = rows.layers[0].key.spec[1], rows.hidden.spec[2]
    batch, by_position = batch_axes(mesh), lambda *axes: NamedSharding(mesh, P(None, *axes))
    layer = KeyValue(by_position(heads, None, batch), by_position(heads, batch))
    return Trunks((layer,) * architecture.num_layers, by_position(batch, width))


class DecoderCall(NamedTuple):
    """One kind of call of the decoder that a run makes."""

    trunks: str  # prompts; responses: prompts and responses, prefilled; or promoted
    count: int  # the most trunks of a call
    branches: int  # the most of a trunk
    lanes: int  # that these fill
    filtered: bool  # top-p or top-k
    promotes: bool  # its branches may become trunks
    names: int  # integers that name a noise stream
    stops: int  # stop ids of a branch
    table: tuple[int, int] | None  # the shape of `Interruptions.table`; None: nothing is called


class DecoderPrograms:
    """Compiled decoder programs for one network on one mesh.

    Caches are split over the batch shards by trunk slot, those of promoted trunks by position, and over ``tensor`` by
    key/value head where that divides.
    Every program that changes a `DecodeState` donates the arrays that it changes. The caller keeps only the returned
    state.
    """

    def __init__(
        self,
        graphdef: nnx.GraphDef,
        architecture: Architecture,
        mesh: Mesh,
        *,
        records_routes: bool = False,
        attention: str = "xla",
    ):
        """Declare the programs; each is compiled on its first call with arrays of new shapes.

        Args:
          graphdef: of `fr3e_jax.policy.network.build_network`.
          architecture: of the same network.
          mesh: on which the parameters lie, and the state will.
          records_routes: the experts of each token are recorded, if the network has any.
          attention: of decode steps, ``xla`` or ``pallas``.
        """
        self.routes = architecture.routes_per_token if records_routes else 0  # recorded for each token
        self.routes_type, recorded = routes_type(architecture.num_experts), self.routes > 0
        self.mesh, self.shards = mesh, batch_shards(mesh)
        self._by_slot, self._whole = batch_sharding(mesh), replicated(mesh)
        state, layout = _state_shardings(mesh, architecture), mesh_layout(mesh, attention)
        self._shardings = state
        emitted = Emitted(*(self._whole,) * len(Emitted._fields))  # every process fetches all tokens
        emitted = emitted if recorded else emitted._replace(routes=None)
        prefilled = state.trunks._replace(routes=self._whole) if recorded else state.trunks
        self._prefill = Program(
            partial(decode_steps.prefill, graphdef, layout, recorded=recorded), out_shardings=prefilled
        )
        self._alternatives = Program(partial(decode_steps.alternatives, graphdef), out_shardings=self._whole)
        count = min(MOST_LIKELIEST, architecture.vocab_size)
        self._likeliest = Program(partial(decode_steps.likeliest, graphdef, count=count), out_shardings=self._whole)
        self._stop = Program(decoder_state.stop_lanes, out_shardings=self._by_slot)
        self._layout = Program(
            decoder_state.resize_layout, static_argnames=("slots", "lanes", "trunk_capacity"), out_shardings=state
        )
        self._empty = Program(decoder_state.empty_state, static_argnums=(0, 1), out_shardings=state)
        self._insert = Program(decoder_state.insert_trunks, donate_argnums=0, out_shardings=state.trunks)
        self._copy = Program(decoder_state.copy_trunk, donate_argnums=0, out_shardings=state.trunks)
        self._fill = Program(decoder_state.fill_lanes, donate_argnums=0, out_shardings=without_caches(state))
        self._chunk = Program(
            partial(decode_steps.decode_chunk, graphdef, layout, recorded=recorded),
            static_argnames=("steps", "filtered"),
            donate_argnums=1,  # the state
            out_shardings=(state, emitted),
        )
        # Rings of another size cannot take over the old ones' memory: `resize` deletes each old buffer itself.
        resize = partial(Program, decoder_state.resize_ring, static_argnames=("capacity", "axis"))
        self._resize_cache = resize(out_shardings=state.lanes[0].key)
        self._resize_hidden = resize(out_shardings=state.lane_hidden)
        self._restart = Program(
            decoder_state.resized_start, static_argnums=1, out_shardings=(self._by_slot, self._whole)
        )
        self.promoted = promoted_shardings(mesh, architecture)
        self._promote = Program(decoder_state.promote, static_argnames="capacity", out_shardings=self.promoted)

    def declare(self, declare: Declarations, params: Params, shapes: Shapes, calls: list[DecoderCall]) -> None:
        """Declare the programs of ``calls``, in their order; ``params``: the abstract weights of rollouts."""
        promoted: list[Trunks] = []
        for call in calls:
            if call.trunks == "promoted":
                sources = [(row, row.hidden.shape[1]) for row in promoted]
            else:
                sizes = [shapes.prompt] if call.trunks == "prompts" else list(shapes.responses)
                sources = [(self._declare_prefill(declare, params, shapes, size), size) for size in sizes]
            for source, size in sources:
                for state in self._declare_call(declare, params, shapes, call, source, size):
                    if call.promotes:
                        promoted += self._declare_promotions(declare, shapes, state)

    def _declare_prefill(self, declare: Declarations, params: Params, shapes: Shapes, size: int) -> Trunks:
        ids = abstract((self.round_up(shapes.slots), size), np.int32, self._by_slot)
        return declare(self._prefill, params, ids)._replace(routes=None)

    def _declare_promotions(self, declare: Declarations, shapes: Shapes, state: DecodeState) -> list[Trunks]:
        index = abstract((1,), np.int32)
        sizes = map(self.round_up, shapes.responses)
        return [declare(self._promote, state, index, index, capacity=size) for size in sizes]

    def _declare_call(
        self, declare: Declarations, params: Params, shapes: Shapes, call: DecoderCall, source: Trunks, size: int
    ) -> Iterator[DecodeState]:
        """The states of a call, with rings of each size that it may come to."""
        slots, lanes = shapes.layout(call.count, call.lanes)
        slots, rings = self.round_up(slots), [ring for ring in shapes.rings if ring >= shapes.first_ring]
        promotable = call.promotes or (shapes.promotable and size == shapes.prompt)
        sizes = DecoderSizes(slots, lanes, size, rings[0], call.names, call.stops, promotable)
        state = declare(self._empty, cache_shape(source), sizes)
        index, scalar = abstract((1,), np.int32), abstract((), np.int32)
        declare(self._insert, state.trunks, source, index, index)
        if call.branches > lanes or call.count < slots:
            declare(self._copy, state.trunks, scalar, scalar)

        def of_host(tree):
            return jax.tree.map(lambda x: abstract(x.shape, x.dtype), tree)

        key, new, settings = abstract((2,), np.uint32), of_host(state.active), of_host(state.settings)
        declare(self._fill, without_caches(state), key, new, settings)
        interruptions = None
        if call.table:
            table, states = abstract(call.table, np.int16, self._whole), of_host(state.generated)
            written = abstract((shapes.chunk, *states.shape), np.int32)
            interruptions = Interruptions(table, states, written, new)
        for ring in rings:
            if ring != state.capacity:
                state = self._resized(state, ring, declare, *declare(self._restart, state.generated, ring))
            options = {"steps": shapes.chunk, "filtered": call.filtered}
            declare(self._chunk, params, state, scalar, interruptions, **options)
            if call.table:
                self._resized(state, ring, declare, *declare(self._restart, state.generated, ring))
            yield state

    def round_up(self, count: int) -> int:
        """The next count that splits evenly over the batch shards of the mesh."""
        return -(-count // self.shards) * self.shards

    def prefill(self, params: Params, trunk_ids: np.ndarray) -> Trunks:
        """`decode_steps.prefill`; the number of rows must be a multiple of the batch shards."""
        return self._prefill(params, on_mesh(trunk_ids, self._by_slot))

    def fetch_routes(self, trunks: Trunks) -> tuple[Trunks, np.ndarray | None]:
        """Prefilled trunks without their routes, and these as a NumPy array ``[B, S, Q]``; None: none are recorded."""
        return trunks._replace(routes=None), jax.device_get(trunks.routes)

    def alternatives(
        self, params: Params, trunks: Trunks, rows: np.ndarray, positions: np.ndarray, token_ids: np.ndarray
    ) -> Alternatives:
        """`decode_steps.alternatives` as NumPy arrays, a thousand tokens at a time, so that few logits exist at once.

        The last part is padded to a power of two, so that few sizes are compiled.
        """
        parts = []
        for start in range(0, len(rows), _TOKENS_AT_ONCE):
            some = slice(start, start + _TOKENS_AT_ONCE)
            count = len(rows[some])
            row, ids = (padded(np.asarray(x[some], np.int32), power_of_two(count)) for x in (rows, token_ids))
            places = padded(np.asarray(positions[some], np.int32), power_of_two(count), fill=1)
            columns = jax.device_get(self._alternatives(params, trunks, row, places, ids))
            parts.append([column[:count] for column in columns])
        return Alternatives(*map(np.concatenate, zip(*parts, strict=True)))

    def likeliest(
        self, params: Params, hidden: jax.Array, rows: np.ndarray, positions: np.ndarray, token_ids: np.ndarray
    ) -> Likeliest:
        """`decode_steps.likeliest` of at least one place as NumPy arrays, by parts of one size."""
        parts = []
        for start in range(0, len(rows), _PLACES_AT_ONCE):
            columns = [np.asarray(x[start : start + _PLACES_AT_ONCE], np.int32) for x in (rows, positions, token_ids)]
            found = self._likeliest(params, hidden, *(padded(x, _PLACES_AT_ONCE) for x in columns))
            parts.append([column[: len(columns[0])] for column in jax.device_get(found)])
        return Likeliest(*map(np.concatenate, zip(*parts, strict=True)))

    def stop_lanes(self, state: DecodeState, over: np.ndarray) -> DecodeState:
        """End the branches in the lanes ``over``, bool ``[B, N]``."""
        return state._replace(active=self._stop(state.active, over))

    def resize_layout(self, state: DecodeState, *, slots: int, lanes: int, trunk_capacity: int) -> DecodeState:
        """`decoder_state.resize_layout`; old and new caches exist together meanwhile."""
        return self._layout(state, slots=slots, lanes=lanes, trunk_capacity=trunk_capacity)

    def empty_state(self, like: Trunks, **sizes: int) -> DecodeState:
        """A decoder with every lane idle, for caches as those of ``like``; ``sizes``: fields of `DecoderSizes`."""
        return self._empty(cache_shape(like), DecoderSizes(**sizes))

    def insert_trunk(self, state: DecodeState, source: Trunks, row: int, slot: int) -> DecodeState:
        """Copy row ``row`` of ``source`` into ``slot``."""
        row, slot = np.full(1, row, np.int32), np.full(1, slot, np.int32)
        return state._replace(trunks=self._insert(state.trunks, source, row, slot))

    def copy_trunk(self, state: DecodeState, source: int, target: int) -> DecodeState:
        """Copy the trunk in slot ``source`` into slot ``target``."""
        return state._replace(trunks=self._copy(state.trunks, np.int32(source), np.int32(target)))

    def fill_lanes(self, state, base_key: np.ndarray, new: np.ndarray, settings: LaneSettings) -> DecodeState:
        """Start a branch in every lane where ``new`` (bool ``[B, N]``) is true; see `decoder_state.fill_lanes`."""
        filled = self._fill(without_caches(state), base_key, new, settings)
        trunks = state.trunks._replace(hidden=filled.trunks.hidden)
        return filled._replace(trunks=trunks, lanes=state.lanes, lane_hidden=state.lane_hidden)

    def on_all_devices(self, array: np.ndarray) -> jax.Array:
        """Move a constant of several programs, such as the table of `Interruptions`, to all devices once."""
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
        """`decode_steps.decode_chunk`; returns while it runs, `fetch` waits for its tokens."""
        return self._chunk(params, state, np.int32(patience), interruptions, steps=steps, filtered=filtered)

    def fetch(self, emitted: Emitted) -> Emitted:
        """The chunk's tokens as NumPy arrays."""
        return jax.device_get(emitted)

    def resize(self, state: DecodeState, *, capacity: int) -> DecodeState:
        """The state with rings of another capacity; see `decoder_state.resize_ring`. The old rings are deleted.

        One buffer is resized after another, so that old and new rings never exist together as wholes.
        """

        def replace(program: Program, ring: jax.Array, *inputs: jax.Array, **options: int) -> jax.Array:
            new = jax.block_until_ready(program(ring, *inputs, **options))
            ring.delete()
            return new

        return self._resized(state, capacity, replace, *self._restart(state.generated, capacity))

    def _resized(self, state: DecodeState, capacity: int, call: Callable, start: Any, column: Any) -> DecodeState:
        """The state with rings that ``call(program, ring, ...)`` makes, or abstractly declares, one after another."""

        def resized(ring: Any, axis: int) -> Any:
            program = self._resize_hidden if ring.ndim == 3 else self._resize_cache
            return call(program, ring, state.start, state.generated, capacity=capacity, axis=axis)

        lanes = tuple(KeyValue(resized(kv.key, 3), resized(kv.value, 2)) for kv in state.lanes)
        hidden = None if state.lane_hidden is None else resized(state.lane_hidden, 1)
        return state._replace(lanes=lanes, lane_hidden=hidden, start=start, column=column)

    def promote(self, state: DecodeState, slot: int, lane: int, *, capacity: int) -> Trunks:
        """The branch in a lane of a slot as a trunk, the only row of the result.

        It holds ``capacity`` positions, rounded up to a multiple of the batch shards, over which these are split.
        """
        slot, lane = np.full(1, slot, np.int32), np.full(1, lane, np.int32)
        return self._promote(state, slot, lane, capacity=self.round_up(capacity))
