"""Several processes: on each host one writes jax's compilation cache, and the next run finds all programs there."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import jax
import pytest
from jax._src import compilation_cache
from process_group import Group

from fr3e_jax.runs import cache_writers
from fr3e_jax.runs.cache_writers import first_that_shares


def firsts(caches: list[str]) -> list[int]:
    """What `first_that_shares` says to each of several processes, which are threads here."""
    count = len(caches)
    barrier, told = threading.Barrier(count), [""] * count

    def one(index: int) -> int:
        def gather(content):
            told[index] = json.dumps(content)
            barrier.wait()
            found = list(map(json.loads, told))
            barrier.wait()
            return found

        return first_that_shares(caches[index], index, gather)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def test_the_first_process_of_each_folder_writes(tmp_path):
    """Two hosts that call their folders alike would be two folders; here one folder has two names."""
    (tmp_path / "a").mkdir()
    (tmp_path / "same").symlink_to(tmp_path / "a")
    folders = [str(tmp_path / name) for name in ("a", "b", "b", "same")]
    assert firsts(folders) == [0, 1, 1, 0]
    assert not list(tmp_path.rglob(".shared*")), "nothing is left"


def test_of_processes_with_one_address_the_first_writes():
    assert firsts(["gs://b/xla", "s3://b/xla", "gs://b/xla"]) == [0, 1, 0]
    assert firsts(["", ""]) == [0, 0]


def test_a_folder_that_cannot_be_written_has_no_second_writer(tmp_path):
    (tmp_path / "file").write_text("")
    assert firsts([str(tmp_path / "a"), str(tmp_path / "file" / "b")]) == [0, 1]


@pytest.mark.parametrize(("platform", "devices", "first", "expected"), [
    ("tpu", 4, 1, True),  # it has a folder of its own
    ("tpu", 4, 0, False),  # process 0 writes the same program there
    ("tpu", 1, 0, True),  # a program for one of its own devices
    ("gpu", 1, 0, False),
    ("cpu", 4, 0, True),
])  # fmt: skip
def test_a_process_writes_what_no_other_writes(monkeypatch, platform, devices, first, expected):
    put = []
    monkeypatch.setattr(jax, "local_device_count", lambda: 4)
    monkeypatch.setattr(compilation_cache, "put_executable_and_time", lambda *given: put.append(given))
    executable = SimpleNamespace(local_devices=lambda: [SimpleNamespace(platform=platform)] * devices)
    writer = cache_writers._Writer()
    writer.is_first = first == 1
    writer("key", 1.0, "name", None, executable)  # as jax 0.12 calls it
    writer("key", 1.0, "name", None, executable, ["a callback"])
    writer("key", 1.0, "name", None, executable, ())  # as jax 0.10 calls it
    assert len(put) == 2 * expected


@pytest.mark.slow
def test_two_hosts_with_a_cache_each_compile_nothing_the_second_time(tmp_path, tiny_run):
    """`fr3e compile`, because it compiles what a run calls, without running it."""
    own = {index: {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / f"host_{index}")} for index in range(2)}
    group = Group(tmp_path, tiny_run, explore__enabled=False)
    for _ in range(2):
        assert group.run(2, environments=own, verb="compile") == [0, 0], group.logs()
    for index in range(2):
        ends = [line for line in group.log(index).splitlines() if line.startswith("compiled ")]
        programs = ends[0].split()[1]
        assert int(programs) > 8
        assert ends == [f"compiled {programs} programs, fetched 0", f"compiled 0 programs, fetched {programs}"]
    assert "0 of them were in the cache" in group.log(0) and "of them" not in group.log(1)
