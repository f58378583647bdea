"""``fr3e eval``: several models in one call, every response kept, nothing evaluated twice, one table."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from fr3e_jax.cli import main
from fr3e_jax.configuration import to_yaml
from fr3e_jax.runs.rollout_store import read_rollouts
from fr3e_jax.verbs import evaluations
from fr3e_jax.verbs.eval import columns, rows
from fr3e_jax.verbs.evaluations import Result


@pytest.fixture
def recipe(tmp_path, tiny_run) -> str:
    path = tmp_path / "recipe.yaml"
    config = tiny_run.config(model__hidden_size=32, runtime__output_dir=str(tmp_path / "out"))
    path.write_text(to_yaml(config))  # a run's own model settings win
    return str(path)


@pytest.fixture
def run(finished_run, tmp_path) -> Path:
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


def printed(capsys, *arguments):
    assert main(["eval", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_eval_of_a_run_repeats_its_last_evaluation_and_keeps_every_response(recipe, run, capsys):
    found = printed(capsys, recipe, "--run", str(run))
    folder = Path(found.pop("folder"))
    assert found.pop("model") == "run step 4" and folder.parent == run / "evaluations"
    assert found == json.loads((run / "summary.json").read_text())["after"]
    assert json.loads((folder / "metrics.json").read_text())["metrics"] == found
    in_training = run / "rollouts" / "eval_000004.jsonl.gz"
    assert (folder / "rollouts" / "eval_000004.jsonl.gz").read_bytes() == in_training.read_bytes()
    greedy = [rollout.reward for rollout in read_rollouts(in_training) if rollout.base == 0]
    assert np.mean(greedy) == found["greedy"]


def test_settings_that_change_scores_ask_for_an_evaluation_of_their_own(session, run, tiny_run, tmp_path):
    described = lambda **settings: evaluations._described(tiny_run.changed(session, **settings), run, 4)
    plain, adapters = described(), tmp_path / "adapters"
    adapters.mkdir()
    (adapters / "adapter_model.safetensors").write_bytes(b"1")
    others = [{"rollout__stop_texts": ["1"]}, {"rollout__stop_tokens": ["1"]}, {"rollout__param_dtype": "int8"}]
    judge = {"judge__model": "other", "judge__base_url": "http://127.0.0.1:9/v1"}
    others += [judge, {"judge__right_from": 0.5}, {"model__lora__path": str(adapters)}]
    assert all(described(**settings) != plain for settings in others)
    adapted = described(model__lora__path=str(adapters))
    (adapters / "adapter_model.safetensors").write_bytes(b"12")
    assert described(model__lora__path=str(adapters)) != adapted
    for settings in ({"judge__seconds": 9.0}, {"judge__cache": "elsewhere"}, {"rollout__trunk_slots": 3}):
        assert described(**settings) == plain


def test_several_checkpoints_and_models_share_a_table_and_none_is_evaluated_twice(
    recipe, run, tmp_path, tiny_run, capsys, monkeypatch
):
    assert main(["export", str(run), str(tmp_path / "model")]) == 0
    capsys.readouterr()
    called = []
    evaluate = evaluations.evaluate
    monkeypatch.setattr(evaluations, "evaluate", lambda *given: called.append(given) or evaluate(*given))
    arguments = [recipe, "--run", str(run), "--step", "3,4", "--model", str(tmp_path / "model")]
    first = printed(capsys, *arguments)
    assert [one["model"] for one in first] == ["run step 3", "run step 4", str(tmp_path / "model")]
    assert first[2]["greedy"] == first[1]["greedy"] and len({one["folder"] for one in first}) == 3
    assert printed(capsys, *arguments) == first and len(called) == 3
    (Path(first[0]["folder"]) / "metrics.json").unlink()  # as if it had been interrupted
    assert printed(capsys, *arguments) == first and len(called) == 4
    printed(capsys, recipe, "--run", str(run), "evaluation.temperature=0.5")
    assert len(called) == 5, "other settings are another evaluation"
    assert main(["eval", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[0] == "model" and any(line.split()[0] == "greedy" for line in lines)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--step", "3"], "--step names checkpoints of a run; add --run RUN_DIR"),
        (["--run", "RUN", "--step", "7"], "has no checkpoint of step 7; expected some of "),
        (["--run", "RUN", "--step", "x"], "'x' is no list of steps; expected one like 10 or 10,20"),
        (["--model", "nowhere"], "model.path=nowhere is no directory"),
    ],
)
def test_mistakes_are_one_line(recipe, run, capsys, arguments, expected):
    assert main(["eval", recipe, *[str(run) if text == "RUN" else text for text in arguments]]) == 2
    assert expected in capsys.readouterr().err.splitlines()[-1]


SETS = {"avg": 0.5, "greedy": 0.25, "length/mean": 20.0, "prompts": 4, "no_answer": 0.0}
SETS |= {"a/avg@4": 0.75, "a/length/mean": 3.0, "b/greedy": 0.5}


def test_the_table_has_scores_first_and_the_scores_of_each_set():
    results = [Result("x|y", SETS, "avg", "/f"), Result("z", {"greedy": 1.0}, "greedy", "/g")]
    assert columns(results) == ["avg", "greedy", "a/avg@4", "b/greedy", "length/mean"]
    assert rows(results)[1][0] == ["x|y", "50.0%", "25.0%", "75.0%", "50.0%", "20"]
    assert rows(results)[1][1] == ["z", "", "100.0%", "", "", ""]
