"""One argparse parser per verb: options of the verb; everything else is a setting, written key=value."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from fr3e_jax.configuration import ConfigError, help_text

DEFAULT_PROFILE_STEPS = 4
DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
_BYTES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@dataclass(frozen=True)
class Verb:
    """``run`` takes the parsed arguments and returns an exit code; ``declare`` adds the verb's own options.

    ``recipe`` is false for a verb whose settings are those of a run: it declares its positional arguments itself.
    """

    purpose: str
    example: str
    declare: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    recipe: bool = True


class OneLineParser(argparse.ArgumentParser):
    """Reports mistakes as one line with exit code 2, like a mistake in a recipe."""

    def error(self, message: str) -> NoReturn:
        if "unrecognized arguments" in message and "=" in message:
            message += " (settings have no dashes: section.field=value)"
        raise ConfigError(f"{message}; `{self.prog} --help` shows the usage")


def build_parser(name: str, verb: Verb) -> argparse.ArgumentParser:
    """The parser of one verb; ``train --help`` also lists all settings."""
    ending = f"example: {verb.example}\n\n"
    if name == "train":
        ending += "settings, in a recipe or as section.field=value (later wins):\n\n" + help_text()
    elif verb.recipe:
        ending += "`fr3e train --help` lists all the settings."
    parser = OneLineParser(
        prog=f"fr3e {name}",
        description=verb.purpose,
        epilog=ending,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if verb.recipe:
        parser.add_argument("recipe", metavar="RECIPE", help="YAML file of settings, for example configs/demo.yaml")
        parser.add_argument(
            "overrides", metavar="key=value", nargs="*", default=[], help="settings that win over the recipe's"
        )
    verb.declare(parser)
    return parser


def declare_print_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--print-config", action="store_true", help="print the resolved settings and exit")


def declare_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--resume",
        nargs="?",
        const="",
        metavar="RUN_DIR",
        help="continue a run: RUN_DIR, else runtime.run_dir, else the newest of this recipe's name; "
        "its saved settings are the base, key=value on top",
    )
    parser.add_argument(
        "--continue",
        dest="proceed",
        action="store_true",
        help="start the run of runtime.run_dir, or resume it if it was started: the same command after an interruption",
    )
    declare_print_config(parser)


def declare_train(parser: argparse.ArgumentParser) -> None:
    declare_run(parser)
    parser.add_argument(
        "--profile",
        nargs="?",
        const=str(DEFAULT_PROFILE_STEPS),
        metavar="STEPS",
        help=f"measure where the time of STEPS warm steps goes (default {DEFAULT_PROFILE_STEPS}), trace one more, "
        "and see what as many behind that one leave idle; into profile/ of the run directory: runtime.profile_steps",
    )


def declare_eval(parser: argparse.ArgumentParser) -> None:
    declare_run_to_read(parser, "evaluate")
    declare_print_config(parser)


def declare_run_to_read(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--run", metavar="RUN_DIR", help=f"{what} this run's newest checkpoint, with its model settings"
    )


def declare_sample(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--prompt", required=True, metavar="TEXT", help="the question to answer; it is put into data.template"
    )
    parser.add_argument("--num", type=positive, default=1, metavar="N", help="completions (default 1)")
    parser.add_argument("--json", action="store_true", help="print JSON with log-probs and entropies of all tokens")
    declare_run_to_read(parser, "sample from")
    declare_print_config(parser)


def declare_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, with the ids of all overlapping questions")
    declare_print_config(parser)


def declare_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="directory of a run that trained; its newest checkpoint is taken")
    parser.add_argument("directory", metavar="DIR", help="new or empty directory, or an earlier export to replace")
    parser.add_argument("--dtype", choices=tuple(DTYPES), help="type of the weights (default: the run's, without loss)")
    parser.add_argument(
        "--max-shard-size",
        type=byte_size,
        metavar="SIZE",
        help="largest safetensors file, like 5GB or 500MB (default 5GB)",
    )
    parser.add_argument("--step", type=positive, metavar="N", help="checkpoint of this step, not the newest")


def declare_plan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--topology",
        required=True,
        metavar="CHIP:SHAPE",
        help="v4, v5e, v5p, v6e: v5e:8x8, v5p:4x4x4, v5e:16x16x2slices; GPUs, estimated: h100:8x4 (4 hosts of 8)",
    )
    parser.add_argument("--slices", type=positive, default=1, metavar="N", help="slices of that shape (default 1)")
    parser.add_argument(
        "--programs",
        default="",
        metavar="NAMES",
        help="only these, comma-separated: reshard, prefill, decode, promote, explore, score, accumulate, apply",
    )
    parser.add_argument("--estimate", action="store_true", help="by arithmetic, within seconds; nothing is compiled")
    parser.add_argument(
        "--search", action="store_true", help="try mesh shapes and micro-batch sizes and recommend some"
    )
    parser.add_argument(
        "--compile", type=positive, default=3, metavar="N", help="most candidates that --search compiles (default 3)"
    )
    parser.add_argument(
        "--response-tokens",
        type=positive,
        default=0,
        metavar="MEAN",
        help="mean length of a response, for the amounts of a step (default: the cap)",
    )
    parser.add_argument(
        "--kept-share",
        type=share,
        default=1.0,
        metavar="SHARE",
        help="share of prompts that are not rejected, for the same amounts (default 1)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def share(text: str) -> float:
    """A number above 0 and up to 1, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share above 0 and up to 1")
    return value


def declare_sweep(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="print the commands only")
    parser.add_argument("--jobs", type=positive, default=1, metavar="N", help="runs side by side (default 1)")
    parser.add_argument("--verb", choices=("train", "sft", "rft"), default="train", help="what to run (default train)")


def declare_methods(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--write", metavar="PAGE", help="put the whole table into a page of documentation, between its two markers"
    )


def positive(text: str) -> int:
    """An int of at least 1, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def byte_size(text: str) -> int:
    """Bytes of a size like ``5GB``, ``1.5GB`` (10^9) or ``512MiB`` (2^20), for argparse."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]*)", text.strip())
    size = int(float(match[1]) * _BYTES[match[2].upper()]) if match and match[2].upper() in _BYTES else 0
    if size < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; expected one like 5GB, 500MB or 2GiB")
    return size
