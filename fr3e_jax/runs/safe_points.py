"""The points inside a step at which a run may stop and from which it can go on exactly: all processes stop at one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

Point = Literal["chunk", "round", "sampled", "scoring", "micro_batch", "mini_batch", "step"]
"""Between two chunks of decode steps, after a round, after sampling, between the micro-batches that are scored, between
those of a gradient, before a mini-batch, after a step."""


class SafePoints:
    """Asks at each safe point whether the run is to stop there.

    Args:
      received: the signals that this process has received; it grows.
      agree: ``agree(received, number)``, the reason for all processes to stop or ""; each asks at the same points.
    """

    def __init__(self, received: list[str], agree: Callable[[list[str], int], str]):
        self._received, self._agree = received, agree
        self._number = 0
        self.reason = ""  # the signal or the notice for which all processes stop

    def reached(self, point: Point) -> str:
        """The reason to stop at this point, or ""; once there is one, it stays."""
        self._number += 1
        self.reason = self.reason or self._agree(self._received, self._number)
        return self.reason
