"""Refusal of updates that leave the finite numbers, before their weights reach a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np

from fr3e_jax.learning.experience import TrainingTrunk
from fr3e_jax.learning.learner import Learner
from fr3e_jax.learning.mini_batches import PerToken, trained_values
from fr3e_jax.learning.setup import Gather, alone
from fr3e_jax.programs.optimizer_programs import OptimizerPrograms


class NonFiniteUpdate(RuntimeError):
    """A figure of an update is NaN or infinite, or its new weights are: these weights must not be saved."""


def check_figures(where: str, figures: Mapping[str, float]) -> None:
    """Raise `NonFiniteUpdate` if a figure is not finite; ``where`` is what they belong to."""
    faults = [f"the {name} of {where} is {value}" for name, value in figures.items() if not math.isfinite(value)]
    if faults:
        raise NonFiniteUpdate(f"{' and '.join(faults)}; expected finite numbers")


def check_scores(batch: list[TrainingTrunk], scores: Mapping[str, PerToken | None], gather: Gather = alone) -> None:
    """Raise `NonFiniteUpdate` on all processes if a score of a token that trains is not finite.

    ``scores``: of the branches that this process counts, and None for others; or None: there are none of this name.
    """
    counts = {name: _count_finite(batch, values) for name, values in scores.items() if values is not None}
    parts = gather(list(counts.values()))
    for name, counts_of_name in zip(counts, zip(*parts, strict=True), strict=True):
        finite, tokens = (sum(column) for column in zip(*counts_of_name, strict=True))
        if finite < tokens:
            raise NonFiniteUpdate(
                f"{name} are NaN or infinite for {tokens - finite} of the {tokens} tokens to train on; "
                "expected finite numbers"
            )


def _count_finite(batch: list[TrainingTrunk], values: PerToken) -> tuple[int, int]:
    """The finite values of tokens that train, and these tokens."""
    arrays = [array for *_, array in trained_values(batch, values)]
    return sum(int(np.count_nonzero(np.isfinite(array))) for array in arrays), sum(map(len, arrays))


def check_weights(learner: Learner) -> None:
    """Prove that the weights after the last update can be used; call it before they are saved.

    Their norm must be finite, and so must the result of a pass over the micro-batch that was trained on last. The pass
    runs a compiled program of the update, so that nothing is compiled for it.

    Raises:
      NonFiniteUpdate: they cannot be used.
    """
    trained: Iterable[tuple[str, OptimizerPrograms, Any, Any, str]] = [
        ("the policy", learner.programs, learner.params, learner.trained_on, "entropy")
    ]
    if learner.critic is not None:
        critic = learner.critic
        trained = [*trained, ("the critic", critic.programs, critic.params, critic.trained_on, "value")]
    for name, programs, params, trained_on, figure in trained:
        if trained_on is None:
            continue  # no update yet
        batch, *numbers = trained_on
        _, sums = programs.accumulate(params, programs.zero_gradients(params), batch, *numbers)
        norm, total = jax.device_get((programs.norm(params), sums[figure]))
        where = f"{name} after update {learner.updates}"
        check_figures(where, {"norm of the weights": float(norm), f"{figure} under the weights": float(total)})
