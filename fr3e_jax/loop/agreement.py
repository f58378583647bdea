"""The decisions of each stage that all processes must have made alike, as arguments of `Processes.agree`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fr3e_jax.learning.experience import TrainingTrunk
from fr3e_jax.loop.expansion import Anchored, Credited, PromptGroup
from fr3e_jax.loop.prompts import Prompt


def of_prompts(prompts: Sequence[Prompt]) -> dict[str, Any]:
    """The problems that are sampled, and their token ids."""
    return {
        "prompts": [[prompt.position, prompt.problem.id] for prompt in prompts],
        "prompt_ids": [prompt.token_ids for prompt in prompts],
    }


def of_groups(groups: Sequence[PromptGroup]) -> dict[str, Any]:
    """The rewards of the base rollouts, the prompts that are kept and the bases that are expanded."""
    return {
        "kept_prompts": [group.position for group in groups if group.kept],
        "chosen_bases": [[group.position, *group.chosen] for group in groups if group.chosen],
        "rewards": [group.rewards for group in groups],
    }


def of_states(anchored: Sequence[Anchored]) -> dict[str, Any]:
    """The states from which exploration starts."""
    return {"anchors": [[e.group.position, e.base, list(e.anchors), list(e.forks)] for e in anchored]}


def of_values(credited: Sequence[Credited]) -> dict[str, Any]:
    """The rewards and advantages of exploration, and the states that train."""
    return {
        "state_rewards": [rewards for e in credited for rewards in e.rewards],
        "advantages": [advantages for e in credited for advantages in e.advantages],
        "trained_states": [list(e.trained) for e in credited],
    }


def of_batch(batch: Sequence[TrainingTrunk]) -> dict[str, Any]:
    """The full batch that trains."""
    branches = [branch for trunk in batch for branch in trunk.branches]
    return {
        "trunk_ids": [trunk.token_ids for trunk in batch],
        "forks": [branch.fork for branch in branches],
        "branch_ids": [branch.token_ids for branch in branches],
        "branch_advantages": [branch.advantages for branch in branches],
    }
