"""Programs of models: cut out of the response, run confined, right only if the tests ran to their end."""

from __future__ import annotations

import functools
import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from fr3e_jax.data.task import Problem
from fr3e_jax.rewards import code, scratch
from fr3e_jax.rewards.code import CodeVerifier, extract_code, run_program
from fr3e_jax.rewards.grader import Grader
from fr3e_jax.verdict import Job, Verdict

PROMPT = 'from math import floor\n\n\ndef half(x):\n    return x / 2\n\n\ndef down(x):\n    """Half of x, rounded."""\n'
TESTS = "def check(candidate):\n    assert candidate(5) == 2\n    assert candidate(6) == half(6)\n"
PROBLEM = Problem("code/0", PROMPT, "", {"tests": TESTS, "entry_point": "down"})
BODY = "    y = half(x)\n    return floor(y)\n"
SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "datasets" / "humaneval" / "test.jsonl.gz"


def outcome(response: str, seconds: float = 20.0, problem: Problem = PROBLEM) -> str:
    """The outcome of a response, run by a worker's function in this process."""
    job = CodeVerifier(seconds, memory_mb=512)(problem, response, True)
    return (job if isinstance(job, Verdict) else run_program(*job.arguments)).outcome


def outcome_of(body: str, tests: str = "assert f() == 'fine'", seconds: float = 20.0) -> str:
    """The outcome of a function ``f()`` with this body."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return run_program(f"def f(*args):\n{lines}", "", tests, "f", seconds, 512).outcome


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("no fence", "no fence"),
        ("so\n```python\nx = 1\n```\nthat is it", "x = 1\n"),
        ("```py\nx = 1\n```\n```\nan output\n```", "x = 1\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("```python\nx = 1\n```\nbetter:\n```python\nx = 2\n```\n", "x = 2\n"),
        ("```python\nx = 1\nnever closed", "x = 1\nnever closed"),
        ("```python\nx = 1\n```python\nx = 2\n```", "x = 2\n"),
        ("~~~python\ns = '''\n```\n'''\n~~~", "s = '''\n```\n'''\n"),
        ("```bash\nls\n```", "ls\n"),
        ("", ""),
    ],
)
def test_the_last_python_block_is_the_program(response, expected):
    assert extract_code(response) == expected


@pytest.mark.parametrize(
    "response",
    [
        BODY,
        BODY.strip(),
        "y = half(x)\nreturn floor(y)",
        f"```python\n{BODY}```",
        f"Here:\n```python\n{PROMPT}{BODY}```\nDone.",
        "```python\ndef down(x):\n    return x // 2\n```",
        f"{PROMPT}{BODY}",
        "    if x:\n        return floor(half(x))",
        "if x:\n    return floor(half(x))",
        "if x:\n        return floor(half(x))\n    return 0",
    ],
)
def test_a_right_program_passes_however_it_is_written(response):
    assert outcome(response) == "right"


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("    return 7", "wrong"),
        ("    pass", "wrong"),
        ("    return (", "wrong"),
        ("I do not know.", "wrong"),
        (f"```python\n{BODY}```\n```python\ndef down(x): return 7\n```", "wrong"),
        ("", "no_answer"),
        ("```python\n```", "no_answer"),
        ("#" * 200_000, "refused"),
    ],
)
def test_a_wrong_program_fails(response, expected):
    assert outcome(response) == expected


def test_a_response_that_was_cut_is_not_run():
    assert CodeVerifier()(PROBLEM, BODY, False) == Verdict(0.0, "no_answer")


def test_a_job_carries_the_program_and_the_code_that_its_tests_need():
    job = CodeVerifier()(PROBLEM, BODY, True)
    assert isinstance(job, Job)
    assert job.arguments[:4] == (PROMPT + BODY, PROMPT, TESTS, "down")
    assert job.cacheable


def test_tests_without_an_entry_point_call_the_program_by_its_names():
    """As in MBPP, whose prompts are prose."""
    problem = Problem("mbpp/0", "Write two functions.", "", {"tests": "assert twice(thrice(2)) == 12"})
    good = "```python\ndef twice(x): return 2 * x\ndef thrice(x): return 3 * x\n```"
    assert outcome(good, problem=problem) == "right"
    assert outcome(good.replace("3 *", "4 *"), problem=problem) == "wrong"


def test_the_canaries_of_run_program_get_their_rewards():
    for arguments, reward in run_program.canaries:
        assert run_program(*arguments).reward == reward


CHEATS = {
    "exits": "import os, sys\nos._exit(0)",
    "raises SystemExit": "raise SystemExit(0)",
    "exits when imported": "import sys\nsys.exit(0)\ndef down(x): return 7",
    "equals everything": "class A:\n    def __eq__(self, other): return True\ndef down(x): return A()",
    "is a number that equals everything": (
        "class A(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\ndef down(x): return A(7)"
    ),
    "replaces the check": "def check(candidate): pass\ndef down(x): return 7",
    "patches built-ins": "import builtins\nbuiltins.AssertionError = ValueError\ndef down(x): return 7",
    "ends at exit": "import atexit, os\natexit.register(os._exit, 0)\ndef down(x): return 7",
    "writes to every descriptor": (
        "import os\nfor i in range(3, 64):\n    try: os.write(i, b'\\0\\0\\0\\x04true')\n    except OSError: pass\n"
        "def down(x): return 7"
    ),
    "prints": "print('passed' * 1000)\ndef down(x): return 7",
    "kills its parent": "import os\ntry: os.kill(os.getppid(), 9)\nexcept OSError: pass\ndef down(x): return 7",
    "walks frames": (
        "import sys\ndef down(x):\n    f = sys._getframe()\n    while f:\n        f.f_globals['run_tests'] = print\n"
        "        f.f_locals['expected'] = 0\n        f = f.f_back\n    return 7"
    ),
    "is not there": "x = 1",
}


@pytest.mark.parametrize("manner", CHEATS)
def test_a_program_that_cheats_is_wrong(manner):
    assert outcome(f"```python\n{PROMPT}    pass\n{CHEATS[manner]}\n```") == "wrong"


@pytest.mark.parametrize("body", ["while True: pass", "import time; time.sleep(1000)"])
def test_a_program_that_hangs_runs_out_of_time(body, monkeypatch):
    monkeypatch.setattr(code, "START_SECONDS", 0.5)
    assert outcome_of(body, seconds=1) == "timeout"


def test_a_program_that_a_busy_machine_delays_beyond_its_cpu_time_is_right(monkeypatch):
    """Sleeping stands for waiting for a core: neither is CPU time."""
    monkeypatch.setattr(code, "START_SECONDS", 0.5)
    assert outcome_of("import time\ntime.sleep(3)\nreturn 'fine'", seconds=1) == "right"


def test_the_directory_of_a_program_is_empty_and_removed_afterwards(tmp_path, monkeypatch):
    monkeypatch.setattr(code.tempfile, "tempdir", str(tmp_path))
    program = "import os\nassert os.listdir() == []\nopen('x', 'w').write('x')\nreturn open('x').read()"
    assert outcome_of(program, "assert f() == 'x'") == "right"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "attempt",
    [
        "bytearray(1 << 30)",
        "open('big', 'wb').write(bytes(20 << 20))",
        "[open('/dev/null') for _ in range(100)]",
        "os.setuid(0) if os.getuid() else os.chroot('.')",
    ],
)
def test_a_program_gets_an_error_beyond_its_limits_of_memory_files_and_rights(attempt):
    assert outcome_of(f"import os\ntry:\n    {attempt}\nexcept (MemoryError, OSError): return 'fine'") == "right"


@functools.cache
def layer_holds(layer: str) -> bool:
    """Whether this machine's kernel has a layer of confinement, tried in a process of its own."""
    call = {"files": "restrict_files('/tmp')", "calls": "refuse_calls()"}[layer]
    program = f"import os\nfrom fr3e_jax.rewards.confinement import *\nos._exit(not {call})"
    return subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    ("layer", "attempt"),
    [
        ("calls", "socket.create_connection(('127.0.0.1', 9))"),
        ("calls", "socket.socket(socket.AF_UNIX)"),
        ("calls", "os.fork()"),
        ("calls", "subprocess.run(['true'])"),
        ("calls", "os.kill(os.getppid(), 0)"),
        ("files", "open('{outside}')"),
        ("files", "open('{outside}', 'a')"),
        ("files", "os.unlink('{outside}')"),
        ("files", "os.listdir('{folder}')"),
        ("files", "open('/proc/1/environ')"),
    ],
)
def test_a_program_cannot_reach_the_rest_of_the_machine(layer, attempt, tmp_path):
    if not layer_holds(layer):
        pytest.skip(f"this kernel cannot restrict {layer}")
    outside = tmp_path / "file"
    outside.write_text("x")
    attempt = attempt.format(outside=outside, folder=tmp_path)
    body = f"import os, socket, subprocess\ntry:\n    {attempt}\nexcept OSError as error: return type(error).__name__"
    tests = "assert f() in ('PermissionError', 'ProcessLookupError', 'FileNotFoundError', 'BlockingIOError')"
    assert outcome_of(body, tests) == "right"
    assert outside.read_text() == "x"


