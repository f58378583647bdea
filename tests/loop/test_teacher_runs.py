"""Runs with a teacher: alone without any right answer, on branches, resumed; a teacher that is the policy."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from run_comparison import assert_same_run, newest
from stops import nth, run_with_stops

from fr3e_jax.cli import main
from fr3e_jax.configuration import ConfigError, load_config
from fr3e_jax.configuration.teacher_section import TeacherConfig
from fr3e_jax.learning.experience import TrainingBranch, TrainingTrunk
from fr3e_jax.learning.teaching import taught_tokens, teacher_credit
from fr3e_jax.loop.train import train
from fr3e_jax.runs.checkpoint_content import flatten_arrays
from fr3e_jax.runs.metrics import read_metrics
from fr3e_jax.session.session import open_session
from fr3e_jax.verbs.model_directory import save_model

ROOT = Path(__file__).parents[2]
GRPO = {"explore__enabled": False, "evaluation__start": False, "evaluation__every": 0, "evaluation__end": False}


def write_model(session, directory):
    fresh = session.model.fresh_params(session.config)
    save_model(session, fresh | {"embedding": fresh["embedding"] * 20}, directory)
    return str(directory)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory, tiny_run) -> str:
    """A wider and deeper network of another seed, with clear preferences."""
    sizes = {"model__hidden_size": 32, "model__num_layers": 2, "model__num_heads": 4}
    return write_model(open_session(tiny_run.config(seed=7, **sizes)), tmp_path_factory.mktemp("teacher") / "model")


def trained(path):
    return read_metrics(path / "metrics.jsonl", kind="train")


CARD = """
name: questions
title: Questions without answers
licence: none
verifier: none
splits: {train: {files: [questions.jsonl], fields: {question: question}}}
"""


@pytest.mark.parametrize("place", ["loss", "advantage"])
def test_a_teacher_alone_teaches_where_no_answer_is_right_and_no_other_goes_on(tiny_run, teacher, tmp_path, place):
    """A task whose rewards are all 0, and a card of questions without answers."""
    (tmp_path / "card.yaml").write_text(CARD)
    (tmp_path / "questions.jsonl").write_text("".join(f'{{"question": "{n}*2="}}\n' for n in range(40)))
    cards = {"data__task": "datasets", "data__train": [f"{tmp_path}/card.yaml"], "data__root": str(tmp_path)}
    data = {"data__task": f"{tiny_run.task}:NothingRight"} if place == "loss" else cards
    settings = GRPO | data | {"teacher__path": teacher, "teacher__alone": True, "teacher__place": place}
    config = tiny_run.config(**settings, training__max_steps=8, optimizer__learning_rate=3e-2)
    assert train(config, tmp_path / "run") == 0
    records = trained(tmp_path / "run")
    divergences = [record["teacher/reverse_kl"] for record in records]
    assert all(record["prompts/rejected"] == 0 and record["teacher/share"] == 1 for record in records)
    assert divergences[-1] < 0.8 * divergences[0]
    assert (place == "advantage") == ("teacher/reverse_kl_quarter_4" in records[0])
    arrays, host = newest(tmp_path / "run", open_session(config))
    assert not [name for name in flatten_arrays(arrays) if "teacher" in name]
    assert len(host["identity"]["teacher_weights"]) == 16
    config.teacher.path = write_model(open_session(tiny_run.config(seed=8)), tmp_path / "other")
    with pytest.raises(ConfigError, match="teacher: teacher weights: .* in the checkpoint"):
        train(config, tmp_path / "run", resume=True)


def test_branches_are_taught_at_uncertain_tokens_and_a_stopped_run_goes_on_bit_for_bit(
    tiny_run, teacher, tmp_path, monkeypatch
):
    """No response is right, so that every state trains on the teacher's word alone."""
    settings = {"teacher__path": teacher, "teacher__entropy_share": 0.3, "teacher__param_dtype": "int8"}
    settings["data__task"] = f"{tiny_run.task}:NothingRight"
    config = tiny_run.config(**settings, training__max_steps=3, training__epochs=2)
    assert train(config, tmp_path / "whole") == 0
    for record in trained(tmp_path / "whole"):
        assert 0.3 <= record["teacher/share"] < 0.35
    run_with_stops(tmp_path / "run", config, monkeypatch, [nth("explore", 8)])
    assert_same_run(tmp_path / "run", tmp_path / "whole", open_session(config))


