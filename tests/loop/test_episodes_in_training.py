"""An episode trains on the policy's tokens alone, with the environment's rewards, in First Return, Explore and ARPO."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import scripted_environment as scripted
from encoded_prompts import prepare

from fr3e_jax.configuration import ConfigError
from fr3e_jax.data.task import Problem
from fr3e_jax.loop.evaluate import evaluate
from fr3e_jax.loop.explore import assign_advantages, explored_trunks, place_anchors, roll_out_states
from fr3e_jax.loop.first_return import base_trunks, first_return
from fr3e_jax.loop.kept_bases import KeptBases
from fr3e_jax.loop.rollout_entries import records_of
from fr3e_jax.loop.step_report import rollout_entries, tool_metrics
from fr3e_jax.rewards.grader import Grader
from fr3e_jax.rewards.verifier import exact_match
from fr3e_jax.rollouts.episode import EpisodeRecord, Turn
from fr3e_jax.rollouts.tool_calls import answer_spans
from fr3e_jax.runs.rollout_store import read_rollouts, write_rollouts
from fr3e_jax.runs.run_directory import RunDirectory
from fr3e_jax.session.grading import ENVIRONMENT, GradingFailed, ResponseGrader, RewardRange
from fr3e_jax.session.posed_task import PosedProblems, posed_task
from fr3e_jax.session.session import open_session
from fr3e_jax.tools.environment import environment_tool

STEP, CAP = 3, 20
SETTINGS = {
    "rollout__max_response_tokens": CAP,
    "rollout__reject_degenerate": False,
    "explore__num_anchors": 4,
    "environment__kind": "task",
    "environment__max_observation_tokens": 3,
}


RETURNING = {
    "explore__enabled": False,
    "returns__size": 4,
    "returns__max_success_rate": 1.0,
    "returns__rollouts": 3,
}


@pytest.fixture(scope="module")
def own(session, tiny_run):
    changed = tiny_run.changed(session, **SETTINGS)
    sampler = dataclasses.replace(changed.sampler, toolbox=scripted.episodes_of(session))
    return dataclasses.replace(changed, sampler=sampler)


@pytest.fixture(scope="module")
def stage(own, params):
    """First Return and Explore of two prompts; every rollout is a base."""
    problems = [scripted.problem(n) for n in (1, 5)]
    groups = first_return(own, params, STEP, prepare(own.texts, enumerate(problems)))
    explored = roll_out_states(own, params, STEP, place_anchors(own, STEP, groups))
    return groups, assign_advantages(own.config.explore, own.config.advantage, explored)


def whole_rollouts(groups, expansions):
    """Whole responses with their problem and reward, those from states after their prefix."""
    for group in groups:
        for rollout, reward in zip(group.rollouts, group.rewards, strict=True):
            yield group.problem, rollout, reward
    for one in expansions:
        for fork, rollouts, rewards in zip(one.forks, one.rollouts, one.rewards, strict=True):
            for rollout, reward in zip(rollouts, rewards, strict=True):
                yield one.group.problem, one.rollout.head(fork).then(rollout), reward


def test_rewards_of_base_and_explored_rollouts_are_the_sums_of_their_episodes(own, stage):
    several = 0
    for problem, whole, reward in whole_rollouts(*stage):
        read, rewards, ending = scripted.played_again(own.texts.codec, whole, problem, CAP)
        np.testing.assert_array_equal(~whole.sampled, read)
        assert whole.episode.rewards == rewards and whole.episode.ending == ending
        assert reward == pytest.approx(sum(rewards))
        several += len(rewards) > 1
    assert several > 10


def test_anchors_lie_within_turns_and_at_their_borders_and_never_in_observations(stage):
    within = borders = 0
    for one in stage[1]:
        ends = {end for _, end in answer_spans(one.rollout.tool_written)}
        assert one.rollout.sampled[one.anchors].all() and one.rollout.sampled[one.forks].all()
        borders += len(ends & set(one.forks))
        within += sum(fork > min(ends, default=CAP) for fork in set(one.forks) - ends)
        for fork, rollouts in zip(one.forks, one.rollouts, strict=True):
            assert {rollout.episode.seed for rollout in rollouts} == {one.rollout.episode.seed}
            assert all(list(r.episode.earlier) == one.rollout.head(fork).episode.rewards for r in rollouts)
    assert borders and within


def test_loss_masks_leave_observations_out(own, stage):
    groups, expansions = stage
    rollouts = [r for group in groups for r in group.rollouts]
    rollouts += [r for one in expansions for state in one.rollouts for r in state]
    wanted = {id(r.token_ids): r.sampled for r in rollouts}
    turns_before = Counter()
    for one in expansions:
        prompt = one.group.prompt_ids
        for fork, state in zip(one.forks, one.rollouts, strict=True):
            trunk = np.concatenate([prompt, one.rollout.token_ids]).tobytes()
            turns_before[trunk, len(prompt) + fork] = len(state[0].episode.earlier)
    masked, inside = 0, 0
    for trunk in base_trunks(own.config, STEP, groups) + explored_trunks(own.config.explore, STEP, expansions):
        for branch in trunk.branches:
            np.testing.assert_array_equal(branch.trains, wanted[id(branch.token_ids)])
            masked += int((~branch.trains).sum())
            begun = turns_before[trunk.token_ids.tobytes(), branch.fork]
            inside += bool(begun and branch.advantages.any())
    assert masked > 10 and inside > 5, "branches that leave after a turn train"


def test_records_and_metrics_tell_of_each_turn(own, stage, tmp_path):
    groups, expansions = stage
    stored = write_rollouts(
        RunDirectory(tmp_path), STEP, records_of(rollout_entries(STEP, groups, expansions), own.texts)
    )
    found = {record.id: record for record in read_rollouts(stored)}
    for n, rollout in enumerate(groups[0].rollouts):
        record = found[f"{STEP}/{groups[0].position}/{n}"]
        assert record.turns == [[turn.end, turn.reward] for turn in rollout.episode.turns]
        assert record.answers == answer_spans(rollout.tool_written)
        stopped = int(rollout.token_ids[-1]) in own.texts.codec.stop_ids
        ids = rollout.token_ids[:-1] if stopped else rollout.token_ids
        assert record.response == own.texts.codec.decode(ids, special_tokens=True)
    metrics = tool_metrics(own.sampler, groups, expansions)
    every = [r.episode for _, r, _ in whole_rollouts(groups, expansions)]
    assert metrics["environment/turns"] == pytest.approx(np.mean([len(e.rewards) for e in every]))
    assert metrics["environment/reward_turn_2"] == pytest.approx(
        np.mean([e.rewards[1] for e in every if len(e.rewards) > 1])
    )
    assert metrics["environment/ended"] == pytest.approx(np.mean([e.ending == "done" for e in every]))
    assert 0 < metrics["environment/given_share"] < 1 and metrics["environment/faults"] == 0


def test_kept_bases_go_on_inside_their_episodes(own, params, tiny_run, stage):
    """Their environments play the turns before a depth again, and one prefill is all that is computed of them."""
    keeper, successes = tiny_run.changed(own, **RETURNING), []
    for group in stage[0]:  # the rollout of most turns counts as a success
        turns = [len(rollout.episode.turns) for rollout in group.rollouts]
        outcomes = ["right" if n == np.argmax(turns) else "wrong" for n in range(len(turns))]
        successes.append(dataclasses.replace(group, outcomes=outcomes))
    stream = SimpleNamespace(position=9, problem_at=lambda position: successes[position].problem)
    kept_bases, restored = KeptBases(keeper.config.returns), KeptBases(keeper.config.returns)
    kept_bases.add(STEP, successes)
    content = kept_bases.state_dict()
    assert json.loads(json.dumps(content)) == content, "a checkpoint refuses tuples"
    restored.load_state_dict(content)
    assert restored == kept_bases
    restored.bases[0].depth = 0.0
    anchored = restored.visit(STEP + 1, stream, keeper.texts, keeper.noise)
    keeper.sampler.engine.take_counts()
    explored = roll_out_states(keeper, params, STEP + 1, anchored)
    whole = [len(one.group.prompt_ids) + len(one.rollout.token_ids) for one in explored]
    assert keeper.sampler.engine.take_counts().prefill_positions == sum(whole) > 0
    for problem, rollout, reward in whole_rollouts([], explored):
        read, rewards, ending = scripted.played_again(own.texts.codec, rollout, problem, CAP)
        np.testing.assert_array_equal(~rollout.sampled, read)
        assert (rollout.episode.rewards, rollout.episode.ending) == (rewards, ending)
        assert reward == pytest.approx(sum(rewards))
    states = [(one, fork, state) for one in explored for fork, state in zip(one.forks, one.rollouts, strict=True)]
    assert any(state[0].episode.earlier for _, _, state in states)
    for one, fork, state in states:
        seeds = {rollout.episode.seed for rollout in state}
        assert seeds == {one.rollout.episode.seed} if fork else len(seeds) == len(state), "from the prompt, all anew"
    assert any(fork == 0 for _, fork, _ in states)


def record(*rewards, **more):
    return EpisodeRecord(0, tuple(Turn(n, reward) for n, reward in enumerate(rewards)), **more)


def test_a_sum_of_rewards_counts_from_least_to_most_and_the_environment_may_say_what_is_right():
    assert RewardRange().verdict(record(0.25, 0.75), "train/9") == (
        verdict := RewardRange().verdict(record(1.0), "train/9")
    )
    assert (verdict.reward, verdict.outcome) == (1.0, "right")
    costly = RewardRange(-1.0, 1.0).verdict(record(-0.1, -0.1, 1.0, right=True), "train/9")
    assert (costly.reward, costly.outcome) == (pytest.approx(0.9), "right")
    assert RewardRange().verdict(record(1.0, right=False), "train/9").outcome == "wrong"
    assert RewardRange().verdict(record(0.5, earlier=(0.5,)), "train/9").reward == 1.0, "turns before a branch count"
    with pytest.raises(
        ValueError, match=r"train/9, .*sum to -0.2; expected a sum within environment.reward_range=\[0,1\]"
    ):
        RewardRange().verdict(record(-0.1, -0.1), "train/9")
    failed = RewardRange().verdict(record(-0.1, -0.1, ending="fault", fault="in turn 2: raised"), "train/9")
    assert (failed.reward, failed.outcome) == (0.0, "error"), "the sum of a failed episode may lie out of range"


class Closing(scripted.Scripted):
    """Counts the calls of close()."""

    made: list[Closing] = []

    def __init__(self):
        self.closed = 0
        Closing.made.append(self)

    def close(self):
        self.closed += 1


@pytest.mark.parametrize("in_place", [True, False])
def test_a_fault_while_lanes_decode_closes_every_environment_once(own, session, params, monkeypatch, in_place):
    monkeypatch.setattr(Closing, "made", [])
    monkeypatch.setattr(Closing, "at_once", in_place)
    sampler, still_open = dataclasses.replace(own.sampler, toolbox=scripted.episodes_of(session, Closing)), []

    def ended(rollouts):
        still_open.extend(one for one in Closing.made if not one.closed)
        if still_open:
            raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        sampler.sample(params, scripted.requests_of(session), ended=ended)
    for thread in threading.enumerate():
        if thread.name == "fr3e-call":
            thread.join(60)
    assert still_open and [one.closed for one in Closing.made] == [1] * len(Closing.made)


class HalfLocked(scripted.Posing):
    """Cannot begin every second problem."""

    def reset(self, problem, seed):
        if int(problem.gold) % 2:
            raise OSError("the door is locked")
        return super().reset(problem, seed)


def test_a_problem_is_posed_once_and_one_that_cannot_be_posed_fails_alone(session, monkeypatch):
    monkeypatch.setattr(scripted, "CALLED", Counter())
    task = posed_task(session.task, HalfLocked, scripted.config_of(kind="x"), session.texts.prompt_ids)
    checked = scripted.CALLED["reset"]
    found = [problem.prompt for _ in range(2) for problem in task.problems("train")[:4]]
    own = session.task.problems("train")
    assert found == ["0+0=", own[1].prompt, "2+0=", own[3].prompt] * 2
    assert scripted.CALLED["reset"] == checked + 2


class Stepless:
    def reset(self, problem, seed):
        return ""


class Undecided:
    def reset(self, problem, seed):
        return f"{seed}="

    def step(self, text):
        return "", 0.0, True


class Locked(Undecided):
    def reset(self, problem, seed):
        raise OSError("the door is locked")


class Speechless(Undecided):
    def reset(self, problem, seed):
        return "1="

    def step(self, text):
        return 0.0, True


class Hanging(Undecided):
    """Neither poses its later problems nor plays the first one to the end of a turn."""

    release = threading.Event()

    def reset(self, problem, seed):
        if problem.id != "train/0":
            Hanging.release.wait(60)
        return "1="

    def step(self, text):
        Hanging.release.wait(60)


class HangingAtTheEnd(Hanging):
    def step(self, text):
        return "", 0.0, True

    def close(self):
        Hanging.release.wait(60)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (Hanging, "of problem train/0 did not end after twice environment.seconds=0.2; let step.. return"),
        (HangingAtTheEnd, "of problem train/0 did not end after .*; let close.. return sooner"),
        (
            Locked,
            r"environment.kind=x failed in reset\(\) of problem train/0: raised OSError: the door is locked \(.*, in r",
        ),
        (
            Stepless,
            r"before its first turn of problem train/0: the environment is a Stepless without a method step\(\)",
        ),
        (Undecided, "returned '0=' with seed 0 and '1=' with seed 1; expected one text for all seeds"),
        (Speechless, r"in turn 1 of problem train/0: returned \(0.0, True\); expected \(observation, reward, done\)"),
    ],
)
def test_an_environment_that_cannot_be_played_is_refused_at_the_start(session, make, told):
    with pytest.raises(ValueError, match=told):
        posed_task(session.task, make, scripted.config_of(kind="x", seconds=0.2), session.texts.prompt_ids)


def test_a_problem_that_takes_too_long_to_pose_keeps_its_prompt(session):
    Hanging.release.clear()
    own = session.task.problems("train")
    posed = PosedProblems(own, Hanging, 0.05, "1=")
    assert [problem.prompt for problem in posed[:3]] == ["1=", own[1].prompt, own[2].prompt]
    Hanging.release.set()


def test_the_first_observation_is_the_prompt(session):
    task = posed_task(session.task, scripted.Posing, scripted.config_of(kind="x"), session.texts.prompt_ids)
    problem = task.problems("train")[3]
    assert (problem.id, problem.prompt, problem.original.prompt) == ("train/3", "3+0=", "3=")
    assert [p.prompt for p in task.problems("train")[:2]] == ["0+0=", "1+0="]
    plain = posed_task(session.task, scripted.Scripted, scripted.config_of(kind="x"), session.texts.prompt_ids)
    assert plain.problems("train")[3] == session.task.problems("train")[3]


def test_the_first_observation_loses_the_marks_of_turns_in_prompt_and_episode(session):
    class Marking(scripted.Posing):
        def reset(self, problem, seed):
            return f"<mark>{super().reset(problem, seed)}"

    clean, config = lambda text: text.replace("<mark>", ""), scripted.config_of(kind="x")
    problem = posed_task(session.task, Marking, config, session.texts.prompt_ids, clean).problems("train")[3]
    assert problem.prompt == "3+0="
    environment_tool(Marking, config, clean).open(problem, seed=1).close()


def test_an_environment_in_a_file_poses_grades_and_is_evaluated(tiny_run, params):
    path = scripted.__file__
    settings = {"environment__turn_end": "5", "environment__max_turns": 2, "environment__max_observation_tokens": 3}
    own = open_session(tiny_run.config(environment__kind=f"{path}:Posing", **settings))
    found = evaluate(own, params)
    assert [held_out.problem.prompt for held_out in found.problems] == ["40+0=", "41+0=", "42+0=", "43+0="]
    rollouts = [rollout for row in found.rollouts for rollout in row]
    every = list(zip(rollouts, [verdict for row in found.verdicts for verdict in row], strict=True))
    for rollout, verdict in every:
        assert verdict.reward == pytest.approx(sum(rollout.episode.rewards))
        assert verdict.right == bool(rollout.episode.right)
    assert found.metrics["environment/turns"] == pytest.approx(np.mean([len(r.episode.rewards) for r, _ in every]))
    assert found.metrics["environment/faults"] == 0


def test_a_task_without_an_environment_is_refused_by_name(tiny_run):
    with pytest.raises(ConfigError, match="environment.kind=task, but task 'parity' has no environment; give the task"):
        open_session(tiny_run.config(environment__kind="task", environment__max_observation_tokens=3))


def test_an_environment_that_fails_everywhere_ends_the_run_with_the_first_fault(own):
    grader = ResponseGrader(Grader(exact_match, judge=ENVIRONMENT), own.texts, own.processes)
    problem, fault = Problem("train/9", "9=", "9"), "in turn 2 of problem train/9: raised KeyError: 'x'\nTraceback"
    verdicts = [
        grader.grader.record_verdict(problem.id, RewardRange().verdict(record(0.0), "train/9"), fault).result()
        for _ in range(8)
    ]
    told = r"environment failed on 8 of 8 .*\(environment.kind\), or raise env.* raised KeyError: 'x'; the reward is 0$"
    with pytest.raises(GradingFailed, match=told):
        grader.check((verdict.outcome for verdict in verdicts), "of a round")
