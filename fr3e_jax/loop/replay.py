"""Replay: own successes train once more, each as a member of a fresh group of its prompt.

A part of a round's prompts is asked again. The latest success of such a prompt takes the place of a fresh rollout: it
has its share in the baseline. It trains with the log-probs that it was sampled with, so that ``loss.importance_cap``
weights its tokens by min(π / π_then, cap). (ExGRPO, Zhan et al. 2025, arXiv:2510.02245; RLEP, Zhang et al. 2025,
arXiv:2507.07451.) A prompt whose fresh rollouts are all wrong has a group with signal then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fr3e_jax.data.stream import Prompt, PromptStream
from fr3e_jax.learning.experience import TrainingBranch, sampled_branch
from fr3e_jax.loop.expansion import PromptGroup
from fr3e_jax.rollouts.noise import REPLAY, Noise
from fr3e_jax.session.texts import Texts

MOST_SUCCESSES = 1024  # that are stored; beyond it the oldest leave


@dataclass
class Success:
    """The latest success of a prompt."""

    response: TrainingBranch  # its advantages are those that it once had
    step: int  # in which its prompt was asked last


@dataclass
class Replay:
    """The stored successes of a run by the position of their prompt in the stream, oldest first."""

    share: float = 0.0  # of the prompts of a round
    successes: dict[int, Success] = field(default_factory=dict)
    asked: int = 0  # prompts asked again so far

    def state_dict(self) -> dict[str, Any]:
        """JSON content for a checkpoint."""
        stored = [[position, s.response.to_json(), s.step] for position, s in self.successes.items()]
        return {"successes": stored, "asked": self.asked}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the state that `state_dict` described."""
        stored = state["successes"]
        self.successes = {position: Success(TrainingBranch.from_json(r), step) for position, r, step in stored}
        self.asked = state["asked"]

    def prompts(self, step: int, count: int, stream: PromptStream, texts: Texts, noise: Noise) -> list[Prompt]:
        """The prompts of a round of ``count`` that are asked again: drawn from those not asked in this step."""
        waiting = [position for position, success in self.successes.items() if success.step != step]
        taken = min(int(self.share * count), len(waiting))
        drawn = noise.generator(REPLAY, step, stream.position).permutation(len(waiting))[:taken]
        self.asked += taken
        problems = [(waiting[n], stream.problem_at(waiting[n])) for n in sorted(drawn.tolist())]
        return [Prompt(position, problem, texts.prompt_ids(problem.prompt)) for position, problem in problems]

    def successes_of(self, prompts: Sequence[Prompt]) -> dict[int, TrainingBranch]:
        """The stored successes of those ``prompts`` that have one, by position."""
        positions = (prompt.position for prompt in prompts)
        return {position: self.successes[position].response for position in positions if position in self.successes}

    def metrics(self) -> dict[str, float]:
        """The stored successes, and the prompts asked again since the start of the run."""
        return {"replay/stored": len(self.successes), "replay/asked": self.asked} if self.share else {}

    def observe(self, step: int, groups: Sequence[PromptGroup]) -> None:
        """Store the latest success of each mixed group; a prompt that is solved in all fresh rollouts leaves."""
        for group in groups if self.share else ():
            old = self.successes.pop(group.position, None)
            if group.right.all():
                continue
            if group.right.any():
                rollout = group.rollouts[int(np.flatnonzero(group.right)[0])]
                reward = float(group.rewards[group.right][0])
                response = sampled_branch(rollout, len(group.prompt_ids), 0.0, reward=reward, right=True, step=step)
                old = Success(response.copy(), step)
            if old is not None:
                self.successes[group.position] = Success(old.response, step)
        for position in list(self.successes)[:-MOST_SUCCESSES]:
            del self.successes[position]
