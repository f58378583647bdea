"""The procedural tasks are reproducible from their seed, and no held-out problem is trained on, whatever the seed."""

from __future__ import annotations

import pytest

from fr3e_jax.configuration.schema import DataConfig, OrderConfig
from fr3e_jax.data.char_count_task import CharCountTask
from fr3e_jax.data.lock_task import LockTask
from fr3e_jax.data.maze_task import MazeTask
from fr3e_jax.data.order_task import OrderTask

TASKS = pytest.mark.parametrize("task", [OrderTask, LockTask, CharCountTask, MazeTask])


def make(task, seed=0):
    return task(DataConfig(task=task.name, seed=seed))


@TASKS
def test_problems_depend_on_seed_and_index_only(task):
    train = make(task, seed=3).problems("train")
    backwards = [train[i] for i in reversed(range(50))]
    assert make(task, seed=3).problems("train")[:50] == backwards[::-1]
    assert len({problem.id for problem in backwards}) == 50
    assert make(task, seed=4).problems("train")[:50] != train[:50]
    assert train[2**31 - 1] == train[-1]


@TASKS
def test_held_out_problems_are_the_same_under_every_seed_and_end_at_their_length(task):
    for split in ("test", "development"):
        held_out = make(task, seed=0).problems(split)
        assert held_out[:50] == make(task, seed=1).problems(split)[:50]
        assert len(held_out) == 4096 and held_out[4095] == held_out[-1]
        with pytest.raises(IndexError):
            held_out[4096]


@TASKS
def test_demonstrations_depend_on_seed_and_index_only(task):
    shown = [make(task, seed=1).demonstration(i, 1.0) for i in range(20)]
    again = make(task, seed=1)
    assert [again.demonstration(i, 1.0) for i in reversed(range(20))][::-1] == shown
    assert [make(task, seed=2).demonstration(i, 1.0) for i in range(20)] != shown


@TASKS
def test_every_problem_and_demonstration_is_of_its_split(task):
    drawn = make(task)
    parts = {split: list(drawn.problems(split)[:200]) for split in ("train", "development", "test")}
    for split, problems in parts.items():
        assert {drawn.split_of(drawn.key(problem.prompt, problem.gold)) for problem in problems} == {split}
    if task is LockTask:
        return  # all its prompts are equal, and its demonstrations are episodes
    shown = [drawn.demonstration(i, i % 2).prompt for i in range(200)]
    assert {drawn.split_of(drawn.key(prompt, "")) for prompt in shown} == {"train"}
    assert shown != [problem.prompt for problem in parts["train"]]


@pytest.mark.parametrize("num_operands", [2, 3, 16])
def test_all_splits_have_expressions_of_every_length(num_operands):
    task = OrderTask(DataConfig(order=OrderConfig(num_operands=num_operands, sft_min_operands=2)))
    for split in ("train", "development", "test"):
        assert len(task.problems(split)[0].prompt) == 2 * num_operands
