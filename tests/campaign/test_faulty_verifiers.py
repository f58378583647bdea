"""Verifiers that hang, raise, exit or lie: the run ends with every fault counted, or stops and says the reason."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from campaign_cases import log

from fr3e_jax.cli import main
from fr3e_jax.configuration import to_yaml
from fr3e_jax.runs.metrics import read_metrics

pytestmark = pytest.mark.campaign
VERIFIERS = Path(__file__).parents[1] / "fixtures" / "faulty_verifiers.py"
LIES = ("not_a_number", "infinite", "text", "nothing")
OUTCOMES = {"hanging": "timeout", "sleeping": "timeout", "exiting": "worker_died"}


def run(folder: Path, tiny_run, name: str) -> int:
    recipe = folder / "recipe.yaml"
    settings = {"data__verifier": f"{VERIFIERS}:{name}", "rewards__deadline_seconds": 0.5, "training__max_steps": 1}
    settings |= {"evaluation__every": 0, "rollout__rollouts_per_prompt": 4}
    recipe.write_text(to_yaml(tiny_run.config(runtime__run_dir=str(folder / "run"), **settings)))
    return main(["train", str(recipe)])


@pytest.mark.parametrize("name", ["raising", "hanging", "sleeping", "exiting", "printing"])
def test_a_verifier_that_sometimes_fails_costs_single_verdicts(tmp_path, tiny_run, capfd, monkeypatch, name):
    monkeypatch.setenv("FR3E_TEST_FAULTS_EVERY", "11")
    assert run(tmp_path, tiny_run, name) == 0, capfd.readouterr()
    step = next(r for r in read_metrics(tmp_path / "run/metrics.jsonl") if r["kind"] == "train")
    (file,) = (tmp_path / "run" / "rollouts").glob("step_*")
    outcomes = [json.loads(line)["outcome"] for line in gzip.open(file, "rt") if "outcome" in line]
    failed = sum(outcome in ("error", "timeout", "worker_died") for outcome in outcomes)
    if name != "printing":
        assert OUTCOMES.get(name, "error") in outcomes
        assert 0 < failed < len(outcomes) / 2
    assert 0 <= step["reward/mean"] <= 1
    output = "".join(capfd.readouterr())
    assert "\x1b[2J" not in output and "\x1b[31m" not in output, "control characters of a verifier reached the terminal"
    log(f"verifier: {name}, sometimes", "counted, the run ended", verdicts_lost=failed)


@pytest.mark.parametrize("name", ["raising_but_for_gold", "hanging", "exiting", "long_explanation"])
def test_a_verifier_that_always_fails_stops_the_run_with_the_reason(tmp_path, tiny_run, capfd, monkeypatch, name):
    monkeypatch.setenv("FR3E_TEST_FAULTS_EVERY", "1")
    assert run(tmp_path, tiny_run, name) == 1
    output = "".join(capfd.readouterr())
    expected = {"hanging": "timeout", "exiting": "worker_died"}.get(name, "error")
    words = {"timeout": ("time-out", "timeout", "timed out"), "worker_died": ("worker", "died"), "error": ("error",)}
    assert any(word in output for word in words[expected]), output[-3000:]
    assert "The first failure: the verifier" in output
    assert "too hard for this policy" not in output and "already solves" not in output
    assert len(output) < 100_000
    log(f"verifier: {name}, always", "stopped with the reason")


@pytest.mark.parametrize("name", LIES)
def test_a_verifier_that_returns_no_reward_stops_the_run_with_the_value(tmp_path, tiny_run, capfd, monkeypatch, name):
    monkeypatch.setenv("FR3E_TEST_FAULTS_EVERY", "11")
    assert run(tmp_path, tiny_run, name) == 2
    output = "".join(capfd.readouterr())
    assert {"not_a_number": "nan", "infinite": "inf", "text": "right", "nothing": "None"}[name] in output, output
    assert "Traceback" not in output
    assert "test/" in output or "train/" in output
    log(f"verifier: {name}", "stopped with the value and the problem")