def test_blocks_without_credit_are_taught(tiny_run, teacher, tmp_path):
    settings = {"teacher__path": teacher, "teacher__alone": True, "data__task": f"{tiny_run.task}:NothingRight"}
    settings |= {"explore__block_credit": True, "explore__train_states": False, "training__max_steps": 1}
    assert train(tiny_run.config(**settings, rollout__max_rounds_without_signal=2), tmp_path / "run") == 0
    (record,) = trained(tmp_path / "run")
    assert record["teacher/share"] == 1 and record["gradient_norm/max"] > 0


def test_a_teacher_that_is_the_policy_changes_nothing(tiny_run, tmp_path):
    path = write_model(open_session(tiny_run.config()), tmp_path / "model")
    same = {"model__path": path, "teacher__path": path, "teacher__alone": True, "training__max_steps": 1}
    assert train(tiny_run.config(**GRPO, **same, training__mini_batch_rollouts=20), tmp_path / "run") == 0
    (record,) = trained(tmp_path / "run")
    assert record["teacher/reverse_kl"] == record["gradient_norm/max"] == 0


def test_the_teachers_word_and_rewards_add_up():
    """Advantages by hand, where a fifth of the tokens is taught."""
    f = np.float32
    branch = lambda fork, rewards, mask=None: TrainingBranch(
        fork, np.arange(len(rewards)), f(rewards), f(rewards), loss_mask=mask
    )
    tools = np.array([True, False, True])
    batch = [TrainingTrunk(np.arange(6), [branch(2, [1, 1]), branch(4, [2, 2, 2], tools)], 0, prompt_tokens=2)]
    entropies = [[f([0.1, 0.9]), f([0.2, 5.0, 0.8])]]
    taught = taught_tokens(0.5, batch, entropies)
    assert [row.tolist() for row in taught[0]] == [[False, True], [False, False, True]]
    old, theirs = [[f([-1, -2]), f([-3, -4, -5])]], [[f([-2, -1]), f([-3, -9, -99])]]
    credit = teacher_credit(TeacherConfig(weight=0.5), batch, None, old, theirs, taught)
    assert [row.tolist() for row in credit.advantages[0]] == [[1, 1.5], [2, 2, -8]]
    assert credit.metrics["teacher/reverse_kl"] == (1 - 1 + 0 + 20) / 4  # bounded; a tool's token does not count
    assert credit.metrics["teacher/share"] == 0.5
    assert credit.metrics["teacher/reverse_kl_quarter_1"] == 1 and credit.metrics["teacher/reverse_kl_quarter_4"] == 20
    alone = teacher_credit(TeacherConfig(alone=True), batch, None, old, theirs, None)
    assert [row.tolist() for row in alone.advantages[0]] == [[-1, 1], [0, -5, -20]]
    assert teacher_credit(TeacherConfig(alone=True), batch, None, old, None, None).metrics == {}


@pytest.mark.slow
def test_the_page_on_teachers_does_what_it_says(tmp_path, monkeypatch):
    """Its two commands, with fewer steps, and its recipe."""
    page = (ROOT / "docs" / "users" / "teacher.md").read_text()
    commands = re.findall(r"^fr3e ((?:sft|train) [^#\n]*)", page, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["sft", "train"]
    for folder in ("configs", "warm_starts"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    fewer = ["evaluation.start=false", "evaluation.end=false", "runtime.console=none", "runtime.report=false"]
    fewer += ["training.max_sampled_tokens=0", "training.max_steps=1", "sft.steps=2", "runtime.trackers=[]"]
    for command in commands:
        assert main([*command.split(), *fewer, f"runtime.run_dir={command.split()[0]}"]) == 0
    (record,) = trained(tmp_path / "train")
    assert record["teacher/reverse_kl"] > 0
    (recipe,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "configs" / "mine.yaml").write_text(recipe)
    config = load_config(tmp_path / "configs" / "mine.yaml")
    assert config.teacher.alone and config.teacher.param_dtype == "int8" and config.algorithm == "grpo+teacher"
