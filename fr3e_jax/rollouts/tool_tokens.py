"""The way of a tool's tokens into a rollout: its lane pauses for the answer, and then reads it (on the host).

A lane whose branch completes a call stops, as at a stop token, but keeps its branch, its cache and its place. When the
answer is there, the decode steps take its tokens instead of sampling. No branch moves to another lane, and no position
passes through the network twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fr3e_jax.programs.decode_steps import Emitted, Interruptions
from fr3e_jax.rollouts.requests import Calls, Key

_SAMPLE = -1  # in place of a tool's token


class Pauses:
    """The tool calls of one call of `RolloutEngine.sample`, by slot and lane.

    Args:
      calls: answers the calls.
      slots, lanes: numbers of the decoder's slots and of the lanes in each.
      given: the tokens with which a branch begins.
    """

    def __init__(self, calls: Calls, slots: int, lanes: int, given_ids: Callable[[Key], Sequence[int]]):
        self.calls, self._given = calls, given_ids
        self._table = np.asarray(calls.table)
        self._done = len(self._table) - 1  # the state of a complete call
        self._states = np.zeros((slots, lanes), np.int32)  # of the table
        self._tool_written = np.full((slots, lanes, 0), _SAMPLE, np.int32)  # by position in the branch
        self._resumed = np.zeros((slots, lanes), bool)
        self._places: dict[Key, tuple[int, int]] = {}  # slot and lane of paused branches
        self._due: list[Key] = []  # paused before the last chunk: the next `resume` fetches their answers
        self.paused = np.zeros((slots, lanes), bool)
        self.ended = np.zeros((slots, lanes), bool)  # paused lanes whose branches end before the next chunk

    def start(self, lanes: np.ndarray, keys: list[Key]) -> None:
        """Begin the branches ``keys`` in ``lanes``, bool ``[slots, lanes]``, in row-major order."""
        self._states[lanes] = [self.calls.begin(key) for key in keys]
        self._tool_written[lanes] = _SAMPLE
        for lane, key in zip(zip(*np.nonzero(lanes), strict=True), keys, strict=True):
            given = np.asarray(self._given(key), np.int32)
            self._put(lane, 0, given)
            if self._states[lane] == self._done:  # the prefix or the given tokens complete a call
                self.calls.ask(key, given)
                answer_ids, self._states[lane] = self.calls.answers([key])[key]
                self._put(lane, len(given), answer_ids)

    def resume(self, active: np.ndarray, generated: np.ndarray) -> bool:
        """Resume paused lanes whose answers are due; return whether there are any.

        Args:
          active: bool ``[slots, lanes]``, lanes with a branch, paused ones included.
          generated: int ``[slots, lanes]``, tokens of each lane so far.
        """
        self._resumed[:] = self.ended[:] = False
        if self.calls.at_once or not (active & ~self.paused).any():
            self._due = list(self._places)
        for key, answer in self.calls.answers(self._due).items():
            lane = self._places.pop(key)
            self.paused[lane] = False
            if answer is None:
                self.ended[lane] = True
                continue
            token_ids, state = answer
            self._put(lane, int(generated[lane]), token_ids)
            self._states[lane], self._resumed[lane] = state, True
        self._due = list(self._places)
        return bool(self._resumed.any())

    def inputs(self, generated: np.ndarray, steps: int) -> Interruptions:
        """Input of the next chunk, of at most ``steps`` steps; ``generated [slots, lanes]``: tokens so far."""
        room = int(generated.max()) + steps - self._tool_written.shape[2]
        if room > 0:
            self._widen(room)
        positions = generated[..., None] + np.arange(steps)
        tokens = np.ascontiguousarray(np.moveaxis(np.take_along_axis(self._tool_written, positions, axis=2), 2, 0))
        return Interruptions(self.calls.table, self._states.copy(), tokens, self._resumed.copy())

    def take(self, emitted: Emitted, tool_written: np.ndarray) -> np.ndarray:
        """Follow a chunk's tokens through the table; return the lanes that completed a call, bool ``[slots, lanes]``.

        ``tool_written``: the tool's tokens among the inputs of the chunk, ``[steps, slots, lanes]``.
        """
        for step in range(len(tool_written)):
            sampled = (step < emitted.counts) & (tool_written[step] == _SAMPLE)
            self._states[sampled] = self._table[self._states[sampled], emitted.token_ids[sampled, step]]
        return (emitted.counts > 0) & (self._states == self._done)

    def pause(self, lanes: np.ndarray, keys: list[Key], token_ids: list[np.ndarray]) -> None:
        """Start the calls that ``lanes`` completed; ``token_ids``: the tokens of each branch so far."""
        places = zip(*np.nonzero(lanes), strict=True)
        for lane, key, ids in zip(places, keys, token_ids, strict=True):
            self._places[key] = lane
            self.calls.ask(key, ids)
        self.paused |= lanes

    def notes_of(self, lanes: np.ndarray, keys: list[Key], lengths: np.ndarray) -> list[dict[str, Any]]:
        """``tool_written`` and ``episode`` of the rollouts ``keys`` in ``lanes``, which have ended.

        ``tool_written`` is None without such a token.
        """
        masks = [row[:n] != _SAMPLE for row, n in zip(self._tool_written[lanes], lengths.tolist(), strict=True)]
        written = [mask if mask.any() else None for mask in masks]
        episodes = map(self.calls.episode, keys)
        return [{"tool_written": w, "episode": e} for w, e in zip(written, episodes, strict=True)]

    def _put(self, lane: tuple[int, int], position: int, token_ids: np.ndarray) -> None:
        self._widen(position + len(token_ids) - self._tool_written.shape[2])
        self._tool_written[(*lane, slice(position, position + len(token_ids)))] = token_ids

    def _widen(self, room: int) -> None:
        if room > 0:
            wider = ((0, 0), (0, 0), (0, room))
            self._tool_written = np.pad(self._tool_written, wider, constant_values=_SAMPLE)
