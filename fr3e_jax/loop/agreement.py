"""The input and the output of sampling, which all processes must have alike, as arguments of `Processes.agree`.

The decisions between them follow from these and from the sampled tokens, which `Grading` compares.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fr3e_jax.data.stream import Prompt
from fr3e_jax.learning.experience import TrainingTrunk


def of_prompts(prompts: Sequence[Prompt]) -> dict[str, Any]:
    """The problems that are sampled, and their token ids."""
    return {
        "prompts": [[prompt.position, prompt.problem.id] for prompt in prompts],
        "prompt_ids": [prompt.token_ids for prompt in prompts],
    }


def of_batch(batch: Sequence[TrainingTrunk]) -> dict[str, Any]:
    """The full batch that trains."""
    branches = [branch for trunk in batch for branch in trunk.branches]
    return {
        "trunk_ids": [trunk.token_ids for trunk in batch],
        "forks": np.array([branch.fork for branch in branches]),
        "branch_ids": [branch.token_ids for branch in branches],
        "branch_advantages": [branch.advantages for branch in branches],
    }
