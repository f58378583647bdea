"""The tool of a run: the marks of a call, its answer, and the limits. An environment is a tool with state.

To write a tool without state, write a function of a call's text and name it by ``tools.kind=FILE.py:NAME``::

    def look_up(call: str) -> str:
        return TABLE.get(call.strip(), "unknown")
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fr3e_jax.configuration.schema import ToolsConfig
from fr3e_jax.tools.answer import Answer
from fr3e_jax.tools.python import PythonTool
from fr3e_jax.trusted_code import is_interrupt, users_code
from fr3e_jax.user_code import parse_reference

if TYPE_CHECKING:
    from fr3e_jax.problem import Problem

BYTES_OF_A_TOKEN = 16  # of output; an ordinary token has fewer
OUTPUT = "{output}"

PYTHON_FORM = ("```python\n", "\n```", f"\n```output\n{OUTPUT}\n```\n")
"""Begin, end and the appended text: a fenced block and its output (ToRL, arXiv:2503.23383)."""


class ToolState(Protocol):
    """A tool as one response uses it."""

    def answer(self, call: str) -> Answer:
        """Answer a call.

        Raises:
          EpisodeFault: the environment failed.
        """

    def close(self) -> None:
        """Free the state."""


@dataclass(frozen=True)
class Tool:
    """One tool.

    Attributes:
      kind: its name in the settings.
      open: begins the state of a response to a problem, with a seed; may be called from several threads.
      begin, end: the marks of a call. Without ``begin`` a call is a turn: all text up to ``end`` or a stop token.
      before, after: the text on both sides of the answer.
      seconds: after which a call is late, as time-outs name it.
      deadline: seconds by the clock after which an answer is no longer awaited; None: the tool limits its own time.
      at_once: the tool answers within microseconds, so it is called in place and not in a thread.
      max_calls: calls of a response that are answered.
      max_answer_tokens: tokens of an answer; a longer one is cut.
      is_environment: a state follows from the problem, the seed and the calls so far. Answers give rewards, and the
        response ends with ``done`` or with the last call. Else later calls are ordinary text.
    """

    kind: str
    open: Callable[[Problem | None, int], ToolState]
    begin: str
    end: str
    before: str
    after: str
    seconds: float
    deadline: float | None
    max_calls: int
    max_answer_tokens: int
    at_once: bool = False
    is_environment: bool = False

    def call_in(self, text: str) -> str | None:
        """The text of the first call in ``text``; None without a complete call."""
        if not self.begin:
            return text.partition(self.end)[0] if self.end else text
        _, begun, rest = text.partition(self.begin)
        call, ended, _ = rest.partition(self.end)
        return call if begun and ended else None


@dataclass(frozen=True)
class Stateless:
    """The state of a tool without one: a function of the call. An exception that it raises becomes the answer."""

    function: Callable[[str], Answer]

    def answer(self, call: str) -> Answer:
        try:
            with users_code():
                return self.function(call)
        except BaseException as error:  # a tool that exits must not end the run unsaved
            if is_interrupt(error):
                raise
            return Answer(traceback.format_exception_only(error)[-1].strip(), "error")

    def close(self) -> None:
        """Nothing is open."""


def load_tool(config: ToolsConfig) -> Tool | None:
    """The tool that ``config.kind`` names; None for ``none``.

    Raises:
      ValueError: there is no such tool or function, or ``config.result`` lacks ``{output}``.
      FileNotFoundError: there is no such file.
    """
    if config.kind == "none":
        return None
    begin, end, result = PYTHON_FORM if config.kind == "python" else ("", "", PYTHON_FORM[2])
    begin, end, result = config.begin or begin, config.end or end, config.result or result
    before, output, after = result.partition(OUTPUT)
    if not output:
        raise ValueError(f"tools.result is {result!r}; expected a text with {OUTPUT} where the tool's answer belongs")
    state = Stateless(_function(config))

    def open_state(problem: Problem | None, seed: int) -> Stateless:
        return state

    return Tool(
        kind=config.kind,
        open=open_state,
        begin=begin,
        end=end,
        before=before,
        after=after,
        seconds=config.seconds,
        deadline=None if config.kind == "python" else 2 * config.seconds,
        max_calls=config.max_calls,
        max_answer_tokens=config.max_output_tokens,
    )


def _function(config: ToolsConfig) -> Callable[[str], Answer]:
    if config.kind == "python":
        return PythonTool(config.seconds, BYTES_OF_A_TOKEN * config.max_output_tokens)
    reference = parse_reference(config.kind, "tools.kind", built_in=("none", "python"))
    function = reference.load("a function of the text of a call")
    return lambda call: Answer(str(function(call)), "answered")
