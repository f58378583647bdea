"""Messages between processes and the search for differences, with threads in place of processes."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from process_threads import together

from fr3e_jax.cluster import processes as module
from fr3e_jax.cluster.processes import Divergence, Processes, own_processes
from fr3e_jax.configuration import ConfigError
from fr3e_jax.programs.host_arrays import on_mesh
from fr3e_jax.programs.mesh import make_mesh


def test_a_process_on_its_own_sends_nothing():
    alone = Processes()
    assert alone.first and alone.is_mine(3) and alone.asked_to_stop([], 1) == ""
    assert alone.exchange("anywhere", {"mine": 1}, decided=object()) == [{"mine": 1}]
    assert alone.on_first(lambda: "result") == "result"


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (AssertionError(), "there is no such device, or jax lacks its plugin"),
        (RuntimeError("no 'gpux'. (set JAX_PLATFORMS='' to choose)"), "no 'gpux'"),
    ],
)
def test_a_platform_that_is_not_here_is_named(monkeypatch, failure, reason):
    def start():
        raise failure

    monkeypatch.setattr(jax, "process_index", start)
    with pytest.raises(ConfigError, match=rf"JAX_PLATFORMS=\w*: jax finds no device: {reason}; set it to a platform"):
        own_processes()


def test_equal_decisions_pass_and_own_content_is_gathered():
    def decide(processes):
        values = {"kept": [1, 2], "rewards": [np.array([0.0, 1.0]), np.zeros(0)], "count": np.int64(3)}
        return processes.exchange("step 1, first return", processes.index * 10, **values)

    assert together(3, decide) == [[0, 10, 20]] * 3


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([{"kept": [1, 2]}, {"kept": [1, 3]}, {"kept": [1, 2]}], [r"processes 0, 2: \[1, 2\]", r"process 1: \[1, 3\]"]),
        (
            [{"rewards": [np.float32([0, 1])]}, {"rewards": [np.float32([0, 0])]}],
            [r"\[0\.0, 1\.0\]", r"0\.0, 0\.0"],
        ),
        # The same numbers as another type, or cut elsewhere, are other decisions.
        ([{"ids": np.int32([1])}, {"ids": np.int64([1])}], ["processes 0, 1"]),
        ([{"ids": [np.int32([1, 2]), np.int32([])]}, {"ids": [np.int32([1]), np.int32([2])]}], [r"\[\[1, 2\], \[\]\]"]),
        ([{"ids": np.arange(5000)}, {"ids": np.append(np.arange(4999), 7)}], [r"\.\.\..*4998, 4999\]", r"4998, 7\]"]),
    ],
)
def test_a_difference_raises_on_all_processes_and_shows_the_values(values, shown):
    errors = together(len(values), lambda p: p.agree("step 4, explore", **values[p.index]))
    assert len({str(error) for error in errors}) == 1 and all(isinstance(error, Divergence) for error in errors)
    for pattern in [r"differ at step 4, explore in '\w+'", "--resume", *shown]:
        with pytest.raises(Divergence, match=pattern):
            raise errors[0]


@pytest.mark.parametrize("differing", range(4))
def test_each_array_of_a_list_is_compared_between_two_of_many_processes(differing):
    def decide(processes):
        arrays = [np.arange(n) for n in range(7)]
        arrays[5][0] = processes.index == differing
        return processes.agree("step 1", ids=arrays)

    reads_it = differing in (0, 1)  # array 5 is in the share of process 1, which process 0 reads, too
    assert all(isinstance(error, Divergence) == reads_it for error in together(4, decide))
    lengths = [np.zeros(n + 1) for n in range(4)]
    assert all(isinstance(e, Divergence) for e in together(4, lambda p: p.agree("step 1", ids=lengths[p.index :])))


def test_processes_at_different_stages_raise_with_the_stage_of_each():
    errors = together(2, lambda p: p.agree(["step 2, prompts", "the end of step 1"][p.index], n=1))
    assert all(isinstance(error, Divergence) for error in errors)
    assert "step 2, prompts" in str(errors[0]) and "the end of step 1" in str(errors[0])


def test_the_result_or_error_of_process_0_reaches_all():
    def fail():
        raise ConfigError("runs/a holds a run")

    made = together(2, lambda p: p.on_first(lambda: f"by {p.index}"))
    failed = together(2, lambda p: p.on_first(fail))
    assert made == ["by 0", "by 0"]
    assert [(type(error), str(error)) for error in failed] == [(ConfigError, "runs/a holds a run")] * 2


@pytest.mark.parametrize("lengths", [(0, 3), (1016, 5), (1017, 5), (3, 5000)])
def test_long_messages_take_a_second_transfer(monkeypatch, lengths):
    messages = [bytes(range(256)) * 20 for _ in lengths]
    messages = [message[:length] for message, length in zip(messages, lengths, strict=True)]
    sizes = []

    def allgather(own):
        sizes.append(len(own))
        rows = [(len(m).to_bytes(8, "little") + m)[: len(own)].ljust(len(own), b"\0") for m in messages]
        assert own.tobytes() == rows[0]
        return np.stack([np.frombuffer(row, np.uint8) for row in rows])

    monkeypatch.setattr(module.multihost_utils, "process_allgather", allgather)
    assert module._gathered(messages[0]) == messages
    assert sizes == [1024] if max(lengths) <= 1016 else [1024, 2048 if max(lengths) < 2000 else 8192]


def test_host_arrays_reach_the_mesh_as_they_are():
    sharding = NamedSharding(make_mesh(), PartitionSpec())
    spans_processes = SimpleNamespace(is_fully_addressable=False)
    placed = on_mesh({"ids": np.arange(4, dtype=np.int32)}, sharding)
    assert placed["ids"].sharding == sharding and placed["ids"].dtype == np.int32
    calls = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            jax, "make_array_from_callback", lambda shape, s, read, dtype: calls.append((shape, dtype, read(slice(2))))
        )
        on_mesh(jax.numpy.arange(4.0), spans_processes)
    (shape, dtype, own), *_ = calls
    assert shape == (4,) and dtype == np.float32 and own.tolist() == [0.0, 1.0]
