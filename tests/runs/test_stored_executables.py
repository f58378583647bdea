"""Executables in files: the same bits as compiled ones, and never a wrong one."""

from __future__ import annotations

import json
import os
import threading
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fr3e_jax.loop.train import train
from fr3e_jax.programs.mesh import make_mesh
from fr3e_jax.programs.program import Program, drop_executables, keep_executables
from fr3e_jax.runs import stored_executables
from fr3e_jax.runs.compilation import compilations, count_compilations
from fr3e_jax.runs.metrics import read_metrics, without_timing
from fr3e_jax.runs.rollout_store import read_rollouts
from fr3e_jax.runs.stored_executables import StoredExecutables

on_one_device = pytest.mark.skipif(jax.device_count() > 1, reason="executables are stored on one device: make test")


@pytest.mark.skipif(jax.device_count() == 1, reason="needs several devices: make test-8")
def test_programs_of_several_devices_and_of_one_among_them_are_called_as_ever_and_not_stored(store):
    for devices in (jax.devices()[:1], jax.devices()):
        mesh = make_mesh(1, len(devices), 1, devices)
        given = jax.device_put(np.arange(8.0, dtype=np.float32), NamedSharding(mesh, P("fsdp")))
        np.testing.assert_array_equal(Program(jnp.cumsum)(given), np.cumsum(np.arange(8.0)))
    assert not list(store.iterdir())


@pytest.fixture
def without_jax_cache():
    """The cache of the tests would give programs that XLA on CPU cannot write out again."""
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()


@pytest.fixture
def store(tmp_path, without_jax_cache):
    count_compilations()
    keep_executables(StoredExecutables(tmp_path / "programs"))
    yield tmp_path / "programs"
    keep_executables(None)


def _updates():
    """Of a program, as another process would declare it."""
    return Program(optax.apply_updates, donate_argnums=0)


def _called(program: Program, *args, **keywords):
    """The result, the programs compiled or fetched for it, and those of them that were fetched."""
    jax.clear_caches()  # jax would know an equal program
    before = compilations()
    found = jax.device_get(program(*args, **keywords))
    made = compilations().since(before)
    return found, made.programs, made.cache_hits


def _weights() -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    return {name: jnp.asarray(rng.normal(size=(3, 5)), jnp.float32) for name in "ab"}


@on_one_device
def test_a_stored_program_gives_the_same_bits_and_takes_its_donated_arguments(store):
    expected = jax.device_get(jax.jit(optax.apply_updates)(_weights(), _weights()))
    for fetched in (0, 1):
        given = _weights()
        found, programs, hits = _called(_updates(), given, _weights())
        assert (programs, hits) == (1, fetched)
        assert all(given[name].is_deleted() for name in given)
        jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert sorted(path.suffix for path in store.iterdir()) == [".link", ".program"]


@on_one_device
def test_a_program_in_memory_is_neither_compiled_nor_fetched_again(store):
    program = _updates()
    assert _called(program, _weights(), _weights())[1:] == (1, 0)
    assert _called(program, _weights(), _weights())[1:] == (0, 0)


@on_one_device
@pytest.mark.parametrize("suffix", [".program", ".link"])
@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "foreign"])
def test_a_damaged_file_is_replaced_and_never_used(store, suffix, damage):
    expected, *_ = _called(_updates(), _weights(), _weights())
    _called(Program(jnp.cumsum, static_argnames="axis"), np.ones((3, 5), np.float32), axis=0)
    of_updates, of_sums = sorted((p for p in store.iterdir() if p.suffix == suffix), key=lambda p: p.stat().st_mtime_ns)
    whole = of_updates.read_bytes()
    half = len(whole) // 2
    wrong = {
        "cut": whole[:half],
        "changed": whole[:half] + bytes([whole[half] ^ 1]) + whole[half + 1 :],
        "empty": b"",
        "foreign": of_sums.read_bytes(),
    }
    of_updates.write_bytes(wrong[damage])
    found, programs, hits = _called(_updates(), _weights(), _weights())
    assert (programs, hits) == (1, int(suffix == ".link"))  # without a link, the lowered text finds the program
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert _called(_updates(), _weights(), _weights())[1:] == (1, 1)  # stored anew


