"""An environment of OpenEnv plays through the adapter as it plays by itself.

The environment here derives from the package's own classes where ``openenv-core`` is installed, and else from nothing.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from fr3e_jax.problem import Problem
from fr3e_jax.tools.environment import Episode, EpisodeFault, Step
from fr3e_jax.tools.openenv import OpenEnvironment

try:
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation

    class Guess(Action):
        number: int

    class Hint(Observation):
        hint: str

except ImportError:
    Environment = object

    @dataclass
    class Guess:
        number: int

    @dataclass
    class Hint:
        hint: str
        reward: float | None = None
        done: bool = False


class Guessing(Environment):
    """Guess the number that follows from the seed and the option ``most``."""

    def __init__(self):
        super().__init__()
        self.closed = False

    def reset(self, seed=None, episode_id=None, most=9, **options):
        self.secret, self.episode_id = random.Random(seed).randint(0, most), episode_id
        return Hint(hint=f"0 to {most}")

    def step(self, action, timeout_s=None, **options):
        if action.number == self.secret:
            return Hint(hint="", reward=1, done=True)
        return Hint(hint="higher" if action.number < self.secret else "lower")

    @property
    def state(self):
        return self.secret

    def close(self):
        self.closed = True


PROBLEM = Problem("train/0", "Guess.", "", {"most": 20})


def make(**more):
    return OpenEnvironment(
        Guessing(),
        action=lambda text: Guess(number=int(text)),
        text=lambda observation: observation.hint,
        options=lambda problem: {"most": problem.extra["most"]},
        **more,
    )


def test_an_episode_is_openenvs_own_with_its_seed_and_options():
    episode, alone = Episode(make, PROBLEM, 5), Guessing()
    assert episode.first == alone.reset(seed=5, most=20).hint == "0 to 20"
    assert episode.environment._environment.episode_id == "train/0/5"
    below = alone.secret - 1
    assert episode.step(str(below)) == Step("higher", 0.0, False, None)
    assert episode.step(str(alone.secret)) == Step("", 1.0, True, None)
    episode.close()
    assert episode.environment._environment.closed
    assert Episode(lambda: make(poses=False), PROBLEM, 5).first == ""


def test_the_result_of_a_client_holds_the_observation():
    def wrapped(found):
        return SimpleNamespace(observation=SimpleNamespace(hint=found.hint), reward=found.reward, done=found.done)

    class Client(Guessing):
        def reset(self, **options):
            return wrapped(super().reset(**options))

        def step(self, action):
            return wrapped(super().step(action))

    client = OpenEnvironment(Client(), lambda text: Guess(number=int(text)), lambda observation: observation.hint)
    assert client.reset(PROBLEM, 5) == "0 to 9"
    assert client.step(str(client._environment.secret)) == Step("", 1.0, True)


def test_a_text_that_is_no_action_is_a_fault_with_its_turn():
    with pytest.raises(EpisodeFault, match=r"in turn 1 of problem train/0: raised ValueError: invalid literal for int"):
        Episode(make, PROBLEM, 5).step("seven")
