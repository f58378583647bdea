"""Rollouts as columns, and the part of a large run that is read."""

import math
from collections import Counter

import numpy as np
from analysed_runs import made_up_run, rollout

from fr3e_jax.studies.analysis.responses import ReadLimits, read_responses, responses_of
from fr3e_jax.studies.analysis.stored_run import drawn_steps


def test_a_branch_begins_with_the_prefix_it_shares_and_counts_only_its_own_tokens():
    base = rollout(1, 0, 0, True, [10, 11, 12, 1], logprobs=[-1.0, -2.0, -3.0, -4.0])
    branch = rollout(1, 0, 0, False, [20, 21, 1], kind="state", id="b", parent="1/0/0", fork=2, answers=[[1, 2]])
    columns = responses_of([base, branch])
    assert columns.tokens[columns.starts[1] :].tolist() == [10, 11, 20, 21, 1]
    assert columns.counted[columns.starts[1] :].tolist() == [False, False, True, False, True]
    assert columns.lengths.tolist() == [4, 5] and columns.position.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4]
    assert columns.owner.tolist() == [0] * 4 + [1] * 5


def test_right_follows_the_outcome_and_the_reward_only_without_one():
    rewards = [("right", 0.5), ("wrong", 1.0), (None, 1.0), (None, 0.5), (None, math.nan)]
    columns = responses_of([rollout(1, 0, i, 0, [1], outcome=o, reward=r) for i, (o, r) in enumerate(rewards)])
    assert columns.right.tolist() == [True, False, True, False, False]
    assert columns.graded.tolist() == [True, True, True, True, False]
    failed = [rollout(1, 0, 0, 0, [1], outcome="judge_timeout", kind=kind) for kind in ("base", "eval")]
    assert responses_of(failed).graded.tolist() == [False, True], "of evaluations it is not solved (judges.md)"


def test_steps_of_a_large_run_are_the_ends_and_one_of_each_part_between():
    sizes = dict.fromkeys(range(1, 101), 10)
    drawn = drawn_steps(sizes, 100, seed=4)
    assert len(drawn) == 10 and drawn == drawn_steps(sizes, 100, seed=4)
    parts = np.array_split(np.arange(2, 100), 8)
    assert drawn[0] == 1 and drawn[-1] == 100
    assert all(step in part for step, part in zip(drawn[1:-1], parts, strict=True))
    assert drawn != drawn_steps(sizes, 100, seed=5)
    assert drawn_steps(sizes, 1000, seed=4) == list(sizes)
    assert drawn_steps({5: 10**9, 7: 10**9}, 100, seed=4) == [5, 7] and drawn_steps({}, 100, seed=4) == []


def test_prompts_of_a_large_run_are_drawn_as_whole_groups_and_the_note_says_so(tmp_path):
    rollouts = [rollout(s, p, b, True, list(range(2, 22))) for s in (1, 2, 3) for p in range(40) for b in range(4)]
    run = made_up_run(tmp_path / "run", rollouts=rollouts)
    size = sum(path.stat().st_size for path in run.directory.rollouts.iterdir())
    columns = read_responses(run, limits=ReadLimits(read_bytes=size // 2, tokens=40))
    groups = Counter((record.step, record.prompt_position) for record in columns.records)
    assert 0 < len(groups) < 80 and set(groups.values()) == {4}
    assert {step for step, _ in groups} == {1, 3}
    assert "2 of 3 steps" in columns.note and "of the prompts" in columns.note and "seed 0" in columns.note
    assert len(read_responses(run)) == 480 and read_responses(run).note == "all 3 steps"


def test_held_out_problems_of_a_large_run_are_the_same_at_every_evaluation(tmp_path):
    samples = [
        rollout(s, p, b, True, list(range(2, 22)), kind="eval")
        for s in (0, 10, 20)
        for p in range(40)
        for b in range(3)
    ]
    columns = read_responses(made_up_run(tmp_path / "run", samples=samples), "eval", limits=ReadLimits(tokens=80))
    groups = Counter((record.step, record.prompt_position) for record in columns.records)
    drawn = {step: {position for at, position in groups if at == step} for step in (0, 10, 20)}
    assert 0 < len(drawn[0]) < 40 and drawn[0] == drawn[10] == drawn[20]
    assert set(groups.values()) == {3}
