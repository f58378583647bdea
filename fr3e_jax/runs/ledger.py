"""The token ledger: counts of sampled, reused, prefilled and trained tokens of a run, and its seconds by stage."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fr3e_jax.runs.compilation import Compilations, compilations


def cpu_seconds_of_process() -> float:
    """User and system seconds of this process and of its ended children; running children do not count yet."""
    usages = (resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


COUNTERS = (
    "sampled_tokens",
    "reused_prefix_positions",
    "prefill_positions",
    "lane_steps",
    "loss_tokens",
    "trained_positions",
    "padded_positions",
)


@dataclass
class TokenLedger:
    """Running totals of a run; ``state_dict`` and ``load_state_dict`` carry them over a resume.

    Counters are in tokens or positions, times in seconds. Add to the counters directly:
    ``ledger.sampled_tokens += n``.
    """

    sampled_tokens: int = 0
    """Tokens sampled while training, those of rejected prompts included."""
    reused_prefix_positions: int = 0
    """Prefix positions that branches read from a trunk's cache instead of computing them."""
    prefill_positions: int = 0
    """Positions computed to fill a trunk's cache."""
    lane_steps: int = 0
    """Lanes times decode steps; a lane that gives no token in a step is idle."""
    loss_tokens: int = 0
    """Tokens that entered a policy loss."""
    trained_positions: int = 0
    """Positions that passed through the network in updates, without padding."""
    padded_positions: int = 0
    """Positions that passed through the network in updates, with padding."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall seconds of each stage."""
    wall_clock: Callable[[], float] = field(default=time.perf_counter, repr=False)
    cpu_clock: Callable[[], float] = field(default=cpu_seconds_of_process, repr=False)
    compiled: Callable[[], Compilations] = field(default=compilations, repr=False)
    cpu_seconds_elsewhere: float = 0.0
    """CPU seconds of the other processes of the run, as last reported by them."""
    current_stage: str = ""
    """Name of the running stage; empty between stages."""

    def __post_init__(self) -> None:
        # A total is an offset plus a reading of this process; `load_state_dict` adds the totals of earlier processes.
        self._wall_offset = -self.wall_clock()
        self._cpu_offset = 0.0
        self._compiled_offset = Compilations()
        self._reported = self._totals()

    @property
    def wall_seconds(self) -> float:
        """Wall seconds of the run, counted in each of its processes from the creation of the ledger."""
        return self._wall_offset + self.wall_clock()

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of the run's processes, with imports and ended worker processes."""
        return self._cpu_offset + self.cpu_clock() + self.cpu_seconds_elsewhere

    @property
    def compilations(self) -> Compilations:
        """Programs that the run's processes compiled or fetched from the persistent cache."""
        return self._compiled_offset.plus(self.compiled())

    def count_decoding(self, counts: Any) -> None:
        """Add the counts of a decoder, its ``DecodeCounts``, to the run's."""
        for name in ("sampled_tokens", "prefill_positions", "lane_steps", "reused_prefix_positions"):
            setattr(self, name, getattr(self, name) + getattr(counts, name))

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the wall seconds of the block to ``seconds[name]``, also if it raises.

        Stages do not nest. Only those of an update overlap those of sampling ahead; `current_stage` is then the last
        one that began, or empty.
        """
        start, self.current_stage = self.wall_clock(), name
        try:
            yield
        finally:
            self.current_stage = ""
            self.seconds[name] = self.seconds.get(name, 0.0) + self.wall_clock() - start

    def step_metrics(self) -> dict[str, float]:
        """The counts added since the last call, as metrics, and the run's total wall and CPU seconds.

        Keys: ``tokens/<counter>``, ``seconds/<stage>``, ``speed/sampled_tokens_per_second`` (over all the time since
        the last call, training included; absent when no time has passed), ``compile/programs``, ``compile/cache_hits``,
        ``compile/seconds``, ``wall_seconds``, ``cpu_seconds``.
        """
        totals, before = self._totals(), self._reported
        self._reported = totals
        metrics: dict[str, float] = {
            f"tokens/{name}": totals["counters"][name] - before["counters"][name] for name in COUNTERS
        }
        for name, seconds in totals["seconds"].items():
            metrics[f"seconds/{name}"] = seconds - before["seconds"].get(name, 0.0)
        compiled = Compilations(**totals["compilations"]).since(Compilations(**before["compilations"]))
        metrics |= {f"compile/{name}": value for name, value in compiled._asdict().items()}
        elapsed = totals["wall_seconds"] - before["wall_seconds"]
        if elapsed > 0:
            metrics["speed/sampled_tokens_per_second"] = metrics["tokens/sampled_tokens"] / elapsed
        return metrics | {"wall_seconds": totals["wall_seconds"], "cpu_seconds": totals["cpu_seconds"]}

    def _totals(self) -> dict[str, Any]:
        return {
            "counters": {name: getattr(self, name) for name in COUNTERS},
            "seconds": dict(self.seconds),
            "wall_seconds": self.wall_seconds,
            "cpu_seconds": self.cpu_seconds,
            "compilations": self.compilations._asdict(),
        }

    def state_dict(self) -> dict[str, Any]:
        """Totals as JSON content, now and at the last ``step_metrics``: a step cut by a resume is reported whole."""
        return {"totals": self._totals(), "reported": self._reported}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict()`` of an earlier process; the seconds between the two do not count.

        Raises:
          ValueError: ``state`` has other counters than this ledger.
        """
        totals = state["totals"]
        if set(totals["counters"]) != set(COUNTERS):
            raise ValueError(
                f"the checkpoint's ledger has the counters {sorted(totals['counters'])}, expected {sorted(COUNTERS)}; "
                "it was written by another version of fr3e_jax: resume with that version, or start a fresh run"
            )
        for name, count in totals["counters"].items():
            setattr(self, name, int(count))
        self.seconds = dict(totals["seconds"])
        # Added, not set: imports and compilation of this process are part of the run's cost.
        self._wall_offset += totals["wall_seconds"]
        self._cpu_offset += totals["cpu_seconds"]
        self._compiled_offset = self._compiled_offset.plus(Compilations(**totals["compilations"]))
        self._reported = state["reported"]
