"""Expected time and cost of a step: least times over stated efficiencies, tokens per second, MFU, chip-hours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fr3e_jax.planning.topology import Topology
from fr3e_jax.planning.workload import Amounts


@dataclass(frozen=True)
class Efficiency:
    """The share of its limiting peak that a program is assumed to reach, by what limits it.

    ``compute``: MaxText publishes 45.5 % of the peak for Llama 3.1 8B on v6e-256 and 65.4 % for Llama 2 70B on v5p-512.
    ``memory``: sglang-jax publishes 1,893 tokens/s a chip for Qwen3-8B and 531 for Qwen3-32B (bfloat16, v6e-4, 256
    streams), 0.35 and 0.22 of the decoding floor that `Estimator` gives for 1,024 + 1,024 tokens; the lengths were not
    published. ``network``: nothing comparable is published. Nothing of it was measured with this package.
    """

    compute: float = 0.5
    memory: float = 0.35
    network: float = 0.5

    def of(self, limit: str) -> float:
        """The efficiency of a program that ``limit`` (compute, memory or network) bounds."""
        return getattr(self, limit)


@dataclass(frozen=True)
class Expected:
    """Figures of a training step that follow from least times and assumed efficiencies."""

    efficiency: Efficiency
    step_seconds: float
    tokens_per_second_per_chip: float  # sampled
    mfu: float  # model FLOPs of the step by what the chips could compute in it
    chip_hours_per_step: float
    steps: int  # of the run; 0: its length is not known
    chip_hours: float  # of all steps
    price: float  # of all steps, in the unit of the price per chip-hour; 0: no price was given


def expected(
    times: Sequence[tuple[float, str]],
    amounts: Amounts,
    topology: Topology,
    parameters: int,
    *,
    steps: int = 0,
    efficiency: Efficiency | None = None,
    price: float = 0.0,
) -> Expected:
    """Compute the expectation.

    Model FLOPs are 2 N for each sampled token and each position of a prefill or a scoring pass, and 6 N for each
    trained position (Chowdhery et al. 2022, arXiv:2204.02311, appendix B, without attention). Neither padding nor
    recomputation counts.

    Args:
      times: of each stage, the least seconds and what limits them.
      amounts: of a step.
      topology: the hardware.
      parameters: N.
      steps: of the whole run.
      efficiency: None: the assumed one.
      price: of a chip-hour.
    """
    efficiency = efficiency or Efficiency()
    seconds = sum(least / efficiency.of(limit) for least, limit in times)
    scored = amounts.score_positions * amounts.trained_positions / amounts.padded_positions  # without padding
    forward = amounts.sampled_tokens + amounts.prefill_positions + scored
    flops = parameters * (2 * forward + 6 * amounts.trained_positions)
    hours = seconds * topology.devices / 3600
    return Expected(
        efficiency=efficiency,
        step_seconds=seconds,
        tokens_per_second_per_chip=amounts.sampled_tokens / seconds / topology.devices,
        mfu=flops / (seconds * topology.devices * topology.chip.peak_flops),
        chip_hours_per_step=hours,
        steps=steps,
        chip_hours=hours * steps,
        price=hours * steps * price,
    )
