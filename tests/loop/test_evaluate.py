"""Held-out metrics by their definitions, repeatable, outside the training budget; weights of any run."""

from __future__ import annotations

import dataclasses
from collections import Counter

import jax
import numpy as np
import pytest

from fr3e_jax.configuration import ConfigError, to_yaml
from fr3e_jax.configuration.evaluation_sets import best_metric, set_settings
from fr3e_jax.configuration.schema import Config
from fr3e_jax.data.task import Problem
from fr3e_jax.loop.evaluate import evaluate, summary_of
from fr3e_jax.rewards.grader import Grader
from fr3e_jax.runs.checkpoints import Checkpointer
from fr3e_jax.session.run_weights import load_run_params
from fr3e_jax.verdict import Verdict


def test_metrics_are_means_over_problems_of_greedy_and_sampled_rewards(session, params, tiny_run):
    script = {"test/40": [1, 1, 0, 0], "test/41": [0, 1, 1, 0], "test/42": [0, 0, 0, 0], "test/43": [1, 1, 1, 1]}

    def verifier(problem, response, finished):
        return float(script[problem.id].pop(0))

    metrics = evaluate(tiny_run.graded_by(session, tiny_run.in_order(verifier)), params).metrics
    assert metrics.pop("length/mean") > 1
    assert metrics == pytest.approx(
        {
            "avg@3": (1 / 3 + 2 / 3 + 0 + 1) / 4,
            "pass@1": (1 / 3 + 2 / 3 + 0 + 1) / 4,
            "pass@2": (2 / 3 + 1 + 0 + 1) / 4,  # 1 - C(n - c, 2) / C(n, 2)
            "greedy": 2 / 4,
            "prompts": 4,
            "prompts_too_long": 0,
            "prompts_unspeakable": 0,
            "no_answer": 0,
            "not_graded": 0,
        }
    )


def test_graded_rewards_have_means_and_pass_at_k_counts_what_the_verifier_accepts(session, params, tiny_run):
    verdicts = [Verdict(0.5, "wrong"), Verdict(0.7, "right"), Verdict(0.9, "wrong"), Verdict(0.0, "no_answer")]
    script = verdicts * 4
    metrics = evaluate(tiny_run.graded_by(session, tiny_run.in_order(lambda *case: script.pop(0))), params).metrics
    wanted = {"greedy": 0.5, "avg@3": 1.6 / 3, "pass@1": 1 / 3, "pass@2": 2 / 3}
    assert {name: metrics[name] for name in wanted} == pytest.approx(wanted)


def texts_of(session, params, tiny_run):
    seen = []

    def verifier(problem, response, finished):
        seen.append((problem.id, response, finished))
        return 1.0

    evaluate(tiny_run.graded_by(session, tiny_run.in_order(verifier)), params)
    return [seen[i : i + 4] for i in range(0, len(seen), 4)]


def test_the_first_answer_is_greedy_and_the_noise_of_the_others_is_the_same_every_time(session, params, tiny_run):
    first, second = texts_of(session, params, tiny_run), texts_of(session, params, tiny_run)
    assert first == second
    fewer = texts_of(tiny_run.changed(session, evaluation__prompts=2), params, tiny_run)
    assert fewer == first[:2], "an answer depends on how many problems there are"
    hot = texts_of(tiny_run.changed(session, evaluation__temperature=2.0), params, tiny_run)
    assert [row[0] for row in hot] == [row[0] for row in first] and hot != first
    assert all(len(set(row[1:])) > 1 for row in first)


def test_evaluation_does_not_count_in_the_training_budget(session, params):
    session.sampler.engine.take_counts()
    evaluate(session, params)
    counts = session.sampler.engine.take_counts()
    assert (counts.sampled_tokens, counts.prefill_positions, counts.reused_prefix_positions) == (0, 0, 0)


def test_problems_that_are_too_long_are_left_out(session, params, tiny_run):
    problems = session.task.problems("test")

    class Mixed:
        name = "mixed"

        def problems(self, split):
            return [dataclasses.replace(problem, prompt="1" * 9 + "=") for problem in problems[:3]] + problems[3:5]

    metrics = evaluate(dataclasses.replace(session, task=Mixed()), params).metrics
    assert (metrics["prompts"], metrics["prompts_too_long"]) == (2, 3)


def test_problems_that_cannot_be_encoded_are_left_out_and_named(session, params, capsys):
    problems = session.task.problems("test")

    class Mixed:
        name = "mixed"

        def problems(self, split):
            return [dataclasses.replace(problems[0], prompt="1\ud800="), *problems[1:3]]

    noted = []
    metrics = evaluate(dataclasses.replace(session, task=Mixed()), params, noted.append).metrics
    assert (metrics["prompts"], metrics["prompts_unspeakable"]) == (2, 1)
    assert noted[0] == "1 prompts of the held-out data cannot be encoded and are dropped:"
    assert noted[1].startswith(f"  problem '{problems[0].id}': character '\\ud800' at position 1")


