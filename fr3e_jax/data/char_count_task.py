r"""The embedded task *Char count*: how many times a letter occurs in a dashed word, for small pretrained chat models.

The question ``How many n are there in n-i-n-e?`` has the demonstration ``n = n``, ``i != n``, ``n = n``, ``e != n`` and
``\boxed{2}``, a line each. Questions, demonstrations and the reward are those of verl's recipe ``char_count``: letters
are uniform, and so are the length of a word and the count from one to this length. A dash keeps each letter a token.
"""

from __future__ import annotations

from string import ascii_lowercase

import numpy as np

from fr3e_jax.configuration.schema import DataConfig
from fr3e_jax.data.procedural import ProceduralTask, generator, split_by_hash
from fr3e_jax.data.task import Demonstration, Split
from fr3e_jax.problem import Problem
from fr3e_jax.rewards.extraction import extract
from fr3e_jax.rewards.verifier import Verifier
from fr3e_jax.verdict import Verdict


class CharCountTask(ProceduralTask):
    """*Char count* with the settings ``data.char_count``; see ``fr3e_jax.data.task.Task``."""

    name = "char_count"

    def __init__(self, config: DataConfig):
        letters = config.char_count
        if letters.min_letters > letters.max_letters:
            raise ValueError(
                f"data.char_count.min_letters is {letters.min_letters}, more than data.char_count.max_letters "
                f"({letters.max_letters}); lower the first or raise the second"
            )
        super().__init__(letters, config.seed)

    def draw(self, rng: np.random.Generator, split: Split) -> tuple[str, str]:
        letter, word = self._draw(rng, split)
        return _question(letter, word), str(word.count(letter))

    def demonstration(self, index: int, step_fraction: float) -> Demonstration:
        """A right solution: each letter compared in its own line, then the count in a box."""
        letter, word = self._draw(generator(self.seed, "demonstrations", index), "train")
        lines = [f"{other} {'=' if other == letter else '!='} {letter}" for other in word]
        return Demonstration(_question(letter, word), "\n".join([*lines, f"\\boxed{{{word.count(letter)}}}"]))

    def verifier(self) -> Verifier:
        return boxed_count

    def _draw(self, rng: np.random.Generator, split: Split) -> tuple[str, str]:
        """A letter and a word of the wanted split, by rejection sampling."""
        while True:
            length = int(rng.integers(self.config.min_letters, self.config.max_letters + 1))
            count = int(rng.integers(1, length + 1))
            letter = str(rng.choice(list(ascii_lowercase)))
            others = [other for other in ascii_lowercase if other != letter]
            word = "".join(rng.permutation([letter] * count + rng.choice(others, length - count).tolist()))
            if split_of(_question(letter, word)) == split:
                return letter, word


def boxed_count(problem: Problem, response: str, finished: bool) -> Verdict:
    r"""Right if the last ``\boxed{}`` holds the count's digits and nothing else."""
    answer = extract(response)
    if answer is None:
        return Verdict(0.0, "no_answer")
    return Verdict(1.0, "right") if answer == problem.gold else Verdict(0.0, "wrong")


def split_of(question: str) -> Split:
    """The split of a question by a hash of its text: one in 16 each for test and development, the rest to train."""
    return split_by_hash(question, b"char count split", development=1)


def _question(letter: str, word: str) -> str:
    return f"How many {letter} are there in {'-'.join(word)}?"
