"""``fr3e gradient-noise``: its arguments, its table and its files."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from fr3e_jax.cli.analyse_verb import write_findings
from fr3e_jax.cli.local_paths import on_this_machine
from fr3e_jax.cli.parsers import declare_run_to_read, positive
from fr3e_jax.cli.run_selection import run_to_read, settings_of_run
from fr3e_jax.cli.tables import TableConsole
from fr3e_jax.configuration import ConfigError

if TYPE_CHECKING:
    from fr3e_jax.studies.analysis.figure import Finding
    from fr3e_jax.studies.laboratory.gradient_noise import Variant

LETTERS = {"K": "explore.num_anchors", "M": "explore.rollouts_per_state"}
"""The paper's letters, for short overrides of variants."""


def declare_gradient_noise(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("--repeats", type=positive, default=32, metavar="N", help="rounds of a variant (default 32)")
    parser.add_argument(
        "--variants",
        nargs="+",
        default=[],
        metavar="TEXT",
        help="compare these: overrides such as 'explore.num_anchors=2', K=2 M=16 for anchors and rollouts of a state, "
        "or another recipe (FILE.yaml) with overrides or without; settings before --variants hold for all",
    )
    parser.add_argument("--oracle", action="store_true", help="compare with the direction of a large-sample gradient")
    parser.add_argument("--oracle-prompts", type=positive, default=64, metavar="N", help="of the oracle (default 64)")
    parser.add_argument(
        "--oracle-rollouts", type=positive, default=256, metavar="N", help="of each of its prompts (default 256)"
    )
    parser.add_argument(
        "--out",
        type=on_this_machine,
        metavar="DIR",
        help="folder of the results (default: gradient_noise/ of the run or runtime.output_dir)",
    )
    declare_run_to_read(parser, "take the weights of")


def measure_gradient_noise(arguments: argparse.Namespace) -> int:
    """Measure all variants, print the ranked table, write the files; return the exit code."""
    run_dir = None if arguments.run is None else run_to_read(arguments.run, checkpoints=True)
    texts = arguments.variants or [arguments.recipe]
    settings = [variant_settings(text, arguments.recipe, arguments.overrides) for text in texts]
    configs = [settings_of_run(recipe, overrides, run_dir) for recipe, overrides in settings]
    from fr3e_jax.studies.laboratory.gradient_noise import Oracle, Variant, gradient_noise

    variants: list[Variant] = [Variant(text, config) for text, config in zip(texts, configs, strict=True)]
    oracle = Oracle(arguments.oracle_prompts, arguments.oracle_rollouts) if arguments.oracle else None
    parent = run_dir or Path(configs[0].runtime.output_dir).expanduser()
    place = Path(arguments.out).expanduser() if arguments.out else parent / "gradient_noise"
    found: list[Finding] = []

    def keep(findings: list[Finding]) -> None:
        found[:] = findings
        try:
            write_findings(findings, place)
        except OSError as error:
            raise ConfigError(f"cannot write into {place} ({error}); choose another folder: --out DIR") from error

    code = gradient_noise(variants, run_dir, arguments.repeats, oracle, keep)
    if code:
        return code
    _print(list(found[0].rows()), found[0].note)
    print(f"the table and every repeat as JSON and CSV: {place}")
    return 0


def variant_settings(text: str, recipe: str, overrides: Sequence[str]) -> tuple[str, list[str]]:
    """The recipe and the overrides of a variant's text; the variant's own overrides come last and win.

    Raises:
      ConfigError: the text has more than one recipe, or quotes that do not close.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"--variants {text!r}: {error}") from error
    recipes, own = [word for word in words if "=" not in word], [word for word in words if "=" in word]
    if len(recipes) > 1:
        raise ConfigError(f"--variants {text!r}: found recipes {' and '.join(recipes)}; expected one at most")
    named = [f"{LETTERS.get(name, name)}={value}" for name, _, value in (word.partition("=") for word in own)]
    return (recipes or [recipe])[0], [*overrides, *named]


def _print(rows: Sequence[Mapping[str, Any]], note: str) -> None:
    with_oracle = "cosine with the oracle" in rows[0]
    figures = ["SNR to the oracle per 1,000 tokens", "cosine with the oracle"] if with_oracle else []
    figures = ["SNR per 1,000 tokens", *figures]
    means = {"tokens": "sampled tokens a repeat", "positions": "trained positions a repeat"}
    shares = {"prompts": "prompts that train", "rollouts": "rollouts that train"}
    table = Table("", "variant", *figures, *means, *(f"{name} train" for name in shares), "CPU s", box=None)
    for column in table.columns[2:]:
        column.justify = "right"
    for rank, row in enumerate(rows, 1):
        cells = [_with_interval(row, name) for name in figures]
        cells += [f"{row[name]:,.0f}" for name in means.values()] + [f"{row[name]:.0%}" for name in shares.values()]
        table.add_row(str(rank), str(row["variant"]), *cells, f"{row['cpu seconds a repeat']:.2f}")
    console = TableConsole()
    console.print(table)
    console.print(note, soft_wrap=True)


def _with_interval(row: Mapping[str, Any], name: str) -> str:
    value, low, high = (row[key] for key in (name, f"{name}, low", f"{name}, high"))
    if value is None:
        return "-"
    return f"{value:.3f}" if low is None else f"{value:.3f} ({low:.3f} to {high:.3f})"
