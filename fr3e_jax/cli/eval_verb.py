"""``fr3e eval``: its arguments, and its table."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from fr3e_jax.cli.local_paths import on_this_machine
from fr3e_jax.cli.parsers import declare_print_config
from fr3e_jax.cli.run_selection import run_to_read, settings_of_run
from fr3e_jax.cli.tables import TableConsole
from fr3e_jax.configuration import Config, ConfigError, load_config, to_yaml

if TYPE_CHECKING:
    from fr3e_jax.verbs.evaluations import Result


def declare_eval(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument(
        "--run",
        metavar="RUN_DIR",
        action="append",
        default=[],
        help="evaluate the newest checkpoint of this run, with the run's model settings; may be repeated",
    )
    parser.add_argument(
        "--step", metavar="N,...", type=steps, default=(), help="checkpoints of the runs, in place of the newest"
    )
    parser.add_argument(
        "--model",
        metavar="DIR",
        action="append",
        default=[],
        help="evaluate this Hugging Face directory; may be repeated. Without --run and --model: the recipe's model",
    )
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    parser.add_argument("--markdown", type=on_this_machine, metavar="FILE", help="write the table as Markdown")
    parser.add_argument("--csv", type=on_this_machine, metavar="FILE", help="write all metrics as CSV")
    declare_print_config(parser)


def steps(text: str) -> tuple[int, ...]:
    """Parse a list of steps such as ``10,20``, for argparse."""
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of steps; expected one like 10 or 10,20") from None


def evaluate(arguments: argparse.Namespace) -> int:
    """Evaluate what the arguments name; print one table; return the exit code."""
    if arguments.step and not arguments.run:
        raise ConfigError("--step names checkpoints of a run; add --run RUN_DIR")
    recipe, overrides = arguments.recipe, arguments.overrides
    runs = [run_to_read(run, checkpoints=True) for run in arguments.run]
    named: list[tuple[Config, Path | None]] = [(settings_of_run(recipe, overrides, run), run) for run in runs]
    named += [
        (load_config(recipe, [*overrides, f"model.path={model}"], training=False), None) for model in arguments.model
    ]
    named = named or [(load_config(recipe, overrides, training=False), None)]
    if arguments.print_config:
        print(to_yaml(named[0][0]), end="")
        return 0
    from fr3e_jax.verbs.evaluations import Subject, as_json, comma_separated, evaluate_all, markdown, rows

    subjects = [Subject(config, run, arguments.step if run else ()) for config, run in named]
    results: list[Result] = []
    code = evaluate_all(subjects[0].config, subjects, results)
    if not results:
        return code
    if arguments.json:
        print(as_json(results))
    else:
        _print(*rows(results))
        print("\n".join(["responses:", *(f"  {result.folder}" for result in results)]))
    for path, text in ((arguments.markdown, markdown), (arguments.csv, comma_separated)):
        if path:
            _write(Path(path).expanduser(), text(results))
    return code


def _print(head: list[str], body: list[list[str]]) -> None:
    """The table, turned if it has more columns than rows: models have long names, and there may be many sets."""
    if len(head) > len(body) + 1:
        head, *body = [list(line) for line in zip(*[head, *body], strict=True)]
    table = Table(*head, box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for line in body:
        table.add_row(*line)
    TableConsole().print(table)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}; choose another place") from error
