"""A program's output is its answer, whatever else the program does."""

from __future__ import annotations

import pytest

from fr3e_jax.rewards.child_processes import children
from fr3e_jax.tools.python import PythonTool

TOOL = PythonTool(seconds=1.0, output_bytes=200)


@pytest.mark.parametrize(
    ("program", "text", "outcome"),
    [
        ("x = 3\nprint('a')\nx * 2", "a\n6", "answered"),
        ("print(sum(range(10)))\nNone", "45", "answered"),
        ("print('before')\n1/0", "before\nZeroDivisionError: division by zero", "error"),
        ("def f(:", "SyntaxError: invalid syntax", "error"),
        ("raise SystemExit(3)", "", "answered"),
        ("import os\nos.kill(os.getpid(), 9)", "PermissionError: [Errno 1] Operation not permitted", "error"),
        ("print('x' * 1000)", "x" * 200, "answered"),
        ("{'a', 'b', 'c', 'd', 'e'} == set('abcde') and hash('a') == hash('a')", "True", "answered"),
    ],
)
def test_program_is_answered_with_its_output_and_outcome(program, text, outcome):
    assert TOOL(program)[:2] == (text, outcome)


def test_order_of_sets_is_the_same_in_every_process():
    program = "print(list({'a', 'b', 'c', 'd', 'e', 'f'}))"
    assert TOOL(program) == TOOL(program)


def test_program_cannot_read_files_of_this_machine():
    answer = TOOL(f"print(open({__file__!r}).read())")
    assert answer.outcome == "error" and answer.text.startswith(("PermissionError", "FileNotFoundError"))


def test_endless_program_is_a_timeout_and_leaves_no_process():
    others = children()
    answer = TOOL("print('a', flush=True)\nwhile True: pass")
    assert answer[:2] == ("a\nTimeoutError: no end after 1 seconds", "timeout")
    assert set(children()) <= set(others)


def test_program_that_is_too_long_is_not_run():
    assert TOOL("#" * 200_000).outcome == "error"
