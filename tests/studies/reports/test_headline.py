"""The verdict, the alerts and the charts of a page, by rules that are checked by hand."""

import math
import re

import pytest
from made_up_runs import made_up_run, spending

from fr3e_jax.rewards.verifier import OUTCOMES
from fr3e_jax.runs.declared_metrics import find
from fr3e_jax.studies.analysis.stored_run import StoredRun
from fr3e_jax.studies.reports.headline import CHECKED, alerts, headline, verdict
from fr3e_jax.studies.reports.run_charts import CHARTS, charts

GOOD = {
    "entropy/mean": 1.0,
    "logprob_gap/mean": 1e-4,
    "clip/low": 0.01,
    "clip/high": 0.01,
    "learning_rate": 1e-5,
    "verifier/right": 5,
    "verifier/wrong": 5,
    "verifier/no_answer": 1,
    "length/finished": 0.9,
    "prompts/kept": 5,
    "prompts/rejected": 5,
    "data/dropped_too_long": 0,
}


def scored(before, after, **more):
    return [{"step": 0, "avg@4": before, "prompts": 100}, {"step": 9, "avg@4": after, "prompts": 100, **more}]


def trained(**courses):
    """Ten steps; a course is a list of ten values, or the value of all steps."""
    return [{"step": n + 1} | {k: v[n] if isinstance(v, list) else v for k, v in courses.items()} for n in range(10)]


PROMPTS = {"base_groups/all_right": 1, "base_groups/mixed": 2, "base_groups/all_wrong": 7}


def test_a_change_of_the_same_problems_is_measured_by_its_own_error():
    evaluations = scored(0.4, 0.5)
    assert verdict([], evaluations).startswith("no clear change")
    assert verdict([], evaluations, {"avg": 0.02, "greedy": 9.0}).startswith("learned: avg@4 40.0% → 50.0%")
    assert verdict([], evaluations, {"avg": 0.06, "greedy": 0.0}).startswith("no clear change")


@pytest.mark.parametrize(
    ("training", "evaluations", "sentence"),
    [
        ([], [], "no score was measured"),
        ([], scored(0.1, 0.5), "learned: avg@4 10.0% → 50.0% at step 9"),
        ([], scored(0.5, 0.1), "lost: avg@4 50.0% → 10.0% at step 9"),
        ([], scored(0.1, 0.12), "no clear change: avg@4 10.0% → 12.0% at step 9"),
        ([], scored(0.1, None)[:1], "avg@4 10.0% before training, not evaluated since"),
        ([], scored(0.1, math.nan), "avg@4 10.0% before training, not evaluated since"),
        (
            [],
            [*scored(0.1, 0.9), {"step": 12, "avg@4": 0.4, "prompts": 100}],
            "learned: avg@4 10.0% → 40.0% at step 12 (best 90.0% at step 9)",
        ),
        (trained(**{"reward/mean": [n / 10 for n in range(10)]}), [], "reward 0 → 0.9 in training; no held-out score"),
        (trained(**{"loss/supervised": 2.0}), [], "loss 2 → 2 in training; no held-out score"),
        ([{"step": 1, "reward/mean": 0.3}], [], "reward 0.3 at the only step that has it; no held-out score"),
        (trained(**{"reward/mean": 0.5}), scored(None, 0.1)[1:], "avg@4 10.0% at step 9, not evaluated before"),
        (
            trained(**{"entropy/mean": [1.0, *[0.7] * 9]}, **PROMPTS),
            scored(0.1, 0.5),
            "learned: avg@4 10.0% → 50.0% at step 9; entropy fell by 30% (1 → 0.7 nats); "
            "70% of the prompts are still all wrong",
        ),
        (
            trained(**PROMPTS | {"base_groups/all_right": 11}),
            scored(0.1, 0.5),
            "learned: avg@4 10.0% → 50.0% at step 9; 55% of the prompts are all right",
        ),
        (
            trained(**PROMPTS | {"base_groups/all_wrong": 0, "base_groups/all_right": 0}),
            scored(0.1, 0.5),
            "learned: avg@4 10.0% → 50.0% at step 9",
        ),
    ],
)
def test_verdict_says_what_the_numbers_say(training, evaluations, sentence):
    assert verdict(training, evaluations) == sentence


@pytest.mark.parametrize(
    ("change", "text", "place"),
    [
        ({"entropy/mean": [1.0, *[0.1] * 9]}, "the entropy collapsed: 1 → 0.1 nats", "entropy/mean"),
        ({"logprob_gap/mean": 0.2}, "sampler and trainer differ by 0.2 nats a token", "logprob_gap/mean"),
        ({"clip/low": 0.05, "clip/high": 0.2}, "25% of the trained tokens are clipped", "clip/low"),
        ({"learning_rate": 0.0}, "the learning rate is 0 in 10 of 10 steps", "learning_rate"),
        ({"verifier/timeout": [0] * 9 + [2], "verifier/error": 1}, "12 responses have no verdict", "trouble"),
        ({"verifier/no_answer": 10}, "50% of the responses have no answer", "verifier/no_answer"),
        ({"length/finished": 0.5}, "50% of the responses are cut at the length cap", "cut"),
        ({"prompts/kept": 0}, "0% of the prompts teach", "prompts/kept"),
        ({"data/dropped_too_long": [0] * 9 + [3]}, "3 prompts were left out: longer than", "data.max_prompt_tokens"),
        ({"data/dropped_unspeakable": 4}, "4 prompts were left out: the tokenizer", "model.tokenizer"),
        ({"loss/policy": [0.1] * 9 + [math.nan]}, "loss/policy: a value is not finite", "loss/policy"),
    ],
)
def test_each_fault_of_a_run_is_an_alert_that_leads_to_its_place(change, text, place):
    (alert,) = alerts(trained(**GOOD | change), scored(0.1, 0.2))
    assert alert["text"].startswith(text) and place in alert["place"].values()


