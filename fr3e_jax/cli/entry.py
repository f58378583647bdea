"""The `fr3e` command.

Exit codes: 0 success, 1 a run failed, 2 a mistake in the command line or a recipe, 130 Ctrl-C. SIGTERM and SIGHUP that
come before or after the steps of a run end the process.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence

from fr3e_jax import __version__
from fr3e_jax.cli.parsers import build_parser
from fr3e_jax.cli.verb_table import VERBS
from fr3e_jax.configuration import ConfigError
from fr3e_jax.runs.signals import ended_with_a_line
from fr3e_jax.visible_text import show_control_characters


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code. A user's mistake is one line on stderr."""
    show_control_characters()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] in (["-h"], ["--help"], ["help"]):
        print(overview())
        return 0
    if arguments[:1] == ["--version"]:
        print(f"fr3e_jax {__version__}")
        return 0
    try:
        with ended_with_a_line():  # jax and the rest are imported in it
            return _run_verb(arguments)
    except ConfigError as error:
        print(f"fr3e: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("fr3e: interrupted", file=sys.stderr)
        return 130  # 128 + SIGINT, as shells have it


def _run_verb(arguments: list[str]) -> int:
    name = arguments[0] if arguments else "nothing"
    if name not in VERBS:
        nearest = difflib.get_close_matches(name, VERBS, n=1) or ["train"]
        raise ConfigError(f"expected a verb ({', '.join(VERBS)}), got {name}; nearest: fr3e {nearest[0]} RECIPE")
    try:
        parsed = build_parser(name, VERBS[name]).parse_intermixed_args(arguments[1:])
    except SystemExit as end:  # --help has printed
        return int(end.code or 0)
    return VERBS[name].run(parsed)


def overview() -> str:
    """The text of `fr3e --help`."""
    verbs = "\n".join(f"  {name:<8} {verb.purpose}" for name, verb in VERBS.items())
    return f"""usage: fr3e {{{",".join(VERBS)}}} RECIPE [key=value ...]

Reinforcement learning from verifiable rewards by branching (FR3E and its relatives).

{verbs}

example: {VERBS["train"].example}

`fr3e VERB --help` explains a verb, `fr3e train --help` lists all the settings, `fr3e --version` prints the version.
"""
