"""Rejection-sampling fine-tuning as a run: it trains on the selected responses, resumes exactly, and leaves a model."""

from __future__ import annotations

import json
import shutil

import jax
import numpy as np
import pytest
from process_group import Group

from fr3e_jax.cli import main
from fr3e_jax.configuration import ConfigError
from fr3e_jax.runs.metrics import read_metrics, without_timing
from fr3e_jax.runs.rollout_parts import rollout_path
from fr3e_jax.runs.rollout_store import read_rollouts
from fr3e_jax.runs.run_directory import RunDirectory
from fr3e_jax.session.run_weights import load_run_params
from fr3e_jax.session.session import open_session
from fr3e_jax.verbs.supervised.rejection_sampling import rft

SETTINGS = {
    "rft__prompts": 4,
    "training__mini_batch_rollouts": 4,
    "optimizer__learning_rate": 2e-2,
    "rft__negative_share": 0.2,
    "evaluation__prompts": 2,
    "evaluation__every": 0,
}


def test_an_environment_is_refused_with_the_way_out(tiny_run):
    with pytest.raises(ConfigError, match="an episode has neither an answer nor a verifier; train with fr3e train"):
        rft(tiny_run.config(environment__kind="task", environment__max_observation_tokens=3))


def run_of(folder, tiny_run, **settings):
    path = folder / "run"
    assert rft(tiny_run.config(**SETTINGS | settings), path) == 0
    return path


@pytest.fixture(scope="module")
def one_update(tmp_path_factory, tiny_run):
    """An iteration of one update."""
    return run_of(tmp_path_factory.mktemp("rft"), tiny_run, rft__iterations=1, training__mini_batch_rollouts=20)


def test_an_update_is_cross_entropy_on_the_responses_that_are_kept(one_update, session, tiny_run):
    (metrics,) = read_metrics(one_update / "metrics.jsonl", kind="train")
    records = read_rollouts(rollout_path(RunDirectory(one_update), 1))
    kept = [record for record in records if record.kept]
    right = sum(record.outcome == "right" for record in kept)
    assert (len(records), metrics["rft/sampled"], metrics["updates"]) == (16, 16, 1)
    assert (metrics["rft/selected_right"], metrics["rft/selected_wrong"]) == (right, len(kept) - right)
    assert 0 < len(kept) < 16 and all(record.finished for record in kept)
    losses = []
    for record in kept:
        prompt, ids = record.prompt_ids, record.token_ids
        logits = tiny_run.full_logits(session, session.model.fresh_params(session.config), [*prompt, *ids])[
            len(prompt) - 1 : -1
        ]
        losses += [-row[token] for row, token in zip(tiny_run.log_softmax(logits), ids, strict=True)]
    assert metrics["loss/supervised"] == pytest.approx(np.mean(losses), abs=1e-5)
    assert metrics["tokens/loss_tokens"] == len(losses)
    assert metrics["tokens/sampled_tokens"] == sum(len(record.token_ids) for record in records)


def test_an_evaluation_counts_the_calls_of_its_own_responses(tmp_path, tiny_run):
    (tmp_path / "tool.py").write_text("def reply(call):\n    return '+-*'[: 1 + len(call) % 3]\n")
    marks = {"tools__begin": "5", "tools__end": "5", "tools__result": "({output}3=", "tools__max_output_tokens": 4}
    tool = {"tools__kind": f"{tmp_path}/tool.py:reply", "tools__max_calls": 1} | marks
    run = run_of(tmp_path, tiny_run, **tool, rft__iterations=1, evaluation__every=1, rft__prompts=12)
    held_out = read_metrics(run / "metrics.jsonl", kind="eval")[-1]
    records = read_rollouts(run / "rollouts" / f"eval_{held_out['step']:06}.jsonl.gz")
    calls = sum(len(record.answers) for record in records) / len(records)
    assert held_out["tools/calls_per_rollout"] == pytest.approx(calls)
    (trained,) = read_metrics(run / "metrics.jsonl", kind="train")
    assert trained["tools/calls_per_rollout"] > 0


@pytest.mark.slow
def test_two_processes_store_what_one_does_a_run_in_parts_and_fr3e_eval_in_one_file(one_update, tmp_path, tiny_run):
    group = Group(tmp_path, tiny_run, **SETTINGS | {"rft__iterations": 1, "training__mini_batch_rollouts": 20})
    assert group.run(2, verb="rft") == [0, 0], group.logs()
    settings = ["--run", str(group.run_dir), f"runtime.output_dir={tmp_path}"]
    assert group.run(2, *settings, verb="eval") == [0, 0], group.logs()
    (evaluated,) = (group.run_dir / "evaluations").iterdir()
    run = group.run_dir
    for stem, step, folder in [("step", 1, run), ("eval", 0, run), ("eval", 1, run), ("eval", 1, evaluated)]:
        path = rollout_path(RunDirectory(folder), step, stem=stem)
        ends = [""] if folder == evaluated else [f".{index}-of-2" for index in range(2)]
        assert {file.name for file in path.parent.rglob(f"{stem}_{step:06d}.*")} == {
            f"{stem}_{step:06d}{end}.jsonl.gz" for end in ends
        }
        wanted = read_rollouts(rollout_path(RunDirectory(one_update), step, stem=stem))
        for rollout, expected in zip(read_rollouts(path), wanted, strict=True):
            for name in ("id", "token_ids", "reward", "outcome", "kept", "response"):
                assert getattr(rollout, name) == getattr(expected, name), f"{name} of rollout {expected.id}"