@on_one_device
def test_other_sources_lower_again_and_keep_what_xla_has_compiled(store, monkeypatch):
    _called(_updates(), _weights(), _weights())
    monkeypatch.setattr(stored_executables, "sources", lambda: b"edited")
    keep_executables(StoredExecutables(store))
    assert _called(_updates(), _weights(), _weights())[1:] == (1, 1)
    assert sorted(path.suffix for path in store.iterdir()) == [".link", ".link", ".program"]


@on_one_device
def test_another_machine_compiles_its_own(store, monkeypatch):
    _called(_updates(), _weights(), _weights())
    monkeypatch.setattr(stored_executables, "machine", lambda: b"another")
    keep_executables(StoredExecutables(store))
    assert _called(_updates(), _weights(), _weights())[1:] == (1, 0)


@on_one_device
def test_devices_flags_and_settings_of_jax_are_part_of_the_machine(monkeypatch):
    found = [stored_executables.machine(), stored_executables.machine()]
    assert found[0] == found[1]
    devices = jax.devices()
    with monkeypatch.context() as patch:
        patch.setattr(jax, "devices", lambda: [*devices, devices[0]])
        found.append(stored_executables.machine())
    with monkeypatch.context() as patch:
        patch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=1")
        found.append(stored_executables.machine())
    with monkeypatch.context() as patch:
        patch.setattr(stored_executables, "processor", lambda: "another")
        found.append(stored_executables.machine())
    jax.config.update("jax_default_matmul_precision", "highest")
    found.append(stored_executables.machine())
    jax.config.update("jax_default_matmul_precision", None)
    assert len(set(found)) == len(found) - 1


@on_one_device
def test_the_sources_are_those_of_the_rooms_that_make_programs(monkeypatch):
    whole = stored_executables.sources()
    assert whole == stored_executables.sources()
    monkeypatch.setattr(stored_executables, "CODE", stored_executables.CODE[:-1])
    assert stored_executables.sources() != whole


ONES = np.ones((3, 4), np.float32)


@on_one_device
@pytest.mark.parametrize(
    ("function", "options", "calls"),
    [
        (jnp.cumsum, {"static_argnames": "axis"}, [((ONES,), {"axis": axis}) for axis in (0, 1)]),
        (jnp.cumsum, {}, [((x,), {}) for x in (ONES, ONES[:2], ONES.astype(np.int32), jnp.ones((3, 4)), 3, 3.0)]),
        (jnp.sum, {"static_argnums": 1}, [((ONES, axis), {}) for axis in (0, 1, None)]),
        (jnp.where, {}, [((np.bool_(True), x, y), {}) for x, y in ((ONES, 2.0), (ONES, ONES), (2, ONES))]),
    ],
    ids=["static by name", "types", "static by place", "arguments"],
)
def test_each_call_gets_the_program_of_its_own_types(store, function, options, calls):
    for _ in range(2):  # compiled, then fetched
        program = Program(function, **options)
        for args, keywords in calls:
            expected = function(*args, **keywords)
            found = program(*args, **keywords)
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
            np.testing.assert_array_equal(found, expected)


@on_one_device
def test_arguments_that_do_not_count_do_not_mix_up_programs_of_equal_text(store):
    """The lowered text of both would be the same, if jax left out the argument that is not read."""
    first, second = partial(_pick, 0), partial(_pick, 1)
    one, two = np.float32(1), np.float32(2)
    for _ in range(2):
        assert [float(Program(f)(one, two)) for f in (first, second)] == [1, 2]


def _pick(number, *arrays):
    return arrays[number] * 1.0


_pick.__module__ = "fr3e_jax.objectives.losses"  # of the rooms whose sources count


@on_one_device
def test_a_function_from_elsewhere_is_compiled_and_not_stored(store):
    program = Program(lambda x: x * 2)
    assert _called(program, np.float32(3)) == (6.0, 1, 0)
    assert not list(store.iterdir())


@on_one_device
def test_a_program_within_a_traced_function_is_traced(store):
    program = Program(jnp.cumsum)
    found = jax.jit(lambda x: program(x) + 1)(ONES[0])
    np.testing.assert_array_equal(found, [2, 3, 4, 5])


