"""The page of a run: ``report.html``."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from fr3e_jax.loop.callbacks import Callback
from fr3e_jax.runs.console import say
from fr3e_jax.runs.run_directory import atomic_file
from fr3e_jax.studies.analysis.catalogue import findings
from fr3e_jax.studies.analysis.figure import Finding
from fr3e_jax.studies.analysis.finding_content import stored_findings
from fr3e_jax.studies.analysis.stored_run import StoredRun
from fr3e_jax.studies.reports.embedding import embed
from fr3e_jax.studies.reports.page import DRAWING_SCRIPTS, assemble
from fr3e_jax.studies.reports.page_limits import PageLimits
from fr3e_jax.studies.reports.run_data import collect

NAME = "report.html"
_VIEWS = (
    "curves",
    "lists",
    "prompts",
    "tree_layout",
    "tree",
    "tree_events",
    "prompt_view",
    "reading",
    "held_out",
    "overview",
    "keys",
)
SCRIPTS = (*DRAWING_SCRIPTS, *(f"page/{name}.js" for name in _VIEWS), "page/main.js")
LIVE_SCRIPT = "page/live.js"


def run_page(
    run: StoredRun, figures: Iterable[Finding] | None = None, limits: PageLimits | None = None, *, live: bool = False
) -> str:
    """The page of a run.

    Args:
      run: the run; it may still be training.
      figures: to show; None: the findings of all analyses for which the run has data, and the stored ones.
      limits: of what is read and shown.
      live: a server serves the page, which then asks it for newer steps.

    Raises:
      ConfigError: a file of the run is damaged.
    """
    content = collect(run, _all_findings(run) if figures is None else figures, limits)
    data = {"main": embed(content.main)}
    data |= {f"prompt-{n}": chunk for n, chunk in enumerate(content.prompt_chunks)}
    data |= {f"trunk-{n}": chunk for n, chunk in enumerate(content.trunk_chunks)}
    data |= {f"held-out-{n}": chunk for n, chunk in enumerate(content.held_out_chunks)}
    scripts = [*SCRIPTS[:-1], LIVE_SCRIPT, SCRIPTS[-1]] if live else SCRIPTS
    return assemble(f"{run.name}: report", "page/run.html", scripts=scripts, data=data, same_origin=live)


def _all_findings(run: StoredRun) -> list[Finding]:
    """Those of all analyses, then those that ``fr3e intervene`` stored."""
    return findings(run) + list(stored_findings(run.directory.path / "interventions"))


def write_report(path: str | Path, output: str | Path | None = None) -> Path:
    """Write the page of the run in ``path`` to ``output``, or to ``report.html`` of the run; return its path.

    Raises:
      ConfigError: there is no run, or a file of it is damaged.
      OSError: the page cannot be written.
    """
    run = StoredRun.open(path)
    target = Path(output).expanduser() if output else run.directory.path / NAME
    content = run_page(run)
    with atomic_file(target) as stream:
        stream.write(content.encode())
    return target


class PageAtTheEnd(Callback):
    """Writes the page of a run that has finished; a failure costs one line, for everything else is saved.

    ``console``: the setting ``runtime.console``.
    """

    def __init__(self, console: str):
        self._console = console
        self._run_dir = Path()

    def on_start(self, run_dir: Path, step: int) -> None:
        self._run_dir = run_dir

    def on_end(self, state: str, reason: str) -> None:
        if state != "finished":
            return
        say("writing the report", self._console)
        try:
            say(f"report: {write_report(self._run_dir)}", self._console)
        except Exception as error:  # whatever it is, the run is finished and saved
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            again = f"try again with fr3e report {self._run_dir}"
            print(f"fr3e: the report was not written ({reason}); {again}", file=sys.stderr)
