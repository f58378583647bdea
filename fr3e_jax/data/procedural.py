"""Problems that a task computes from (seed, stream, index), and the split of a text by its hash."""

from __future__ import annotations

import abc
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fr3e_jax.data.task import Split
from fr3e_jax.problem import Problem

STREAMS = {"train": 0, "test": 1, "demonstrations": 2, "development": 3}
LENGTHS = {"train": 2**31, "test": 4096, "development": 4096}
HELD_OUT_SEED = 0  # fixed, so that runs with different data seeds are compared on the same held-out problems


class ProceduralTask(abc.ABC):
    """A task that draws its problems; see ``fr3e_jax.data.task.Task``.

    Args:
      settings: the task's own section of ``data``.
      seed: ``data.seed``, of the training problems.
    """

    def __init__(self, settings: Any, seed: int):
        self.config, self.seed = settings, seed
        self.dropped: dict[str, int] = {}

    def problems(self, split: Split) -> ProceduralProblems:
        return ProceduralProblems(split, self.seed, self.draw)

    @abc.abstractmethod
    def draw(self, rng: np.random.Generator, split: Split) -> tuple[str, str]:
        """A random prompt of the split and its answer."""


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


def split_by_hash(text: str, person: bytes, development: int) -> Split:
    """The split of a text: one in 16 to test (part 0) and to ``development``, the rest to train.

    Args:
      text: what identifies a problem.
      person: sets the hash of one task apart from others', at most 16 bytes.
      development: the part that is the development split, 1 to 15.
    """
    bucket = hashlib.blake2b(text.encode(), digest_size=8, person=person).digest()[0] % 16
    return "test" if bucket == 0 else "development" if bucket == development else "train"
