r"""The embedded task *Char count*: how many times a letter occurs in a dashed word, for small pretrained chat models.

The question ``How many n are there in n-i-n-e?`` has the demonstration ``n = n``, ``i != n``, ``n = n``, ``e != n`` and
``\boxed{2}``, a line each. Questions, demonstrations and the reward are those of verl's recipe ``char_count``: letters
are uniform, and so are the length of a word and the count from one to this length. A dash keeps each letter a token.
"""

from __future__ import annotations

from string import ascii_lowercase

import numpy as np

from fr3e_jax.data.procedural import ProceduralTask
from fr3e_jax.data.task import Demonstration
from fr3e_jax.problem import Problem
from fr3e_jax.rewards.extraction import extract
from fr3e_jax.rewards.verifier import Verifier
from fr3e_jax.verdict import Verdict


class CharCountTask(ProceduralTask):
    """*Char count* with the settings ``data.char_count``; see ``fr3e_jax.data.task.Task``."""

    name = section = "char_count"
    person = b"char count split"

    def sample(self, rng: np.random.Generator, **options: int) -> tuple[str, str]:
        shortest, longest = self.config.letters
        length = int(rng.integers(shortest, longest + 1))
        count = int(rng.integers(1, length + 1))
        letter = str(rng.choice(list(ascii_lowercase)))
        others = [other for other in ascii_lowercase if other != letter]
        word = rng.permutation([letter] * count + rng.choice(others, length - count).tolist())
        return f"How many {letter} are there in {'-'.join(word)}?", str(count)

    def demonstrated(self, rng: np.random.Generator, step_fraction: float) -> Demonstration:
        """A right solution: each letter compared in its own line, then the count in a box."""
        question, count = self.draw(rng, "train")
        _, _, letter, *_, word = question.removesuffix("?").split()
        lines = [f"{other} {'=' if other == letter else '!='} {letter}" for other in word.split("-")]
        return Demonstration(question, "\n".join([*lines, f"\\boxed{{{count}}}"]))

    def verifier(self) -> Verifier:
        return boxed_count


def boxed_count(problem: Problem, response: str, finished: bool) -> Verdict:
    r"""Right if the last ``\boxed{}`` holds the count's digits and nothing else."""
    answer = extract(response)
    if answer is None:
        return Verdict(0.0, "no_answer")
    return Verdict(1.0, "right") if answer == problem.gold else Verdict(0.0, "wrong")
