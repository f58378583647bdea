"""The `fr3e` command.

Exit codes: 0 success, 1 a run failed, 2 a mistake in the command line or a recipe, 130 Ctrl-C, 141 the reader of a pipe
has gone. SIGTERM and SIGHUP that come before or after the steps of a run end the process.
"""

from __future__ import annotations

import contextlib
import difflib
import signal
import sys
from collections.abc import Sequence

from fr3e_jax import __version__
from fr3e_jax.cli.parser import build_parser, help_width
from fr3e_jax.cli.tables import fitted
from fr3e_jax.cli.verb_table import VERBS, load_verb
from fr3e_jax.configuration import ConfigError, help_text
from fr3e_jax.configuration.recipe import unknown_setting
from fr3e_jax.configuration.settings import sections, settings
from fr3e_jax.shipped_files import find_recipe
from fr3e_jax.visible_text import OutputFailed, discard_output, show_control_characters


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code. A user's mistake is one line on stderr."""
    show_control_characters()
    try:
        exit_code = _answer(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return exit_code
    except ConfigError as error:
        _complain(f"error: {error}")
        return 2
    except BrokenPipeError:  # the reader of a pipe (head, less) has gone
        discard_output()
        return 141  # 128 + SIGPIPE, as shells have it
    except OutputFailed as error:
        discard_output()
        _complain(f"error: {error.strerror}; make room, or send it elsewhere")
        return 1
    except KeyboardInterrupt:
        _complain("interrupted")
        return 130  # 128 + SIGINT, as shells have it
    finally:
        # The process ends next: Ctrl-C then ends it at once, without a traceback from a library's clean-up.
        if argv is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _complain(text: str) -> None:
    with contextlib.suppress(OSError):  # the exit code says it, too
        print(f"fr3e: {text}", file=sys.stderr)


def _answer(arguments: list[str]) -> int:
    if arguments[:1] in (["-h"], ["--help"]) or arguments == ["help"]:
        print(fitted(overview()))
    elif arguments[:1] == ["--version"]:
        print(f"fr3e_jax {__version__}")
    elif arguments[:1] == ["help"]:
        print(fitted(help_on(arguments[1])))
    else:
        return _run_verb(arguments)
    return 0


def _run_verb(arguments: list[str]) -> int:
    name = arguments[0] if arguments else "nothing"
    if name not in VERBS and find_recipe(name).exists() and not name.startswith("-"):
        raise ConfigError(f"expected a verb before the recipe; nearest: fr3e train {name}")
    if name not in VERBS:
        nearest = difflib.get_close_matches(name, VERBS, n=1) or ["train"]
        raise ConfigError(f"expected a verb ({', '.join(VERBS)}), got {name}; nearest: fr3e {nearest[0]} RECIPE")
    verb = load_verb(name)
    try:
        parsed = build_parser(name, VERBS[name], verb).parsed(arguments[1:])
    except SystemExit as end:  # --help has printed
        return int(end.code or 0)
    return verb.run(parsed)


def overview() -> str:
    """The text of `fr3e --help`."""
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {name:<{width}}  {purpose}" for name, purpose in VERBS.items())
    return f"""usage: fr3e VERB RECIPE [key=value ...]

Reinforcement learning from verifiable rewards by branching (FR3E and its relatives).

{verbs}

example: {load_verb("train").example}

`fr3e VERB --help` explains a verb, `fr3e help SECTION` the settings of a section, `fr3e help all` all of them.
`fr3e --version` prints the version.
"""


def help_on(topic: str) -> str:
    """The text of `fr3e help TOPIC`: a verb, a section, a setting, or ``all``.

    Raises:
      ConfigError: there is no such topic.
    """
    if topic in VERBS:
        return build_parser(topic, VERBS[topic], load_verb(topic)).format_help()
    if topic == "all" or topic in sections() or topic in settings():
        return help_text(help_width(), "" if topic == "all" else topic)
    raise ConfigError(f"fr3e help: no verb and no section is called so: {unknown_setting(topic)}")
