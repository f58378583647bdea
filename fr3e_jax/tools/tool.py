"""The tool of a run: the marks of a call, the function that answers it, and the form of the answer in the context.

To write a tool, write a function of a call's text and name it by ``tools.kind=FILE.py:NAME``::

    def look_up(call: str) -> str:
        return TABLE.get(call.strip(), "unknown")
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass

from fr3e_jax.configuration.schema import ToolsConfig
from fr3e_jax.tools.answer import Answer
from fr3e_jax.tools.calculator import calculate
from fr3e_jax.tools.python import PythonTool
from fr3e_jax.user_code import parse_reference

BYTES_OF_A_TOKEN = 16  # of output; an ordinary token has fewer
OUTPUT = "{output}"

# Begin, end and the appended text: GSM8K's annotations; a fenced block and its output (ToRL, arXiv:2503.23383).
FORMS = {
    "calculator": ("<<", "=", f"{OUTPUT}>>"),
    "python": ("```python\n", "\n```", f"\n```output\n{OUTPUT}\n```\n"),
}


@dataclass(frozen=True)
class Tool:
    """One tool.

    Attributes:
      run: answers the text between the marks; may be called from several threads.
      begin, end: the marks of a call.
      before, after: the text on both sides of the answer.
      deadline: seconds after which an answer is no longer awaited; None for a tool that limits its own time.
      at_once: the tool answers within microseconds, so it is called in place and not in a thread.
    """

    run: Callable[[str], Answer]
    begin: str
    end: str
    before: str
    after: str
    deadline: float | None = None
    at_once: bool = False

    def call_in(self, text: str) -> str | None:
        """The text between the marks of the first call in ``text``; None without a complete call."""
        _, begun, rest = text.partition(self.begin)
        call, ended, _ = rest.partition(self.end)
        return call if begun and ended else None


def load_tool(config: ToolsConfig) -> Tool | None:
    """The tool that ``config.kind`` names; None for ``none``.

    Raises:
      ValueError: there is no such tool or function, or ``config.result`` lacks ``{output}``.
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
    reference = parse_reference(config.kind, "tools.kind", built_in=("none", *FORMS))
    function = reference.load("a function of the text of a call")
    return Tool(UserTool(function), begin, end, before, after, deadline=2 * config.seconds)


@dataclass(frozen=True)
class UserTool:
    """A user's function as a tool. An exception that it raises becomes the answer."""

    function: Callable[[str], str]

    def __call__(self, call: str) -> Answer:
        try:
            return Answer(str(self.function(call)), "answered")
        except Exception as error:
            return Answer(traceback.format_exception_only(error)[-1].strip(), "error")
