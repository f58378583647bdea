"""Settings of low-rank adapters (LoRA)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fr3e_jax.configuration.options import option

ALL_LINEAR = "all-linear"
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The projections of a layer, under PEFT's names."""


@dataclass
class LoraConfig:
    """Low-rank adapters beside a frozen policy (Hu et al. 2021): ``W x`` becomes ``W x + alpha / rank * B A x``."""

    rank: int = option(0, "rank of the adapters, which alone are trained; 0: none, and all weights are trained", ge=0)
    alpha: float = option(16.0, "scale of the adapters' product, divided by the rank", gt=0)
    targets: list[str] = option(
        [ALL_LINEAR],
        "projections with an adapter: all-linear, or some of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj and "
        "down_proj",
    )
    path: str = option(
        "", "adapter to start from (adapter_config.json and adapter_model.safetensors, as PEFT writes them); empty: new"
    )
    rollouts: Literal["merged", "product"] = option(
        "merged",
        "weights that rollouts read: a copy with the adapters merged into the kernels, or the base and the adapters "
        "(no copy; a decode step computes their product)",
    )


def target_names(targets: list[str]) -> tuple[str, ...]:
    """The projections that ``model.lora.targets`` names, in the order of `TARGETS`."""
    return TARGETS if targets == [ALL_LINEAR] else tuple(name for name in TARGETS if name in targets)
