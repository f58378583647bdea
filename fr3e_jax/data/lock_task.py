"""The embedded task *Lock*: open a combination lock of D digits by guesses, in its environment `Lock`.

Each turn is a guess of D digits and ``>``. The environment answers with a hint for each digit and ``>``: ``+`` if the
lock's digit is higher, ``-`` if it is lower, ``=`` if it is right. The episode ends when all are right::

    000>555>+-=>725>-+=>635>        the prompt, and an episode of three guesses; the combination is 635

All problems have the same prompt, so a policy has to ask. Combinations are split by a hash, so that no combination of
the development and test splits is ever trained on.
"""

from __future__ import annotations

import numpy as np

from fr3e_jax.data.procedural import ProceduralTask
from fr3e_jax.data.task import Demonstration
from fr3e_jax.problem import Problem
from fr3e_jax.rewards.verifier import Verifier, exact_match

LINE_END = ">"
DEMONSTRATED_TURNS = 4  # guesses of a demonstration, unless one opens the lock
READING = 0.5  # probability that a demonstrated digit keeps to all hints before it


class Lock:
    """The environment: a guess earns the reward 1 if it is the combination, and ends the episode."""

    at_once = True

    def __init__(self) -> None:
        self._combination = ""

    def reset(self, problem: Problem, seed: int) -> str:
        """Begin an episode; the prompt stays the problem's."""
        self._combination = problem.gold
        return ""

    def step(self, text: str) -> tuple[str, float, bool]:
        """The hints to a guess; a text that is no guess gets the hints of none: a bare line end."""
        if len(text) != len(self._combination) or not (text.isascii() and text.isdigit()):
            return LINE_END, 0.0, False
        if text == self._combination:
            return "", 1.0, True
        return hints(self._combination, text) + LINE_END, 0.0, False


def hints(combination: str, guess: str) -> str:
    """The hint to each digit of a guess."""
    return "".join("=" if c == g else "+" if c > g else "-" for c, g in zip(combination, guess, strict=True))


class LockTask(ProceduralTask):
    """*Lock* with the settings ``data.lock``; see ``fr3e_jax.data.task.Task``."""

    name = section = "lock"
    person = b"lock test split"
    environment = Lock

    def sample(self, rng: np.random.Generator, **options: int) -> tuple[str, str]:
        digits = self.config.digits
        return "0" * digits + LINE_END, "".join(map(str, rng.integers(10, size=digits)))

    def key(self, prompt: str, gold: str) -> str:
        return gold

    def demonstrated(self, rng: np.random.Generator, step_fraction: float) -> Demonstration:
        """An episode of a careless player, with the environment's hints.

        With probability `READING` a digit is one that all hints before it allow, each as likely; else it is any
        digit. So demonstrations teach the form of the game and something of its hints, and they seldom succeed.
        """
        prompt, combination = self.draw(rng, "train")
        least, most = [0] * self.config.digits, [9] * self.config.digits
        text = ""
        for _ in range(DEMONSTRATED_TURNS):
            guess = ""
            for low, high in zip(least, most, strict=True):
                reads = rng.random() < READING
                guess += str(rng.integers(low, high + 1) if reads else rng.integers(10))
            text += guess + LINE_END
            if guess == combination:
                break
            marks = hints(combination, guess)
            for position, (hint, digit) in enumerate(zip(marks, map(int, guess), strict=True)):
                least[position] = max(least[position], digit + (hint == "+")) if hint in "+=" else least[position]
                most[position] = min(most[position], digit - (hint == "-")) if hint in "-=" else most[position]
            text += marks + LINE_END
        return Demonstration(prompt, text)

    def verifier(self) -> Verifier:
        """Without its environment, the task asks for the combination itself."""
        return exact_match
