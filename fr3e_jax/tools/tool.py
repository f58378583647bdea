"""The tool of a run: the marks of a call, what runs it, and the form in which its answer is given to the policy.

A tool of one's own is a function of a call's text, named by ``tools.kind=FILE.py:NAME`` or ``package.module:NAME``::

    def look_up(call: str) -> str:
        return TABLE.get(call.strip(), "unknown")
"""

from __future__ import annotations

import importlib
import importlib.util
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from fr3e_jax.configuration.schema import ToolsConfig
from fr3e_jax.tools.answer import Answer
from fr3e_jax.tools.calculator import calculate
from fr3e_jax.tools.python import PythonTool

BYTES_OF_A_TOKEN = 16  # of output, more than any usual token has
OUTPUT = "{output}"

# begin, end, and what is appended: GSM8K's annotations; a fenced block and its output (ToRL, arXiv:2503.23383).
FORMS = {
    "calculator": ("<<", "=", f"{OUTPUT}>>"),
    "python": ("```python\n", "\n```", f"\n```output\n{OUTPUT}\n```\n"),
}


@dataclass(frozen=True)
class Tool:
    """Attributes:
    run: the answer to the text between the marks; may be called from several threads.
    begin, end: the marks of a call.
    before, after: what stands around the answer's text.
    deadline: seconds after which nobody waits for an answer any more; None: the tool sees to it that it ends.
    at_once: it answers in microseconds, so that nobody need wait elsewhere.
    """

    run: Callable[[str], Answer]
    begin: str
    end: str
    before: str
    after: str
    deadline: float | None = None
    at_once: bool = False

    def call_in(self, text: str) -> str | None:
        """The text of the first call in ``text``; None where there is no whole call."""
        _, begun, rest = text.partition(self.begin)
        call, ended, _ = rest.partition(self.end)
        return call if begun and ended else None


def load_tool(config: ToolsConfig) -> Tool | None:
    """The tool that ``config.kind`` names; None for ``none``.

    Raises:
      ValueError: the name is none of a tool, its function cannot be had, or the form of its answer lacks ``{output}``.
      FileNotFoundError: there is no such file.
    """
    if config.kind == "none":
        return None
    begin, end, result = FORMS.get(config.kind, ("", "", FORMS["python"][2]))
    begin, end, result = config.begin or begin, config.end or end, config.result or result
    before, found, after = result.partition(OUTPUT)
    if not found:
        raise ValueError(f"tools.result is {result!r}; expected a text with {OUTPUT} where the tool's answer belongs")
    if config.kind == "calculator":
        return Tool(calculate, begin, end, before, after, at_once=True)
    if config.kind == "python":
        run = PythonTool(config.seconds, BYTES_OF_A_TOKEN * config.max_output_tokens)
        return Tool(run, begin, end, before, after)
    return Tool(UserTool(_function(config.kind)), begin, end, before, after, deadline=2 * config.seconds)


@dataclass(frozen=True)
class UserTool:
    """A function of the user's; what it raises is its answer."""

    function: Callable[[str], str]

    def __call__(self, call: str) -> Answer:
        try:
            return Answer(str(self.function(call)), "answered")
        except Exception as error:
            return Answer(traceback.format_exception_only(error)[-1].strip(), "error")


def _function(kind: str) -> Callable[[str], str]:
    source, colon, name = kind.rpartition(":")
    if not (source and colon and name.isidentifier()):
        raise ValueError(
            f"tools.kind is {kind!r}; expected none, calculator, python, FILE.py:NAME or package.module:NAME"
        )
    module = _file(source) if source.endswith(".py") else _module(source)
    function = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"tools.kind is {kind!r}, but {source} has no function {name}; expected one of a call's text")
    return function


def _file(source: str) -> ModuleType:
    path = Path(source).expanduser().resolve()
    if not path.is_file():
        raise FileNotFoundError(f"tools.kind names the file {source}, but {path} does not exist; give its path")
    spec = importlib.util.spec_from_file_location(f"fr3e_jax_tool_{path.stem}", path)
    assert spec and spec.loader  # a path that ends in .py has both
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _module(source: str) -> ModuleType:
    try:
        return importlib.import_module(source)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"tools.kind names the module {source}, which cannot be imported ({error}); install it, put its folder on "
            "PYTHONPATH, or name a file instead: FILE.py:NAME"
        ) from None
