"""Tasks whose problems are computed from (seed, stream, index), and split by a hash."""

from __future__ import annotations

import abc
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fr3e_jax.configuration.schema import DataConfig
from fr3e_jax.data.task import Demonstration, Split
from fr3e_jax.problem import Problem
from fr3e_jax.rewards.verifier import Verifier

STREAMS = {"train": 0, "test": 1, "demonstrations": 2, "development": 3}
LENGTHS = {"train": 2**31, "test": 4096, "development": 4096}
HELD_OUT_SEED = 0  # fixed, so that runs with different data seeds are compared on the same held-out problems


class ProceduralTask(abc.ABC):
    """A task that draws its problems; see ``fr3e_jax.data.task.Task``.

    A hash gives each problem its split: one in 16 to test (part 0) and to development, the rest to train.

    Attributes:
      name: of the task.
      section: of the settings, ``data.SECTION``, which is ``config``; a task that extends another one keeps it.
      person: sets the hash of one task apart from others', at most 16 bytes.
      development: the part that is the development split, 1 to 15.
    """

    name: str
    section: str
    person: bytes
    development = 1

    def __init__(self, data: DataConfig):
        self.config, self.seed = getattr(data, self.section), data.seed
        self.dropped: dict[str, int] = {}

    def problems(self, split: Split) -> ProceduralProblems:
        return ProceduralProblems(split, self.seed, self.draw)

    def demonstration(self, index: int, step_fraction: float) -> Demonstration:
        return self.demonstrated(generator(self.seed, "demonstrations", index), step_fraction)

    def draw(self, rng: np.random.Generator, split: Split, **options: int) -> tuple[str, str]:
        """A random prompt of the split and its answer, by rejection sampling."""
        while True:
            prompt, gold = self.sample(rng, **options)
            if self.split_of(self.key(prompt, gold)) == split:
                return prompt, gold

    def split_of(self, key: str) -> Split:
        """The split of a problem by the text that tells it from others."""
        bucket = hashlib.blake2b(key.encode(), digest_size=8, person=self.person).digest()[0] % 16
        return "test" if bucket == 0 else "development" if bucket == self.development else "train"

    def key(self, prompt: str, gold: str) -> str:
        """The text that tells a problem from others."""
        return prompt

    @abc.abstractmethod
    def sample(self, rng: np.random.Generator, **options: int) -> tuple[str, str]:
        """A random prompt of any split and its answer."""

    @abc.abstractmethod
    def demonstrated(self, rng: np.random.Generator, step_fraction: float) -> Demonstration:
        """A random demonstration; see ``Task.demonstration``."""

    @abc.abstractmethod
    def verifier(self) -> Verifier:
        """The verifier of full responses."""


@dataclass(frozen=True)
class ProceduralProblems(Sequence[Problem]):
    """The problems of one split, each computed on access.

    Attributes:
      split: their split.
      seed: of the training problems; held-out problems are the same under every seed.
      draw: makes a prompt of the split and its gold answer.
    """

    split: Split
    seed: int
    draw: Callable[[np.random.Generator, Split], tuple[str, str]]

    def __len__(self) -> int:
        return LENGTHS[self.split]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        seed = self.seed if self.split == "train" else HELD_OUT_SEED
        prompt, gold = self.draw(generator(seed, self.split, index), self.split)
        return Problem(id=f"{self.split}/{index}", prompt=prompt, gold=gold)


def generator(seed: int, stream: str, index: int) -> np.random.Generator:
    """The generator of one problem or demonstration, independent of all others."""
    sequence = np.random.SeedSequence(seed, spawn_key=(STREAMS[stream], index))
    return np.random.Generator(np.random.Philox(sequence))
