"""``fr3e intervene``: its arguments, its table and its files."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from fr3e_jax.cli.analyse_verb import write_findings
from fr3e_jax.cli.local_paths import on_this_machine
from fr3e_jax.cli.parsers import declare_print_config, declare_run_to_read, positive
from fr3e_jax.cli.run_selection import locate_weights
from fr3e_jax.cli.tables import TableConsole
from fr3e_jax.configuration import ConfigError, to_yaml

if TYPE_CHECKING:
    from fr3e_jax.studies.analysis.figure import Finding

DEFAULT = "entropy:top20%,entropy:bottom20%"


def declare_intervene(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument(
        "--tokens",
        default=DEFAULT,
        metavar="GROUP,...",
        help="groups of tokens to compare: entropy:top20%%, entropy:bottom20%%, random, position:early, position:late, "
        "low-ppl, high-ppl; a share may follow each (default %(default)s)",
    )
    parser.add_argument("--problems", type=positive, default=32, metavar="N", help="held-out problems (default 32)")
    parser.add_argument("--responses", type=positive, default=1, metavar="N", help="responses to each (default 1)")
    parser.add_argument(
        "--tokens-per-response", type=positive, default=2, metavar="N", help="of each group, at most (default 2)"
    )
    parser.add_argument(
        "--rollouts", type=positive, default=8, metavar="K", help="continuations of each side (default 8)"
    )
    parser.add_argument(
        "--out",
        type=on_this_machine,
        metavar="DIR",
        help="folder of the results (default: interventions/ of the run, or runtime.output_dir)",
    )
    declare_run_to_read(parser, "replace tokens of")
    declare_print_config(parser)


def run_interventions(arguments: argparse.Namespace) -> int:
    """Replace tokens, print the table, write the files; return the exit code."""
    config, run_dir = locate_weights(arguments)
    if arguments.print_config:
        print(to_yaml(config), end="")
        return 0
    from fr3e_jax.studies.laboratory.intervene import Plan, intervene, read_groups

    plan = Plan(
        read_groups(arguments.tokens),
        arguments.problems,
        arguments.responses,
        arguments.tokens_per_response,
        arguments.rollouts,
    )
    parent = run_dir or Path(config.runtime.output_dir).expanduser()
    place = Path(arguments.out).expanduser() if arguments.out else parent / "interventions"
    found: list[Finding] = []
    code = intervene(config, run_dir, plan, place, found)
    if code or not found:
        return code
    try:
        write_findings(found, place)
    except OSError as error:
        raise ConfigError(f"cannot write into {place} ({error}); choose another folder: --out DIR") from error
    _print(found)
    print(f"all replacements and their continuations: {place}")
    return 0


def _print(found: list[Finding]) -> None:
    table = next(one for one in found if one.name == "intervention_groups")
    shown = Table("tokens", "replaced", "right after the token", "after the substitute", "I_t", "|I_t|", box=None)
    for row in (list(one.values()) for one in table.rows()):
        share = [None if value is None else f"{value:.3f}" for value in row[2:]]
        spans = [
            "" if low is None else f" ({low} to {high})" for low, high in ((share[3], share[4]), (share[6], share[7]))
        ]
        cells = [*share[:2], (share[2] or "") + spans[0], (share[5] or "") + spans[1]]
        shown.add_row(str(row[0]), str(row[1]), *(cell or "-" for cell in cells))
    console = TableConsole()
    console.print(shown)
    console.print(table.note, soft_wrap=True)
