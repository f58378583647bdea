"""``fr3e eval``: evaluate models, runs and checkpoints on the same held-out problems, and print one table."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fr3e_jax.cli.arguments import declare_print_config, steps
from fr3e_jax.cli.parser import Verb
from fr3e_jax.cli.run_selection import print_config, run_to_read, settings_of_run
from fr3e_jax.cli.tables import TableConsole, text_table
from fr3e_jax.configuration import Config, ConfigError, load_config
from fr3e_jax.runs.declared_metrics import is_score

if TYPE_CHECKING:
    from fr3e_jax.verbs.evaluations import Result

COUNTS = ("prompts", "prompts_too_long", "prompts_unspeakable", "not_graded")


def declare(parser: argparse.ArgumentParser) -> None:
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
    parser.add_argument(
        "--format",
        choices=("inspect",),
        help="write results and samples also as Inspect reads them, into the folder of the evaluation",
    )
    declare_print_config(parser)


def run(arguments: argparse.Namespace) -> int:
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
    if print_config(arguments, named[0][0]):
        return 0
    from fr3e_jax.verbs.evaluations import Subject, evaluate_all

    subjects = [Subject(config, run, arguments.step if run else ()) for config, run in named]
    results: list[Result] = []
    code = evaluate_all(subjects[0].config, subjects, results)
    if not results:
        return code
    if arguments.format:
        from fr3e_jax.verbs.evaluation_files import write_evaluation

        for result in results:
            print(f"{arguments.format}: {write_evaluation(result)}", file=sys.stderr)
    if arguments.json:
        print(as_json(results))
    else:
        _print(*rows(results))
        print("\n".join(["responses:", *(f"  {result.folder}" for result in results)]))
    return code


def _print(head: list[str], body: list[list[str]]) -> None:
    """The table, turned if it has more columns than rows: models have long names, and there may be many sets."""
    if len(head) > len(body) + 1:
        head, *body = [list(line) for line in zip(*[head, *body], strict=True)]
    TableConsole().print(text_table(head, body))


def columns(results: Sequence[Result]) -> list[str]:
    """The metrics that a table shows: scores of all sets, their means first; those of single sets without lengths."""
    names = dict.fromkeys(name for result in results for name in result.metrics)
    shown = [name for name in names if name not in COUNTS and not name.endswith("no_answer")]
    overall = [name for name in shown if "/" not in name or name.startswith(("length/", "tools/"))]
    scores = [name for name in overall if not name.startswith(("length/", "tools/"))]
    sets = [name for name in shown if name not in overall and "/length/" not in name]
    return [*scores, *sets, *(name for name in overall if name not in scores)]


def rows(results: Sequence[Result]) -> tuple[list[str], list[list[str]]]:
    """The table: columns, and a row of texts for each evaluation, "" where it has no such metric."""
    names = columns(results)

    def cell(value: float | None, name: str) -> str:
        return "" if value is None else f"{value:.1%}" if is_score(name) else f"{value:.4g}"

    return ["model", *names], [[r.name, *(cell(r.metrics.get(n), n) for n in names)] for r in results]


def as_json(results: Sequence[Result]) -> str:
    """The metrics as JSON: an object for one evaluation, a list for several."""
    content = [{"model": r.name, "folder": r.folder} | r.metrics for r in results]
    return json.dumps(content[0] if len(content) == 1 else content, indent=2)


VERB = Verb("fr3e eval configs/demo.yaml --run runs/demo-20250101-120000 evaluation.samples=32", declare, run)
