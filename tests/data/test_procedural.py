"""The procedural tasks are reproducible from their seed, and their held-out problems are the same under every seed."""

from __future__ import annotations

import pytest

from fr3e_jax.configuration.schema import DataConfig
from fr3e_jax.data.lock_task import LockTask
from fr3e_jax.data.order_task import OrderTask

pytestmark = pytest.mark.parametrize("task", [OrderTask, LockTask])


def make(task, seed=0):
    return task(DataConfig(task=task.name, seed=seed))


def test_problems_depend_on_seed_and_index_only(task):
    train = make(task, seed=3).problems("train")
    backwards = [train[i] for i in reversed(range(50))]
    assert make(task, seed=3).problems("train")[:50] == backwards[::-1]
    assert len({problem.id for problem in backwards}) == 50
    assert make(task, seed=4).problems("train")[:50] != train[:50]
    assert train[2**31 - 1] == train[-1]


@pytest.mark.parametrize("split", ["test", "development"])
def test_held_out_problems_are_the_same_under_every_seed_and_end_at_their_length(task, split):
    held_out = make(task, seed=0).problems(split)
    assert held_out[:50] == make(task, seed=1).problems(split)[:50]
    assert len(held_out) == 4096 and held_out[4095] == held_out[-1]
    with pytest.raises(IndexError):
        held_out[4096]


def test_demonstrations_depend_on_seed_and_index_only(task):
    shown = [make(task, seed=1).demonstration(i, 1.0) for i in range(20)]
    again = make(task, seed=1)
    assert [again.demonstration(i, 1.0) for i in reversed(range(20))][::-1] == shown
    assert [make(task, seed=2).demonstration(i, 1.0) for i in range(20)] != shown


def test_demonstrations_are_not_the_training_problems_in_their_order(task):
    if task is LockTask:
        return  # all its prompts are equal
    shown = [make(task).demonstration(i, 1.0).prompt for i in range(50)]
    assert shown != [problem.prompt for problem in make(task).problems("train")[:50]]
