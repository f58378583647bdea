"""One argparse parser per verb. It declares the verb's options; every other argument is a setting, key=value."""

from __future__ import annotations

import argparse
import difflib
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from fr3e_jax.cli.local_paths import on_this_machine
from fr3e_jax.configuration import ConfigError, short_help
from fr3e_jax.configuration.peer_names import our_names
from fr3e_jax.configuration.settings import settings

DEFAULT_PROFILE_STEPS = 4
DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
_BYTES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@dataclass(frozen=True)
class Verb:
    """One verb of the command.

    Attributes:
      purpose: one sentence for the help text.
      example: an example command.
      declare: adds the verb's own options to its parser.
      run: takes the parsed arguments and returns an exit code.
      recipe: false if the verb takes no recipe, but declares its positional arguments itself.
    """

    purpose: str
    example: str
    declare: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    recipe: bool = True


class OneLineParser(argparse.ArgumentParser):
    """A parser that reports a mistake like a mistake in a recipe: in one line, with exit code 2."""

    def error(self, message: str) -> NoReturn:
        if "unrecognized arguments" in message and (found := re.search(r"--([\w.]+)(?:[= ](\S+))?", message)):
            name, value = found.groups()
            options = [option for action in self._actions for option in action.option_strings]
            if name in settings() or our_names(name):
                known = name if name in settings() else our_names(name)[0]
                message += f" (settings have no dashes: {known}={value or 'value'})"
            elif near := difflib.get_close_matches(f"--{name}", options, n=1, cutoff=0.7):
                message += f" (nearest: {near[0]})"
            else:
                message += f" (settings have no dashes: section.field={value or 'value'})"
        raise ConfigError(f"{message}; `{self.prog} --help` shows the usage")


def help_width() -> int:
    """Characters of a line of help: as wide as the terminal, within reason."""
    return min(max(shutil.get_terminal_size((120, 24)).columns, 90), 160)


def build_parser(name: str, verb: Verb) -> argparse.ArgumentParser:
    """The parser of one verb. The help text of ``train`` also lists the settings that most runs change."""
    ending = f"example: {verb.example}\n\n"
    if name == "train":
        ending += "settings, in a recipe or as section.field=value (later wins):\n\n" + short_help(help_width())
    elif verb.recipe:
        ending += "`fr3e help all` lists all the settings, `fr3e help SECTION` those of a section."
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
        help="continue a run: RUN_DIR, else runtime.run_dir, else the newest run of this recipe's name; "
        "key=value settings win over the saved ones",
    )
    parser.add_argument(
        "--continue",
        dest="proceed",
        action="store_true",
        help="start the run in runtime.run_dir, or resume it if it was started; so the same command continues "
        "an interrupted run",
    )
    parser.add_argument(
        "--allow-changes",
        action="store_true",
        help="with --resume: go on although seed, data or tokenizer differ from the checkpoint's",
    )
    declare_print_config(parser)


def declare_train(parser: argparse.ArgumentParser) -> None:
    declare_run(parser)
    parser.add_argument(
        "--profile",
        nargs="?",
        const=str(DEFAULT_PROFILE_STEPS),
        metavar="STEPS",
        help="set runtime.profile_steps: after warm-up, measure where the time of STEPS steps goes "
        f"(default {DEFAULT_PROFILE_STEPS}), trace one more step, then measure the idle time of STEPS steps; "
        "results are in profile/ of the run directory",
    )


def declare_run_to_read(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--run", metavar="RUN_DIR", help=f"{what} the newest checkpoint of this run, with the run's model settings"
    )


def declare_sample(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--prompt", required=True, metavar="TEXT", help="the question to answer; data.template is applied to it"
    )
    parser.add_argument("--num", type=positive, default=1, metavar="N", help="number of completions (default 1)")
    parser.add_argument("--json", action="store_true", help="print JSON with log-probs and entropies of all tokens")
    declare_run_to_read(parser, "sample from")
    declare_print_config(parser)


def declare_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, with the ids of all overlapping questions")
    declare_print_config(parser)


