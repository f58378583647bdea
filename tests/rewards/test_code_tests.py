"""Every form of tests that people have: the right program passes, an empty and an idle program fail."""

from __future__ import annotations

import base64
import json
import pickle
import zlib

import pytest

from fr3e_jax.problem import Problem
from fr3e_jax.rewards import code_tests, scratch
from fr3e_jax.rewards.code import CodeVerifier, run_program
from fr3e_jax.rewards.code_tests import UnusableTests
from fr3e_jax.rewards.program_judge import outputs_agree
from fr3e_jax.verdict import Job

ADD = "def add(a, b):\n    return a + b\n"
IDLE = "def add(*args):\n    pass\n"
ECHO = "a, b = map(int, input().split())\nprint(a + b)\n"
CHECK = "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(-1, 1) == 0\n"
UNITTEST = (
    "import unittest\nclass TestAdd(unittest.TestCase):\n"
    "    def test_sum(self):\n        self.assertEqual(add(1, 2), 3)\n"
)
STACK = (
    "class Stack:\n    def __init__(self): self.items = []\n    def push(self, x): self.items.append(x)\n"
    "    def pop(self): return self.items.pop()\n"
)
METHOD = "class Solution:\n    def add(self, a, b):\n        return a + b\n"
PAIRS = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]}

STDIN = json.dumps([{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}])


def packed(content: object, level: int = -1, protocol: int = 4) -> str:
    """Tests as LiveCodeBench packs them."""
    data = content if isinstance(content, bytes) else pickle.dumps(content, protocol)
    return base64.b64encode(zlib.compress(data, level)).decode()