def test_a_program_may_start_threads():
    body = (
        "import threading\nfound = []\nt = threading.Thread(target=found.append, args=('fine',))\nt.start()\nt.join()"
    )
    assert outcome_of(f"{body}\nreturn found[0]") == "right"


def test_verdicts_are_the_same_if_the_kernel_confines_nothing(monkeypatch):
    """As in a container that refuses namespaces, Landlock and seccomp."""
    nothing = (
        "for name in ('isolate', 'restrict_files', 'refuse_calls'): setattr(module.confinement, name, lambda *_: 0)\n"
    )
    monkeypatch.setattr(scratch, "BOOT", scratch.BOOT.replace("module.main", f"{nothing}module.main"))
    assert outcome(BODY) == "right"
    assert outcome("    return 7") == "wrong"
    assert outcome_of("import os\nif os.fork(): return 'fine'\nos.setsid()\nimport time\ntime.sleep(1000)") == "right"
    for manner in ("exits", "kills its parent", "writes to every descriptor"):
        assert outcome(f"```python\n{CHEATS[manner]}\n```") == "wrong"


@pytest.mark.parametrize(
    ("body", "tests", "expected"),
    [
        ("raise ValueError('no')", "try: f()\nexcept ValueError as e: assert str(e) == 'no'\nelse: assert 0", "right"),
        ("class E(KeyError): pass\nraise E", "try: f()\nexcept KeyError: pass\nelse: assert 0", "right"),
        ("args[0].sort()", "x = [2, 1]\nf(x)\nassert x == [1, 2]", "right"),
        ("args[0].clear()", "x = {1: 2}\nf(x)\nassert x == {}", "right"),
        ("return args[0]", "assert type(f(True)) is bool and f(None) is None and f(2**90) == 2**90", "right"),
        ("return args", "assert f((1, [2.5]), {3: {'a'}}) == ((1, [2.5]), {3: {'a'}})", "right"),
        ("return args[0]", "import math\nassert math.isnan(f(math.nan)) and f(-math.inf) == -math.inf", "right"),
        ("return args[0]", "from fractions import Fraction as F\nassert f(F(1, 3)) == F(1, 3)", "right"),
        ("import collections\nreturn collections.Counter('aab')", "assert f() == {'a': 2, 'b': 1}", "right"),
        ("return (x for x in [1])", "assert list(f()) == [1]", "wrong"),
        ("return 'x' * (1 << 23)", "f()", "wrong"),
        ("x = []\nfor _ in range(100000): x = [x]\nreturn x", "f()", "wrong"),
        ("x = []\nx.append(x)\nreturn x", "f()", "wrong"),
    ],
)
def test_values_cross_between_tests_and_program_unchanged(body, tests, expected):
    assert outcome_of(body, tests) == expected


