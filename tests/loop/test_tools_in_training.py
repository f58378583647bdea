"""A tool's answer is context: no anchor lies in it, no loss reaches it, and it survives storing and resuming."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from encoded_prompts import prepare
from method_settings import CALLING

from fr3e_jax.data.task import Problem
from fr3e_jax.learning.experience import TrainingTrunk
from fr3e_jax.learning.packing import pack
from fr3e_jax.loop.expansion import PromptGroup
from fr3e_jax.loop.explore import assign_advantages, explored_trunks, place_anchors, roll_out_states
from fr3e_jax.loop.first_return import base_trunks, first_return
from fr3e_jax.loop.rollout_entries import records_of
from fr3e_jax.loop.step_report import rollout_entries, tool_metrics
from fr3e_jax.loop.train import train
from fr3e_jax.rollouts.requests import Rollout
from fr3e_jax.runs.rollout_store import read_rollouts, write_rollouts
from fr3e_jax.runs.run_directory import RunDirectory

WRITTEN = np.array([0, 0, 1, 1, 1, 0, 0, 0, 1, 0], bool)
STEP = 3


def tempting_group(session) -> PromptGroup:
    """A base rollout whose every measure is most extreme where a tool wrote."""
    ids = np.arange(2, 12, dtype=np.int32)
    extreme = np.where(WRITTEN, 9.0, np.linspace(0.1, 1.0, 10)).astype(np.float32)
    rollout = Rollout(ids, -extreme, extreme, extreme, finished=True, tool_written=WRITTEN)
    problem = Problem("train/0", "1=", "1")
    return PromptGroup(0, problem, session.texts.prompt_ids("1="), [rollout], np.array([1.0]), chosen=[0])


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("selection", ["entropy", "logprob", "gradient", "random", "uniform", "delimiter"])
def test_no_anchor_lies_in_an_answer_and_no_state_ends_before_one(session, tiny_run, selection, include):
    changed = tiny_run.changed(
        session,
        explore__anchor_selection=selection,
        explore__include_anchor_token=include,
        explore__num_anchors=4,
        explore__delimiter=session.texts.codec.decode([5]),
    )
    for expansion in place_anchors(changed, STEP, [tempting_group(session)]):
        assert not WRITTEN[expansion.anchors].any() and not WRITTEN[expansion.forks].any()
        if selection in ("entropy", "logprob", "gradient"):
            allowed = [k for k in range(1 - include, 10 - include) if not WRITTEN[k] and not WRITTEN[k + include]]
            assert expansion.anchors == allowed[-4:]


@pytest.fixture(scope="module")
def stage(scripted_tool, session, params, tiny_run):
    """First Return and Explore of two prompts with a tool, under scripted rewards."""
    rewards = iter(range(10**6))
    own = tiny_run.changed(
        session, rollout__max_response_tokens=14, rollout__reject_degenerate=False, explore__block_credit=True
    )
    reward = lambda problem, response, finished: float(next(rewards) % 2)
    toolbox = scripted_tool.toolbox_of(session)
    own = dataclasses.replace(own, sampler=dataclasses.replace(own.sampler, toolbox=toolbox))
    own = tiny_run.graded_by(own, tiny_run.in_order(reward, own.config.rewards))
    problems = [Problem(f"train/{n}", question, "") for n, question in enumerate(["33=", "9/3="])]
    groups = first_return(own, params, STEP, prepare(own.texts, enumerate(problems)))
    explored = roll_out_states(own, params, STEP, place_anchors(own, STEP, groups))
    return own, groups, assign_advantages(own.config.explore, own.config.advantage, explored)


def test_loss_masks_of_base_and_explored_rollouts_leave_answers_out(stage):
    own, groups, expansions = stage
    base = [rollout for group in groups for rollout in group.rollouts]
    explored = {id(r.token_ids): r for e in expansions for state in e.rollouts for r in state}
    wanted = {id(r.token_ids): r.sampled for r in [*base, *explored.values()]}
    masked = 0
    for trunk in base_trunks(own.config, STEP, groups) + explored_trunks(own.config.explore, STEP, expansions):
        for branch in trunk.branches:
            np.testing.assert_array_equal(branch.trains, wanted[id(branch.token_ids)])
        again = TrainingTrunk.from_json(trunk.to_json())
        for branch, other in zip(trunk.branches, again.branches, strict=True):
            np.testing.assert_array_equal(branch.trains, other.trains)
            masked += int((~branch.trains).sum())
        for micro in pack([trunk], tokens=256, pad_id=0):
            for place in micro.spans:
                np.testing.assert_array_equal(micro.batch.loss_mask[place.where], trunk.branches[place.branch].trains)
    assert masked > 5 and any(r.tool_written is not None for r in base)
    trained = [b for trunk in explored_trunks(own.config.explore, STEP, expansions) for b in trunk.branches]
    assert any(b.loss_mask is not None for b in trained if id(b.token_ids) in explored)
    assert any(b.loss_mask is not None for b in trained if id(b.token_ids) not in explored), "a credited base"


def test_explored_rollouts_read_the_calls_of_their_prefix(scripted_tool, stage):
    """The whole response has its answers where its text has calls, at most ``max_calls`` of them."""
    own, _, expansions = stage
    for expansion in expansions:
        base = expansion.group.rollouts[expansion.base]
        for fork, state in zip(expansion.forks, expansion.rollouts, strict=True):
            for rollout in state:
                whole, text, calls, tool_written = base.head(fork).then(rollout), "", 0, []
                for token, sampled in zip(whole.token_ids, whole.sampled, strict=True):
                    text = text + own.texts.codec.decode([token], special_tokens=True) if sampled else ""
                    complete = own.sampler.toolbox.tool.call_in(text) is not None
                    calls += complete and calls < scripted_tool.MOST_CALLS
                    tool_written.append(not sampled)
                starts = np.flatnonzero(np.diff(np.array([False, *tool_written], np.int8)) == 1)
                ended_in_call = own.sampler.toolbox.tool.call_in(text) is not None and len(starts) < calls
                assert len(starts) == calls - ended_in_call


def test_records_and_metrics_mark_the_tokens_of_tools(stage, tmp_path):
    own, groups, expansions = stage
    own.sampler.toolbox.counts.update({"answered": 3, "error": 1})
    metrics = tool_metrics(own.sampler, groups, expansions)
    assert metrics["tools/error"] >= 1 and 0 < metrics["tools/given_share"] < 1
    records = list(records_of(rollout_entries(STEP, groups, expansions)))
    for record, rollout in zip(
        [r for r in records if r.kind == "base"], sum((g.rollouts for g in groups), []), strict=True
    ):
        spans = [position for start, end in record.answers for position in range(start, end)]
        assert spans == np.flatnonzero(~rollout.sampled).tolist()
    assert any(record.answers for record in records if record.kind == "state")
    stored = read_rollouts(write_rollouts(RunDirectory(tmp_path), STEP, records))
    assert [record.answers for record in stored] == [record.answers for record in records]


@pytest.mark.slow
def test_a_policy_that_is_rewarded_for_answers_learns_to_call(tmp_path, tiny_run):
    """It reads answers as often as calls, but answers carry no loss: only calls are learned."""
    settings = CALLING | {
        "rollout__rollouts_per_prompt": 8,
        "rollout__max_response_tokens": 16,
        "rollout__trunk_slots": 6,
        "rollout__lanes_per_trunk": 8,
        "rollout__prompts_per_round": 6,
        "explore__enabled": False,
        "training__batch_rollouts": 32,
        "training__mini_batch_rollouts": 32,
        "training__max_steps": 25,
        "training__surplus": "drop",
        "evaluation__every": 0,
        "checkpoint__every": 100,
    }
    assert train(tiny_run.config(runtime__run_dir=str(tmp_path / "run"), **settings)) == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    calls = [line["tools/calls_per_rollout"] for line in lines if line["kind"] == "train"]
    assert np.mean(calls[-3:]) > np.mean(calls[:3]) + 0.3, calls