def test_only_the_first_of_many_dropped_prompts_are_named():
    lines = summary_of([f"problem 'p{n}'" for n in range(9)])
    assert lines[0] == "9 prompts of the held-out data cannot be encoded and are dropped:"
    assert lines[1:] == [*(f"  problem 'p{n}'" for n in range(5)), "  and 4 more"]
    assert summary_of([]) == []


class TwoBenchmarks:
    """Three problems of one benchmark, five of another; a prompt of nine digits is too long."""

    name = "two"
    dropped = {}

    def __init__(self, prompts=("1=",) * 3 + ("2=",) * 5):
        self.prompts = prompts

    def problems(self, split):
        return [Problem(f"t/{i}", p, "", {"dataset": "ab"[i > 2]}) for i, p in enumerate(self.prompts)]


def test_several_benchmarks_are_scored_separately_and_weigh_equally(session, params, tiny_run):
    twin = tiny_run.changed(session, evaluation__prompts=4, data__eval=["a", "b"])
    grader = tiny_run.in_order(lambda problem, response, finished: float(problem.extra["dataset"] == "a"))
    metrics = evaluate(tiny_run.graded_by(dataclasses.replace(twin, task=TwoBenchmarks()), grader), params).metrics
    assert metrics["prompts"] == 7, "3 of the one, 4 of the 5 of the other"
    assert (metrics["a/avg@3"], metrics["b/avg@3"], metrics["avg@3"]) == (1, 0, 0.5)
    assert (metrics["a/greedy"], metrics["b/pass@2"], metrics["pass@2"]) == (1, 0, 0.5)


def test_a_set_has_its_own_samples_counts_and_number_of_problems(session, params, tiny_run):
    sets = ["b samples=5 pass_at=1,5 prompts=2"]
    twin = tiny_run.changed(session, evaluation__prompts=4, evaluation__sets=sets, data__eval=["a", "b"])
    seen = Counter()

    def verifier(problem, response, finished):
        seen[problem.extra["dataset"]] += 1
        return float(problem.extra["dataset"] == "a")

    grader = tiny_run.in_order(verifier)
    metrics = evaluate(tiny_run.graded_by(dataclasses.replace(twin, task=TwoBenchmarks()), grader), params).metrics
    assert seen == {"a": 3 * 4, "b": 2 * 6}
    assert metrics["prompts"] == 5
    assert (metrics["a/avg@3"], metrics["b/avg@5"], metrics["b/pass@5"]) == (1, 0, 0)
    assert metrics[best_metric(twin.config.evaluation, twin.config.data.eval)] == metrics["avg"] == 0.5
    assert "avg@3" not in metrics and "pass@5" not in metrics and metrics["pass@1"] == 0.5


def test_a_greedy_only_set_has_one_answer_a_problem_and_no_metric_of_samples(session, params, tiny_run):
    twin = tiny_run.changed(session, evaluation__prompts=4, evaluation__sets=["b samples=0"], data__eval=["a", "b"])
    seen = Counter()

    def verifier(problem, response, finished):
        seen[problem.extra["dataset"]] += 1
        return float(problem.extra["dataset"] == "b")

    grader = tiny_run.in_order(verifier)
    metrics = evaluate(tiny_run.graded_by(dataclasses.replace(twin, task=TwoBenchmarks()), grader), params).metrics
    assert seen == {"a": 3 * 4, "b": 4 * 1}
    assert {name for name in metrics if name.startswith("b/")} == {"b/greedy", "b/length/mean"}
    assert metrics["b/length/mean"] >= 1 and metrics["length/mean"] >= 1
    assert (metrics["a/avg@3"], metrics["b/greedy"], metrics["greedy"]) == (0, 1, 0.5)
    assert metrics[best_metric(twin.config.evaluation, twin.config.data.eval)] == metrics["avg"] == 0.5, (
        "avg@3 of the one, greedy of the other"
    )
    assert not {name for name in metrics if "@" in name} - {"a/avg@3", "a/pass@1", "a/pass@2"}


def test_a_greedy_only_evaluation_ranks_checkpoints_by_the_greedy_answer(session, params, tiny_run):
    twin = tiny_run.changed(session, evaluation__samples=0, evaluation__pass_at=[])
    metrics = evaluate(
        tiny_run.graded_by(twin, tiny_run.in_order(lambda problem, *_: problem.id == "test/40")), params
    ).metrics
    assert metrics[best_metric(twin.config.evaluation, twin.config.data.eval)] == metrics["greedy"] == 1 / 4
    assert not {name for name in metrics if "@" in name or name == "avg"}


