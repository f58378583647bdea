"""A resumed run says what has changed since its checkpoint, and refuses to become another run."""

from __future__ import annotations

import shutil

import pytest

from fr3e_jax.cli import main
from fr3e_jax.configuration import ConfigError, to_yaml
from fr3e_jax.loop.train import train
from fr3e_jax.runs.run_directory import RunDirectory
from fr3e_jax.session.checkpoint_changes import changes, missing_records, refuse_another_run


@pytest.fixture
def copied(finished_run, tmp_path):
    """A finished run of four steps that a test may change."""
    return shutil.copytree(finished_run, tmp_path / "run")


def test_other_held_out_data_and_another_tokenizer_are_refused_and_other_files_only_named():
    saved = {
        "settings": {},
        "network": {},
        "training_data": "9 problems, a",
        "tokenizer": "24 tokens, a",
        "held_out_data": {"aime24/test": "30 problems, a", "math500/test": "500 problems, a"},
        "files": {"data.verifier": "a", "tools.kind": "a"},
    }
    now = saved | {
        "tokenizer": "25 tokens, a",
        "held_out_data": {"aime24/test": "30 problems, b", "gsm8k/test": "9 problems, a"},
        "files": {"data.task": "c", "data.verifier": "b", "tools.kind": "a"},
    }
    *refused, task, verifier = changes(saved, now)
    assert refused == [
        "tokenizer: 24 tokens, a in the checkpoint, 25 tokens, a now",
        "held-out data aime24/test: 30 problems, a in the checkpoint, 30 problems, b now",
        "held-out data gsm8k/test: absent in the checkpoint, 9 problems, a now",
        "held-out data math500/test: 500 problems, a in the checkpoint, absent now",
    ]
    assert task == "file of data.task: absent in the checkpoint, c now"
    assert verifier == "file of data.verifier: a in the checkpoint, b now"
    refuse_another_run([task, verifier], allowed=False)
    for line in refused:
        with pytest.raises(ConfigError, match=line):
            refuse_another_run([line], allowed=False)


def test_a_resumed_run_says_what_differs_and_keeps_the_former_settings(copied, capsys):
    former = (copied / "config.yaml").read_text()
    recipe = copied.parent / "recipe.yaml"
    recipe.write_text(former)
    changed = ["optimizer.learning_rate=0.02", "training.max_steps=5"]
    assert main(["train", str(recipe), "--resume", str(copied), *changed]) == 0
    said = capsys.readouterr().err.splitlines()
    assert "fr3e: optimizer.learning_rate: 0.01 in the checkpoint, 0.02 now" in said
    assert "fr3e: training.max_steps: 4 in the checkpoint, 5 now" in said
    assert (copied / "config.step_000004.yaml").read_text() == former
    assert "max_steps: 5" in (copied / "config.yaml").read_text()


def test_another_seed_is_refused_without_allow_changes(copied, capsys):
    before = (copied / "config.yaml").read_text()
    command = ["train", str(copied / "config.yaml"), "--resume", str(copied), "seed=3", "training.max_steps=5"]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "another seed, other data" in said and "seed: 0 in the checkpoint, 3 now. Put them back" in said
    assert (copied / "config.yaml").read_text() == before
    assert main([*command, "--allow-changes"]) == 0
    assert "allow_changes: true" in (copied / "config.yaml").read_text()
    assert main([*command[:4], "seed=4"]) == 2, "the permission was for one command"


def test_another_number_of_training_problems_is_refused(copied, tiny_run):
    """Stored successes and kept bases would be paired with other problems: the stream has another order."""
    config = tiny_run.config(data__train_problems=7, training__max_steps=5)
    with pytest.raises(ConfigError, match="data.train_problems: 0 in the checkpoint, 7 now"):
        train(config, copied, resume=True)


def test_other_training_data_are_refused(copied, tiny_run, monkeypatch):
    config = tiny_run.config(data__task=f"{tiny_run.task}:Diverging", training__max_steps=5)
    monkeypatch.setenv("FR3E_TEST_DIVERGE", "1")
    with pytest.raises(ConfigError, match=r"training data: 40 problems, \w+ in the checkpoint, 40 problems, \w+ now"):
        train(config, copied, resume=True)


