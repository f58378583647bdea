"""Supervised fine-tuning: it learns, resumes exactly, and leaves a directory that `model.path` can name."""

from __future__ import annotations

import json
import shutil

import jax
import numpy as np
import pytest
from transformers import AutoConfig, AutoTokenizer

from fr3e_jax.configuration import ConfigError, load_config
from fr3e_jax.programs.train_programs import TrainPrograms
from fr3e_jax.runs.metrics import read_metrics, without_timing
from fr3e_jax.runs.signals import StopRequest
from fr3e_jax.session.run_identity import HASHED_DEMONSTRATIONS
from fr3e_jax.session.run_weights import load_run_params
from fr3e_jax.session.session import open_session
from fr3e_jax.verbs.supervised import demonstrations
from fr3e_jax.verbs.supervised.demonstrations import sft, steps_per_line

SETTINGS = {
    "sft__steps": 20,
    "sft__batch_size": 8,
    "sft__learning_rate": 2e-2,
    "evaluation__prompts": 2,
}


@pytest.fixture(scope="module", autouse=True)
def metrics_every_six_steps():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demonstrations, "steps_per_line", lambda steps: 6)
        patch.setattr(demonstrations, "WARMUP_UPDATES", 1)
        yield


@pytest.fixture(scope="module")
def sft_run(tmp_path_factory, tiny_run):
    path = tmp_path_factory.mktemp("sft") / "run"
    assert sft(tiny_run.config(**SETTINGS), path) == 0
    return path


@pytest.fixture(scope="module")
def one_step_run(tmp_path_factory, tiny_run):
    """From random weights into the directory that model.path names, which does not exist yet."""
    folder = tmp_path_factory.mktemp("one_step")
    output = str(folder / "warm start")
    settings = SETTINGS | {"sft__steps": 1, "sft__start": "random"}
    settings |= {"evaluation__start": False, "evaluation__end": False}
    assert sft(tiny_run.config(model__path=output, sft__output=output, **settings), folder / "run") == 0
    return folder / "run"


def params_of(path, session):
    params, _ = load_run_params(session, path)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(params)]


