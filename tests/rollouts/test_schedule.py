"""The schedule alone, without a device: nothing idles while work is queued, and equal input gives an equal schedule."""

from __future__ import annotations

import numpy as np
import pytest

from fr3e_jax.rollouts.schedule import IDLE, Schedule, SlotAssignment

CHUNK = 16


def uneven_lengths(trunks: int = 8, anchors: int = 4, per_anchor: int = 16) -> list[list[int]]:
    """Branches to a total of 256 tokens from random anchors: the trunks' work differs about threefold."""
    cuts = np.random.default_rng(0).integers(1, 256, (trunks, anchors))
    return [[256 - cut for cut in row for _ in range(per_anchor)] for row in cuts.tolist()]


class Simulation:
    """Lanes that decode one token a step; branches end after ``lengths`` tokens, which are the default limits."""

    def __init__(self, lengths, slots, lanes, limits=None):
        self.schedule = Schedule(limits or lengths, slots, lanes)
        self.lengths = np.array([length for row in lengths for length in row])
        self.left = np.zeros((slots, lanes), np.int64)
        self.started: list[int] = []
        self.placed: list[SlotAssignment] = []
        self.steps = self.useful = self.visits = 0

    def run(self):
        while self.assign():
            self.visits += 1
            self.decode()
        return self

    def assign(self) -> bool:
        placed, new = self.schedule.assign()
        self.placed += placed
        self.started += self.schedule.branch[new].tolist()
        self.left[new] = self.lengths[self.schedule.branch[new]]
        return bool(self.schedule.active.any())

    def decode(self) -> None:
        patience, before = self.schedule.patience(), (self.left > 0).sum()
        for _ in range(CHUNK):
            active = (self.left > 0).sum()
            if not active or before - active >= patience:
                break
            self.left -= self.left > 0
            self.steps += 1
            self.useful += active
        self.schedule.end(self.schedule.active & (self.left == 0))

    @property
    def share(self) -> float:
        return self.useful / (self.steps * self.left.size)


@pytest.mark.parametrize(("slots", "lanes"), [(8, 8), (4, 16), (16, 4), (3, 5)])
def test_no_lane_idles_while_a_branch_that_it_can_take_is_queued(slots, lanes):
    simulation = Simulation(uneven_lengths(), slots, lanes)
    while simulation.assign():
        schedule = simulation.schedule
        left_over = len(simulation.lengths) - len(simulation.started)
        resident = {int(request) for request in schedule.slot_request}
        for slot, request in enumerate(schedule.slot_request):
            waiting = [n for n in range(len(simulation.lengths)) if schedule.owner[n] == request]
            if set(waiting) - set(simulation.started):
                assert schedule.active[slot].all(), "an idle lane beside a queued branch of its own trunk"
        assert IDLE not in resident or not left_over, "a free slot while some branch is queued"
        simulation.decode()
    assert sorted(simulation.started) == list(range(len(simulation.lengths))), "each branch starts once"


@pytest.mark.parametrize(("slots", "lanes"), [(8, 8), (4, 16), (16, 4)])
def test_uneven_work_keeps_nine_lanes_of_ten_busy(slots, lanes):
    """A trunk that may not take several slots, as before, kept 6 of 10 busy in (8, 8) and 3 of 10 in (16, 4)."""
    assert Simulation(uneven_lengths(), slots, lanes).run().share > 0.9


def test_trunks_with_the_most_to_decode_come_first_and_equals_in_the_order_of_requests():
    schedule = Schedule([[3], [5, 5], [], [9, 1], [10]], slots=2, lanes=1)
    placed, _ = schedule.assign()
    assert [one.request for one in placed] == [1, 3] and list(schedule.waiting) == [4, 0]


def test_a_trunk_starts_its_longest_branches_first():
    schedule = Schedule([[3, 8, 8, 5]], slots=1, lanes=2)
    assert schedule.assign()[1].all()
    assert schedule.branch.tolist() == [[1, 2]]
    schedule.end(np.array([[True, False]]))
    schedule.assign()
    assert schedule.branch.tolist() == [[3, 2]]


def test_a_free_slot_copies_the_trunk_with_the_most_queued_tokens_for_each_of_its_slots():
    schedule = Schedule([[9] * 4, [8] * 9, [1]], slots=5, lanes=1)
    placed, _ = schedule.assign()
    # Queued after the first three: 27 tokens of request 0, 64 of request 1; then 56 over two slots against 27.
    assert placed == [
        SlotAssignment(0, 1, None),
        SlotAssignment(1, 0, None),
        SlotAssignment(2, 2, None),
        SlotAssignment(3, 1, 0),
        SlotAssignment(4, 1, 0),
    ]


def test_a_request_has_ended_when_its_branches_in_all_slots_have():
    schedule = Schedule([[4, 4, 4]], slots=2, lanes=2)
    schedule.assign()
    assert schedule.active.sum() == 3
    assert schedule.end(np.array([[True, True], [False, False]])) == []
    assert schedule.slot_request.tolist() == [IDLE, 0]
    assert schedule.end(np.array([[False, False], [True, False]])) == [0]


def test_a_chunk_stops_early_only_if_queued_branches_can_use_the_ended_lanes():
    nothing_queued = Schedule([[4] * 32], slots=2, lanes=16)
    nothing_queued.assign()
    assert nothing_queued.patience() == 32
    branches_queued = Schedule([[4] * 40], slots=2, lanes=16)
    branches_queued.assign()
    assert branches_queued.patience() == 2
    only_a_trunk_waits = Schedule([[4] * 16, [4] * 11, [4]], slots=2, lanes=16)
    only_a_trunk_waits.assign()
    assert only_a_trunk_waits.patience() == 32


def test_equal_input_gives_an_equal_schedule():
    lengths = np.random.default_rng(1).integers(1, 20, (9, 12)).tolist()
    limits = [[20] * 12] * 9
    first, second = (Simulation(lengths, 4, 5, limits).run() for _ in range(2))
    assert first.started == second.started and first.placed == second.placed and first.steps == second.steps
