"""Groups side by side, against NumPy on small made-up runs."""

import csv
import io
import json

import numpy as np
import pytest
from made_up_runs import held_out_samples, made_up_run, spending

from fr3e_jax.configuration import ConfigError
from fr3e_jax.studies.analysis import comparison_content, comparison_tables
from fr3e_jax.studies.analysis.bootstrap import interval_of_mean, interval_over_problems
from fr3e_jax.studies.analysis.comparison import compare, interval_of_curves
from fr3e_jax.studies.analysis.problem_by_problem import mcnemar
from fr3e_jax.studies.analysis.run_groups import collect
from fr3e_jax.studies.reports.comparison_page import page_content

OTHER = ["explore.num_anchors=2"]
TOKENS = {"base": (100, 100, 100), "other": (150, 90)}
SCORES = {  # group -> seed -> step -> avg@16
    "base": {0: {0: 0.2, 1: 0.3, 3: 0.5}, 1: {0: 0.2, 1: 0.25, 3: 0.4}},
    "other": {0: {0: 0.2, 1: 0.6, 2: 0.7}, 1: {0: 0.2, 1: 0.3, 2: 0.4}},
}


def make(path, group, seed):
    training = {
        step: spending(tokens, loss=tokens // 2, cpu=10.0 * step) | {"entropy/mean": 1.0 / step}
        for step, tokens in enumerate(TOKENS[group], 1)
    }
    evaluations = {step: {"avg@16": score, "greedy": score / 2} for step, score in SCORES[group][seed].items()}
    settings = OTHER if group == "other" else []
    return made_up_run(
        path / f"{group}{seed}", settings=settings, seed=seed, training=training, evaluations=evaluations
    )


@pytest.fixture
def paths(tmp_path):
    return [make(tmp_path, group, seed) for group in ("base", "other") for seed in (0, 1)]


def compared(paths, **options):
    return compare(collect(paths), labels=["base", "other"], **options)


def test_final_values_and_their_spread_are_those_of_numpy(paths):
    found = compared(paths)
    base, other = found.groups
    assert found.metric == "avg@16" and found.baseline is base
    spread = found.final(base, "avg@16")
    assert (spread.values, spread.mean, spread.std) == ([0.5, 0.4], np.mean([0.5, 0.4]), np.std([0.5, 0.4], ddof=1))
    assert found.start(other, "avg@16").values == [0.2, 0.2] and found.final(base, "entropy/mean").mean == 1 / 3
    assert found.final(base, "wasted_tokens").mean == 0.5 and found.final(base, "sampled_tokens").values == [300, 300]


def test_a_band_is_interpolated_on_the_union_of_places_and_ends_with_the_shortest_run(paths, tmp_path):
    short = made_up_run(tmp_path / "short", seed=2, training={1: spending(50)}, evaluations={1: {"avg@16": 0.9}})
    found = compared([*paths, short])
    grid = found.grid("avg@16", "sampled_tokens")
    assert grid.tolist() == [0, 50, 100, 150, 240, 300]
    other = found.curves(found.groups[1], "avg@16", "sampled_tokens", grid)
    each = [np.interp(grid, [0, 150, 240], [0.2, *scores]) for scores in ([0.6, 0.7], [0.3, 0.4])]
    np.testing.assert_allclose(other[:, :5], np.array(each)[:, :5])
    low, high = interval_of_curves(other)
    assert np.isnan(other[:, 5]).all() and np.isnan(low[5])
    np.testing.assert_allclose((low[3], high[3]), (0.3, 0.6))  # two seeds: both ends are resamples of one seed
    base = found.curves(found.groups[0], "avg@16", "sampled_tokens", grid)
    assert len(base) == 3 and np.isfinite(base.mean(axis=0)).tolist() == [False, True, False, False, False, False]


def test_many_places_become_an_even_grid_that_keeps_the_ends_of_each_run(tmp_path):
    runs = [
        made_up_run(
            tmp_path / f"run{i}", seed=i, training={s: spending(7 + i) | {"reward/mean": 1.0} for s in range(1, n)}
        )
        for i, n in enumerate((402, 350))
    ]
    found = compare(collect(runs), metrics=["reward/mean"])
    grid = found.grid("reward/mean", "sampled_tokens")
    assert len(grid) <= 304 and {7, 7 * 401, 8, 8 * 349} <= set(grid) and found.score == 1.0


def test_differences_are_paired_by_seed_with_a_seeded_interval(paths, tmp_path):
    third = make(tmp_path / "more", "base", 0)  # a second run of seed 0: both count as their mean
    found = compared([*paths, third])
    one = found.difference(found.groups[1], "avg@16")
    assert one.seeds == [0, 1] and one.values == pytest.approx([0.7 - 0.5, 0.4 - 0.4])
    assert one.over_seeds == interval_of_mean(one.values) and one.over_problems is None
    turned = compared(paths, baseline="other").difference(found.groups[0], "greedy")
    assert turned.values == pytest.approx([-0.1, 0.0]) and turned.mean == pytest.approx(-0.05)


def test_one_pair_has_no_interval_and_the_table_says_so(paths):
    found = compared([paths[0], paths[2]])
    assert found.difference(found.groups[1], "avg@16").over_seeds is None
    rows = list(comparison_tables.difference_table(found).rows())
    assert rows[0]["95 % over seeds"] == "one pair: no interval" and rows[0]["difference"] == "+0.200"
    assert [flag.kind for flag in found.flags] == ["budget", "seeds"]


def test_stored_samples_give_an_interval_over_the_same_problems(paths):
    for path in paths:
        other = path.name.startswith("other")
        rewards = {("set", i): [0] + [float(i % 2 or (other and i < 3))] * 16 for i in range(6)}
        held_out_samples(path, 2 if other else 3, rewards)
    found = compared(paths)
    one = found.difference(found.groups[1], "avg@16")
    gained = np.array([1.0, 0, 1, 0, 0, 0])
    assert one.problems == 6 and one.over_problems == interval_over_problems([gained])
    assert page_content(found)["problems"][0]["name"].startswith("set: set/")  # as in the report of a run
    assert "95 % over problems" in comparison_tables.difference_table(found).columns
    assert found.difference(found.groups[1], "greedy").over_problems == (0.0, 0.0)
    held_out_samples(paths[1], 3, {("set", i): [1.0] * 17 for i in range(6)})  # of the baseline's seed 1
    (paths[3] / "rollouts" / "eval_000002.jsonl.gz").unlink()  # whose partner has no samples now
    found = compared(paths)
    assert found.difference(found.groups[1], "avg@16").over_problems == one.over_problems


def test_the_price_of_a_score_is_read_off_the_lines_and_not_reached_is_said(paths):
    found = compared(paths, reach=0.45)
    base, other = (found.reach(group, "sampled_tokens") for group in found.groups)
    assert base == [pytest.approx(100 + 200 * 0.75), None]
    assert other == [pytest.approx(150 * (0.45 - 0.2) / 0.4), None]
    assert found.reach(found.groups[1], "cpu_seconds")[0] == pytest.approx(10 * 0.25 / 0.4)
    rows = list(comparison_tables.reach_table(found).rows())
    assert rows[0]["sampled tokens"] == "1 of 2 runs: 250"
    nobody = compared(paths, reach=2.0)
    assert next(comparison_tables.reach_table(nobody).rows())["CPU seconds"] == "not reached"


def test_the_default_score_is_the_final_one_of_the_baseline(paths):
    found = compared(paths, baseline="other")
    assert found.score == pytest.approx((0.7 + 0.4) / 2)
    ratio = comparison_tables.reach_table(compared(paths, reach=0.25)).cells[1][1]
    assert ratio == f"{(150 * 0.05 / 0.4 + 75) / 2:,.0f} (× {(150 * 0.05 / 0.4 + 75) / (50 + 100):.2f})"


def test_options_that_fit_nothing_are_refused(paths):
    with pytest.raises(ConfigError, match=r"no group is called 'x'; expected first or one of base, other"):
        compared(paths, baseline="x")
    with pytest.raises(ConfigError, match=r"no run has 'avg@8'; expected some of .*avg@16"):
        compared(paths, metrics=["avg@8"])


def test_runs_without_evaluation_compare_by_their_training_metrics(tmp_path):
    runs = [
        made_up_run(tmp_path / f"run{i}", settings=more, training={1: spending(9) | {"reward/mean": 0.25 * i}})
        for i, more in enumerate(([], OTHER))
    ]
    found = compare(collect(runs))
    assert found.metric == "reward/mean" and found.difference(found.groups[1], "reward/mean").values == [0.25]
    assert comparison_tables.final_table(found).columns[2] == "reward"
    assert sum("has no evaluation" in flag.text for flag in found.flags) == 2
    assert [table.name for table in comparison_tables.tables(found)][:2] == ["final", "differences"]


def test_metrics_that_are_asked_for_join_the_tables_and_the_page(paths):
    found = compared(paths, metrics=["greedy", "updates"])
    assert found.metric == "greedy" and found.evaluation_metrics[0] == "greedy" and "updates" in found.training_metrics
    assert "updates" in comparison_tables.final_table(found).columns
    assert "updates" in page_content(found)["curves"]


def test_seeds_are_listed_and_unfinished_runs_are_counted(tmp_path):
    runs = [made_up_run(tmp_path / f"{seed}", seed=seed, training={1: spending(1)}) for seed in (0, 5)]
    (runs[0] / "status.json").unlink()
    assert comparison_tables.final_table(compare(collect(runs))).cells[0][1] == "0, 5 (1 unfinished)"


def test_json_and_csv_hold_the_numbers_of_the_comparison(paths):
    found = compared(paths)
    content = json.loads(json.dumps(comparison_content.as_json(found), allow_nan=False))
    assert content["baseline"] == "base" and content["flags"][0]["kind"] == "budget"
    other = content["groups"][1]
    assert other["settings"] == {"explore.num_anchors": 2} and other["runs"][0]["spent"]["sampled_tokens"] == 240
    final = {"table": "final", "group": "other", "metric": "avg@16"}
    assert [row["value"] for row in content["rows"] if final.items() <= row.items()] == [0.7, 0.4]
    [row] = [row for row in content["rows"] if row["table"] == "difference" and row["metric"] == "avg@16"]
    assert (row["low"], row["high"]) == found.difference(found.groups[1], "avg@16").over_seeds
    stream = io.StringIO()
    writer = csv.DictWriter(stream, comparison_content.CSV_COLUMNS)
    writer.writeheader()
    writer.writerows(comparison_content.csv_rows(found))
    rows = list(csv.DictReader(io.StringIO(stream.getvalue())))
    wanted = {"table": "point", "run": "base0", "metric": "avg@16"}
    points = [(r["step"], r["updates"], r["cpu_seconds"], r["value"]) for r in rows if wanted.items() <= r.items()]
    assert points == [("0.0", "0.0", "0.0", "0.2"), ("1.0", "2.0", "10.0", "0.3"), ("3.0", "6.0", "30.0", "0.5")]
    [reached] = [r for r in rows if r["table"] == "reach" and r["run"] == "other0"]
    assert float(reached["updates"]) == pytest.approx(2 * (0.45 - 0.2) / 0.4) and float(reached["value"]) == 0.45
    assert {row["table"] for row in rows} == {"point", "final", "reach", "difference"}


def test_the_curves_of_the_page_are_those_of_the_comparison(paths):
    found = compared(paths)
    page = page_content(found)
    curve = page["curves"]["avg@16"]["cpu_seconds"]
    assert curve["x"] == [0, 10, 20, 30] and curve["groups"][0]["mean"] == pytest.approx([0.2, 0.275, 0.3625, 0.45])
    assert [group["dots"] for group in curve["groups"]] == [[0, 1, 3], [0, 1, 2]]  # the others are interpolated
    assert curve["groups"][1]["range"] == [[0.2, 0.3, 0.4, None], [0.2, 0.6, 0.7, None]]


def test_markdown_shows_hostile_names_as_text(tmp_path):
    name = "a|<img src=x>\x1b[31m`*_"
    runs = [make(tmp_path, group, 0) for group in ("base", "other")]
    text = comparison_content.as_markdown(compare(collect(runs), labels=[name, "b"]))
    assert "<img" not in text.replace("\\<img", "") and "\x1b" not in text and r"a\|\<img src=x\>" in text
    assert "**Before you compare:**" in text and "- **budget**: " in text


@pytest.mark.parametrize(
    ("only_first", "only_second", "p"), [(0, 0, 1.0), (1, 0, 1.0), (5, 5, 1.0), (6, 0, 2 / 64), (1, 5, 14 / 64)]
)
def test_mcnemar_is_the_two_sided_binomial_of_the_discordant_problems(only_first, only_second, p):
    assert mcnemar(only_first, only_second) == mcnemar(only_second, only_first) == pytest.approx(p)