def test_weights_in_bfloat16_do_not_train_where_rounding_stops_them(tiny_run, tmp_path):
    config = tiny_run.config(model__param_dtype="bfloat16", sft__learning_rate=9e-5)
    with pytest.raises(ConfigError, match=r"rounds away most updates of sft.learning_rate=9e-05 \(at least 0.0001"):
        sft(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_loss_falls(sft_run):
    records = read_metrics(sft_run / "metrics.jsonl", kind="train")
    assert [record["step"] for record in records] == [6, 12, 18, 20]
    assert records[-1]["loss/supervised"] < 1.8 < np.log(24), "digits and the stop token are 11 of 24 tokens"
    # 8 demonstrations of 1 or 2 digits and a stop token at each step.
    lengths = [len(str(n % 40)) for n in range(20 * 8)]
    assert sum(record["tokens/loss_tokens"] for record in records) == sum(n + 1 for n in lengths)
    assert sum(record["tokens/trained_positions"] for record in records) == sum(2 * n + 2 for n in lengths)


def test_short_demonstrations_share_rows(tmp_path, tiny_run):
    """Micro-batches had as many rows for the longest ones as fit: of 512 positions, 32 were filled."""
    settings = {"sft__steps": 1, "evaluation__start": False, "evaluation__end": False}
    limits = {"data__max_prompt_tokens": 32, "rollout__max_response_tokens": 32, "training__micro_batch_tokens": 512}
    config = tiny_run.config(**SETTINGS | settings | limits)
    assert sft(config, tmp_path / "run") == 0
    (record,) = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert record["tokens/trained_positions"] == 32, "8 prompts of 2 tokens, and as many of responses"
    least = 32 * jax.device_count()  # a row of the smallest size on each device
    assert record["tokens/padded_positions"] <= max(80, least), "512 with rows for the longest ones"


def test_a_run_of_slow_steps_has_lines_and_checkpoints_soon(tmp_path, tiny_run):
    """A step of a real model takes a minute: with a line every 50 steps a kill lost hours."""
    assert [steps_per_line(steps) for steps in (1, 40, 100, 160, 3600)] == [1, 1, 1, 2, 36]
    often = {"checkpoint__every": 2, "checkpoint__keep_last": 9, "evaluation__prompts": 1}
    assert sft(tiny_run.config(**SETTINGS | often), tmp_path / "run") == 0
    assert sorted(int(path.name) for path in (tmp_path / "run" / "checkpoints").iterdir()) == [12, 20]
    minutes = {"checkpoint__minutes": 1e-9, "checkpoint__keep_last": 9, "evaluation__prompts": 1}
    assert sft(tiny_run.config(**SETTINGS | minutes), tmp_path / "timed") == 0
    assert sorted(int(path.name) for path in (tmp_path / "timed" / "checkpoints").iterdir()) == [6, 12, 18, 20]


def test_the_loss_is_the_mean_of_minus_log_prob_over_response_tokens(one_step_run, session, tiny_run):
    (record,) = read_metrics(one_step_run / "metrics.jsonl")  # no evaluation, which was not asked for
    losses = []
    for n in range(8):
        prompt, response = (
            session.texts.codec.encode(f"{n}="),
            [*session.texts.codec.encode(str(n)), session.texts.codec.stop_ids[0]],
        )
        logits = tiny_run.full_logits(session, session.model.fresh_params(session.config), [*prompt, *response])[
            len(prompt) - 1 : -1
        ]
        losses += [-row[token] for row, token in zip(tiny_run.log_softmax(logits), response, strict=True)]
    assert record["loss/supervised"] == pytest.approx(np.mean(losses), abs=1e-5)


def test_the_summary_has_the_numbers_before_and_after(sft_run):
    summary = json.loads((sft_run / "summary.json").read_text())
    assert (summary["algorithm"], summary["updates"], summary["sampled_tokens"]) == ("sft", 20, 0)
    assert {"avg@3", "pass@2", "greedy"} <= summary["before"].keys() & summary["after"].keys()
    evaluations = read_metrics(sft_run / "metrics.jsonl", kind="eval")
    assert [record["step"] for record in evaluations] == [0, 20]
    assert summary["after"]["avg@3"] == evaluations[1]["avg@3"]


def test_a_stopped_and_resumed_run_equals_an_uninterrupted_one(sft_run, tmp_path, tiny_run, monkeypatch, session):
    """SIGTERM in step 8: after 2 problems of the first evaluation with 4 answers each, and 7 batches and a half.

    Before them, the lengths of all 20 batches choose the shape of rows.
    """
    path = tmp_path / "run"
    monkeypatch.setenv("FR3E_TEST_SIGNAL", f"SIGTERM {HASHED_DEMONSTRATIONS + 2 * 4 + 20 * 8 + 7 * 8 + 4}")
    assert sft(tiny_run.config(**SETTINGS), path) == 0
    assert [record["step"] for record in read_metrics(path / "metrics.jsonl")] == [0, 6]
    assert not (path / "summary.json").exists()
    monkeypatch.delenv("FR3E_TEST_SIGNAL")
    assert sft(tiny_run.config(**SETTINGS), path, resume=True) == 0
    found, wanted = (
        [without_timing(record) for record in read_metrics(run / "metrics.jsonl")] for run in (path, sft_run)
    )
    assert found == wanted
    for left, right in zip(params_of(path, session), params_of(sft_run, session), strict=True):
        assert left.tobytes() == right.tobytes()
    assert (path / "model" / "model.safetensors").read_bytes() == (sft_run / "model" / "model.safetensors").read_bytes()
    assert sft(tiny_run.config(**SETTINGS), path, resume=True) == 0, "a finished run may be resumed"
    assert [without_timing(record) for record in read_metrics(path / "metrics.jsonl")] == wanted


def test_at_most_one_step_is_under_way_where_a_run_may_stop(tmp_path, tiny_run, monkeypatch):
    dispatched, finished, under_way = [], set(), []
    apply, check = TrainPrograms.apply, StopRequest.check

    class Norm(float):
        def block_until_ready(self):
            finished.add(id(self))
            return self

    def counted_apply(*args):
        *updated, norm = apply(*args)
        dispatched.append(Norm(norm))
        return *updated, dispatched[-1]

    def counted_check(self):
        under_way.append(len(dispatched) - len(finished))
        check(self)

    monkeypatch.setattr(TrainPrograms, "apply", counted_apply)
    monkeypatch.setattr(StopRequest, "check", counted_check)
    settings = SETTINGS | {"sft__steps": 5, "evaluation__start": False, "evaluation__end": False}
    assert sft(tiny_run.config(**settings), tmp_path / "run") == 0
    assert len(dispatched) == 5 and under_way[-5:] == [1] * 5


def test_the_output_directory_is_the_same_model_again(sft_run, tiny_run, session):
    model = sft_run / "model"
    again = open_session(tiny_run.config(model__path=str(model), model__hidden_size=32))
    assert dict(again.texts.codec.tokenizer.get_vocab()) == dict(session.texts.codec.tokenizer.get_vocab())
    assert again.texts.codec.stop_ids == session.texts.codec.stop_ids
    ids = session.texts.encode("17=17")
    trained, _ = load_run_params(session, sft_run)
    found = tiny_run.full_logits(again, again.model.fresh_params(again.config), ids)
    np.testing.assert_array_equal(found, tiny_run.full_logits(session, trained, ids))
    assert np.abs(found - tiny_run.full_logits(session, session.model.fresh_params(session.config), ids)).max() > 0.1
    assert AutoConfig.from_pretrained(model).hidden_size == 16
    assert AutoTokenizer.from_pretrained(model)("17=")["input_ids"] == session.texts.codec.encode("17=")


def test_a_random_start_ignores_the_model_that_it_is_to_replace(one_step_run):
    output = one_step_run.parent / "warm start"
    assert (output / "model.safetensors").is_file() and (output / "tokenizer.json").is_file()
    saved = load_config(one_step_run / "config.yaml", training=False)
    assert load_run_params(open_session(saved), one_step_run)[1] == 1


def test_demonstrations_that_cannot_be_encoded_are_dropped_and_named(tmp_path, tiny_run, capsys, monkeypatch):
    monkeypatch.setattr(demonstrations, "steps_per_line", lambda steps: 1)
    settings = SETTINGS | {"sft__steps": 2, "evaluation__prompts": 1, "runtime__console": "plain"}
    config = tiny_run.config(**settings, data__task=f"{tiny_run.task}:SomeUnspellable")
    assert sft(config, tmp_path / "run") == 0
    records = read_metrics(tmp_path / "run" / "metrics.jsonl", kind="train")
    assert [record["data/dropped_unspeakable"] for record in records] == [2, 4]
    printed = capsys.readouterr().out
    assert [f"demonstration {n} is dropped: character '\\ud800' at position 0" in printed for n in (0, 1, 4)] == [
        1,
        0,
        1,
    ]


def test_a_loss_that_is_not_finite_ends_the_run_without_a_model(tmp_path, tiny_run, monkeypatch, capsys):
    monkeypatch.setattr(demonstrations, "WARMUP_UPDATES", 0)
    settings = SETTINGS | {"sft__learning_rate": 1e30, "evaluation__prompts": 1}
    assert sft(tiny_run.config(**settings, optimizer__max_grad_norm=0.0), tmp_path / "run") == 1
    message = capsys.readouterr().err
    assert (
        "stopped at step 6: the loss of update 6 is nan" in message and "lower sft.learning_rate (now 1e+30)" in message
    )
    assert not (tmp_path / "run" / "model").exists()


def test_a_signal_after_an_update_that_is_not_finite_saves_nothing(tmp_path, tiny_run, monkeypatch, capsys):
    """The signal comes in step 2, whose loss and gradient are not logged."""
    monkeypatch.setattr(demonstrations, "WARMUP_UPDATES", 0)
    settings = SETTINGS | {"sft__learning_rate": 1e30, "evaluation__prompts": 1}
    monkeypatch.setenv("FR3E_TEST_SIGNAL", f"SIGTERM {HASHED_DEMONSTRATIONS + 1 * 4 + 8 + 4}")
    assert sft(tiny_run.config(**settings, optimizer__max_grad_norm=0.0), tmp_path / "run") == 1
    assert "There is no checkpoint yet" in capsys.readouterr().err
    assert not [path for path in (tmp_path / "run" / "checkpoints").iterdir() if path.name.isdigit()]


def test_other_demonstrations_and_held_out_problems_are_refused(sft_run, tiny_run, tmp_path):
    run = shutil.copytree(sft_run, tmp_path / "run")
    config = tiny_run.config(**SETTINGS, data__task=f"{tiny_run.task}:OtherAnswers")
    with pytest.raises(ConfigError) as caught:
        sft(config, run, resume=True)
    assert "demonstrations: the first 2000, " in str(caught.value) and "held-out data: 12 problems, " in str(
        caught.value
    )
    assert "training data" not in str(caught.value)
