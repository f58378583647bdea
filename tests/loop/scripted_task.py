"""Tiny tasks with scripted rewards: ``data.task=tests/loop/scripted_task.py:Parity``.

A run of `Parity` can be told to signal itself at an exact moment: ``FR3E_TEST_SIGNAL="SIGKILL 25"`` sends SIGKILL
while the 25th response is graded, which is in the middle of a step.
"""

from __future__ import annotations

import os
import signal

from fr3e_jax.data.task import Demonstration, Problem


class Parity:
    """About every second response of an untrained model is right: an even sum of its characters' codes."""

    name = "parity"

    def __init__(self, config):
        self.dropped = {}
        name, _, self._signal_at = os.environ.get("FR3E_TEST_SIGNAL", "").partition(" ")
        self._signal = getattr(signal, name, None)
        self._graded = 0

    def problems(self, split):
        numbers = range(40) if split == "train" else range(40, 52)
        return [Problem(id=f"{split}/{n}", prompt=f"{n}=", gold=str(n)) for n in numbers]

    def demonstration(self, index, step_fraction):
        return Demonstration(prompt=f"{index % 40}=", response=str(index % 40))

    def verifier(self):
        return self.reward

    def reward(self, problem, response, finished):
        self._graded += 1
        if self._signal is not None and self._graded == int(self._signal_at):
            os.kill(os.getpid(), self._signal)
        return float(sum(map(ord, response)) % 2 == 0)


class AllWrong(Parity):
    """Nothing is ever right."""

    def reward(self, problem, response, finished):
        return 0.0


class Unspellable(Parity):
    """Prompts with a character that the embedded tokenizer does not have."""

    def problems(self, split):
        return [Problem(id="0", prompt="é=", gold="0")] * 2

    def demonstration(self, index, step_fraction):
        return Demonstration(prompt="1=", response="é")