FORMS = {
    "packed pairs (LiveCodeBench)": (ECHO, packed(STDIN), {}),
    "packed by an older protocol": (ECHO, packed(STDIN, protocol=2), {}),
    "packed without compression": (ECHO, packed(STDIN, level=0), {}),
    "packed with a long text": (ECHO, packed(STDIN + " " * 100_000, level=9), {}),
    "packed without a pickle": (ECHO, packed(STDIN.encode()), {}),
    "packed calls of the function in metadata": (
        METHOD,
        packed(json.dumps([{"input": "1\n2", "output": "3", "testtype": "functional"}])),
        {"entry_point": '{"func_name": "add"}', "seconds": "4 seconds"},
    ),
    "a list of asserts (MBPP)": (ADD, ["assert add(1, 2) == 3", "assert add(-1, 1) == 0"], {}),
    "a list with set-up code (MBPP)": (
        ADD,
        ["assert math.isclose(add(1, 2), 3)"],
        {"setup": "import math"},
    ),
    "a list of set-up lines": (ADD, ["assert isclose(add(1, 2), 3)"], {"setup": ["from math import isclose"]}),
    "a list of asserts as JSON": (ADD, json.dumps(["assert add(1, 2) == 3"]), {}),
    "asserts in a text": (ADD, "assert add(1, 2) == 3\nassert add(2, 2) == 4", {}),
    "check with its entry point (HumanEval)": (ADD, CHECK, {"entry_point": "add"}),
    "check without an entry point": (ADD, CHECK, {}),
    "check called by the tests": (ADD, CHECK + "check(add)\n", {}),
    "check under another name": (ADD, CHECK.replace("check", "check_add"), {"entry_point": "add"}),
    "check under another name, without an entry point": (ADD, CHECK.replace("check", "check_add"), {}),
    "an empty entry point": (ADD, CHECK, {"entry_point": None}),
    "pytest functions": (ADD, "def test_sum():\n    assert add(1, 2) == 3\n", {"entry_point": "add"}),
    "pytest functions without an entry point": (ADD, "def test_sum():\n    assert add(1, 2) == 3\n", {}),
    "pytest functions of the candidate": (
        ADD,
        "def test_sum(candidate):\n    assert candidate(1, 2) == 3\n",
        {"entry_point": "add"},
    ),
    "a pytest class": (ADD, "class TestAdd:\n    def test_sum(self):\n        assert add(1, 2) == 3\n", {}),
    "a pytest class with a set-up": (
        ADD,
        "class TestAdd:\n    def setup_method(self):\n        self.x = 1\n"
        "    def test_sum(self):\n        assert add(self.x, 2) == 3\n",
        {},
    ),
    "pytest.raises and approx": (
        ADD,
        "import pytest\ndef test_sum():\n    assert add(0.1, 0.2) == pytest.approx(0.3)\n"
        "    with pytest.raises(TypeError):\n        add('a', 1)\n",
        {},
    ),
    "pytest.mark.parametrize": (
        ADD,
        "import pytest\n@pytest.mark.parametrize('a, b, c', [(1, 2, 3), (2, 2, 4)])\n"
        "def test_sum(a, b, c):\n    assert add(a, b) == c\n",
        {},
    ),
    "pytest.main below a main guard": (
        ADD,
        "import pytest\ndef test_sum():\n    assert add(1, 2) == 3\n"
        "if __name__ == '__main__':\n    pytest.main([__file__])\n",
        {},
    ),
    "a unittest class": (ADD, UNITTEST, {}),
    "a unittest class with unittest.main": (ADD, UNITTEST + "unittest.main()\n", {}),
    "a unittest class below a main guard": (
        ADD,
        UNITTEST + "if __name__ == '__main__':\n    unittest.main(argv=[''], exit=False)\n",
        {"entry_point": "add"},
    ),
    "a unittest class with sys.exit": (
        ADD,
        UNITTEST + "import sys\nif __name__ == '__main__':\n    sys.exit(unittest.main())\n",
        {},
    ),
    "asserts below a main guard": (ADD, "if __name__ == '__main__':\n    assert add(1, 2) == 3\n", {}),
    "a function called below a main guard": (
        ADD,
        "def main():\n    assert add(1, 2) == 3\nif __name__ == '__main__':\n    main()\n",
        {},
    ),
    "from solution import (KodCode)": (
        ADD,
        "from solution import add\ndef test_sum():\n    assert add(1, 2) == 3\n",
        {},
    ),
    "from solution import *": (ADD, "from solution import *\nassert add(1, 2) == 3\n", {"entry_point": "add"}),
    "import solution": (ADD, "import solution\nassert solution.add(1, 2) == 3\n", {}),
    "from solution import with another name": (ADD, "from solution import add as f\nassert f(1, 2) == 3\n", {}),
    "a constant of the program": (
        ADD + "LIMIT = 5\n",
        "from solution import add, LIMIT\nassert add(1, 4) == LIMIT\n",
        {},
    ),
    "a class of the program": (STACK, "s = Stack()\ns.push(3)\ns.push(4)\nassert s.pop() == 4\n", {}),
    "a method of LeetCode's class": (
        METHOD,
        "def check(candidate):\n    assert candidate(a=1, b=2) == 3\n",
        {"entry_point": "Solution().add"},
    ),
    "stdin and stdout (APPS, TACO)": (ECHO, PAIRS, {}),
    "stdin and stdout as JSON": (ECHO, json.dumps(PAIRS), {}),
    "stdin and stdout as pairs (LiveCodeBench)": (
        ECHO,
        json.dumps([{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]),
        {},
    ),
    "stdin and stdout as rows": (ECHO, [{"input": "1 2", "output": "3"}, {"input": "3 4", "output": "7"}], {}),
    "stdin in lines (TACO)": (ECHO, {"inputs": [["1 2"]], "outputs": [["3"]]}, {}),
    "stdin read as bytes": (
        "import sys\nd = sys.stdin.buffer.read().split()\nsys.stdout.write(str(sum(map(int, d))))\n",
        PAIRS,
        {},
    ),
    "stdin below a main guard": (
        "def main():\n    print(sum(map(int, input().split())))\nif __name__ == '__main__':\n    main()\n",
        PAIRS,
        {},
    ),
    "stdin with exit()": (ECHO + "import sys\nsys.exit(0)\n", PAIRS, {}),
    "stdin and decimals": (
        "print(sum(map(float, input().split())) / 3)\n",
        {"inputs": ["1 0"], "outputs": ["0.3333333\n"]},
        {},
    ),
    "calls as JSON (APPS)": (ADD, {"fn_name": "add", "inputs": [[1, 2]], "outputs": [[3]]}, {}),
    "calls of LeetCode's class (APPS)": (METHOD, {"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]}, {}),
    "calls in lines (LiveCodeBench)": (
        METHOD,
        json.dumps([{"input": "1\n2", "output": "3", "testtype": "functional"}]),
        {"entry_point": "add"},
    ),
}

REFUSED = {
    "no tests": "",
    "blank tests": "  \n",
    "a comment": "# nothing\n",
    "imports alone": "import math\n",
    "an empty list": [],
    "no pairs": {"inputs": [], "outputs": []},
    "pairs of unequal number": {"inputs": ["1"], "outputs": []},
    "a syntax error": "assert add(1, 2 == 3\n",
    "null": None,
    "a number": 3,
    "JSON of another kind": json.dumps({"tests": ["assert add(1, 2) == 3"]}),
    "asserts that never call the program": "assert 1 + 1 == 2\n",
    "a function that nobody calls": "def verify():\n    assert add(1, 2) == 3\n",
    "a class without tests": "import unittest\nclass TestAdd(unittest.TestCase):\n    pass\n",
    "skipped tests": UNITTEST.replace("    def", "    @unittest.skip('later')\n    def"),
    "an error that is dropped": "try:\n    add(1, 2)\nexcept Exception:\n    pass\n",
    "every error that is dropped": "try:\n    add(1, 2)\nexcept:\n    pass\n",
    "an exit before the tests": "import sys\nsys.exit(0)\nassert add(1, 2) == 3\n",
}


def outcome(program: str, tests: object, **extra: object) -> str:
    problem = Problem("p/0", "Write a program.", "", {"tests": tests, **extra})
    try:
        job = CodeVerifier(20.0, memory_mb=512)(problem, f"```python\n{program}```", True)
        return (run_program(*job.arguments) if isinstance(job, Job) else job).outcome
    except ValueError:
        return "error"


@pytest.mark.parametrize("form", FORMS)
def test_the_right_program_passes_and_an_empty_and_an_idle_program_fail(form):
    program, tests, extra = FORMS[form]
    assert outcome(program, tests, **extra) == "right"
    assert outcome("pass\n", tests, **extra) == "wrong"
    assert outcome(IDLE, tests, **extra) == "wrong"


@pytest.mark.parametrize("form", REFUSED)
def test_tests_that_test_nothing_reward_nothing(form):
    for program in ("pass\n", IDLE.replace("add", "unrelated")):
        assert outcome(program, REFUSED[form]) != "right"


RAISES = "def f(x):\n    raise {}\n"
VACUOUS = {
    "map": "assert list(map(f, [1, 2])) == []\nfor y in map(f, [1]):\n    assert y == 2",
    "all of a map": "assert all(map(lambda x: f(x) == 2, [1]))",
    "zip of a map": "for y, z in zip(map(f, [1]), [2]):\n    assert y == z",
    "an iterator with an end": "for y in iter(lambda: f(1), 5):\n    assert y == 2",
    "filter": "assert not list(filter(lambda x: f(x) != 2, [1]))",
    "an object with __next__": (
        "class Calls:\n    def __iter__(self): return self\n    def __next__(self): return f(1)\n"
        "for y in Calls():\n    assert y == 2"
    ),
    "itertools": "import itertools\nfor y in itertools.starmap(f, [(1,)]):\n    assert y == 2",
    "a sum over a map": "assert sum(map(f, [1, 2])) in (0, 4)",
    "enumerate": "for n, y in enumerate(map(f, [1])):\n    assert y == 2",
    "a test of pytest": "def test_f():\n    for y in map(f, [1]):\n        assert y == 2",
    "a test of unittest": (
        "import unittest\nclass TestF(unittest.TestCase):\n    def test_f(self):\n"
        "        for y in map(f, [1]):\n            self.assertEqual(y, 2)"
    ),
    "an asynchronous loop": (
        "import asyncio\nclass Calls:\n    def __aiter__(self): return self\n"
        "    async def __anext__(self): return f(1)\n"
        "async def go():\n    async for y in Calls(): assert y == 2\nasyncio.run(go())"
    ),
}


@pytest.mark.parametrize("error", ["StopIteration(2)", "type('E', (StopIteration, StopAsyncIteration), {})"])
@pytest.mark.parametrize("tests", VACUOUS)
def test_a_program_cannot_end_a_loop_of_the_tests(tests, error):
    assert run_program(RAISES.format(error), "", VACUOUS[tests], "f", 20.0, 512).outcome == "wrong"


@pytest.mark.parametrize(
    "error", ["GeneratorExit", "SystemExit(0)", "KeyboardInterrupt", "__import__('unittest').SkipTest"]
)
def test_no_exception_of_a_program_ends_or_skips_its_tests(error):
    for tests in VACUOUS.values():
        assert run_program(RAISES.format(error), "", tests, "f", 20.0, 512).outcome == "wrong"


LIAR = """
import sys
from fr3e_jax.rewards import plain, wire
frame = sys._getframe()
while "sock" not in frame.f_locals: frame = frame.f_back
sock = frame.f_locals["sock"]
wire.send(sock, plain.dumps(("returned", None, ())))
while (message := wire.receive(sock, 1 << 20)) is not None:
    verb = plain.loads(message)[0]
    wire.send(sock, plain.dumps(("function", None, ()) if verb == "find" else ({answer!r}, 0, ())))
"""


@pytest.mark.parametrize("answer", ["object", "function"])
@pytest.mark.parametrize(
    "tests",
    [
        "assert f(1)", "assert f(1) == 2", "assert f(1).x", "assert f(1).x()", "assert f(1) in (2, 3)", "assert f",
        "assert not f(1) != 2", "assert isinstance(f(1), int) and f(1) > 0", "assert len(f(1)) == 2", "assert f.x == 2",
    ],
)  # fmt: skip
def test_a_program_that_holds_its_process_is_no_nearer_to_a_reward(answer, tests):
    assert run_program(LIAR.format(answer=answer), "", tests, "f", 20.0, 512).outcome == "wrong"


STDIN_CHEATS = {
    "exits before it prints": "import os\nos._exit(0)",
    "prints the input": "print(input())",
    "fails after it has printed": ECHO + "raise ValueError",
    "exits with an error": ECHO + "import sys\nsys.exit(1)",
    "writes to every descriptor": (
        "import os\nfor n in range(2, 64):\n    try: os.write(n, b'3')\n    except OSError: pass"
    ),
    "kills its parent": "import os\ntry: os.kill(os.getppid(), 9)\nexcept OSError: pass",
    "prints too much": "while True: print('3' * 10**6)",
    "never reads": "print(3)",
    "looks for the outputs": (
        "import gc\nfound = [o for o in gc.get_objects() if isinstance(o, dict) and 'pairs' in o]\n"
        "print(found[0]['pairs'][0][1] if found else '')"
    ),
    "walks frames": (
        "import sys\nf = sys._getframe()\nwhile f:\n    for value in f.f_locals.values():\n"
        "        if isinstance(value, dict) and 'tests' in value: print(value['tests'])\n    f = f.f_back"
    ),
    "remembers": "open('x', 'a').write('3')\nprint(open('x').read())",
}


@pytest.mark.parametrize("manner", STDIN_CHEATS)
@pytest.mark.parametrize("layers", [(), ("isolate", "restrict_files", "refuse_calls")])
def test_a_program_with_input_that_cheats_is_wrong_and_leaves_nothing(manner, layers, monkeypatch, tmp_path):
    off = f"for name in {layers!r}: setattr(module.confinement, name, lambda *_: 0)\n"
    monkeypatch.setattr(scratch, "BOOT", scratch.BOOT.replace("module.main", f"{off}module.main"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert outcome(STDIN_CHEATS[manner] + "\n", PAIRS) == "wrong"
    assert list(tmp_path.iterdir()) == []


def test_a_program_with_input_has_its_time_over_all_inputs():
    slow = "import time\nend = time.process_time() + 0.6\nwhile time.process_time() < end: pass\n" + ECHO
    tests = json.dumps({"inputs": ["1 2"] * 3, "outputs": ["3"] * 3})
    assert run_program(slow, "", tests, "", 1.0, 512).outcome == "timeout"
    assert run_program(slow, "", tests, "", 20.0, 512).outcome == "right"


@pytest.mark.parametrize(
    ("output", "expected", "same"),
    [
        ("3\n", "3", True), (" 3 \n\n", "3", True), ("1  2\n3", "1 2\n3\n", True), ("1 2 3", "1 2\n3", False),
        ("3", "4", False), ("", "3", False), ("3 3", "3", False), ("0.3333333", "0.333333", True), ("1", "1.0", True),
        ("1.0", "1", False), ("1000001", "1000000", False), ("yes", "YES", False), ("nan", "0.5", False),
        ("inf", "0.5", False), ("0.51", "0.5", False),
    ],
)  # fmt: skip
def test_outputs_agree_in_words_and_nearly_in_decimals(output, expected, same):
    assert outputs_agree(output, expected) is same


class Armed:
    def __reduce__(self):
        return exec, ("raise SystemExit('the pickle was run')",)


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        (packed(Armed()), "holds more than a text .*REDUCE"),
        (packed([STDIN]), "holds more than a text"),
        (packed({"inputs": STDIN}), "holds more than a text"),
        (packed(b"\x80\x04."), "cannot be read"),
        (packed(pickle.dumps(STDIN)[:-20]), "cannot be read"),
        (packed(STDIN)[:-8], "cut off|cannot be read"),
        ("eJ" + "A" * 40, "cannot be read"),
        ("eJ not base64", "cannot be read"),
        (packed(bytes(2000)), "longer than 1,000"),
        (packed("7"), "expected code"),
        (packed("def f(): pass"), "check nothing"),
    ],
)
def test_packed_tests_that_hold_anything_else_are_unusable_and_never_run(tests, reason, monkeypatch):
    monkeypatch.setattr(code_tests, "MOST_UNPACKED", 1000)
    code_tests._unpacked.cache_clear()
    with pytest.raises(UnusableTests, match=reason):
        code_tests.read_tests(code_tests.tests_text(tests))


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        (None, 3),
        ("", 3),
        (1, 3),
        (5, 5),
        ("10", 10),
        ("4.5 seconds", 4.5),
        ("6s", 6),
        ("8 sec.", 8),
        (1e3, 60),
        ("0", 3),
    ],
)
def test_a_row_may_give_its_program_more_time(limit, seconds):
    job = CodeVerifier().job(Problem("1", "Add.", "", extra={"tests": PAIRS, "seconds": limit}), ECHO)
    assert (job.arguments[4], job.deadline) == (seconds, 2 * seconds + 4)


@pytest.mark.parametrize("limit", ["long", "-3", "3 minutes", [4], "nan", "1e9999", True])
def test_a_time_that_is_none_makes_the_row_unusable(limit):
    with pytest.raises(UnusableTests, match="expected a number of seconds"):
        CodeVerifier().job(Problem("1", "Add.", "", extra={"tests": PAIRS, "seconds": limit}), ECHO)
