"""Samplers that are not quite the policy that trains: what makes them differ, and what corrects for it."""

from __future__ import annotations

from collections.abc import Container, Iterator

from fr3e_jax.configuration.contradictions import Rules
from fr3e_jax.configuration.lora_section import LoraConfig
from fr3e_jax.configuration.schema import Config

INT8 = "int8"
USUAL_CAP = 2.0
"""Cap of the importance weights where a recipe sets none and the sampler differs."""


def differences(config: Config) -> Iterator[str]:
    """The settings by which rollouts are sampled from other numbers than those that train, each as ``name=value``.

    A copy in the compute type is none: training rounds its matrices to that type, too.
    """
    rollout, model = config.rollout, config.model
    read = rollout.param_dtype or model.param_dtype
    if rollout.param_dtype == INT8 or (
        read == "bfloat16" and "bfloat16" not in (model.param_dtype, model.compute_dtype)
    ):
        yield f"rollout.param_dtype={rollout.param_dtype}"
    if _merges(config.model.lora) and read == "bfloat16":
        yield "model.lora.rollouts=merged"
    if config.mesh.sampler_devices:
        yield f"mesh.sampler_devices={config.mesh.sampler_devices}"


def _merges(lora: LoraConfig) -> bool:
    return bool(lora.rank or lora.path) and lora.rollouts == "merged"


def correct_by_default(config: Config, origins: Container[str]) -> None:
    """Turn on truncated importance weights where ``origins`` lack ``loss.importance_cap``.

    They are needed where the sampler differs, and where responses of earlier policies are replayed.
    """
    if "loss.importance_cap" not in origins and (any(differences(config)) or config.rollout.replay_share):
        config.loss.importance_cap = USUAL_CAP


def uncorrected(config: Config) -> Iterator[str]:
    """A line about each difference that a recipe leaves uncorrected on purpose."""
    gap = "sampler_ratio/carried" if config.mesh.sampler_devices else "logprob_gap/mean"
    if not config.loss.importance_cap and "mismatch_mask" not in config.shaping.steps:
        for setting in differences(config):
            yield (
                f"{setting}: rollouts are sampled from other numbers than those that train, and loss.importance_cap=0 "
                f"does not correct for it; {gap} tells how far they are apart (usual: {USUAL_CAP:g})"
            )


RULES: Rules = {
    # A step of int8 is 1/127 of a channel's largest weight: most changes by adapters are smaller.
    "adapters_are_not_rounded_away": (
        lambda c: c.rollout.param_dtype == INT8 and _merges(c.model.lora),
        "{rollout.param_dtype} would round the adapters away that {model.lora.rollouts} adds to the kernels; set "
        "model.lora.rollouts=product, which keeps them beside the base",
    ),
}
