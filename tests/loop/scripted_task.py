"""Tiny tasks with scripted rewards: ``data.task=tests/loop/scripted_task.py:Parity``.

A run of `Parity` can be told to signal itself at an exact moment: ``FR3E_TEST_SIGNAL="SIGKILL 25"`` sends SIGKILL
when the task is asked for the 25th time to grade a response or for a demonstration, in the middle of a step.
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
        self._asked = 0

    def problems(self, split):
        numbers = range(40) if split == "train" else range(40, 52)
        return [Problem(id=f"{split}/{n}", prompt=f"{n}=", gold=str(n)) for n in numbers]

    def demonstration(self, index, step_fraction):
        self._count()
        return Demonstration(prompt=f"{index % 40}=", response=str(index % 40))

    def verifier(self):
        return self.reward

    def reward(self, problem, response, finished):
        self._count()
        return float(sum(map(ord, response)) % 2 == 0)

    def _count(self):
        self._asked += 1
        if self._signal is not None and self._asked == int(self._signal_at):
            os.kill(os.getpid(), self._signal)


class NothingRight(Parity):
    """No response is right."""

    def reward(self, problem, response, finished):
        return 0.0


class Diverging(Parity):
    """Other training prompts where FR3E_TEST_DIVERGE is set."""

    def problems(self, split):
        found = super().problems(split)
        if split == "train" and os.environ.get("FR3E_TEST_DIVERGE"):
            return [Problem(id=p.id, prompt=f"{p.gold}+0=", gold=p.gold) for p in found]
        return found


class Unloadable(Parity):
    """As of a file that is missing where FR3E_TEST_UNLOADABLE is set."""

    def __init__(self, config):
        super().__init__(config)
        if os.environ.get("FR3E_TEST_UNLOADABLE"):
            raise FileNotFoundError("there is no file of problems here")


class UnspellablePrompts(Parity):
    """With a character that the embedded tokenizer does not have."""

    def problems(self, split):
        return [Problem(id="0", prompt="é=", gold="0")] * 2


class UnspellableDemonstrations(Parity):
    """The same in what supervised fine-tuning reads."""

    def demonstration(self, index, step_fraction):
        return Demonstration(prompt="1=", response="é")


class Calling(Parity):
    """A response is right where a tool has answered in it: ``(*-`` stands before each answer and hardly elsewhere."""

    def reward(self, problem, response, finished):
        return float("(*-" in response)
