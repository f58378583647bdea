from __future__ import annotations

import json
from typing import Any

import pytest

from fr3e_jax.runs.compilation import Compilations
from fr3e_jax.runs.ledger import TokenLedger, cpu_seconds_of_process


class Clock:
    def __init__(self, now: Any) -> None:
        self.now = now

    def __call__(self) -> Any:
        return self.now


def make_ledger(wall: float = 100.0, cpu: float = 7.0) -> tuple[TokenLedger, Clock, Clock]:
    wall_clock, cpu_clock = Clock(wall), Clock(cpu)
    ledger = TokenLedger(wall_clock=wall_clock, cpu_clock=cpu_clock, compiled=Clock(Compilations()))
    return ledger, wall_clock, cpu_clock


def test_step_metrics_are_what_was_added_since_the_last_call():
    ledger, wall, _ = make_ledger()
    ledger.sampled_tokens += 30
    with ledger.stage("explore"):
        wall.now += 2
    ledger.step_metrics()
    ledger.sampled_tokens += 12
    ledger.loss_tokens += 5
    with ledger.stage("explore"):
        wall.now += 1
    with ledger.stage("update"):
        wall.now += 3
    metrics = ledger.step_metrics()
    assert metrics == {
        "tokens/sampled_tokens": 12,
        "tokens/reused_prefix_positions": 0,
        "tokens/prefill_positions": 0,
        "tokens/lane_steps": 0,
        "tokens/loss_tokens": 5,
        "tokens/trained_positions": 0,
        "tokens/padded_positions": 0,
        "seconds/explore": 1,
        "seconds/update": 3,
        "speed/sampled_tokens_per_second": 3,
        "compile/programs": 0,
        "compile/cache_hits": 0,
        "compile/seconds": 0,
        "wall_seconds": 6,
        "cpu_seconds": 7,
    }
    assert ledger.seconds == {"explore": 3, "update": 3}
    assert ledger.sampled_tokens == 42


def test_a_stage_that_raises_still_counts():
    ledger, wall, _ = make_ledger()
    with pytest.raises(ValueError):
        with ledger.stage("update"):
            wall.now += 4
            raise ValueError
    assert ledger.seconds == {"update": 4}


def test_resumed_ledger_adds_its_own_seconds_and_not_the_pause():
    ledger, wall, cpu = make_ledger(wall=100, cpu=7)
    wall.now, cpu.now = 110, 15
    state = json.loads(json.dumps(ledger.state_dict()))
    resumed, wall, cpu = make_ledger(wall=5000, cpu=2)
    wall.now = 5001
    resumed.load_state_dict(state)
    wall.now, cpu.now = 5003, 4
    assert resumed.wall_seconds == 10 + 3
    assert resumed.cpu_seconds == 15 + 4


def test_resume_in_the_middle_of_a_step_reports_the_whole_step():
    ledger, wall, _ = make_ledger()
    ledger.sampled_tokens += 10
    ledger.step_metrics()
    ledger.sampled_tokens += 5
    with ledger.stage("first_return"):
        wall.now += 2
    resumed, wall, _ = make_ledger()
    resumed.load_state_dict(json.loads(json.dumps(ledger.state_dict())))
    resumed.sampled_tokens += 1
    with resumed.stage("first_return"):
        wall.now += 1
    metrics = resumed.step_metrics()
    assert (metrics["tokens/sampled_tokens"], metrics["seconds/first_return"]) == (6, 3)
    assert resumed.sampled_tokens == 16


def test_ledger_of_another_version_is_named():
    ledger, *_ = make_ledger()
    state = ledger.state_dict()
    state["totals"]["counters"].pop("loss_tokens")
    with pytest.raises(ValueError, match="has the counters .* expected .*'loss_tokens'.*start a fresh run"):
        ledger.load_state_dict(state)


def test_no_speed_when_no_time_has_passed():
    ledger, *_ = make_ledger()
    ledger.sampled_tokens += 1
    assert "speed/sampled_tokens_per_second" not in ledger.step_metrics()


def test_cpu_clock_grows_with_work():
    before = cpu_seconds_of_process()
    while cpu_seconds_of_process() == before:
        sum(range(10_000))
    assert cpu_seconds_of_process() > before


def test_compilations_are_counted_by_step_and_over_resumes():
    ledger, _, _ = make_ledger()
    ledger.compiled.now = Compilations(5, 2, 1.5)
    assert ledger.step_metrics()["compile/programs"] == 5
    ledger.compiled.now = Compilations(6, 3, 2.0)
    metrics = ledger.step_metrics()
    assert [metrics[f"compile/{name}"] for name in ("programs", "cache_hits", "seconds")] == [1, 1, 0.5]
    resumed, _, _ = make_ledger()
    resumed.load_state_dict(json.loads(json.dumps(ledger.state_dict())))
    resumed.compiled.now = Compilations(4, 4, 1.0)
    assert resumed.compilations == Compilations(10, 7, 3.0)
    assert resumed.step_metrics()["compile/programs"] == 4


def test_the_running_stage_has_a_name():
    ledger, _, _ = make_ledger()
    with ledger.stage("update"):
        assert ledger.current_stage == "update"
    assert ledger.current_stage == ""