def test_a_greedy_only_set_drops_the_usual_pass_at():
    config = Config()
    config.data.eval, config.evaluation.sets = ["a", "b"], ["a samples=0 prompts=9"]
    assert set_settings(config.evaluation, config.data.eval)["a"] == dataclasses.replace(
        config.evaluation, samples=0, pass_at=[], prompts=9
    )


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("a samples=-1", "expected samples: int >= 0"),
        ("a samples=many", "expected samples: int >= 0"),
        ("a samples=0 pass_at=1", "asks for pass@1 of 0 samples"),
        ("a samples=0 top_p=0.95", "gives top_p, which the greedy answer does not read"),
        ("a prompts=0", "expected prompts: int >= 1"),
        ("a samples=4 pass_at=8", "asks for pass@8 of 4 samples"),
        ("a top_p=1.5", "expected top_p: float > 0 and <= 1"),
        ("a temperature=nan", "expected temperature: float > 0"),
        ("a pass_at=1,x", r"expected pass_at: \[int >= 1, ...\]"),
        ("a tempreature=1", "expected one of"),
        ("", "no set ''"),
    ],
)
def test_an_entry_that_cannot_be_used_is_quoted(entry, expected):
    config = Config()
    config.data.eval, config.evaluation.sets = ["a", "b"], [entry]
    with pytest.raises(ValueError, match=expected):
        set_settings(config.evaluation, config.data.eval)


def test_two_splits_of_one_card_are_two_benchmarks(session, params, tiny_run):
    class TwoSplits(TwoBenchmarks):
        def problems(self, split):
            return [Problem(f"t/{'ab'[i > 2]}/{i}", p, "", {"dataset": "t"}) for i, p in enumerate(self.prompts)]

    twin = tiny_run.changed(session, evaluation__prompts=2, data__eval=["t/a", "t/b"])
    grader = tiny_run.in_order(lambda problem, response, finished: float(problem.id < "t/b"))
    metrics = evaluate(tiny_run.graded_by(dataclasses.replace(twin, task=TwoSplits()), grader), params).metrics
    assert metrics["prompts"] == 4, "two of each, not two of both together"
    assert (metrics["t/a/avg@3"], metrics["t/b/avg@3"]) == (1, 0)


def test_a_benchmark_without_a_short_enough_problem_is_named(session, params, tiny_run):
    twin = tiny_run.changed(session, evaluation__prompts=4, data__eval=["a", "b"])
    long = TwoBenchmarks(("1=",) * 3 + ("123456789=",) * 5)
    with pytest.raises(ConfigError, match="the set b has no held-out problem of at most data.max_prompt_tokens=8"):
        evaluate(dataclasses.replace(twin, task=long), params)
    none = TwoBenchmarks(("123456789=",) * 8)
    with pytest.raises(ConfigError, match="task 'two' has no held-out problem of at most data.max_prompt_tokens=8 tok"):
        evaluate(dataclasses.replace(twin, task=none), params)


def test_failures_of_the_grader_and_missing_answers_are_counted(session, params, tiny_run):
    verdicts = iter(
        [Verdict(0.0, "no_answer"), Verdict(0.0, "timeout"), Verdict(0.0, "wrong"), Verdict(1.0, "right")] * 4
    )
    twin = tiny_run.graded_by(session, Grader(lambda *case: next(verdicts)))
    metrics = evaluate(twin, params).metrics
    assert (metrics["no_answer"], metrics["not_graded"]) == (1 / 4, 4)
    assert not twin.grader.take_outcomes(), "an evaluation's outcomes are no training step's"


def trained_params(path, session):
    with Checkpointer(path / "checkpoints", read_only=True) as checkpoints:
        arrays, _ = checkpoints.restore(
            checkpoints.latest_step(), session.model.train_programs(session.config).abstract_arrays()
        )
    return arrays["params"]


def test_weights_of_a_run_load_with_any_optimizer(finished_run, session, tiny_run):
    other = tiny_run.changed(session, optimizer__warmup_updates=3, optimizer__max_grad_norm=0.0)
    found, step = load_run_params(other, finished_run)
    assert step == 4
    start = session.model.fresh_params(session.config)
    for left, right, before in zip(
        *map(jax.tree.leaves, (found, trained_params(finished_run, session), start)), strict=True
    ):
        assert np.asarray(left).tobytes() == np.asarray(right).tobytes()
        assert left.sharding.is_equivalent_to(before.sharding, left.ndim)
    assert not np.array_equal(found["embedding"], start["embedding"])


def test_reading_a_run_leaves_its_unfinished_checkpoint_alone(finished_run, session):
    half = finished_run / "checkpoints" / "5.orbax-checkpoint-tmp-0"
    half.mkdir()
    try:
        before = sorted(path.name for path in finished_run.rglob("*"))
        assert load_run_params(session, finished_run)[1] == 4
        assert sorted(path.name for path in finished_run.rglob("*")) == before
    finally:
        half.rmdir()


def test_a_run_without_weights_is_refused(session, tmp_path, tiny_run):
    with pytest.raises(FileNotFoundError, match="holds no run"):
        load_run_params(session, tmp_path)
    (tmp_path / "config.yaml").write_text(to_yaml(session.config))
    with pytest.raises(FileNotFoundError, match="checkpoints does not exist"):
        load_run_params(session, tmp_path)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(FileNotFoundError, match="holds no checkpoint yet"):
        load_run_params(session, tmp_path)