def humaneval() -> list[dict]:
    if not SHARED.exists():
        pytest.skip(f"{SHARED} is not here")
    with gzip.open(SHARED, "rt") as file:
        return [json.loads(line) for line in file]


def graded(rows: list[dict], body: str | None = None) -> dict[str, str]:
    """Outcome of each problem's own solution, or of another body."""
    with Grader(CodeVerifier(seconds=20)) as grader:
        pending = {}
        for row in rows:
            extra = {"tests": row["test"], "entry_point": row["entry_point"]}
            problem = Problem(row["task_id"], row["prompt"], row["canonical_solution"], extra)
            pending[problem.id] = grader.submit(problem, problem.gold if body is None else body, True)
        return {name: verdict.result().outcome for name, verdict in pending.items()}


def test_some_of_humaneval_s_own_solutions_pass_and_an_empty_body_fails():
    rows = [row for row in humaneval() if row["task_id"] in ("HumanEval/0", "HumanEval/32", "HumanEval/38")]
    assert set(graded(rows).values()) == {"right"}
    assert set(graded(rows, "    pass\n").values()) == {"wrong"}


@pytest.mark.slow
def test_all_of_humaneval_s_own_solutions_pass_and_an_empty_body_fails():
    rows = humaneval()
    assert {name: found for name, found in graded(rows).items() if found != "right"} == {}
    assert {name: found for name, found in graded(rows, "    pass\n").items() if found != "wrong"} == {}
