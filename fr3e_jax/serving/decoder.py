"""A decoder without end: branches enter and leave between two chunks of steps, whatever else runs.

A thread owns the device. It takes branches from an inbox, gives each a lane in a slot whose trunk begins with the
branch's prefix, or else a slot of its own, and hands on what a chunk has drawn. So branches of one prompt share its
cache, later requests with the prompt of an earlier one do, too, and so do branches from the tokens of an answer.

The numbers of slots and lanes and the sizes of caches follow the load by factors of 4: few programs are compiled, and a
single client does not pay for lanes that idle.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import numpy as np

from fr3e_jax.policy.network import Params
from fr3e_jax.programs.decode_steps import Emitted, Likeliest
from fr3e_jax.programs.decoder_programs import DecoderPrograms
from fr3e_jax.programs.decoder_state import DecodeState, LaneSettings
from fr3e_jax.rollouts.requests import STREAM_NAMES, Branch, NonFiniteLogits, Sampling, lane_settings

logger = logging.getLogger(__name__)

_FACTOR = 4  # between two sizes
_LEAST = 64  # positions of a trunk, columns of a ring
_PREFILLED, _LONG = 8, 1024  # trunks in a call, and tokens beyond which one comes alone
_QUIET = 50  # chunks after which what they did not need is given back
_PATIENCE_SHARE = 16  # as of `rollouts.schedule`

NO_TRUNK = np.zeros(0, np.int32)


class Piece(NamedTuple):
    """Tokens that a chunk added to an answer.

    Attributes:
      token_ids, entropies: of the new tokens.
      likeliest: of the new tokens, if the branch asks for them.
      prompt: the likeliest tokens of the prompt's places from its second token on; before the first token.
      finish: ``stop``, ``length``, or "" while it goes on.
      error: why it could not go on; "": it can.
    """

    token_ids: list[int] = []
    entropies: list[float] = []
    likeliest: Likeliest | None = None
    prompt: Likeliest | None = None
    finish: str = ""
    error: str = ""


@dataclass(eq=False)
class Continuation:
    """One branch of a request: it leaves ``trunk`` after ``branch.fork`` tokens.

    Attributes:
      seed: of the noise, beside the names in ``branch.stream``.
      likeliest: whether the likeliest tokens of its places are wanted.
      prompt: whether those of its prefix are.
      limit: tokens to sample; with 0 the prefix is scored alone.
    """

    trunk: np.ndarray
    branch: Branch
    seed: int
    limit: int
    likeliest: bool = False
    prompt: bool = False
    generated: int = field(default=0, init=False)

    @property
    def prefix(self) -> np.ndarray:
        return self.trunk[: self.branch.fork]


Post = Callable[[list[tuple[Continuation, Piece]]], None]


class ServingDecoder:
    """The thread that owns the device.

    Args:
      programs: the decoder's programs.
      weights: in the layout of rollouts.
      lanes: the most branches that are decoded side by side.
      chunk: decode steps between two entries.
      pad_id: fills unused positions.
      stops: number of stop ids, the same of all branches.
      post: gets the pieces of a chunk, in the decoder's thread.
    """

    def __init__(
        self, programs: DecoderPrograms, weights: Params, *, lanes: int, chunk: int, pad_id: int, stops: int, post: Post
    ) -> None:
        self._programs, self._weights, self._chunk, self._pad_id = programs, weights, chunk, pad_id
        self._most, self._stops, self._post = programs.round_up(lanes), max(1, stops), post
        self._inbox: queue.SimpleQueue[tuple[str, Sequence[Continuation]]] = queue.SimpleQueue()
        self._waiting: deque[Continuation] = deque()
        self.sampled_tokens = self.prefilled = self.waiting = self.active = 0
        self._pieces: list[tuple[Continuation, Piece]] = []  # that are not handed on yet
        self._forget()
        self._thread = threading.Thread(target=self._serve, name="decoder", daemon=True)

    def warm_up(self) -> None:
        """Sample a token before the thread starts, so that the first client waits for no program.

        Raises:
          NonFiniteLogits: the weights give NaN.
        """
        branch = Branch(1, (0,), 1, Sampling(stop_ids=(-1,) * self._stops))
        self._waiting.append(Continuation(np.zeros(1, np.int32), branch, 0, 1))
        self._round()
        ((_, piece),), self._pieces, self.sampled_tokens, self.prefilled = self._pieces, [], 0, 0
        if piece.error:
            raise NonFiniteLogits(piece.error)

    def start(self) -> None:
        self._thread.start()

    def submit(self, continuations: Sequence[Continuation]) -> None:
        """Queue branches, in their order behind those that wait."""
        self.waiting += len(continuations)  # the event loop alone adds; the decoder's thread sets it anew at each chunk
        self._inbox.put(("add", continuations))

    def cancel(self, continuations: Sequence[Continuation]) -> None:
        """Free the lanes of branches; those that have ended are left alone."""
        self._inbox.put(("cancel", continuations))

    def close(self) -> None:
        """End the thread after the chunk that runs; what is under way gets no further piece."""
        self._inbox.put(("close", ()))
        self._thread.join()

    # -- the thread --------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while self._receive():
            try:
                self._round()
            except Exception as error:  # of the device, or a mistake here: the next requests may fare better
                logger.exception("the decoder failed")
                piece = Piece(error=f"{type(error).__name__}: {error}"[:500])
                self._pieces += [(entry, piece) for entry in (*self._running(), *self._waiting)]
                self._waiting.clear()
                self._forget()
            self._post(self._pieces)
            self._pieces = []

    def _receive(self) -> bool:
        """Read the inbox; wait for it if there is nothing to do. Return whether to go on."""
        while True:
            self.active = len(self._places())
            self.waiting = len(self._waiting) + self._inbox.qsize()
            try:
                kind, continuations = self._inbox.get(block=not (self.active or self._waiting))
            except queue.Empty:
                return True
            if kind == "close":
                return False
            if kind == "add":
                self._waiting.extend(continuations)
            else:
                self._drop(set(continuations))

    def _drop(self, dropped: set[Continuation]) -> None:
        self._waiting = deque(entry for entry in self._waiting if entry not in dropped)
        over = np.vectorize(dropped.__contains__, otypes=[bool])(self._lanes)
        if over.any():
            self._lanes[over] = None
            self._state = self._programs.stop_lanes(self._state, over)

    def _forget(self) -> None:
        """Begin anew, with one lane."""
        self._state: DecodeState | None = None
        self._lanes = np.full((self._programs.round_up(1), 1), None, object)
        self._trunks: list[np.ndarray] = [NO_TRUNK] * len(self._lanes)
        self._trunk_capacity, self._quiet = _LEAST, 0

    def _places(self) -> list[tuple[int, int, Continuation]]:
        """Slot and lane of all branches under way."""
        return [(*seat, entry) for seat, entry in np.ndenumerate(self._lanes) if entry is not None]

    def _running(self) -> list[Continuation]:
        return [entry for *_, entry in self._places()]

    def _round(self) -> None:
        self._enter()
        if running := self._running():
            self._make_room(running)
            queued = bool(self._waiting)
            self._state, emitted = self._programs.decode_chunk(
                self._weights,
                self._state,
                steps=self._chunk,
                patience=max(1, self._lanes.size // _PATIENCE_SHARE) if queued else self._lanes.size,
                filtered=any(entry.branch.sampling.top_p < 1 or entry.branch.sampling.top_k for entry in running),
            )
            self._take(self._programs.fetch(emitted))
            self._give_back()

    # -- entering ----------------------------------------------------------------------------------------------------

    def _enter(self) -> None:
        """Give waiting branches lanes, in their order, while there are some, and score prompts."""
        placed: list[tuple[int, int, Continuation]] = []
        fresh: dict[int, np.ndarray] = {}  # slots that get another trunk
        while self._waiting and (seat := self._seat(self._waiting[0], fresh)) is not None:
            entry = self._waiting.popleft()
            self._lanes[seat] = entry
            placed.append((*seat, entry))
        self._bring(fresh)
        for slot, lane, entry in placed:
            finish = "" if entry.limit else "length"
            if entry.prompt or finish:
                self._pieces.append((entry, Piece(prompt=self._scored_prompt(slot, entry), finish=finish)))
            if finish:
                self._lanes[slot, lane] = None
        for seed in sorted({entry.seed for *_, entry in placed}):
            self._start([seat for seat in placed if seat[2].seed == seed and seat[2].limit], seed)

    def _seat(self, entry: Continuation, fresh: dict[int, np.ndarray]) -> tuple[int, int] | None:
        """A slot and lane for a branch; None: all are taken."""
        idle = np.vectorize(lambda other: other is None, otypes=[bool])(self._lanes)
        has_it = [slot for slot, trunk in enumerate(self._trunks) if _begins(trunk, entry.prefix)]
        for slot in has_it:
            if idle[slot].any():
                return slot, int(np.argmax(idle[slot]))
        free = np.flatnonzero(idle.all(axis=1))
        if free.size:
            slot = next((s for s in free if not len(self._trunks[s])), free[0])
            fresh[int(slot)] = self._trunks[slot] = self._trunks[has_it[0]] if has_it else entry.trunk
            return int(slot), 0
        slots, lanes = self._lanes.shape
        more_lanes, more_slots = min(lanes * _FACTOR, self._most // slots), min(slots * _FACTOR, self._most // lanes)
        more_slots -= more_slots % self._programs.shards
        if has_it and more_lanes > lanes:
            self._resize(slots, more_lanes, self._trunk_capacity)
        elif more_slots > slots:
            self._resize(more_slots, lanes, self._trunk_capacity)
        elif (used := _size(int(np.flatnonzero(~idle.all(axis=0))[-1]) + 1, least=1)) < lanes:  # lanes become slots
            self._resize(slots, used, self._trunk_capacity)
        else:
            return None
        return self._seat(entry, fresh)

    def _resize(self, slots: int, lanes: int, trunk_capacity: int) -> None:
        before, (b, n) = self._lanes, (min(slots, len(self._lanes)), min(lanes, self._lanes.shape[1]))
        self._lanes = np.full((slots, lanes), None, object)
        self._lanes[:b, :n] = before[:b, :n]
        most = trunk_capacity if trunk_capacity < self._trunk_capacity else np.inf
        trunks = [trunk if len(trunk) <= most else NO_TRUNK for trunk in self._trunks[:slots]]
        self._trunks, self._trunk_capacity = trunks + [NO_TRUNK] * (slots - len(trunks)), trunk_capacity
        if self._state is not None:
            self._state = self._programs.resize_layout(
                self._state, slots=slots, lanes=lanes, trunk_capacity=trunk_capacity
            )

    def _bring(self, fresh: dict[int, np.ndarray]) -> None:
        """Copy trunks into their slots: from a slot that has held one, or prefilled, each once."""
        longest = max((len(trunk) for trunk in fresh.values()), default=0)
        if longest > self._trunk_capacity:
            self._resize(*self._lanes.shape, _size(longest))
        copies, prefills = [], {}
        for slot, trunk in fresh.items():
            source = next((s for s, other in enumerate(self._trunks) if other is trunk and s not in fresh), None)
            if source is None:
                prefills.setdefault(trunk.tobytes(), (trunk, []))[1].append(slot)
            else:
                copies.append((source, slot))
        ordered = sorted(prefills.values(), key=lambda item: len(item[0]))
        while ordered:
            count = sum(len(trunk) <= _LONG for trunk, _ in ordered[:_PREFILLED]) or 1
            self._prefill(ordered[:count])
            ordered = ordered[count:]
        for source, slot in copies:
            self._state = self._programs.copy_trunk(self._state, source, slot)

    def _prefill(self, trunks: Sequence[tuple[np.ndarray, list[int]]]) -> None:
        rows = self._programs.round_up(1 if len(trunks) == 1 else _PREFILLED)
        ids = np.full((rows, _size(max(len(trunk) for trunk, _ in trunks))), self._pad_id, np.int32)
        for row, (trunk, _) in enumerate(trunks):
            ids[row, : len(trunk)] = trunk
            self.prefilled += len(trunk)
        batch, _ = self._programs.fetch_routes(self._programs.prefill(self._weights, ids))
        if self._state is None:
            slots, lanes = self._lanes.shape
            self._state = self._programs.empty_state(
                batch,
                slots=slots,
                lanes=lanes,
                trunk_capacity=self._trunk_capacity,
                capacity=_LEAST,
                names=STREAM_NAMES,
                stops=self._stops,
                promotable=True,
            )
        for row, (_, slots_of_trunk) in enumerate(trunks):
            for slot in slots_of_trunk:
                self._state = self._programs.insert_trunk(self._state, batch, row, slot)

    def _start(self, placed: Sequence[tuple[int, int, Continuation]], seed: int) -> None:
        """Start branches whose noise has one seed."""
        if not placed:
            return
        new = np.zeros(self._lanes.shape, bool)
        slots, lanes = np.array([seat[:2] for seat in placed]).T
        new[slots, lanes] = True
        columns = lane_settings([entry.branch for *_, entry in placed])
        settings = LaneSettings(*(np.zeros((*new.shape, *column.shape[1:]), column.dtype) for column in columns))
        for array, column in zip(settings, columns, strict=True):
            array[slots, lanes] = column
        key = np.asarray(jax.random.key_data(jax.random.key(seed, impl="threefry2x32")))
        self._state = self._programs.fill_lanes(self._state, key, new, settings)

    def _scored_prompt(self, slot: int, entry: Continuation) -> Likeliest | None:
        """The likeliest tokens of a prefix from its second token on; None: there is none, or nobody asks for them."""
        ids = entry.prefix[1:]
        if not entry.prompt or not len(ids):
            return None
        hidden, rows = self._state.trunks.hidden, np.full(len(ids), slot)
        return self._programs.likeliest(self._weights, hidden, rows, np.arange(len(ids)), ids)

    # -- chunks ------------------------------------------------------------------------------------------------------

    def _make_room(self, running: Sequence[Continuation]) -> None:
        if (needed := self._ring(running)) > self._state.capacity:
            self._state = self._programs.resize(self._state, capacity=needed)

    def _ring(self, running: Sequence[Continuation]) -> int:
        return _size(max(min(entry.generated + self._chunk, entry.limit) for entry in running))

    def _take(self, emitted: Emitted) -> None:
        """Cut a chunk into pieces, and free the lanes of branches that ended."""
        scored, ruined = self._scored(emitted), np.zeros(self._lanes.shape, bool)
        for slot, lane, entry in self._places():
            some = slot, lane, slice(emitted.counts[slot, lane])
            entropies = emitted.entropies[some]
            entry.generated += len(entropies)
            self.sampled_tokens += len(entropies)
            finish = "stop" if emitted.stopped[slot, lane] else "length" if entry.generated >= entry.limit else ""
            ruined[slot, lane] = emitted.ruined[slot, lane] > 0
            error = "the network's logits are NaN or infinite" if ruined[slot, lane] else ""
            if finish or error:
                self._lanes[slot, lane] = None
            token_ids = emitted.token_ids[some].tolist()
            self._pieces.append((entry, Piece(token_ids, entropies.tolist(), scored.get(entry), None, finish, error)))
        if ruined.any():
            self._state = self._programs.stop_lanes(self._state, ruined)

    def _scored(self, emitted: Emitted) -> dict[Continuation, Likeliest]:
        """The likeliest tokens of a chunk's places. A token is drawn after the hidden state of the one before it."""
        counts = emitted.counts
        asking = [seat for seat in self._places() if seat[2].likeliest and counts[seat[:2]]]
        if not asking:
            return {}
        lengths = [counts[slot, lane] for slot, lane, _ in asking]
        ids = np.concatenate([emitted.token_ids[*seat[:2], : counts[seat[:2]]] for seat in asking])
        index = np.concatenate([entry.generated + np.arange(n) for (*_, entry), n in zip(asking, lengths, strict=True)])
        slots, lanes, forks = np.repeat(
            [(slot, lane, entry.branch.fork) for slot, lane, entry in asking], lengths, axis=0
        ).T
        first, state = index == 0, self._state
        columns = (jax.device_get(state.start)[slots, lanes] + index - 1) % state.capacity
        rows = slots * self._lanes.shape[1] + lanes
        parts, order = [], np.argsort(~first, kind="stable")
        after_trunk = first, state.trunks.hidden, slots, forks - 1
        after_own = ~first, state.lane_hidden, rows, columns
        for some, hidden, *places in (after_trunk, after_own):
            if some.any():
                parts.append(self._programs.likeliest(self._weights, hidden, *(x[some] for x in (*places, ids))))
        scored = [np.concatenate(column)[np.argsort(order)] for column in zip(*parts, strict=True)]
        ends = np.cumsum([0, *lengths])
        return {
            entry: Likeliest(*(column[start:end] for column in scored))
            for (*_, entry), start, end in zip(asking, ends, ends[1:], strict=False)
        }

    def _give_back(self) -> None:
        """After some chunks that did not need them, give back slots, lanes, and room of trunks and rings."""
        busy = np.array([seat[:2] for seat in self._places()])
        if self._waiting or not len(busy):
            return
        slots, lanes = (_size(int(n), least=1) for n in busy.max(axis=0) + 1)
        slots, lanes = min(self._programs.round_up(slots), len(self._lanes)), min(lanes, self._lanes.shape[1])
        trunk = min(_size(max(len(self._trunks[slot]) for slot, _ in busy)), self._trunk_capacity)
        layout, ring = (slots, lanes, trunk), self._ring(self._running())
        is_less = layout != (*self._lanes.shape, self._trunk_capacity)
        self._quiet = self._quiet + 1 if is_less or ring < self._state.capacity else 0
        if self._quiet > _QUIET:
            self._quiet = 0
            if is_less:
                self._resize(*layout)
            if ring < self._state.capacity:
                self._state = self._programs.resize(self._state, capacity=ring)


def _begins(trunk: np.ndarray, prefix: np.ndarray) -> bool:
    return len(trunk) >= len(prefix) and bool((trunk[: len(prefix)] == prefix).all())


def _size(needed: int, least: int = _LEAST) -> int:
    """The next of ``least``, 4 times as much, 16 times, ..."""
    size = least
    while size < needed:
        size *= _FACTOR
    return size
