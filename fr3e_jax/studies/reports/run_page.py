"""The page of a run: ``report.html``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fr3e_jax.runs.run_directory import atomic_file
from fr3e_jax.studies.analysis.catalogue import findings
from fr3e_jax.studies.analysis.figure import Finding
from fr3e_jax.studies.analysis.finding_content import stored_findings
from fr3e_jax.studies.analysis.stored_run import StoredRun
from fr3e_jax.studies.reports.embedding import embed
from fr3e_jax.studies.reports.page import assemble
from fr3e_jax.studies.reports.prompt_sampling import Budget
from fr3e_jax.studies.reports.run_data import collect

NAME = "report.html"
STYLES = ("uplot/uPlot.min.css", "run/style.css")
SCRIPTS = (
    "uplot/uPlot.iife.min.js",
    "run/dom.js",
    "run/unpack.js",
    "run/outcomes.js",
    "run/curves.js",
    "run/prompts.js",
    "run/tree_layout.js",
    "run/tree.js",
    "run/tree_events.js",
    "run/prompt_view.js",
    "run/reading.js",
    "run/held_out.js",
    "run/scales.js",
    "run/figures.js",
    "run/heat_map.js",
    "run/overview.js",
    "run/keys.js",
    "run/main.js",
)
LIVE_SCRIPT = "run/live.js"


def run_page(
    run: StoredRun, figures: Iterable[Finding] | None = None, budget: Budget | None = None, *, live: bool = False
) -> str:
    """The page of a run.

    Args:
      run: the run; it may still be training.
      figures: to show; None: the findings of all analyses for which the run has data, and the stored ones.
      budget: limits of what is read and shown.
      live: whether a server serves the page, which then asks it for newer steps.

    Raises:
      ConfigError: a file of the run is damaged.
    """
    content = collect(run, _all_findings(run) if figures is None else figures, budget)
    data = {"main": embed(content.main)}
    data |= {f"prompt-{n}": chunk for n, chunk in enumerate(content.prompt_chunks)}
    data |= {f"held-out-{n}": chunk for n, chunk in enumerate(content.held_out_chunks)}
    scripts = [*SCRIPTS[:-1], LIVE_SCRIPT, SCRIPTS[-1]] if live else SCRIPTS
    return assemble(f"{run.name}: report", scripts=scripts, styles=STYLES, data=data, same_origin=live)


def _all_findings(run: StoredRun) -> list[Finding]:
    """Those of all analyses, then those that need the model and were stored by ``fr3e updates`` and ``intervene``."""
    found = findings(run)
    names = {one.name for one in found}
    folders = (run.directory.path / name for name in ("analysis", "interventions"))
    return found + [one for folder in folders for one in stored_findings(folder) if one.name not in names]


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


def report_at_the_end(path: Path) -> tuple[Path | None, str]:
    """Write the page of a run that has just ended: its path, or None and why there is none. Nothing is raised."""
    try:
        return write_report(path), ""
    except Exception as error:  # whatever it is, the run is finished and saved
        return None, f"{type(error).__name__}: {' '.join(str(error).split())}"
