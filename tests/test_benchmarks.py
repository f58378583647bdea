"""The arithmetic of the benchmarks' tables: medians, ratios and the bars beside them."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from pathlib import Path

import numpy as np
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
    marks.warm_up = 0
    found = json.loads(marks.line(2**31))  # on a GPU the last two steps are profiled and traced
    assert [found[name] for name in ("wall_s", "cpu_s", "tokens_per_cpu_s", "device_gib")] == [1.0, 2.0, 50.0, 2.0]
    assert found["steps_s"] == [10.0, 1.0, 2.0, 4.0]


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


def test_signal_and_noise_of_three_gradients_by_hand_and_of_draws_that_repeat_one(benchmark):
    noise = benchmark("gradient_noise")
    vectors = np.array([[3.0, 1.0], [1.0, -1.0], [3.0, 1.0]])
    products = noise.inner_products(vectors, vectors)
    # Pairs: <1,2> = 2, <1,3> = 10, <2,3> = 2, so 14 / 3. Squares: 10, 2, 10, so 22 / 3.
    assert noise.signal_and_noise(products) == pytest.approx((14 / 3, 8 / 3))
    signal, spread = noise.signal_and_noise(products, np.array([[2, 1, 0], [3, 0, 0], [1, 1, 1]]))
    assert (signal[0], spread[0]) == pytest.approx((2, (2 * 10 + 2) / 3 - 2)) and np.isnan(signal[1])
    assert (signal[2], spread[2]) == pytest.approx((14 / 3, 8 / 3))


def test_the_signal_toward_a_noisy_oracle_is_unbiased(benchmark):
    """E g = (2, 0) and E o = (1, 1) with noise in both coordinates: <E g, E o>² / ‖E o‖² = 2."""
    noise, rng, n = benchmark("gradient_noise"), np.random.default_rng(2), 10_000
    heads, total = rng.integers(0, 2, (n, 4, 1)), []
    for vectors in np.where(heads, np.array([3.0, 1.0]), np.array([1.0, -1.0])):
        crossed = noise.inner_products(vectors, 1 + rng.standard_normal((3, 2)))
        total.append(noise.aimed_signal(crossed, np.full((3, 3), 2.0)))
    assert abs(np.mean(total) - 2) < 4 * np.std(total) / np.sqrt(n) < 0.2


def test_ratios_and_the_cosine_of_known_directions(benchmark):
    noise, rng = benchmark("gradient_noise"), np.random.default_rng(0)
    parts, tokens = np.array([5.0, 0.0, 0.0]) + 0.1 * rng.standard_normal((4, 3)), np.full(400, 2_000_000)
    for mean, ratio, aimed, cosine in (([0.0, 3.0, 0.0], 9 / 2, 0, 0), ([1.0, 0.0, 0.0], 1 / 2, 1 / 2, 1)):
        vectors = np.array(mean) + np.sqrt(2 / 3) * rng.standard_normal((400, 3))
        found = noise.figures(vectors, tokens, parts)
        expected = {"SNR to the oracle": aimed / 2, "SNR": ratio / 2, "cosine with the oracle": cosine}
        assert found == {name: pytest.approx(value, rel=0.15, abs=0.05) for name, value in expected.items()}
