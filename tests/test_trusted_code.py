"""Tools and environments of the user cannot end the run, nor go on beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from fr3e_jax.problem import Problem
from fr3e_jax.rollouts.background_calls import start
from fr3e_jax.tools.answer import Answer
from fr3e_jax.tools.environment import Episode, EpisodeFault
from fr3e_jax.tools.tool import Stateless


def leave_by_alias(leave=os._exit):
    os.__dict__["_exit"](0)


EXITS = {
    "os._exit(0)": lambda: os._exit(0),
    "os._exit(3)": lambda: os._exit(3),
    "through the module": lambda: os._exit(0),
    "through a function": leave_by_alias,
    "in a finally": lambda: [leave_by_alias() for _ in range(2)],
    "sys.exit": lambda: sys.exit(0),
    "SystemExit": lambda: (_ for _ in ()).throw(SystemExit),
    "exit in a generator": lambda: next(os._exit(0) for _ in (1,)),
}


@pytest.mark.parametrize("how", EXITS)
@pytest.mark.parametrize("method", ["reset", "step", "close"])
def test_no_exit_of_an_environment_ends_the_process(how, method):
    class Leaves:
        def reset(self, problem, seed):
            return EXITS[how]() if method == "reset" else ""

        def step(self, text):
            return EXITS[how]() if method == "step" else ("", 1.0, True)

        def close(self):
            return EXITS[how]() if method == "close" else None

    with pytest.raises(EpisodeFault, match="raised SystemExit"):
        episode = Episode(Leaves, Problem("p", "q", "a"), 0)
        episode.step("")
        episode.close()


def test_no_exit_of_a_tool_ends_the_process():
    for leave in EXITS.values():
        assert Stateless(lambda call, leave=leave: Answer(leave(), "answered")).answer("").outcome == "error"


def test_a_child_of_the_user_s_code_ends_and_the_run_s_own_exit_works():
    program = (
        "import os\nfrom fr3e_jax.trusted_code import users_code\n"
        "with users_code():\n    child = os.fork()\n    if not child: os._exit(7)\n"
        "os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) - 2)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 5


@pytest.mark.parametrize("ending", ["pass", "1 / 0", "raise SystemExit", "import sys; sys.exit(0)"])
def test_a_child_that_returns_or_raises_does_not_go_on_as_a_second_run(ending):
    program = (
        "import os, threading\nfrom fr3e_jax.trusted_code import users_code\n"
        f"def play():\n    with users_code():\n        child = os.fork()\n        if not child: {ending}\n"
        "    print('went on', os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "thread = threading.Thread(target=play)\nthread.start()\nthread.join()"
    )
    result = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60)
    assert (result.stdout, result.returncode) == ("went on 1\n", 0)


def test_a_crash_in_c_is_not_without_a_word():
    program = (
        "import ctypes\nfrom fr3e_jax.trusted_code import users_code\n"
        "def step():\n    ctypes.string_at(0)\nwith users_code(): step()"
    )
    result = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert result.returncode < 0 and "Segmentation fault" in result.stderr and "in step" in result.stderr


def loop():
    while True:
        pass


def stubborn():
    while True:
        try:
            loop()
        except Exception:
            continue


def allocate():
    while True:
        bytearray(1 << 16)


@pytest.mark.parametrize("call", [loop, stubborn, allocate])
def test_a_late_loop_is_interrupted(call):
    before = threading.active_count()
    assert start(call, at_once=False).wait(0.05) is None
    for _ in range(500):
        if threading.active_count() == before:
            return
        time.sleep(0.01)
    raise AssertionError("the loop goes on")
