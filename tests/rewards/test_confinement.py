"""Programs that attack the machine by system calls, under every set of layers that a kernel may refuse."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fr3e_jax.rewards import code, refused_calls, scratch
from fr3e_jax.rewards.code import run_program
from fr3e_jax.tools import python
from fr3e_jax.tools.python import PythonTool
from tests.rewards.confinement_attacks import PROGRAM

NAMESPACES, LANDLOCK, CALLS = ("isolate", "restrict_files", "refuse_calls")
LEVELS = {"all layers": (), "no namespaces": (NAMESPACES,), "no namespaces, no Landlock": (NAMESPACES, LANDLOCK)}
OPEN = {  # what each level leaves open
    "all layers": set(),
    "no namespaces": {"stat"},
    "no namespaces, no Landlock": {"stat", "read"},
}
HEADERS = {
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "__NR_"),
    "aarch64": ("/usr/include/asm-generic/unistd.h", "__NR(?:3264)?_"),
}


def refuse(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]) -> None:
    """Have the sandboxes behave as if the kernel refused these layers."""
    off = f"for name in {names!r}: setattr(module.confinement, name, lambda *_: False)\n"
    monkeypatch.setattr(scratch, "BOOT", scratch.BOOT.replace("module.main", f"{off}module.main"))


def living() -> list[str]:
    """The names of all processes of the machine that are not zombies."""
    names = []
    for path in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):  # gone since
            name, _, rest = path.read_text().partition("\n")
            if "State:\tZ" not in rest:
                names.append(name.removeprefix("Name:\t"))
    return names


@pytest.fixture(scope="module", autouse=True)
def layers() -> None:
    """Skip where this kernel refuses a layer: each is tried in a process of its own."""
    for call in ("isolate()", "restrict_files('/tmp')", "refuse_calls()"):
        program = f"import os\nfrom fr3e_jax.rewards.confinement import *\nos._exit(not {call})"
        if subprocess.run([sys.executable, "-c", program], check=False).returncode:
            pytest.skip(f"this kernel refuses {call}")


@pytest.mark.parametrize("level", LEVELS)
def test_attacks_by_system_calls_get_an_error_at_every_level(level, tmp_path, monkeypatch):
    refuse(monkeypatch, LEVELS[level])
    file = tmp_path / "file"
    file.write_text("x")
    before = os.stat(file)
    victim = subprocess.Popen(["sleep", "100"])
    try:
        answer = PythonTool(20, 100_000)(PROGRAM.format(pid=victim.pid, file=str(file), folder=str(tmp_path)))
    finally:
        victim.kill()
        victim.wait()
    found = json.loads(answer.text)
    assert {name for name, outcome in found.items() if outcome == "open"} == OPEN[level]
    assert len(found) > 60 and os.stat(file) == before


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "many",
    [
        "open(str(n), 'w').close()",
        "os.mkdir(str(n))",
        "os.symlink('a', str(n))",
        "os.mkdir('d', 0o700); os.chdir('d')",
        "open(str(n), 'wb').write(bytes(1 << 23))",
    ],
)
def test_a_program_that_makes_files_without_end_is_wrong_and_leaves_nothing(level, many, tmp_path, monkeypatch):
    refuse(monkeypatch, LEVELS[level])
    monkeypatch.setattr(code.tempfile, "tempdir", str(tmp_path))
    body = f"    import os\n    n = 0\n    while True:\n        {many}\n        n += 1\n"
    assert run_program(f"def f():\n{body}", "", "f()", "f", 20.0, 512).outcome == "wrong"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("level", LEVELS)
def test_a_tool_s_program_that_sleeps_ends_with_its_call(level, monkeypatch):
    """It tries to leave its group and to forget its parent first."""
    refuse(monkeypatch, LEVELS[level])
    monkeypatch.setattr(python, "START_SECONDS", 1.0)
    marker = f"fr3e-sleeper-{os.getpid()}"
    program = (
        "import ctypes, os\nlibc = ctypes.CDLL(None)\nlibc.setsid()\nlibc.prctl(1, 0, 0, 0, 0)\n"
        f"libc.prctl(15, b'{marker[-15:]}', 0, 0, 0)\nimport time\ntime.sleep(30)"
    )
    assert PythonTool(0.5, 1000)(program).outcome == "timeout"
    for _ in range(100):  # a killed process needs a moment to end
        if marker[-15:] not in living():
            return
        time.sleep(0.05)
    pytest.fail("the program outlives the call")


def test_ordinary_programs_use_their_own_files_threads_and_libraries():
    program = (
        "import asyncio, ctypes, os, shutil, sqlite3, tempfile\n"
        "async def three(): return 3\n"
        "assert asyncio.run(three()) == 3\n"
        "with tempfile.TemporaryDirectory() as folder: shutil.copyfile(os.__file__, folder + '/copy')\n"
        "base = sqlite3.connect('base'); base.execute('create table t (x)'); base.commit(); base.close()\n"
        "os.truncate(os.open('base', os.O_RDWR), 0)\n"
        "try: os.chmod('base', 0o600)\n"
        "except PermissionError: print('fine')"
    )
    assert PythonTool(20, 1000)(program).text == "fine"


@pytest.mark.parametrize("machine", HEADERS)
def test_the_numbers_of_refused_calls_are_those_of_the_kernel_s_headers(machine):
    path, prefix = HEADERS[machine]
    if not Path(path).exists():
        pytest.skip(f"{path} is not here")
    known = dict(re.findall(rf"#define {prefix}(\w+)\s+(\d+)", Path(path).read_text()))
    for table in (refused_calls.REFUSED, refused_calls.CONDITIONAL):
        found = refused_calls.numbers(table, machine)
        assert {name: int(known[name]) for name in found if name in known} == {n: found[n] for n in found if n in known}
        assert len(found) > 8


def test_removal_takes_folders_that_are_deep_closed_or_links(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    top = tmp_path / "top"
    (top / "a" / "b").mkdir(parents=True)
    (top / "a" / "link").symlink_to(outside)
    (top / "link").symlink_to(outside)
    (top / "closed").mkdir(mode=0)
    descriptor = os.open(top, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=descriptor)
        below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    assert scratch.is_full(str(top))
    scratch.remove(str(top))
    assert not top.exists() and (outside / "kept").exists()
