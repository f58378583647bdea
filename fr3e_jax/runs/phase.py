"""A phase of a run as text: its name, how much of it is done, and the time that is left of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta


@dataclass
class Phase:
    """Something that takes long, such as an evaluation.

    Attributes:
      name: what the run does.
      since: time of its start, in seconds of the display's clock.
      compiled: programs that the process had made ready when the phase began.
      done, total: responses that have ended, of all of the phase; 0 of 0 while nothing is known.
    """

    name: str
    since: float
    compiled: int = 0
    done: int = 0
    total: int = 0

    @property
    def share(self) -> float:
        """The share of its responses that have ended; 0 while nothing is known."""
        return self.done / self.total if self.total else 0.0

    def progress(self, now: float, compiled: int) -> str:
        """How far the phase is, as in "96 of 4,352 responses, 3 programs ready, left 0:01:10"; "" if nothing is known.

        Args:
          now: the display's clock.
          compiled: programs that the process has made ready by now.
        """
        parts = [f"{self.done:,} of {self.total:,} responses"] if self.total else []
        if fresh := compiled - self.compiled:
            parts.append(f"{fresh} program{'s' * (fresh > 1)} compiled or fetched")
        if self.share and self.done < self.total:
            left = (now - self.since) * (1 - self.share) / self.share
            parts.append(f"left {timedelta(seconds=math.ceil(left))}")
        return ", ".join(parts)

    def line(self, now: float, compiled: int) -> str:
        """The phase as a line of a log: name, progress, and seconds so far."""
        parts = [self.progress(now, compiled), f"{now - self.since:.0f} s so far"]
        return f"{self.name}: {', '.join(filter(None, parts))}"
