"""The teacher of a full batch (on-policy distillation): the tokens at which it speaks, and its advantages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fr3e_jax.configuration.schema import TeacherConfig
from fr3e_jax.learning.experience import TrainingTrunk
from fr3e_jax.learning.mini_batches import PerToken, nested, stacked, trained_tokens
from fr3e_jax.programs.shaping_programs import forking_tokens, teacher_advantages

_QUARTERS = 4  # of a response, for metrics


def reads_scores_first(teacher: TeacherConfig) -> bool:
    """True if the teacher's part reads the policy's log-probs or entropies before an update."""
    return bool(teacher.path) and (teacher.place == "advantage" or teacher.entropy_share < 1)


def selects_tokens(teacher: TeacherConfig) -> bool:
    """True if the teacher speaks at a part of the tokens."""
    return bool(teacher.path) and teacher.entropy_share < 1


def changes_advantages(teacher: TeacherConfig) -> bool:
    """True if the teacher adds to the advantages, or takes those of rewards away."""
    return bool(teacher.path) and (teacher.place == "advantage" or teacher.alone)


def taught_tokens(share: float, batch: list[TrainingTrunk], entropies: PerToken) -> PerToken:
    """The ``share`` of the batch's trained tokens at which the policy's entropy is highest, bool."""
    trains = stacked([[branch.trains for branch in trunk.branches] for trunk in batch])
    return nested(batch, forking_tokens(stacked(entropies), trains, share=share))


@dataclass
class TeacherCredit:
    """The result of `teacher_credit`."""

    advantages: PerToken
    metrics: dict[str, float]


def teacher_credit(
    config: TeacherConfig,
    batch: list[TrainingTrunk],
    advantages: PerToken | None,
    old: PerToken,
    teacher: PerToken | None,
    taught: PerToken | None,
) -> TeacherCredit:
    """Advantages of rewards and teacher together, and metrics over the trained tokens.

    Args:
      config: the settings.
      batch: the full batch; it is not changed.
      advantages: of rewards; None: those of ``batch``.
      old: the policy's log-probs before the first update.
      teacher: the teacher's log-probs; None: it adds nothing to advantages.
      taught: the tokens at which it speaks; None: all.
    """
    held = [[branch.advantages for branch in trunk.branches] for trunk in batch] if advantages is None else advantages
    total = stacked(held).astype(np.float32) * np.float32(not config.alone)
    if teacher is None:
        return TeacherCredit(nested(batch, total), {})
    of_tokens = teacher_advantages(stacked(old), stacked(teacher))
    speaks = np.ones(of_tokens.shape, bool) if taught is None else stacked(taught)
    total += np.float32(config.weight) * np.where(speaks, of_tokens, np.float32(0))
    metrics = _metrics(batch, of_tokens, speaks)
    return TeacherCredit(nested(batch, total), metrics)


def _metrics(batch: list[TrainingTrunk], of_tokens: np.ndarray, speaks: np.ndarray) -> dict[str, float]:
    divergences = -trained_tokens(batch, nested(batch, of_tokens))
    places = [[trunk.relative_positions(branch) for branch in trunk.branches] for trunk in batch]
    quarters = (_QUARTERS * trained_tokens(batch, places)).astype(int)
    metrics = {"teacher/reverse_kl": float(divergences.mean())}
    metrics["teacher/share"] = float(trained_tokens(batch, nested(batch, speaks)).mean())
    for quarter in range(_QUARTERS):
        if (within := quarters == quarter).any():
            metrics[f"teacher/reverse_kl_quarter_{quarter + 1}"] = float(divergences[within].mean())
    return metrics
