"""The display of a run: live on a terminal, plain lines in a file, and a table at the end."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import IO, Any, Literal

import rich.console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from fr3e_jax.runs.declared_metrics import is_score
from fr3e_jax.runs.notebook_cell import NotebookCell, in_notebook
from fr3e_jax.runs.phase import Phase
from fr3e_jax.runs.run_directory import RunDirectory
from fr3e_jax.visible_text import VisibleStream, discard_output, show_control_characters, terminal, visible

PACE = "tokens/s"
SHOWN = (
    ("reward", "reward/mean", "{:.3f}"),
    ("entropy", "entropy/mean", "{:.3f}"),
    ("length", "length/mean", "{:.1f}"),
    ("kept", "prompts/kept", "{:.0f}"),
    ("rejected", "prompts/rejected", "{:.0f}"),
    (PACE, "speed/sampled_tokens_per_second", "{:.0f}"),
)
"""Label, metric and format of the numbers on display."""
WATCH_SECONDS = 1.0  # between two looks of a display in plain lines
CONTINUED = (
    ("reward", "returns/reward", "{:.3f}"),
    ("length", "returns/length", "{:.1f}"),
    ("depth", "returns/depth", "{:.2f}"),
    (PACE, "speed/sampled_tokens_per_second", "{:.0f}"),
)
"""The numbers on display of a step that sampled nothing but continuations of kept successes."""
FINE_TUNED = (
    ("loss", "loss/supervised", "{:.4f}"),
    ("entropy", "entropy/mean", "{:.3f}"),
    ("gradient norm", "gradient_norm/mean", "{:.2f}"),
)
"""The numbers on display of a step of `fr3e sft` or an iteration of `fr3e rft`."""
FIRST_SECONDS, SILENT_SECONDS = 5.0, 30.0
"""Plain lines say how a phase goes on: the first one after so many seconds of it, then after so long a silence."""
SAMPLED_TOKENS = "tokens/sampled_tokens"
PACE_STEPS = 20  # last steps that tell the pace
FAULTS = ("no_answer", "not_graded", "prompts_too_long", "prompts_unspeakable")
"""Held-out metrics that should be 0."""
FILES = (
    ("metrics", "a JSON line per step and evaluation: every number of the run"),
    ("summary", "what ran, what it spent, held-out results before and after"),
    ("rollouts", "every response with its log-probs, entropies, links, reward"),
    ("tensorboard", "the same metrics as curves{viewer}"),
)
"""Entries of a run directory, by their name in ``RunDirectory``, with their content."""


def _formatted(value: Any, pattern: str) -> str:
    """The formatted number, or "-" for any other value: a display never stops a run."""
    try:
        return pattern.format(float(value))
    except (TypeError, ValueError):
        return "-"


def _shown(metrics: Mapping[str, Any]) -> list[str]:
    """The metrics of ``SHOWN``, or of ``FINE_TUNED`` in a supervised run.

    A step that sampled nothing shows the size of the batch that earlier steps had left; one that visited no fresh
    prompt, how many kept successes it continued and ``CONTINUED``.
    """
    if "loss/supervised" in metrics:
        return _numbers(metrics, FINE_TUNED)
    carried = metrics.get("batch/carried_rollouts")
    if carried and metrics.get(SAMPLED_TOKENS) == 0:
        return [f"trained on {carried:.0f} carried rollouts, sampled nothing"]
    visits = metrics.get("returns/visits")
    if visits and not _sampled_prompts(metrics):
        return [f"continued {visits:.0f} kept successes", *_numbers(metrics, CONTINUED)]
    return _numbers(metrics, SHOWN)


def _sampled_prompts(metrics: Mapping[str, Any]) -> bool:
    return any(metrics.get(name) for name in ("prompts/kept", "prompts/rejected"))


def _numbers(metrics: Mapping[str, Any], shown: Sequence[tuple[str, str, str]]) -> list[str]:
    return [f"{label} {_formatted(metrics.get(key), pattern)}" for label, key, pattern in shown]


def say(text: str, mode: str, stream: IO[str] | None = None) -> None:
    """Print what a command does before its display begins; nothing in mode "none", and never an error."""
    if mode != "none":
        with contextlib.suppress(OSError):
            print(text, file=VisibleStream(terminal(sys.stdout if stream is None else stream)), flush=True)


class Console:
    """Progress of a run on ``stream``.

    Args:
      mode: "live" display, "plain" (one line per step, no control characters), "none", or "auto": live on a terminal
        and in a notebook, else plain.
      max_steps: steps after which the run ends; 0: no such limit.
      max_sampled_tokens: sampled tokens after which it ends; 0: no such limit.
      first_step: steps done before this process, in a resumed run.
      sampled_tokens: tokens sampled before this process.
      compiled: returns the `Compilations` of the process so far.
    """

    def __init__(
        self,
        mode: Literal["auto", "live", "plain", "none"],
        *,
        max_steps: int = 0,
        max_sampled_tokens: int = 0,
        first_step: int = 0,
        sampled_tokens: int = 0,
        stream: IO[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        compiled: Callable[[], Any] = lambda: SimpleNamespace(programs=0, seconds=0.0),
    ) -> None:
        self._stream = sys.stdout if stream is None else stream
        self._cell = NotebookCell() if mode == "auto" and stream is None and in_notebook() else None
        if mode == "auto":
            mode = "live" if self._cell or self._stream.isatty() else "plain"
        self._mode = mode
        self._shown = VisibleStream(terminal(self._stream))
        self._max_steps, self._max_sampled_tokens = max_steps, max_sampled_tokens
        self._first_step, self._step = first_step, first_step
        self._first_tokens, self._sampled_tokens = sampled_tokens, sampled_tokens
        self._clock, self._start = clock, clock()
        self._last_step_at = self._start
        self._pace: deque[tuple[float, int, int]] = deque(maxlen=PACE_STEPS + 1)  # time, steps and tokens after steps
        self._compiled = compiled
        self._phase = Phase("starting", self._start, compiled().programs)
        self._first_stage: tuple[float, float] | None = None  # time and seconds compiled, where the first step began
        self._first_compiled = 0.0  # seconds compiled within the first step
        self._last_line_at = self._start
        self._told = False  # whether the phase has a line already
        self._lock = threading.Lock()  # lines come from the watch, too
        self._ended = threading.Event()
        self._watch: threading.Thread | None = None
        self._metrics: Mapping[str, Any] = {}
        self._spinner = Spinner("line")
        self._live: Live | None = None
        if mode == "live" and not self._cell:
            display = rich.console.Console(file=terminal(self._stream), force_terminal=True)
            self._live = Live(get_renderable=self._render, console=display, refresh_per_second=2)

    def __enter__(self) -> Console:
        self._start = self._last_step_at = self._last_line_at = self._clock()
        if self._mode == "plain" or self._cell:
            self._watch = threading.Thread(target=self._watch_phase, name="fr3e-console", daemon=True)
            self._watch.start()
        if self._live is not None:
            self._live.start()
            show_control_characters()  # the display has put streams of its own in place, which obey colours
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        if self._watch is not None:
            self._watch.join()
        if self._live is not None:
            self._live.stop()
        self._show_cell()

    def stage(self, name: str) -> None:
        """Show the stage that the run is in: live at once, in plain lines when it takes long."""
        self._phase, self._told = Phase(name, self._clock(), self._compiled().programs), False
        if self._first_stage is None and not name.startswith("evaluating"):
            self._first_stage = self._clock(), self._compiled().seconds

    def progress(self, done: int, total: int) -> None:
        """Show how many of the responses of this stage have ended."""
        self._phase.done, self._phase.total = done, total

    def _watch_phase(self) -> None:
        while not self._ended.wait(WATCH_SECONDS):
            self._show_cell() if self._cell else self.tell()

    def _show_cell(self) -> None:
        if self._cell:
            self._cell.show(self._render())

    def tell(self) -> None:
        """Print a line on the stage if it takes long and nothing was printed for a while."""
        phase, now = self._phase, self._clock()
        silence = now - max(self._last_line_at, phase.since)
        if silence >= (SILENT_SECONDS if self._told or self._step > self._first_step else FIRST_SECONDS):
            self._told = True
            self._write(phase.line(now, self._compiled().programs))

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Show a finished step: its number and the metrics of ``SHOWN``, "-" for missing ones."""
        self._step, self._metrics = step, metrics
        self._last_step_at = self._clock()
        self._sampled_tokens += metrics.get(SAMPLED_TOKENS, 0)
        if not self._pace:
            self._first_compiled = self._compiled().seconds - (self._first_stage or (0.0, 0.0))[1]
        self._pace.append((self._last_step_at, self._step, self._sampled_tokens))
        self._show_cell()
        if self._mode == "plain":
            self._write("  ".join([f"step {self._progress()}", *_shown(metrics), f"left {self._time_left()}"]))
        elif self._live is not None:  # a line of each step stays in the terminal, above the display
            shown = [text for text in _shown(metrics) if not text.startswith(PACE)]  # one line at 80 columns
            self._write("  ".join([f"step {self._progress()}", *shown]))

    def note(self, text: str) -> None:
        """Print a line, above the live display."""
        self._write(text)

    def summary(self, before: Mapping[str, float] | None, after: Mapping[str, float], run_dir: RunDirectory) -> None:
        """Print the held-out results before and after, and the files to look at in the run directory.

        Scores (avg, avg@k, pass@k, greedy) are in percent, their changes in percentage points. The means of
        reward functions follow, and those of ``FAULTS`` that are not 0; the other metrics are in the files.
        """
        rows, before = [("held-out", "before", "after", "change")], before or {}
        for name in after or before:
            old, new = before.get(name), after.get(name)
            share = is_score(name)
            if not share and not name.startswith("rewards/") and not (name in FAULTS and (new or old)):
                continue
            # The percent format scales by 100; a change in points is printed without the percent sign.
            value, change = ("{:.1%}", "{:+.1%}") if share else ("{:.3f}", "{:+.3f}")
            difference = _formatted(_change(new, old), change).rstrip("%")
            rows.append((name, _formatted(old, value), _formatted(new, value), difference))
        width = max(len(row[0]) for row in rows)
        for name, *cells in rows if rows[1:] else ():
            self._write(name.ljust(width) + "".join(cell.rjust(10) for cell in cells))
        self._write(f"run directory: {run_dir.address}")
        present = [(getattr(run_dir, name), text) for name, text in FILES if getattr(run_dir, name).exists()]
        for path, text in present:
            there = importlib.util.find_spec("tensorboard") is not None
            viewer = f": tensorboard --logdir {path}" if there else ""
            self._write(f"  {path.name + ('/' if path.is_dir() else ''):<14} {text.format(viewer=viewer)}")

    def _write(self, text: str) -> None:
        if self._mode == "none":
            return
        with self._lock:
            self._last_line_at = self._clock()
            self._print(text)

    def _print(self, text: str) -> None:
        try:
            if self._live is not None:
                self._live.console.print(Text(visible(text)), soft_wrap=True)
            else:
                print(text, file=self._shown, flush=True)
        except OSError as error:
            # The reader of a pipe (head, less) has gone, or the disk is full: the display ends, the training does not.
            self._mode = "none"
            if self._stream is sys.stdout:
                discard_output()
            if not isinstance(error, BrokenPipeError):
                say(f"fr3e: {error.strerror}; the run goes on without its display", "plain", sys.stderr)

    def _progress(self) -> str:
        return f"{self._step}/{self._max_steps}" if self._max_steps else f"{self._step}"

    def _share_done(self) -> float:
        """Used share of the nearest limit; 0 without a limit."""
        shares = [
            done / limit
            for done, limit in ((self._step, self._max_steps), (self._sampled_tokens, self._max_sampled_tokens))
            if limit
        ]
        return min(1.0, max(shares, default=0.0))

    def _time_left(self) -> str:
        """Time to the nearest limit at the pace of the last steps; "-" while the pace is unknown.

        The first step compiles, so it counts only as long as it is the only one, and without what it compiled.
        """
        since, steps, tokens = (self._first_stage or (self._start,))[0], self._first_step, self._first_tokens
        if len(self._pace) > 1:
            since, steps, tokens = self._pace[0]
        elapsed = self._last_step_at - since - self._first_compiled * (len(self._pace) == 1)
        if elapsed <= 0:  # threads compiled side by side
            return "-"
        estimates = []
        for done, first, limit in (
            (self._step, steps, self._max_steps),
            (self._sampled_tokens, tokens, self._max_sampled_tokens),
        ):
            if limit and done > first:
                estimates.append(elapsed * max(0.0, limit - done) / (done - first))
        if not estimates:
            return "-"
        since_step = self._clock() - self._last_step_at
        return str(timedelta(seconds=math.ceil(max(0.0, min(estimates) - since_step))))

    def _render(self) -> Table:
        """Three lines at any width: progress of the run, its phase, and the numbers of the last step."""
        head = Table.grid(padding=(0, 2))
        elapsed = timedelta(seconds=int(self._clock() - self._start))
        bar = ProgressBar(total=1.0, completed=self._share_done(), width=24)
        head.add_row(self._spinner, f"step {self._progress()}", bar, f"{elapsed}, left {self._time_left()}")
        phase = [self._phase.name, self._phase.progress(self._clock(), self._compiled().programs)]
        display = Table.grid()
        display.add_row(head)
        for parts in (phase, _shown(self._metrics)):
            display.add_row(Text(visible("  ".join(parts)), no_wrap=True, overflow="ellipsis"))
        return display


def _change(new: Any, old: Any) -> float | None:
    try:
        return float(new) - float(old)
    except (TypeError, ValueError):
        return None
