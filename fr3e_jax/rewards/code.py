"""Grading of programs by their tests; each program runs confined, in a process of its own.

The run's process only cuts the program out of the response. ``run_program`` is called in a worker of the pool, and
starts ``fr3e_jax.rewards.sandbox``. Limits, and their gaps: docs/users/code_execution.md.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import json
import math
import re
import secrets
import tempfile
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fr3e_jax.problem import Problem
from fr3e_jax.rewards import child_processes, scratch
from fr3e_jax.rewards.code_tests import UnusableTests, last_function, read_tests, tests_text
from fr3e_jax.verdict import Job, Verdict

RUN = "fr3e_jax.rewards.code:run_program"
PROGRAM_LIMIT = 100_000  # characters
START_SECONDS = 2.0  # on top of the time for the tests: two processes have to start
MOST_SECONDS = 60.0  # of CPU time, however much a row asks for
CLOCK = 5  # times the CPU time on the clock, so that a program may get as little as a fifth of a core
SANDBOX = "fr3e_jax.rewards.sandbox"
PYTHON = ("python", "python3", "py")
FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([\w+-]*)", re.MULTILINE)


@dataclass(frozen=True)
class CodeVerifier:
    """A verifier that runs the program of a response against ``problem.extra["tests"]``.

    `fr3e_jax.rewards.code_tests` reads the tests, and code before them in ``problem.extra["setup"]``. The program is
    the last block fenced as Python (else the last block, else the whole response). One that defines
    ``problem.extra["entry_point"]`` stands for itself; any other continues the prompt (HumanEval's convention).

    Attributes:
      seconds: CPU time of the program, and of its tests; after ``CLOCK`` times that on the clock both are killed. A row
        may ask for more in ``problem.extra["seconds"]``.
      memory_mb: address space of the program.
    """

    seconds: float = 3.0
    memory_mb: int = 1024
    job_functions = (RUN,)

    def __call__(self, problem: Problem, response: str, finished: bool) -> Job | Verdict:
        code = extract_code(response)
        if not finished or not code.strip():
            return Verdict(0.0, "no_answer")
        if len(code) > PROGRAM_LIMIT:
            return Verdict(0.0, "refused")
        return self.job(problem, code)

    def job(self, problem: Problem, code: str) -> Job:
        """The job that runs a program against the problem's tests.

        Raises:
          UnusableTests: the tests have no form that is read; ``run_program`` raises it, too.
        """
        extra = problem.extra
        tests, entry_point = tests_text(extra.get("tests"), extra.get("setup")), _function_of(extra.get("entry_point"))
        prefix = runnable_prefix(problem.prompt)
        entry_point = entry_point or last_function(prefix, unfinished=True)
        program = complete_program(problem.prompt, prefix, code, entry_point)
        seconds = max(self.seconds, _seconds_of(extra.get("seconds")))
        arguments = (program, prefix, tests, entry_point, seconds, self.memory_mb)
        return Job(RUN, arguments, deadline=2 * seconds + 2 * START_SECONDS)


def _function_of(entry_point: Any) -> str:
    """The name of the function that is tested; LiveCodeBench gives it in JSON: ``{"func_name": "add"}``."""
    content = entry_point
    if isinstance(entry_point, str) and entry_point.lstrip().startswith("{"):
        with contextlib.suppress(ValueError):
            content = json.loads(entry_point)
    if isinstance(content, Mapping):
        return str(content.get("func_name") or content.get("fn_name") or "")
    return content or ""


def _seconds_of(limit: Any) -> float:
    """The CPU time that a row gives its program, a number or a text such as "4 seconds", up to `MOST_SECONDS`.

    Raises:
      UnusableTests: it is something else.
    """
    text = "" if limit is None else str(limit).strip()
    match = re.fullmatch(r"(\d+(?:\.\d*)?)\s*(?:s|sec|seconds?)?\.?", text)
    if text and not match:
        raise UnusableTests(f"extra.seconds is {limit!r:.80}; expected a number of seconds of CPU time")
    return min(float(match[1]), MOST_SECONDS) if match else 0.0


def extract_code(response: str) -> str:
    """The last block fenced as Python, else the last block, else the response; an open block ends with the text."""
    blocks, open_fence = [], None
    for fence in FENCE.finditer(response):
        marks, language = fence.groups()
        if open_fence is not None and marks.startswith(open_fence[0]):
            blocks.append((open_fence[1], response[open_fence[2] : fence.start()]))
            open_fence = (marks, language.lower(), fence.end()) if language else None
        elif open_fence is None:
            open_fence = (marks, language.lower(), fence.end())
    if open_fence is not None:
        blocks.append((open_fence[1], response[open_fence[2] :]))
    in_python = [text for language, text in blocks if language in PYTHON]
    candidates = in_python or [text for _, text in blocks] or [response]
    return candidates[-1].partition("\n")[2] if blocks else candidates[-1]


@lru_cache(maxsize=1024)
def runnable_prefix(prompt: str) -> str:
    """The problem's own code (imports, helpers, the function without a body); "" if the prompt is not Python."""
    for candidate in (prompt, prompt + "\n    pass\n"):
        try:
            ast.parse(candidate)
            return candidate
        except (SyntaxError, ValueError):
            continue
    return ""


def complete_program(prompt: str, prefix: str, code: str, entry_point: str) -> str:
    """The program to run: ``code`` after the part of the prompt that it needs."""
    name = re.match(r"\w*", entry_point)[0]  # of Solution().add, too
    defines = name and re.search(rf"^(?:async\s+)?(?:def|class)\s+{name}\b", code, re.MULTILINE)
    if not prefix or defines or not entry_point:
        return f"{prefix}\n\n{code}" if prefix else code
    return f"{prompt}{_indented(code)}"


def _indented(body: str) -> str:
    """A function body, indented where the model left that out, on all lines or only on the first."""
    lines = [line for line in body.splitlines() if line.strip()]
    if lines[0][0].isspace():
        return body
    indents = [len(line) - len(line.lstrip()) for line in lines]
    nested = 4 if lines[0].rstrip().endswith(":") else 0  # the indent of the second line, had the first one its own
    if len(lines) > 1 and min(indents[1:]) > 0 and indents[1] > nested:
        return "    " + body.lstrip()
    return textwrap.indent(body, "    ")


def run_program(program: str, prefix: str, tests: str, entry_point: str, seconds: float, memory_mb: int) -> Verdict:
    """The verdict on a program, by its tests in processes of their own; called in a worker.

    Args:
      program: the model's code, with the part of the prompt that it needs.
      prefix: the problem's own code, for the tests.
      tests: of `code_tests.tests_text`.
      entry_point: the function that the tests are about; "": they call the program's functions by their names, and a
        ``check(candidate)`` gets the program's last function.
      seconds: CPU time of the program, over all tests; ``CLOCK`` times that on the clock.
      memory_mb: its address space.

    Raises:
      UnusableTests: the tests cannot be read, or test nothing.
    """
    parsed = read_tests(tests, entry_point)
    if parsed.functions and not parsed.entry_point:
        parsed = dataclasses.replace(parsed, entry_point=last_function(program, unfinished=False))
    nonce = secrets.token_hex(16)
    request = {"program": program, "prefix": prefix, "tests": dataclasses.asdict(parsed), "nonce": nonce}
    directory, others = tempfile.mkdtemp(prefix="fr3e-code-"), child_processes.children()
    limits = (math.ceil(seconds), memory_mb, int(bool(parsed.pairs)))
    try:
        clock = CLOCK * seconds + START_SECONDS
        output = scratch.run_confined(SANDBOX, limits, json.dumps(request).encode(), directory, clock)
    finally:
        child_processes.kill_children(keep=others)
        scratch.remove(directory)
    if output == nonce.encode():
        return Verdict(1.0, "right")
    return Verdict(0.0, "timeout" if output in (None, b"timeout") else "wrong")


_DOUBLE = 'def double(x):\n    """Twice x."""\n'
_TESTS = "def check(candidate):\n    assert candidate(21) == 42\n"
run_program.canaries = (
    ((f"{_DOUBLE}    return 2 * x\n", _DOUBLE, _TESTS, "double", 3.0, 512), 1.0),
    ((f"{_DOUBLE}    return x\n", _DOUBLE, _TESTS, "double", 3.0, 512), 0.0),
)
