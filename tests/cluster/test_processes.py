"""What processes tell one another and how a difference is found, with threads in their place."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from fr3e_jax.cluster import processes as module
from fr3e_jax.cluster.processes import Divergence, Processes
from fr3e_jax.configuration import ConfigError
from fr3e_jax.loop.grading import Grading
from fr3e_jax.programs.host_arrays import on_mesh
from fr3e_jax.programs.mesh import make_mesh
from fr3e_jax.rewards.verdict import Verdict


@dataclass(frozen=True)
class Threads(Processes):
    """Processes of which each is a thread."""

    meeting: threading.Barrier = None
    told: list = None

    def gather(self, content):
        self.told[self.index] = content
        self.meeting.wait(timeout=10)
        told = list(self.told)
        self.meeting.wait(timeout=10)
        return told


def together(count, function):
    """``function(processes)`` in each of ``count`` threads; results, or the errors they raised."""
    meeting, told = threading.Barrier(count), [None] * count

    def one(index):
        try:
            return function(Threads(index, count, meeting, told))
        except (ConfigError, Divergence, ValueError) as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def test_alone_nothing_is_sent():
    alone = Processes()
    assert alone.first and alone.is_mine(3) and alone.asked_to_stop([], 1) == ""
    assert alone.exchange("anywhere", {"mine": 1}, decided=object()) == [{"mine": 1}]
    assert alone.on_first(lambda: "result") == "result"


def test_equal_decisions_pass_and_what_differs_is_gathered():
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
def test_a_difference_stops_all_and_shows_the_values(values, shown):
    errors = together(len(values), lambda p: p.agree("step 4, explore", **values[p.index]))
    assert len({str(error) for error in errors}) == 1 and all(isinstance(error, Divergence) for error in errors)
    for pattern in [r"differ at step 4, explore in '\w+'", "--resume", *shown]:
        with pytest.raises(Divergence, match=pattern):
            raise errors[0]


def test_processes_at_different_stages_are_told_where_each_is():
    errors = together(2, lambda p: p.agree(["step 2, prompts", "the end of step 1"][p.index], n=1))
    assert all(isinstance(error, Divergence) for error in errors)
    assert "step 2, prompts" in str(errors[0]) and "the end of step 1" in str(errors[0])


def test_what_the_first_made_or_failed_to_make_is_known_to_all():
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


class _Slow:
    """A verdict that is there after it was asked for a few times."""

    def __init__(self, verdict, asked=0):
        self._verdict, self._left = verdict, asked

    def done(self):
        self._left -= 1
        return self._left < 0

    def result(self):
        if isinstance(self._verdict, Exception):
            raise self._verdict
        return self._verdict


def graded(processes, verdict_of, tokens_of=lambda index, branch: np.int32([branch])):
    """A `Grading` that has seen two requests of three branches; and what this process graded."""
    mine = []

    def submit(problem, prefix, rollout):
        mine.append(problem)
        return verdict_of(processes.index, problem)

    session = SimpleNamespace(processes=processes, submit=submit, grading_wait_seconds=0.0)
    grading = Grading(session, lambda request, branch: ((request, branch), np.zeros(0, np.int32)))
    sampled = lambda branch: SimpleNamespace(token_ids=tokens_of(processes.index, branch))
    for request in range(2):
        grading.ended([(request, branch, sampled(branch)) for branch in (2, 0, 1)])
    return grading, mine


def verdict_of(_, case):
    return _Slow(Verdict(case[0] + case[1] / 4, "right" if case[1] else "wrong"))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_each_grades_its_share_and_all_have_all_verdicts(count):
    def grade(processes):
        grading, mine = graded(processes, verdict_of)
        return grading.verdicts(range(2)), mine

    results = together(count, grade) if count > 1 else [grade(Processes())]
    everything = [[Verdict(r + b / 4, "right" if b else "wrong") for b in range(3)] for r in range(2)]
    assert all(verdicts == everything for verdicts, _ in results)
    shares = [case for _, mine in results for case in mine]
    assert sorted(shares) == sorted({(r, b) for r in range(2) for b in range(3)}), "each rollout is graded once"


def test_no_process_chooses_before_all_have_their_verdicts():
    def ask(processes):
        slow = lambda index, case: _Slow(Verdict(1.0, "right"), asked=2 if index == 1 else 0)
        grading, _ = graded(processes, slow)
        return [grading.verdicts_if_done(0) is None for _ in range(2)]

    assert together(2, ask)[0] == together(2, ask)[1] == [True, True]
    assert together(2, lambda p: graded(p, verdict_of)[0].verdicts_if_done(1) is None) == [False, False]


def test_a_verifier_that_fails_on_one_process_ends_all():
    def ask(processes):
        broken = lambda index, case: _Slow(ValueError("no number") if case == (1, 0) else Verdict(1.0, "right"))
        return graded(processes, broken)[0].verdicts(range(2))

    assert [(type(error), str(error)) for error in together(2, ask)] == [(ConfigError, "no number")] * 2


def test_other_tokens_on_one_process_are_found_with_the_verdicts():
    def ask(processes):
        tokens = lambda index, branch: np.int32([branch, index if branch == 2 else 0])
        return graded(processes, verdict_of, tokens)[0].verdicts(range(2))

    for error in together(2, ask):
        assert isinstance(error, Divergence) and "'sampled_tokens'" in str(error)


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
