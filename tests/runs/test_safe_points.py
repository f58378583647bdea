"""Safe points: each is numbered, and a reason to stop stays."""

from __future__ import annotations

from fr3e_jax.runs.safe_points import SafePoints


def test_a_signal_that_all_processes_hear_of_stops_at_this_and_each_later_point():
    received, asked = [], []

    def agree(signals, number):
        asked.append((list(signals), number))
        return signals[0] if signals else ""

    points = SafePoints(received, agree)
    assert points.reached("chunk") == points.reached("micro_batch") == points.reason == ""
    received.append("SIGTERM")
    assert points.reached("chunk") == points.reason == "SIGTERM"
    received.clear()
    assert points.reached("step") == "SIGTERM", "the processes have agreed; they do not ask again"
    assert asked == [([], 1), ([], 2), (["SIGTERM"], 3)]
