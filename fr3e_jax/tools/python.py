"""The Python tool: runs the policy's program in a confined interpreter and returns its output.

It serves code-integrated reasoning (ToRL, arXiv:2503.23383, section 2): a fenced block is run and its output appended.
Every call is a separate program; no state is kept between calls.
"""

from __future__ import annotations

import json
import math
import tempfile
from dataclasses import dataclass

from fr3e_jax.rewards import scratch
from fr3e_jax.tools.answer import Answer

MEMORY_MB = 1024
START_SECONDS = 2.0  # of wall-clock time for the start of two processes on a busy machine
MOST_CHARACTERS = 100_000  # of a program
INTERPRETER = "fr3e_jax.tools.interpreter"


@dataclass(frozen=True)
class PythonTool:
    """Runs programs; safe to call from several threads.

    Attributes:
      seconds: limit of a program's CPU time; its wall-clock limit is twice as long.
      output_bytes: limit of its output; a program that writes more is ended.
    """

    seconds: float
    output_bytes: int

    def __call__(self, program: str) -> Answer:
        """The output of ``program``, with the value of a last expression. After an error its last line is the error."""
        if len(program) > MOST_CHARACTERS:
            return Answer(f"the program is longer than {MOST_CHARACTERS} characters", "error")
        directory = tempfile.mkdtemp(prefix="fr3e-tool-")
        try:
            limits = (math.ceil(self.seconds), MEMORY_MB, self.output_bytes)
            clock = 2 * self.seconds + START_SECONDS
            output = scratch.run_confined(INTERPRETER, limits, program.encode(errors="replace"), directory, clock)
        finally:
            scratch.remove(directory)
        if output is None:
            return self._answer("", "timeout")
        try:
            text, end = json.loads(output)
        except ValueError:  # the process that watches the program was ended, too
            return Answer("the program was ended", "error")
        return self._answer(text.rstrip("\n"), end)

    def _answer(self, text: str, end: str) -> Answer:
        before = f"{text}\n" if text else ""
        if end == "timeout":
            return Answer(f"{before}TimeoutError: no end after {self.seconds:g} seconds", "timeout")
        if end == "killed":
            return Answer(f"{before}the program was ended", "error")
        return Answer(text, "error" if end == "error" else "answered")