def test_the_final_model_can_start_another_run(one_update, session, tiny_run):
    summary = json.loads((one_update / "summary.json").read_text())
    assert (summary["algorithm"], summary["iterations"], summary["updates"]) == ("rft", 1, 1)
    assert {"avg@3", "greedy"} <= summary["before"].keys() & summary["after"].keys()
    again = open_session(tiny_run.config(model__path=str(one_update / "model")))
    trained, step = load_run_params(session, one_update)
    assert step == 1
    for ours, saved in zip(
        jax.tree.leaves(again.model.fresh_params(again.config)), jax.tree.leaves(trained), strict=True
    ):
        np.testing.assert_array_equal(ours, saved)


def test_a_run_without_right_responses_ends_with_its_counts(tmp_path, tiny_run, capsys):
    task = f"{tiny_run.task}:NothingRight"
    config = tiny_run.config(**SETTINGS, data__task=task)
    assert rft(config, tmp_path / "run") == 1
    message = capsys.readouterr().err
    assert (
        "stopped at step 0: iteration 1: of 16 responses 0 were right" in message
        and "raise rft.prompts (now 4)" in message
    )
    assert not (tmp_path / "run" / "model").exists()


def test_a_resumed_run_says_what_differs_keeps_the_former_settings_and_refuses_another_seed(
    one_update, tmp_path, capsys
):
    run = shutil.copytree(one_update, tmp_path / "run")
    former = (run / "config.yaml").read_bytes()
    command = ["rft", str(one_update / "config.yaml"), "--resume", str(run)]
    assert main([*command, "data.seed=3"]) == 2
    assert "data.seed: 0 in the checkpoint, 3 now. Put them back" in capsys.readouterr().err
    assert (run / "config.yaml").read_bytes() == former
    assert main([*command, "optimizer.learning_rate=0.01"]) == 0
    assert capsys.readouterr().err == "fr3e: optimizer.learning_rate: 0.02 in the checkpoint, 0.01 now\n"
    assert (run / "config.step_000001.yaml").read_bytes() == former
    assert main([*command, "data.seed=3", "--allow-changes"]) == 0
    capsys.readouterr()
    assert main(["train", *command[1:]]) == 2
    assert f"{run} is a run of fr3e rft; continue it with fr3e rft RECIPE --resume {run}" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked",
    [2 * 4 + 3, 2 * 4 + 16 + 3, 2 * 4 + 16 + 2 * 4 + 3],
    ids=["first iteration", "evaluation between them", "second iteration"],
)
def test_a_stopped_and_resumed_run_equals_an_uninterrupted_one(tmp_path, tiny_run, monkeypatch, session, asked):
    """SIGTERM while responses are graded: after two problems of the first evaluation, with 4 answers each."""
    settings = {"checkpoint__every": 2, "evaluation__every": 1, "optimizer__learning_rate": 1e-3}
    whole, path = run_of(tmp_path / "whole", tiny_run, **settings), tmp_path / "run"
    monkeypatch.setenv("FR3E_TEST_SIGNAL", f"SIGTERM {asked}")
    assert rft(tiny_run.config(**SETTINGS | settings), path) == 0
    assert not (path / "summary.json").exists()
    monkeypatch.delenv("FR3E_TEST_SIGNAL")
    assert rft(tiny_run.config(**SETTINGS | settings), path, resume=True) == 0
    found, wanted = ([without_timing(r) for r in read_metrics(run / "metrics.jsonl")] for run in (path, whole))
    assert found == wanted
    assert [r["kind"] for r in wanted] == ["eval", "train", "eval", "train", "eval"]
    for left, right in zip(*(jax.tree.leaves(load_run_params(session, run)[0]) for run in (path, whole)), strict=True):
        assert np.asarray(left).tobytes() == np.asarray(right).tobytes()
    stored = [sorted(file.name for file in (run / "rollouts").iterdir()) for run in (path, whole)]
    assert stored[0] == stored[1] and len([name for name in stored[0] if name.startswith("step_")]) == 2
    assert rft(tiny_run.config(**SETTINGS | settings), path, resume=True) == 0, "a finished run may be resumed"
    assert [without_timing(record) for record in read_metrics(path / "metrics.jsonl")] == wanted
