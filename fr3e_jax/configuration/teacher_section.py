"""Settings of a teacher (on-policy distillation)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fr3e_jax.configuration.options import option


@dataclass
class TeacherConfig:
    """A model that scores what the policy samples, and that the policy comes closer to (on-policy distillation)."""

    path: str = option(
        "",
        "Hugging Face directory of the teacher, its address or id on the hub, with the policy's tokenizer; empty: none",
    )
    weight: float = option(1.0, "factor of what the teacher adds to advantages or loss", gt=0)
    place: Literal["advantage", "loss"] = option(
        "advantage",
        "added to each token's advantage: teacher's less policy's log-prob of the token (Lu 2025); or to its loss: the "
        "divergence over the whole vocabulary (GKD)",
    )
    beta: float = option(
        1.0,
        "divergence of teacher.place=loss: 1: KL(policy, teacher), 0: KL(teacher, policy), else between",
        ge=0,
        le=1,
    )
    alone: bool = option(False, "only the teacher teaches: rewards are measured, and do not train")
    entropy_share: float = option(
        1.0,
        "share of a batch's tokens at which the teacher speaks, those of highest entropy of the policy; 1: at all",
        gt=0,
        le=1,
    )
    param_dtype: Literal["", "float32", "bfloat16", "int8"] = option(
        "", "type of the teacher's matrices (int8: of kernels alone); empty: model.param_dtype"
    )
