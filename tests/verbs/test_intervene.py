"""``fr3e intervene`` on a finished run: the stored continuations give the printed effects."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from fr3e_jax.cli import main
from fr3e_jax.configuration import to_yaml
from fr3e_jax.objectives.intervention import read_group
from fr3e_jax.rewards.grader import Grader
from fr3e_jax.rollouts.noise import Noise
from fr3e_jax.rollouts.requests import Rollout
from fr3e_jax.runs.rollout_store import read_rollouts
from fr3e_jax.session.session import open_session
from fr3e_jax.verbs.interventions import InterventionPlan, SampledResponse, choose, replaced


@pytest.fixture
def recipe(tmp_path, tiny_run) -> str:
    path = tmp_path / "recipe.yaml"
    path.write_text(to_yaml(tiny_run.config()))
    return str(path)


def test_effects_of_each_group_are_those_of_the_stored_continuations(recipe, finished_run, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["--problems", "3", "--responses", "2", "--rollouts", "3", "--out", str(out)]
    assert main(["intervene", recipe, "--run", str(finished_run), "--tokens", "random,entropy:top50%", *arguments]) == 0
    printed = capsys.readouterr().out
    assert "random" in printed and "entropy:top50%" in printed
    rollouts = {record.id: record for record in read_rollouts(out / "rollouts" / "intervene_000004.jsonl.gz")}
    bases = [record for record in rollouts.values() if record.kind == "base"]
    assert len(bases) == 6
    right: dict[tuple, list] = {}
    for record in rollouts.values():
        if record.kind == "base":
            continue
        base = rollouts[record.parent]
        place = record.fork - 1 + record.state
        assert place in base.anchors
        if record.state == 1:
            assert record.answers[0] == [0, 1] and record.token_ids[0] != base.token_ids[place]
        right.setdefault((record.parent, place), [[], []])[record.state].append(record.outcome == "right")
    assert set(right) == {(base.id, place) for base in bases for place in base.anchors}
    assert all(len(side) == 3 for sides in right.values() for side in sides)
    groups = json.loads((out / "intervention_groups.json").read_text())
    row = dict(zip(groups["columns"], groups["cells"][0], strict=True))
    effects: dict[int, list] = {}
    for (parent, _), (original, substituted) in right.items():
        effects.setdefault(rollouts[parent].prompt_position, []).append(np.mean(original) - np.mean(substituted))
    if row["replaced"] == len(right):  # all replaced tokens are in the group "random"
        assert row["mean I_t"] == pytest.approx(np.mean([np.mean(values) for values in effects.values()]))
        assert row["mean |I_t|"] == pytest.approx(np.mean([np.mean(np.abs(v)) for v in effects.values()]))
    assert (out / "interventions.csv").is_file() and (out / "intervention_tokens.json").is_file()


def test_a_trunk_is_prefilled_once_and_a_stop_token_as_substitute_ends_the_response(
    session, params, tiny_run, monkeypatch
):
    seen = []

    def verifier(problem, response, finished):
        seen.append((response, finished))
        return 1.0

    twin = tiny_run.graded_by(session, Grader(verifier))
    prompt, answer = np.array([3, 4, 5], np.int32), np.array([6, 7, 8, 9], np.int32)
    flat = np.zeros(4, np.float32)
    rollout = Rollout(answer, flat, flat, flat, True)
    held_out = SimpleNamespace(prompt_ids=prompt, index=0, problem=session.task.problems("test")[0])
    response = SampledResponse(held_out, 0, rollout, None, {"all": np.array([1, 2])})
    programs = session.sampler.engine.programs
    found = programs.alternatives(params, session.sampler.engine.prefill(params, [prompt])[0].batch, [0], [1], [4])
    stop = session.texts.codec.stop_ids[0]
    given = found._replace(token_ids=np.array([stop, 10]), logprobs=np.log([0.25, 0.5]), candidates=np.array([2, 3]))
    monkeypatch.setattr(type(programs), "alternatives", lambda *_: given)
    session.sampler.engine.take_counts()
    first, second = replaced(twin, session.sampler.weights.of(params), [response], 2)
    counts = session.sampler.engine.take_counts()
    assert counts.prefill_positions == 7 and counts.reused_prefix_positions == 2 * (5 + 4 + 6 + 5)
    assert [r.token_ids.tolist() for r in first.rollouts[1]] == [[stop], [stop]]
    assert all(r.finished for r in first.rollouts[1]) and first.substitute == stop
    assert second.rollouts[1][0].token_ids[0] == 10 and second.candidates == 3
    ended = twin.texts.response_text(np.array([6, stop]), True)
    assert (ended, True) in seen


def test_stop_tokens_tool_text_and_the_cap_are_never_replaced():
    columns = [np.zeros(6, np.float32)] * 3
    written = np.array([False, True, False, False, False, False])
    rollout = Rollout(np.array([5, 6, 7, 1, 8, 9]), *columns, True, tool_written=written)
    response = SampledResponse(None, 0, rollout, None)
    plan = InterventionPlan({"random": read_group("random")}, 1, 1, 99, 1)
    choose([response], plan, Noise(0), (1,), longest=6)
    assert response.chosen == [0, 2, 4]


@pytest.mark.parametrize("finished", [True, False])
def test_the_token_that_completes_a_stop_text_is_not_replaced(finished):
    columns = [np.zeros(3, np.float32)] * 3
    response = SampledResponse(None, 0, Rollout(np.array([5, 6, 7]), *columns, finished), None)
    choose([response], InterventionPlan({"random": read_group("random")}, 1, 1, 99, 1), Noise(0), (1,), longest=9)
    assert response.chosen == ([0, 1] if finished else [0, 1, 2])


def test_a_substitute_that_completes_a_stop_text_ends_the_response(tiny_run, monkeypatch):
    config, seen = tiny_run.config(rollout__stop_texts=["29"]), []
    session = open_session(config)
    twin = tiny_run.graded_by(session, Grader(lambda problem, response, finished: seen.append(response) or 1.0))
    programs, codec = session.sampler.engine.programs, session.texts.codec
    (nine,) = codec.encode("9")
    real = type(programs).alternatives
    monkeypatch.setattr(
        type(programs), "alternatives", lambda *arguments: real(*arguments)._replace(token_ids=np.array([nine] * 2))
    )
    held_out = SimpleNamespace(prompt_ids=np.array([3, 4], np.int32), index=0, problem=session.task.problems("test")[0])
    answer, flat = np.array(codec.encode("1234"), np.int32), np.zeros(4, np.float32)
    response = SampledResponse(held_out, 0, Rollout(answer, flat, flat, flat, False), None, {"all": np.array([2, 3])})
    weights = session.sampler.weights.of(session.model.fresh_params(config))
    ended, open_end = replaced(twin, weights, [response], 2)
    assert [(r.token_ids.tolist(), r.finished) for r in ended.rollouts[1]] == [([nine], True)] * 2
    assert seen.count("1") == 2, "a stop text is no part of the response"
    assert all(len(r.token_ids) > 1 for r in open_end.rollouts[1]), "after 123 a 9 completes nothing"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["--tokens", "entropie:top"],
            "--tokens: found the group of tokens 'entropie:top'; expected one of entropy:top",
        ),
        (["--tokens", ","], "--tokens is empty"),
        (["--rollouts", "0"], "'0' is not a whole number of at least 1"),
    ],
)
def test_mistakes_are_one_line(recipe, capsys, arguments, expected):
    assert main(["intervene", recipe, *arguments]) == 2
    assert expected in capsys.readouterr().err