def test_a_healthy_run_has_no_alert_and_neither_has_one_without_metrics():
    assert list(alerts(trained(**GOOD), scored(0.1, 0.2))) == list(alerts([], [])) == []
    assert list(alerts(trained(**{"learning_rate": [0.0] * 5 + [1e-5] * 5}), [])) == []  # a warm-up


def test_held_out_faults_are_alerts():
    late = scored(0.1, 0.2, no_answer=0.75, not_graded=3, prompts_too_long=2)
    assert [alert["text"].partition(":")[0] for alert in alerts(trained(**GOOD), late)] == [
        "3 responses have no verdict",
        "75% of the held-out responses have no answer, step 9",
        "2 prompts were left out",
    ]


def test_facts_and_progress_come_from_the_files_of_the_run(tmp_path):
    training = {step: spending(100, cpu=20.0 * step) for step in (1, 2, 3)}
    settings = ["explore.enabled=false", "training.max_steps=7", "training.max_sampled_tokens=1000"]
    run = made_up_run(tmp_path / "run", training=training, finished=False, settings=settings)
    shown = headline(StoredRun.open(run))
    facts = dict(shown["facts"])
    assert (facts["method"], facts["task"], facts["took"], facts["code"]) == ("GRPO++", "order", "30 s", "0123456789")
    assert (facts["training steps"], facts["sampled tokens"]) == ("3 of 7", "300 of 1,000")
    assert shown["alerts"][0]["text"].startswith("the run was interrupted")
    assert facts["state"] == "interrupted (no status was written)"


def test_the_page_names_only_the_checks_that_the_run_has_numbers_for(tmp_path):
    supervised = {step: {"loss/supervised": 1.0, "learning_rate": 1e-5} for step in (1, 2)}
    fine_tuned = made_up_run(tmp_path / "sft", training=supervised)
    trained = made_up_run(tmp_path / "train", training={1: GOOD, 2: GOOD})
    assert headline(StoredRun.open(fine_tuned))["checked"] == ["learning rate"]
    assert headline(StoredRun.open(trained))["checked"] == list(CHECKED)


@pytest.mark.parametrize(
    ("settings", "method"),
    [
        (["explore.enabled=true", "shaping.steps=[entropy_advantage]"], "FR3E+ENTROPY_ADVANTAGE"),
        (["explore.enabled=false", "advantage.base_estimator=gae"], "PPO"),
        (["explore.enabled=false", "loss.ratio=sequence", "rollout.reject_degenerate=false"], "GSPO"),
    ],
)
def test_a_run_has_the_name_of_its_method_before_it_ends(tmp_path, settings, method):
    run = made_up_run(tmp_path / "run", training={1: spending(100)}, finished=False, settings=settings)
    assert dict(headline(StoredRun.open(run))["facts"])["method"] == method


def test_every_metric_is_in_one_chart():
    names = [
        "step",
        "reward/mean",
        "clip/low",
        "returns/kept",
        "returns/depth",
        "tools/error",
        "mine",
        "my/own",
        "rate",
    ]
    made = charts({"train": names, "eval": ["step", "greedy", "length/mean", "aime/avg@4", "odd"]})
    drawn = [(chart["kind"], name) for chart in made for name in chart["metrics"]]
    assert sorted(drawn) == sorted(
        [("train", name) for name in names[1:]]
        + [("eval", name) for name in ("greedy", "length/mean", "aime/avg@4", "odd")]
    )
    titles = [chart["title"] for chart in made]
    assert "returns/kept (successes)" in titles and "returns/depth (share)" in titles and "my/own" in titles


def test_stacked_colours_belong_to_their_metrics():
    (chart,) = charts({"train": ["base_groups/all_wrong", "base_groups/mixed"]})
    assert chart["metrics"] == ["base_groups/mixed", "base_groups/all_wrong"]
    assert [chart["look"]["colours"][name] for name in chart["metrics"]] == ["between", "wrong"]


def test_each_pattern_of_the_charts_finds_a_declared_metric():
    plain = {"train": "reward/mean rewards/f value/S_1", "eval": "greedy aime/avg@4"}
    from fr3e_jax.runs.metric_meanings import GROUPS

    for title, kind, pattern, look in CHARTS:
        names = [row.name for group in GROUPS if group.kind == kind for row in group.metrics] + plain[kind].split()
        assert any(re.fullmatch(pattern, name) for name in names), title
        assert all(find(name, kind) for name in look.get("colours", {})), title


def test_each_outcome_has_a_colour_of_its_own_whatever_others_the_run_has():
    (chart,) = charts({"train": ["step", "verifier/timeout"], "eval": []})
    assert chart["look"]["colours"]["verifier/timeout"] == "trouble"
    assert set(chart["look"]["colours"]) == {f"verifier/{name}" for name in OUTCOMES}
    assert len(set(chart["look"]["colours"].values())) == len(OUTCOMES)
