"""Branches that begin with given tokens: they read them as they would read the answer of a tool."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from fr3e_jax.programs.decoder_programs import DecoderPrograms
from fr3e_jax.rollouts.requests import Key


class NoCalls:
    """`requests.Calls` without tools: no token opens a call."""

    at_once = False

    def __init__(self, programs: DecoderPrograms, vocabulary: int):
        self.table: jax.Array = programs.on_all_devices(np.zeros((3, vocabulary), np.int16))

    def begin(self, key: Key) -> int:
        return 0

    def ask(self, key: Key, token_ids: np.ndarray) -> None:
        raise RuntimeError(f"branch {key} completed a call where there are no tools")

    def answers(self, keys: Sequence[Key]) -> dict[Key, tuple[np.ndarray, int] | None]:
        return {}

    def episode(self, key: Key) -> None:
        return None

    def close(self) -> None:
        """Nothing is open."""
