"""Training with a judge: a resumed run equals a whole one, failures train nothing, keys are written nowhere."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
from judge_stand_in import completion, error, judge_stand_in
from run_comparison import assert_same_run

from fr3e_jax.configuration import ConfigError
from fr3e_jax.loop.train import train
from fr3e_jax.rewards import judge_endpoint
from fr3e_jax.runs.metrics import read_metrics
from fr3e_jax.runs.rollout_store import read_rollouts
from fr3e_jax.session.session import open_session

KEY = "sk-do-not-write-me"


def by_content(body, number):
    """A score, or in one of six cases none, by the response alone."""
    kind = zlib.crc32(body["messages"][0]["content"].encode()) % 6
    return completion("no idea" if not kind and number else f'{{"score": {10 * (kind % 2)}}}', 1000, 100)


def settings(url: str, cache: Path) -> dict:
    return {
        "judge__model": "m",
        "judge__base_url": url,
        "judge__key_variable": "FR3E_TEST_KEY",
        "judge__cache": str(cache),
    }


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("FR3E_TEST_KEY", KEY)
    monkeypatch.setattr(judge_endpoint, "FIRST_PAUSE", 0.01)


def test_a_judged_run_resumes_as_it_was_pays_once_and_trains_on_no_failure(tmp_path, tiny_run):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    with judge_stand_in(by_content) as endpoint:
        options = settings(endpoint.url, tmp_path / "cache") | {"evaluation__every": 1}
        assert train(tiny_run.config(training__max_steps=2, **options), whole) == 0
        paid = len(endpoint.bodies)
        assert train(tiny_run.config(training__max_steps=2, **options), tmp_path / "again") == 0
        assert len(endpoint.bodies) == paid, "the same run once more pays nothing"
        options["judge__cache"] = str(tmp_path / "another")
        assert train(tiny_run.config(training__max_steps=1, **options), parts) == 0
        assert train(tiny_run.config(training__max_steps=2, **options), parts, resume=True) == 0
        assert_same_run(parts, whole, open_session(tiny_run.config()))
    steps = read_metrics(whole / "metrics.jsonl", kind="train")
    assert all(step["judge/prompt_tokens"] == 1000 * step["judge/calls"] > 0 for step in steps)
    assert sum(step["verifier/judge_unparseable"] for step in steps) > 0 == steps[0]["verifier/judge_timeout"]
    assert 0 < steps[0]["rewards/judge"] < 1
    stored = [record for file in (whole / "rollouts").glob("step_*") for record in read_rollouts(file)]
    lost = [record for record in stored if record.outcome == "judge_unparseable"]
    assert lost and all(record.advantage is None for record in lost)
    written = [
        file
        for run in (whole, parts)
        for file in run.rglob("*")
        if file.is_file() and KEY.encode() in file.read_bytes()
    ]
    assert not written, "no file of a run has the key"


def test_a_judge_that_goes_away_ends_the_run_with_its_first_failure(tmp_path, tiny_run, capsys, monkeypatch):
    monkeypatch.setattr(judge_endpoint, "MOST_TRIES", 2)
    with judge_stand_in(
        lambda body, number: error(503, "gone") if number > 1 else completion('{"score": 1}')
    ) as endpoint:
        config = tiny_run.config(**settings(endpoint.url, tmp_path), evaluation__start=False)
        assert train(config, tmp_path / "run") == 1
    said = capsys.readouterr().err
    assert "judge_unreachable). This says nothing about the policy: mend the judge (judge.model at" in said
    assert "HTTP 503" in said and "gone" in said and "(2 tries)" in said


def test_what_cannot_work_is_a_line_before_a_run_directory_exists(tmp_path, tiny_run):
    with judge_stand_in(lambda body, number: error(401, f"bad key {KEY}")) as endpoint:
        config = tiny_run.config(**settings(endpoint.url, tmp_path / "cache"))
        with pytest.raises(
            ConfigError, match=r"failed on a first call: the judge answers HTTP 401: .*\[key\]"
        ) as caught:
            train(config, tmp_path / "run")
    assert KEY not in str(caught.value) and not (tmp_path / "run").exists()