def test_another_tokenizer_is_refused(copied, tiny_run, session, tmp_path):
    session.texts.codec.save(tmp_path / "tokenizer")
    file = tmp_path / "tokenizer" / "tokenizer.json"
    file.write_text(file.read_text().replace('"*"', '"&"'))
    config = tiny_run.config(model__tokenizer=str(tmp_path / "tokenizer"), training__max_steps=5)
    with pytest.raises(ConfigError, match=r"tokenizer: 24 tokens, \w+ in the checkpoint, 24 tokens, \w+ now"):
        train(config, copied, resume=True)


def test_missing_metrics_and_torn_rollouts_are_named(copied):
    lines = (copied / "metrics.jsonl").read_text().splitlines(keepends=True)
    (copied / "metrics.jsonl").write_text("".join(line for line in lines if '"step": 2, "kind": "train"' not in line))
    run = RunDirectory(copied)
    torn = copied / "rollouts" / "step_000003.jsonl.gz"
    torn.write_bytes(torn.read_bytes()[:-20])
    (copied / "rollouts" / "step_000004.jsonl.gz").unlink()
    torn = copied / "rollouts" / "eval_000002.jsonl.gz"
    torn.write_bytes(torn.read_bytes()[:-20])
    (copied / "rollouts" / "eval_000000.jsonl.gz").unlink()
    assert missing_records(run, 4, stored=True) == [
        f"{run.metrics} lacks the training metrics of step 2; training goes on without them",
        f"{run.rollouts} lacks whole rollouts of steps 3, 4; training goes on without them",
        f"{run.rollouts} lacks whole responses of the evaluation of steps 0, 2; training goes on without them",
    ]
    assert len(missing_records(run, 4, stored=False)) == 1


@pytest.mark.parametrize("end", [b"", b"\0\0\0\0"], ids=["cut", "zeros"])
def test_a_torn_record_of_the_last_evaluation_is_written_again(copied, tiny_run, capsys, end):
    whole = (copied / "metrics.jsonl").read_bytes()
    (copied / "metrics.jsonl").write_bytes(whole[:-20] + end)
    assert train(tiny_run.config(), copied, resume=True) == 0
    assert "metrics.jsonl lacked the evaluation of step 4; the checkpoint had it" in capsys.readouterr().err
    assert (copied / "metrics.jsonl").read_bytes() == whole


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\0\0"])
def test_a_torn_provenance_is_named_and_written_anew(copied, tiny_run, capsys, content):
    (copied / "provenance.json").write_bytes(content)
    assert train(tiny_run.config(), copied, resume=True) == 0
    assert capsys.readouterr().err.count("provenance.json is damaged") == 1
    assert b'"verb": "train"' in (copied / "provenance.json").read_bytes()


@pytest.mark.parametrize("content", ["", "model: [", "\0\0", "# The settings of a run. The last line\nname: tiny\n"])
def test_a_torn_config_of_a_run_is_named(copied, capsys, tiny_run, content):
    recipe = copied.parent / "recipe.yaml"
    recipe.write_text(to_yaml(tiny_run.config()))
    (copied / "config.yaml").write_text(content)
    assert main(["train", str(recipe), "--resume", str(copied)]) == 2
    said = capsys.readouterr().err
    assert str(copied / "config.yaml") in said and len(said.splitlines()) <= 3, said


def test_former_settings_are_kept_once_and_only_if_they_differ(copied, tiny_run):
    history = copied / "config.step_000004.yaml"
    assert train(tiny_run.config(runtime__store_rollouts=False), copied, resume=True) == 0
    assert not history.exists(), "outputs alone have changed"
    former = (copied / "config.yaml").read_bytes()
    assert train(tiny_run.config(optimizer__learning_rate=0.5), copied, resume=True) == 0
    assert train(tiny_run.config(optimizer__learning_rate=0.7), copied, resume=True) == 0
    assert history.read_bytes() == former, "the settings in force up to step 4"
