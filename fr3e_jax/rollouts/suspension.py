"""A call of the decoder that was stopped between two chunks, and goes on later as if nothing had happened.

The state of such a call is the decoder's state on the devices, and on the host the schedule, the tokens so far and the
choices that are open. Sampling goes on from it bit for bit, on the same mesh with the same layout of lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fr3e_jax.policy.rows import Trunks
from fr3e_jax.programs.decoder_state import DecodeState
from fr3e_jax.rollouts.requests import CachedTrunk, DecodeCounts, Key, Rollout


@dataclass
class SuspendedCall:
    """The state of one `RolloutEngine.sample` between two chunks."""

    state: DecodeState | None  # None: no trunk has been inserted
    results: list[list[Rollout | None]]
    cached: dict[int, CachedTrunk]  # trunks that wait for a slot, by request
    promoted: dict[Key, CachedTrunk]
    undecided: list[int]  # requests whose branches have ended, and of which none is chosen yet
    trunk_routes: dict[int, np.ndarray | None]  # of each request, as `CachedTrunk.routes`
    host: dict[str, dict[str, Any]]  # the attributes of the parts on the host, by part
    counts: DecodeCounts  # of the call so far
    names: list[list[tuple[int, ...]]]  # the noise of each request's branches, to recognise the requests


class SamplingSuspended(Exception):
    """All processes stop here; ``call`` says where sampling goes on. No handler of errors may swallow it."""

    def __init__(self, call: SuspendedCall):
        super().__init__("sampling stopped between two chunks")
        self.call = call


def attributes(part: Any, names: Sequence[str]) -> dict[str, Any]:
    """The named attributes of one part of a call; they are not copied."""
    return {name: getattr(part, name) for name in names}


def put_back(part: Any, found: dict[str, Any]) -> None:
    """Set the attributes that `attributes` took."""
    for name, value in found.items():
        setattr(part, name, value)


ON_DEVICE = (DecodeState, Trunks)
"""Types of a suspended call whose arrays lie on the devices."""
