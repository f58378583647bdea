"""*Lock*: hints are right, splits share no combination, and demonstrations are episodes of the environment."""

from __future__ import annotations

from collections import Counter
from itertools import product

from fr3e_jax.configuration.schema import DataConfig
from fr3e_jax.configuration.task_sections import LockConfig
from fr3e_jax.data import lock_task
from fr3e_jax.data.character_tokenizer import CHARACTERS
from fr3e_jax.data.lock_task import Lock, LockTask, hints
from fr3e_jax.tools.environment import Episode, check_by_playing


def make(**settings):
    return LockTask(DataConfig(task="lock", lock=LockConfig(**settings)))


def test_hints_say_where_the_lock_is():
    assert hints("635", "555") == "+-="
    assert hints("0", "0") == "="


def test_an_episode_by_hand():
    task = make()
    problem = task.problems("train")[0]
    assert problem.prompt == "000>" and check_by_playing(task.environment, problem, "task", []) == ""
    episode = Episode(Lock, problem, 3)
    assert episode.step("12")[:3] == (">", 0.0, False), "no guess of three digits"
    assert episode.step("1²3")[:3] == (">", 0.0, False)
    wrong = str((int(problem.gold) + 1) % 1000).zfill(3)
    assert episode.step(wrong)[:3] == (hints(problem.gold, wrong) + ">", 0.0, False)
    assert episode.step(problem.gold)[:3] == ("", 1.0, True)


def test_splits_divide_all_combinations_and_problems_are_many():
    parts = Counter(make().split_of("".join(digits)) for digits in product("0123456789", repeat=3))
    assert len(parts) == 3 and min(parts.values()) > 40
    assert len({problem.gold for problem in make().problems("train")[:300]}) > 200


def test_a_demonstration_is_an_episode_and_reads_hints_as_often_as_it_is_told(monkeypatch):
    solved = {}
    for reading in (0.0, 0.5, 1.0):
        monkeypatch.setattr(lock_task, "READING", reading)
        task, solved[reading] = make(), 0
        for index in range(200):
            shown = task.demonstration(index, 1.0)
            assert set(shown.response) <= set(CHARACTERS) and shown == task.demonstration(index, 0.0)
            turns = [shown.response[n : n + 8] for n in range(0, len(shown.response), 8)]
            assert len(turns) <= 4
            candidates = (
                [
                    c
                    for c in map("".join, product("0123456789", repeat=3))
                    if all(t[4:7] in ("", hints(c, t[:3])) for t in turns)
                ]
                if index < 5
                else ["?"]
            )
            assert candidates, "the hints are those of one combination"
            solved[reading] += len(turns[-1]) == 4
    assert solved[0.0] < solved[0.5] < solved[1.0]
