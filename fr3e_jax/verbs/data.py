"""``fr3e data``: the data of a recipe, as tables or JSON."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from rich.table import Table

from fr3e_jax.cli.arguments import declare_print_config
from fr3e_jax.cli.parser import Verb
from fr3e_jax.cli.run_selection import print_config
from fr3e_jax.cli.tables import TableConsole, text_table
from fr3e_jax.configuration import load_config
from fr3e_jax.configuration.error_conversion import as_config_error

if TYPE_CHECKING:
    from fr3e_jax.data.overlap import Overlap
    from fr3e_jax.data.overview import Overview

BAR = 40  # characters of the longest bar
PAIRS = 6  # ids shown of each overlap
PROMPT = 1500  # characters shown of each prompt, and of its token ids
GOLD = 60  # characters shown of each gold answer


def declare(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument(
        "--json",
        action="store_true",
        help="print JSON, with the ids of all overlapping questions and all token ids of the prompts shown",
    )
    declare_print_config(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the overview of a recipe's data; return the exit code.

    Raises:
      ConfigError: a file that the settings name cannot be read.
    """
    config = load_config(arguments.recipe, arguments.overrides, training=False)
    if print_config(arguments, config):
        return 0
    from fr3e_jax.data.overview import overview

    with as_config_error():
        try:
            data = overview(config)
        except (ValueError, OSError):
            _check_model(config.model.path)
            raise
    if arguments.json:
        print(json.dumps(data.as_json(), indent=2, ensure_ascii=False))
    else:
        print_overview(data)
    return 0


def _check_model(path: str) -> None:
    """Refuse a model's faulty config.json by its own reason: a tokenizer that reads the file names another one."""
    from fr3e_jax.hub import model_directory
    from fr3e_jax.policy.config_file import read_architecture  # loads jax

    if path:
        read_architecture(model_directory(path))


def print_overview(data: Overview) -> None:
    """Tables of sets, lengths and overlaps, then the rendered prompts."""
    console = TableConsole()
    console.print(f"{data.recipe}: task {data.task}, template {data.template}, tokenizer {data.tokenizer}")
    console.print(_sets(data))
    for line in _remarks(data):
        console.print(line)
    _histograms(console, data)
    _overlaps(console, data)
    for name, gold, text, ids in data.prompts:
        console.rule(f"{name}  (gold answer: {_short(gold, GOLD)})", align="left")
        console.print(_short(text, PROMPT), soft_wrap=True)
        if ids:
            console.print(_short(f"{len(ids)} token ids: {' '.join(map(str, ids))}", PROMPT), soft_wrap=True)


def _sets(data: Overview) -> Table:
    head = ("", "set", "rows", "problems", "dropped", "share", "verifier", "tokens median", "longest")
    rows = []
    for each in data.sets:
        dropped = ", ".join(f"{count:,} {reason}" for reason, count in sorted(each.dropped.items()))
        share = "" if each.share is None else f"{100 * each.share:.1f} %"
        lengths = each.lengths
        counts = (lengths.median, lengths.longest, lengths.too_long)
        numbers = [f"{count:,}" if lengths.histogram else "-" for count in counts]
        total = "" if each.rows is None else f"{each.rows:,}"
        rows.append([each.role, each.name, total, f"{each.problems:,}", dropped, share, each.verifier, *numbers])
    return text_table((*head, f"> {data.max_prompt_tokens}"), rows, left=("", "set", "dropped", "verifier"))


def _remarks(data: Overview) -> list[str]:
    lines = []
    for each in data.sets:
        if each.looked_at < each.problems:
            lines.append(f"{each.name}: lengths were measured on {each.looked_at:,} evenly spaced problems.")
        if each.repeated_questions:
            lines.append(f"{each.name}: {each.repeated_questions} questions repeat with another gold answer.")
    unspeakable = [each for each in data.sets if each.lengths.unspeakable]
    if unspeakable:
        share = f"{sum(each.lengths.unspeakable for each in unspeakable):,} of {sum(e.looked_at for e in data.sets):,}"
        names = ", ".join(each.name for each in unspeakable)
        lines.append(f"The tokenizer cannot spell {share} prompts ({names}): {unspeakable[0].lengths.complaint}.")
    return lines


def _histograms(console: TableConsole, data: Overview) -> None:
    for role in ("train", "development", "test"):
        counts: dict[int, int] = {}
        for each in data.sets:
            for edge, count in each.lengths.histogram if each.role == role else ():
                counts[edge] = counts.get(edge, 0) + count
        if not counts:
            continue
        console.print(f"\n{role}: prompts by tokens (limit data.max_prompt_tokens={data.max_prompt_tokens})")
        for edge in sorted(counts):
            bar = "█" * round(BAR * counts[edge] / max(counts.values())) or ("▏" if counts[edge] else "")
            console.print(f"  {'up to':>5} {edge:>6} {counts[edge]:>8,} {bar}")


def _overlaps(console: TableConsole, data: Overview) -> None:
    console.print()
    if not data.overlaps:
        console.print("No training question shares 13 consecutive words with an evaluation question.\n")
        return
    head = ("training set", "evaluation set", "same words", "near", "a run", "of the set", "evaluation ids")
    rows = []
    for each in data.overlaps:
        counts = [str(len(pairs)) for pairs in (each.identical, each.near, each.touching)]
        rows.append([each.train, each.evaluation, *counts, f"{100 * each.share:.1f} %", _ids(each)])
    console.print("training questions in evaluation sets (13-word runs)")
    console.print(text_table(head, rows, left=("training set", "evaluation set", "evaluation ids")))
    console.print(
        "Counts of pairs. same words: equal but for punctuation, signs and LaTeX layout; near: sharing half or more of "
        "the evaluation question's runs; a run: sharing at least one, most often a phrase. `--json` lists all pairs.\n",
        soft_wrap=True,
    )


def _ids(overlap: Overlap) -> str:
    numbers = list(dict.fromkeys(pair[1].rpartition("/")[2] for pair in overlap.identical + overlap.near))
    return ", ".join(numbers[:PAIRS]) + (", ..." if len(numbers) > PAIRS else "")


def _short(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]} ... ({len(text) - longest:,} more characters)"


VERB = Verb("fr3e data configs/mixture_fr3e.yaml data.root=DIR model.tokenizer=Qwen2.5-7B", declare, run)
