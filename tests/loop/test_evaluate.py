"""Held-out metrics by their definitions, repeatable, outside the training budget; weights of any run."""

from __future__ import annotations

import dataclasses
import json

import jax
import numpy as np
import pytest

from fr3e_jax.cli import main
from fr3e_jax.configuration import to_yaml
from fr3e_jax.loop.checkpoints import Checkpointer
from fr3e_jax.loop.evaluate import evaluate, load_run_params
from fr3e_jax.rewards.verifier import Grader


def test_metrics_are_means_over_problems_of_greedy_and_sampled_rewards(session, params):
    script = {"test/40": [1, 1, 0, 0], "test/41": [0, 1, 1, 0], "test/42": [0, 0, 0, 0], "test/43": [1, 1, 1, 1]}

    def verifier(problem, response, finished):
        return float(script[problem.id].pop(0))

    metrics = evaluate(dataclasses.replace(session, grader=Grader(verifier)), params)
    assert metrics.pop("length/mean") > 1
    assert metrics == pytest.approx(
        {
            "avg@3": (1 / 3 + 2 / 3 + 0 + 1) / 4,
            "pass@1": (1 / 3 + 2 / 3 + 0 + 1) / 4,
            "pass@2": (2 / 3 + 1 + 0 + 1) / 4,  # 1 - C(n - c, 2) / C(n, 2)
            "greedy": 2 / 4,
            "prompts": 4,
        }
    )


def texts_of(session, params):
    seen = []

    def verifier(problem, response, finished):
        seen.append((problem.id, response, finished))
        return 1.0

    evaluate(dataclasses.replace(session, grader=Grader(verifier)), params)
    return [seen[i : i + 4] for i in range(0, len(seen), 4)]


def test_the_first_answer_is_greedy_and_the_noise_of_the_others_is_the_same_every_time(session, params, tiny):
    first, second = texts_of(session, params), texts_of(session, params)
    assert first == second
    fewer = texts_of(tiny.changed(session, evaluation__prompts=2), params)
    assert fewer == first[:2], "an answer depends on how many problems there are"
    hot = texts_of(tiny.changed(session, evaluation__temperature=2.0), params)
    assert [row[0] for row in hot] == [row[0] for row in first] and hot != first
    assert all(len(set(row[1:])) > 1 for row in first)


def test_evaluating_is_no_part_of_the_training_budget(session, params):
    session.engine.take_counts()
    evaluate(session, params)
    counts = session.engine.take_counts()
    assert (counts.sampled_tokens, counts.prefill_positions, counts.reused_prefix_positions) == (0, 0, 0)


def test_problems_that_are_too_long_are_left_out(session, params, tiny):
    problems = session.task.problems("test")

    class Mixed:
        name = "mixed"

        def problems(self, split):
            return [dataclasses.replace(problem, prompt="1" * 9 + "=") for problem in problems[:3]] + problems[3:5]

    assert evaluate(dataclasses.replace(session, task=Mixed()), params)["prompts"] == 2


def trained_params(path, session):
    options = {"keep_last": 1, "keep_best": 0, "best_metric": "", "read_only": True}
    with Checkpointer(path / "checkpoints", **options) as checkpoints:
        arrays, _ = checkpoints.restore(checkpoints.latest_step(), session.train_programs().abstract_arrays())
    return arrays["params"]


def test_weights_of_a_run_load_whatever_its_optimizer_was(finished_run, session, tiny):
    other = tiny.changed(session, optimizer__warmup_updates=3, optimizer__max_grad_norm=0.0)
    found, step = load_run_params(other, finished_run)
    assert step == 4
    start = session.fresh_params()
    for left, right, before in zip(
        *map(jax.tree.leaves, (found, trained_params(finished_run, session), start)), strict=True
    ):
        assert np.asarray(left).tobytes() == np.asarray(right).tobytes()
        assert left.sharding.is_equivalent_to(before.sharding, left.ndim)
    assert not np.array_equal(found["embedding"], start["embedding"])


def test_reading_a_run_leaves_what_it_is_writing(finished_run, session):
    half = finished_run / "checkpoints" / "5.orbax-checkpoint-tmp-0"
    half.mkdir()
    try:
        before = sorted(path.name for path in finished_run.rglob("*"))
        assert load_run_params(session, finished_run)[1] == 4
        assert sorted(path.name for path in finished_run.rglob("*")) == before
    finally:
        half.rmdir()


def test_a_run_without_weights_says_so(session, tmp_path, tiny):
    with pytest.raises(FileNotFoundError, match="holds no run"):
        load_run_params(session, tmp_path)
    (tmp_path / "config.yaml").write_text(to_yaml(session.config))
    with pytest.raises(FileNotFoundError, match="checkpoints does not exist"):
        load_run_params(session, tmp_path)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(FileNotFoundError, match="holds no checkpoint yet"):
        load_run_params(session, tmp_path)


def test_fr3e_eval_of_a_run_gives_what_the_run_found_at_its_end(finished_run, tmp_path, tiny, capsys):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(to_yaml(tiny.config(model__hidden_size=32)))  # the run's own model settings win
    assert main(["eval", str(recipe), "--run", str(finished_run)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((finished_run / "summary.json").read_text())["after"]
    saved = finished_run / "evaluation_step_000004.json"
    assert json.loads(saved.read_text()) == printed
    saved.unlink()