def declare_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="directory of a training run; its newest checkpoint is exported")
    parser.add_argument(
        "directory", type=on_this_machine, metavar="DIR", help="new or empty directory, or an earlier export to replace"
    )
    parser.add_argument(
        "--dtype", choices=tuple(DTYPES), help="type of the weights (default: the run's own, which loses nothing)"
    )
    parser.add_argument(
        "--max-shard-size",
        type=byte_size,
        metavar="SIZE",
        help="largest safetensors file, like 5GB or 500MB (default 5GB)",
    )
    parser.add_argument("--step", type=positive, metavar="N", help="export the checkpoint of this step, not the newest")
    parser.add_argument(
        "--adapter", action="store_true", help="write the adapters of a run with model.lora.rank, as PEFT reads them"
    )


def declare_plan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--topology",
        required=True,
        metavar="CHIP:SHAPE",
        help="TPU v4, v5e, v5p or v6e: v5e:8x8, v5p:4x4x4, v5e:16x16x2slices; GPUs, which are estimated: h100:8x4 "
        "(4 hosts of 8)",
    )
    parser.add_argument(
        "--slices", type=positive, default=1, metavar="N", help="number of slices of that shape (default 1)"
    )
    parser.add_argument(
        "--programs",
        default="",
        metavar="NAMES",
        help="plan only these programs, comma-separated: reshard, prefill, decode, promote, explore, score, "
        "accumulate, apply",
    )
    parser.add_argument(
        "--estimate", action="store_true", help="estimate by arithmetic, within seconds; nothing is compiled"
    )
    parser.add_argument(
        "--search",
        action="store_true",
        help="try meshes, micro-batch sizes, slots, lanes and prompts a round, and recommend the fastest that fits",
    )
    parser.add_argument(
        "--compile", type=positive, default=3, metavar="N", help="--search compiles at most N candidates (default 3)"
    )
    parser.add_argument(
        "--response-tokens",
        type=positive,
        default=0,
        metavar="MEAN",
        help="mean response length in tokens, for the amounts of a step (default: the cap)",
    )
    parser.add_argument(
        "--kept-share",
        type=share,
        default=1.0,
        metavar="SHARE",
        help="share of prompts that are kept, for the amounts of a step (default 1)",
    )
    parser.add_argument(
        "--efficiency",
        type=efficiencies,
        default={},
        metavar="compute=A,memory=B,network=C",
        help="shares of the published peaks that programs are expected to reach (default 0.5, 0.35, 0.5)",
    )
    parser.add_argument(
        "--price", type=price, default=0.0, metavar="PRICE", help="price of a chip-hour, for the cost of the run"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def efficiencies(text: str) -> dict[str, float]:
    """Parse ``compute=0.5,memory=0.4``, for argparse."""
    found = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name not in ("compute", "memory", "network"):
            raise argparse.ArgumentTypeError(f"{part!r} is not compute=SHARE, memory=SHARE or network=SHARE")
        found[name] = share(value)
    return found


def price(text: str) -> float:
    """Parse an amount of money, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a price of a chip-hour; expected a number such as 1.2")
    return value


def share(text: str) -> float:
    """Parse a number above 0 and up to 1, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share above 0 and up to 1")
    return value


def declare_sweep(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="print the commands and run nothing")
    parser.add_argument("--sample", type=positive, default=0, metavar="N", help="N of the combinations, at random")
    parser.add_argument(
        "--hours",
        type=hours,
        default=float("inf"),
        metavar="H",
        help="begin no run after H hours; --hours 0.5 is 30 min",
    )
    parser.add_argument("--sample-seed", type=int, default=0, metavar="S", help="seed of that draw (default 0)")
    parser.add_argument(
        "--new",
        action="store_true",
        help="begin a new sweep; else the same command goes on with an unfinished one",
    )
    parser.add_argument("--jobs", type=positive, default=1, metavar="N", help="runs at the same time (default 1)")
    parser.add_argument("--verb", choices=("train", "sft", "rft"), default="train", help="verb to run (default train)")


def declare_methods(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--write",
        type=on_this_machine,
        metavar="PAGE",
        help="write the whole table into a documentation page, between its two markers",
    )


def positive(text: str) -> int:
    """Parse an int of at least 1, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def hours(text: str) -> float:
    """Parse a number of hours above 0, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of hours above 0")
    return value


def byte_size(text: str) -> int:
    """Parse a size such as ``5GB``, ``1.5GB`` (10^9) or ``512MiB`` (2^20) into bytes, for argparse."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]*)", text.strip())
    size = int(float(match[1]) * _BYTES[match[2].upper()]) if match and match[2].upper() in _BYTES else 0
    if size < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; expected one like 5GB, 500MB or 2GiB")
    return size
