"""Environments shaped as Gymnasium's play through the adapter, and so do the package's own."""

from __future__ import annotations

import random
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.schema import DataConfig
from fr3e_jax.tools import gymnasium_environment as adapter
from fr3e_jax.tools.environment import Episode, EpisodeFault, check_by_playing
from fr3e_jax.tools.gymnasium_environment import GymnasiumTask


class Discrete(SimpleNamespace): ...


class Box(SimpleNamespace): ...


class Text(SimpleNamespace):
    def contains(self, text):
        return text.isdecimal()


class Game:
    """Guess the number of the seed; ``shape`` makes an observation or a step's tuple of a hint."""

    def __init__(self, space=None, shape=lambda hint: hint, info=None, render_mode=None, old=False):
        self.action_space, self.shape, self.info, self.render_mode, self.old = (
            space,
            shape,
            info or {},
            render_mode,
            old,
        )

    def reset(self, seed=None):
        self.secret = random.Random(seed).randrange(4)
        return self.shape("0 to 3") if self.old else (self.shape("0 to 3"), self.info)

    def step(self, action):
        self.hint = "right" if int(action) == self.secret else "wrong"
        ends = (self.hint == "right",) if self.old else (self.hint == "right", False)
        return self.shape(self.hint), float(self.hint == "right"), *ends, self.info

    def render(self):
        return "\x1b[41mA\x1b[0mB\x1b[34;1mC\x1b[0m\n"


def episode(options=None, **game):
    task = GymnasiumTask(lambda: Game(**game), **options or {})
    return Episode(task.environment, task.problems("train")[3], 5)


SECRET = random.Random(3).randrange(4)  # 1


@pytest.mark.parametrize(
    ("game", "options", "first", "text", "observation"),
    [
        ({}, {}, "0 to 3", "2", "wrong"),
        ({"old": True}, {}, "0 to 3", "2", "wrong"),
        ({}, {"instructions": "Guess!"}, "Guess!\n\n0 to 3", "2", "wrong"),
        ({"space": Text()}, {}, "0 to 3", " 2\n", "wrong"),
        ({"space": Text()}, {}, "0 to 3", "two", "That is no action; expected a text of its action space."),
        ({"space": Discrete(n=4)}, {}, "Reply with an action: 0, 1, 2, 3.\n\n0 to 3", "1 or 2", "wrong"),
        ({"space": Discrete(n=2)}, {"instructions": ""}, "0 to 3", "12", "That is no action; expected one of 0, 1."),
        ({"space": Discrete(n=2, start=2)}, {}, "Reply with an action: 2, 3.\n\n0 to 3", "3", "wrong"),
        (
            {"space": Discrete(n=4), "info": {"action_mask": np.array([0, 1, 0, 1])}},
            {"actions": ["up", "up left", "left", "down"], "instructions": ""},
            "0 to 3\nPossible: up left, down",
            "I go LEFT",
            "wrong\nPossible: up left, down",
        ),
        ({"space": Box()}, {"action": int}, "0 to 3", "2", "wrong"),
        ({"shape": lambda hint: (1, np.int64(2), {"a": np.array([0.5])})}, {}, "(1, 2, {'a': [0.5]})", "2", None),
        ({"shape": len}, {"text": lambda number: f"{number} letters"}, "6 letters", "2", "5 letters"),
        ({"shape": len, "render_mode": "ansi"}, {}, "[A]B(C)", "2", "[A]B(C)"),
    ],
)
def test_texts_become_actions_and_observations_texts(game, options, first, text, observation):
    playing = episode(options, **game)
    assert playing.first == first
    step = playing.step(text)
    assert (step.observation, step.reward, step.done) == (first if observation is None else observation, 0.0, False)


def test_an_episode_follows_from_the_seed_of_its_problem_and_its_actions():
    for seed in (5, 6):
        task = GymnasiumTask(Game, problems=4, held_out=2)
        assert [len(task.problems(split)) for split in ("train", "test", "development")] == [4, 2, 2]
        playing = Episode(task.environment, task.problems("train")[3], seed)
        step = playing.step(str(SECRET))
        assert (step.reward, step.done, step.right) == (1.0, True, None)
        playing.close()
    assert check_by_playing(lambda: adapter.GymnasiumEnvironment(Game(Discrete(n=4))), task.problems("test")[0], "", [])


@pytest.mark.parametrize(
    ("game", "options", "complaint"),
    [
        ({"space": Box()}, {}, "its actions are a Box space, which no text stands for"),
        ({"space": Discrete(n=4)}, {"actions": ["up"]}, "it has 4 actions, but 1 names"),
    ],
)
def test_actions_without_a_text_are_refused_by_name(game, options, complaint):
    with pytest.raises(ValueError, match=complaint):
        GymnasiumTask(lambda: Game(**game), **options)


@pytest.mark.parametrize("shape", [lambda hint: np.zeros((9, 9)), lambda hint: object(), lambda hint: {"a": None}])
def test_an_observation_that_is_no_text_is_refused_by_name(shape):
    with pytest.raises(EpisodeFault, match="no text; give GymnasiumTask"):
        episode(shape=shape)


def test_a_vector_of_environments_is_refused_by_name():
    with pytest.raises(ValueError, match="it is a vector of environments"):
        adapter.GymnasiumEnvironment(SimpleNamespace(single_action_space=Discrete(n=2)))


def test_frozen_lake_is_played_as_by_itself():
    options = ["is_slippery=true", "problems=4", "actions=[left, down, right, up]"]
    task = adapter.task(DataConfig(task="gymnasium", environment="FrozenLake-v1", environment_options=options))
    problem, lake = task.problems("train")[3], gymnasium.make("FrozenLake-v1", render_mode="ansi")
    playing = Episode(task.environment, problem, 5)
    lake.reset(seed=3)
    assert playing.first == "Reply with an action: left, down, right, up.\n\n[S]FFF\nFHFH\nFFFH\nHFFG"
    for name in ["right", "down", "right", "down", "down", "right"]:
        _, reward, terminated, truncated, _ = lake.step(["left", "down", "right", "up"].index(name))
        step = playing.step(f"I go {name}.")
        assert (step.reward, step.done) == (reward, terminated or truncated)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("Absent-v1", "NameNotFound"), ("Pendulum-v1", "its actions are a Box space"), ("", "set it to the id")],
)
def test_other_environments_are_refused_by_name(name, complaint):
    with pytest.raises(ConfigError, match=complaint):
        adapter.task(DataConfig(task="gymnasium", environment=name))
