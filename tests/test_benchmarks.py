"""The arithmetic of the benchmarks' tables: medians, ratios and the bars beside them."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def benchmark(monkeypatch):
    """Import a script of ``benchmarks/``, which import each other by their plain names."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(ROOT / "benchmarks")):
            del sys.modules[name]


def test_figures_of_a_step_leave_out_the_steps_before_the_measured_ones(benchmark, monkeypatch):
    wall = iter([0.0, 10.0, 11.0, 13.0, 17.0])  # the start, a compiling step, one of warm-up, two measured ones
    cpu = iter([20.0, 22.0, 26.0, 34.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(wall))
    monkeypatch.setattr(time, "process_time", lambda: next(cpu))
    marks = benchmark("step_peers").Marks(1)
    for tokens in (1000, 100, 8, 16):
        marks.add(tokens)
    found = json.loads(marks.line())
    assert found.pop("peak_mb") > 0
    assert found == {"cpu_s": 6.0, "wall_s": 3.0, "tokens_per_cpu_s": 2.0, "first_step_s": 10.0}


def test_a_summary_has_medians_the_ratio_to_each_peer_and_the_first_starts_apart(benchmark):
    names = ("cpu_s", "wall_s", "tokens_per_cpu_s", "first_step_s", "peak_mb")
    processes = {
        "ours": [(1, 1, 80, 9, 100), (2, 2, 60, 3, 100), (9, 3, 40, 4, 100)],
        "trl": [(4, 3, 30, 2, 300), (5, 3, 30, 2, 300), (3, 3, 30, 5, 300)],
    }
    found = {by: [dict(zip(names, row, strict=True)) for row in rows] for by, rows in processes.items()}
    assert benchmark("step").summary(found) == [
        "cpu_s: ours 2.000; trl 4.000, 2.00x",
        "wall_s: ours 2.000; trl 3.000, 1.50x",
        "tokens_per_cpu_s: ours 60.000; trl 30.000, 2.00x",
        "first_step_s: ours 3.500; trl 3.500, 1.00x",
        "peak_mb: ours 100.000; trl 300.000, 3.00x",
        "first_step_s of the first processes, cold unless --cache holds programs: ours 9.0, trl 2.0",
    ]


def test_the_table_compares_with_the_best_peer_and_with_each_that_has_bars_of_its_own(benchmark, tmp_path):
    speeds = {"ours": 300, "per_anchor": 60, "fork": 100, "fork_sorted": 90}
    records = [
        {"work": "branch_tiny", "by": by, "peak_mb": 700, "tok_per_cpu_s": {"median": speed}}
        for by, speed in speeds.items()
    ]
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    args = argparse.Namespace(out=str(tmp_path), bench="")
    row = benchmark("compare").Comparison(args).table().splitlines()[2]
    assert row == (
        "| branch_tiny | 300 | fork 100, fork_sorted 90, per_anchor 60 | **3.00x**, 5.00x per_anchor | 3.2x, 4.2x "
        "| 4.2x, 5.5x | 700 MB, 700 MB, 1.00x |"
    )


def test_the_peer_by_hand_trains_whole_bases_as_ours_trains_whole_trunks(benchmark):
    rows = [(base, number) for base, count in enumerate((3, 2, 4)) for number in range(count)]
    whole = benchmark("step_by_hand").whole_bases
    assert [len(whole(rows, rollouts)) for rollouts in (1, 3, 4, 5, 6, 9, 20)] == [3, 3, 5, 5, 9, 9, 9]
