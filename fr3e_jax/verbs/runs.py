"""``fr3e runs``: a table of the runs below a folder."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from rich.cells import cell_len

from fr3e_jax.cli.parser import Verb
from fr3e_jax.cli.tables import TableConsole, text_table
from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.error_conversion import as_config_error
from fr3e_jax.runs.run_state import State
from fr3e_jax.stores.objects import is_remote
from fr3e_jax.stores.reading import overview_folder
from fr3e_jax.studies.analysis.run_overview import Listed, RunOverview, SweepOverview, age, as_json, overview

STATES = (*get_args(State), "damaged")
SORTS = ("age", "name", "after", "tokens")
COLUMNS = ("run", "recipe", "state", "step", "tokens", "held-out", "before", "after", "age")
SPARE = ("recipe", "before", "tokens")  # left out in this order, where names would break inside words
LONGEST_REASON = 300  # characters under the table; --json has them all
_NEVER = float("-inf")


def declare(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("folder", metavar="DIR", nargs="?", default="runs", help="folder to look below (default runs)")
    parser.add_argument("--unfold", action="store_true", help="list the runs of each sweep; naming a sweep does, too")
    parser.add_argument("--state", choices=STATES, help="only runs in this state")
    parser.add_argument("--sort", choices=SORTS, default="age", help="order (default age: the last changed first)")
    parser.add_argument("--json", action="store_true", help="print JSON; sweeps hold their runs")


def run(arguments: argparse.Namespace) -> int:
    """Print the runs below a folder and return the exit code.

    Raises:
      ConfigError: there is no such folder.
    """
    with as_config_error():
        remote = is_remote(arguments.folder)
        folder = overview_folder(arguments.folder) if remote else Path(arguments.folder).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"found no folder {folder}; expected one that holds run directories: fr3e runs DIR")
    listed = overview(folder)
    if arguments.unfold or arguments.state or len(listed) == 1:
        listed = [run for entry in listed for run in entry.runs if arguments.state in (None, run.state)]
    listed = _sorted(listed, arguments.sort)
    if arguments.json:
        print(json.dumps(as_json(listed), indent=2))
    elif listed:
        _print(listed, folder)
    else:
        condition = f" that are {arguments.state}" if arguments.state else ""
        print(f"no runs{condition} in {folder}; fr3e train starts one")
    return 0


def _sorted(listed: Sequence[Listed], by: str) -> list[Listed]:
    def key(entry: Listed) -> float:
        if by == "after":
            return max((_NEVER if run.after is None else run.after for run in entry.runs), default=_NEVER)
        return sum(run.sampled_tokens for run in entry.runs) if by == "tokens" else entry.changed

    return sorted(listed, key=lambda entry: entry.path) if by == "name" else sorted(listed, key=key, reverse=True)


def _print(listed: Sequence[Listed], folder: Path) -> None:
    cells = ((entry, _sweep_cells(entry) if isinstance(entry, SweepOverview) else _cells(entry)) for entry in listed)
    rows = [[_place(entry.path, folder), *texts] for entry, texts in cells]
    console = TableConsole()
    shown = _fitting(rows, console.width)
    cut = ([row[COLUMNS.index(name)] for name in shown] for row in rows)
    console.print(text_table(shown, cut, left=("run", "recipe", "state", "held-out")))
    if len(shown) < len(COLUMNS):
        absent = ", ".join(name for name in COLUMNS if name not in shown)
        console.print(f"A wider terminal also shows: {absent}.", style="dim")
    for run in (entry for entry in listed if isinstance(entry, RunOverview) and entry.state in ("failed", "damaged")):
        reason = run.reason if len(run.reason) <= LONGEST_REASON else run.reason[:LONGEST_REASON] + " ..."
        console.print(f"{_place(run.path, folder)} {run.state}: {reason}", soft_wrap=True)


def _fitting(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """The columns whose cells fit ``width`` characters side by side; a wider run's name breaks all the same."""
    widths = {column[0]: max(map(cell_len, column)) + 2 for column in zip(COLUMNS, *rows, strict=True)}
    for name in SPARE:
        if sum(widths.values()) > width:
            del widths[name]
    return list(widths)


def _place(path: str, folder: Path) -> str:
    """The path as seen from the folder; the folder itself by its name."""
    relative = Path(path).relative_to(folder)
    return str(relative) if relative.parts else Path(path).resolve().name


def _cells(run: RunOverview) -> list[str]:
    recipe = run.recipe if run.verb in ("train", "") else f"{run.recipe} ({run.verb})"
    return [recipe, *progress_cells(run), age(run.changed)]


def progress_cells(run: RunOverview) -> list[str]:
    """State, step, tokens, the name of the held-out score, and that score before and after, as text."""
    step = f"{run.step}/{run.max_steps}" if run.max_steps else str(run.step)
    tokens = _amount(run.sampled_tokens)
    if run.max_sampled_tokens:
        tokens += f"/{_amount(run.max_sampled_tokens)}"
    return [run.state, step, tokens, run.score, _percent(run.before), _percent(run.after)]


def _sweep_cells(sweep: SweepOverview) -> list[str]:
    tokens = _amount(sum(run.sampled_tokens for run in sweep.runs))
    best = max((run for run in sweep.runs if run.after is not None), key=lambda run: run.after or 0.0, default=None)
    score = f"best {best.score}" if best else ""
    scores = [_percent(best.before), _percent(best.after)] if best else ["", ""]
    return [f"{Path(sweep.recipe).stem} (sweep)", sweep.states(), "", tokens, score, *scores, age(sweep.changed)]


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _amount(count: int) -> str:
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return str(count)


VERB = Verb("fr3e runs runs --state failed", declare, run, recipe=False)
