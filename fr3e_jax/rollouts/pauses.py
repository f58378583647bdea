"""Lanes that pause for a tool's answer and then read it: the decoder's side of tools, on the host.

A lane whose branch completes a call stops, as at a stop token, but keeps its branch, its cache and its place. When the
answer is there, its tokens are handed to the decode steps in the place of drawn ones. Nothing moves to another lane,
and no position passes the network twice.
"""

from __future__ import annotations

import numpy as np

from fr3e_jax.programs.decode_steps import Emitted, Interruptions
from fr3e_jax.rollouts.requests import Calls, Key

_DRAW = -1


class Pauses:
    """The tool calls of one call of `RolloutEngine.sample`, by slot and lane.

    Args:
      calls: who answers.
      slots, lanes: of the decoder.
    """

    def __init__(self, calls: Calls, slots: int, lanes: int):
        self._calls = calls
        self._table = np.asarray(calls.table)
        self._states = np.zeros((slots, lanes), np.int32)
        self._given = np.full((slots, lanes, 0), _DRAW, np.int32)  # by the branch's own position
        self._resumed = np.zeros((slots, lanes), bool)
        self._places: dict[Key, tuple[int, int]] = {}  # of the lanes that wait
        self._due: list[Key] = []  # asked at an earlier visit than the last
        self.paused = np.zeros((slots, lanes), bool)

    def start(self, lanes: np.ndarray, keys: list[Key]) -> None:
        """Branches begin in ``lanes``, bool ``[slots, lanes]``; ``keys`` in row-major order."""
        self._states[lanes] = [self._calls.begin(key) for key in keys]
        self._given[lanes] = _DRAW

    def resume(self, active: np.ndarray, generated: np.ndarray) -> bool:
        """Let paused lanes go on where their answers are due; whether any does. ``active`` includes the paused ones."""
        self._resumed[:] = False
        if self._calls.at_once or not (active & ~self.paused).any():
            self._due = list(self._places)
        for key, (token_ids, state) in self._calls.answers(self._due).items():
            place = self._places.pop(key)
            self._put(place, int(generated[place]), token_ids)
            self._states[place], self._resumed[place], self.paused[place] = state, True, False
        self._due = list(self._places)
        return bool(self._resumed.any())

    def inputs(self, generated: np.ndarray, steps: int) -> Interruptions:
        """What the next chunk of at most ``steps`` steps needs to know; ``generated [slots, lanes]``: tokens so far."""
        room = int(generated.max()) + steps - self._given.shape[2]
        if room > 0:
            self._widen(room)
        positions = generated[..., None] + np.arange(steps)
        given = np.moveaxis(np.take_along_axis(self._given, positions, axis=2), 2, 0)
        return Interruptions(self._calls.table, self._states.copy(), np.ascontiguousarray(given), self._resumed.copy())

    def take(self, emitted: Emitted, given: np.ndarray) -> np.ndarray:
        """Follow what a chunk drew; the lanes that completed a call, bool ``[slots, lanes]``. ``given``: its inputs."""
        done = len(self._table) - 2
        for step in range(len(given)):
            drawn = emitted.emitted[step] & (given[step] < 0)
            self._states[drawn] = self._table[self._states[drawn], emitted.token_ids[step][drawn]]
        return emitted.emitted.any(axis=0) & (self._states == done)

    def pause(self, lanes: np.ndarray, keys: list[Key], token_ids: list[np.ndarray]) -> None:
        """Ask for the answers to the calls that ``lanes`` completed; ``token_ids``: of their branches so far."""
        places = zip(*np.nonzero(lanes), strict=True)
        for place, key, ids in zip(places, keys, token_ids, strict=True):
            self._places[key] = place
            self._calls.ask(key, ids)
        self.paused |= lanes

    def given_in(self, lanes: np.ndarray, lengths: np.ndarray) -> list[np.ndarray | None]:
        """Which tokens of the branches in ``lanes`` were given, bool ``[length]``; None where none was."""
        masks = [row[:length] != _DRAW for row, length in zip(self._given[lanes], lengths.tolist(), strict=True)]
        return [mask if mask.any() else None for mask in masks]

    def _put(self, place: tuple[int, int], position: int, token_ids: np.ndarray) -> None:
        self._widen(position + len(token_ids) - self._given.shape[2])
        self._given[(*place, slice(position, position + len(token_ids)))] = token_ids

    def _widen(self, room: int) -> None:
        if room > 0:
            self._given = np.pad(self._given, ((0, 0), (0, 0), (0, room)), constant_values=_DRAW)
