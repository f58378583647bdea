"""The Python tool: runs the policy's program in a confined interpreter and returns its output.

It serves code-integrated reasoning (ToRL, arXiv:2503.23383, section 2): a fenced block is run and its output appended.
Every call is a separate program; no state is kept between calls.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fr3e_jax.rewards import scratch
from fr3e_jax.tools.answer import Answer

MEMORY_MB = 1024
START_SECONDS = 2.0  # of wall-clock time for the start of two processes on a busy machine
MOST_CHARACTERS = 100_000  # of a program
BOOT = """
import sys
sys.path.insert(0, sys.argv[1])
from fr3e_jax.tools import interpreter
del sys.path[0]
interpreter.main(*map(int, sys.argv[2:]))
"""


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
            output = self._run(program.encode(errors="replace"), directory)
        finally:
            scratch.remove(directory)
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

    def _run(self, program: bytes, directory: str) -> bytes:
        root = str(Path(__file__).resolve().parents[2])
        limits = [str(os.getpid()), str(math.ceil(self.seconds)), str(MEMORY_MB), str(self.output_bytes)]
        process = subprocess.Popen(
            [sys.executable, "-P", "-s", "-S", "-c", BOOT, root, *limits],  # not -I: it would ignore the hash seed
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=directory,
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": directory,
                "TMPDIR": directory,
                "LANG": "C.UTF-8",
                "PYTHONHASHSEED": "0",
            },
            start_new_session=True,
        )
        output = scratch.communicate(process, program, directory, 2 * self.seconds + START_SECONDS)
        return json.dumps(["", "timeout"]).encode() if output is None else output
