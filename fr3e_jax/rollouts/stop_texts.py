"""Branches without tools: stop texts may end them, and they may begin with given tokens, read as a tool's answer is."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from fr3e_jax.programs.decoder_programs import DecoderPrograms
from fr3e_jax.rollouts.requests import Key, TrunkRequest
from fr3e_jax.tools.automaton import START, CallTable, stop_table


class StopTexts:
    """The table that recognises stop texts, on the devices.

    Args:
      texts: that end a response; there may be none.
      token_bytes: the bytes of each token of the network's vocabulary.
      programs: the decoder's programs.
    """

    def __init__(self, texts: Sequence[str], token_bytes: Sequence[bytes], programs: DecoderPrograms):
        self.calls: CallTable = stop_table(texts, token_bytes)
        self.table: jax.Array = programs.on_all_devices(self.calls.next)


class NoCalls:
    """`requests.Calls` without tools: no token opens a call."""

    at_once = False

    def __init__(self, stops: StopTexts, requests: Sequence[TrunkRequest]):
        self.table, self._calls, self._requests = stops.table, stops.calls, requests

    def begin(self, key: Key) -> int:
        branch = self._requests[key[0]].branches[key[1]]
        before = () if branch.prefix is None else branch.prefix.token_ids
        state = self._calls.run([*before, *branch.given])
        return START if state >= self._calls.stop else state

    def ask(self, key: Key, token_ids: np.ndarray) -> None:
        raise RuntimeError(f"branch {key} completed a call where there are no tools")

    def answers(self, keys: Sequence[Key]) -> dict[Key, tuple[np.ndarray, int] | None]:
        return {}

    def episode(self, key: Key) -> None:
        return None

    def close(self) -> None:
        """Nothing is open."""