@on_one_device
@pytest.mark.parametrize("cleared", [True, False])
def test_what_jax_has_fetched_is_not_stored(tmp_path, monkeypatch, without_jax_cache, cleared):
    """XLA on CPU writes such a program without its machine code; it would fail when it is called."""
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()
    own, before = jax.config.jax_compilation_cache_dir, jax.config.jax_persistent_cache_min_compile_time_secs
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    keep_executables(None)
    _called(_updates(), _weights(), _weights())
    jax.clear_caches()
    if not cleared:  # fetched by jax before there was a store, and then found in memory
        _updates()(_weights(), _weights())
    keep_executables(StoredExecutables(tmp_path / "programs"))
    try:
        _updates()(_weights(), _weights())
    finally:
        keep_executables(None)
        jax.config.update("jax_compilation_cache_dir", own)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", before)
    assert list((tmp_path / "jax").iterdir())
    assert not list((tmp_path / "programs").iterdir())


@on_one_device
def test_jax_writes_no_second_copy(store, tmp_path):
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()
    own = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "jax"))
    before = jax.config.jax_persistent_cache_min_compile_time_secs
    try:
        assert _called(_updates(), _weights(), _weights())[1:] == (1, 0)
    finally:
        jax.config.update("jax_compilation_cache_dir", own)
    assert jax.config.jax_persistent_cache_min_compile_time_secs == before
    assert not (tmp_path / "jax").exists() or not list((tmp_path / "jax").glob("*-cache"))
    assert list(store.glob("*.program"))


@on_one_device
def test_many_writers_leave_whole_files(store):
    found = []

    def work():
        own = Program(jnp.cumsum)
        own_store = StoredExecutables(store)
        lowered = own.lower(ONES)
        executable = own_store.compile("name", "interface", lowered)
        found.append(np.asarray(executable(ONES)))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert sorted(path.suffix for path in store.iterdir()) == [".link", ".program"]
    np.testing.assert_array_equal(StoredExecutables(store).fetch("name")(ONES), found[0])


@on_one_device
def test_a_folder_that_cannot_be_written_is_told_once(store, monkeypatch, capsys):
    def full(*args, **keywords):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stored_executables.tempfile, "NamedTemporaryFile", full)
    assert _called(_updates(), _weights(), _weights())[1:] == (1, 0)
    assert _called(Program(jnp.cumsum), ONES)[1:] == (1, 0)
    assert capsys.readouterr().err == (f"fr3e: programs are not kept in {store}: [Errno 28] No space left on device\n")


@on_one_device
def test_the_files_that_were_not_used_for_longest_are_deleted(tmp_path):
    for age, name in enumerate(("new", "middle", "old")):
        path = tmp_path / name
        path.write_bytes(b"x" * 100)
        os.utime(path, (1e9 - age, 1e9 - age))
    stored_executables._delete_oldest(tmp_path, 200)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["middle", "new"]


@on_one_device
@pytest.mark.slow
def test_a_run_has_the_same_numbers_from_stored_programs(tmp_path, tiny_run, without_jax_cache):
    runs = {}
    for name, cache, stored in (("plain", "", True), ("cold", "cache", True), ("warm", "cache", True)):
        config = tiny_run.config(
            runtime__compilation_cache=cache and str(tmp_path / cache),
            runtime__stored_programs=stored,
            training__max_steps=1,
            training__batch_rollouts=10,
        )
        assert train(config, tmp_path / name) == 0
        summary = json.loads((tmp_path / name / "summary.json").read_text())
        files = sorted((tmp_path / name / "rollouts").iterdir())
        rollouts = [(file.name, repr(read_rollouts(file))) for file in files]
        metrics = [without_timing(record) for record in read_metrics(tmp_path / name / "metrics.jsonl")]
        runs[name] = summary["compilations"], metrics, rollouts
    keep_executables(None)
    assert runs["plain"][1:] == runs["cold"][1:] == runs["warm"][1:]


@on_one_device
def test_dropped_executables_are_fetched_again(store):
    program = _updates()
    first, _, _ = _called(program, _weights(), _weights())
    assert program._cache_size() == 1
    drop_executables()
    assert program._cache_size() == 0, "a process of many runs would reach the limit of memory mappings"
    again, programs, fetched = _called(program, _weights(), _weights())
    assert (programs, fetched) == (1, 1)
    jax.tree.map(np.testing.assert_array_equal, again, first)
