"""The sections of the shaping steps: one for each step, with its function, its source and its settings.

A new step is a section here, a field of `ShapingConfig`, and its function in ``objectives/shaping_steps.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from fr3e_jax.configuration.options import implementations, implemented_by, option


@implemented_by(
    "objectives.shaping_steps:entropy_advantage",
    source="Cheng et al. 2025, eq. 5-7",
    reads=("entropies",),
    in_loss=True,
)
@dataclass
class EntropyAdvantageConfig:
    """A_t + min(alpha H_t, |A_t| / kappa), H the entropy of the policy that is updated."""

    alpha: float = option(0.4, "weight of the entropy; paper (section 4): 0.4 for GRPO, 0.1 for PPO", gt=0)
    kappa: float = option(2.0, "the bonus is at most |A_t| / kappa; above 1 it keeps the sign", gt=1)


@implemented_by("objectives.shaping_steps:perplexity", source="Deng et al. 2025, eq. 11")
@dataclass
class PerplexityConfig:
    """A (1 - alpha w), w the standardised ln PPL of a response in its group."""

    alpha: float = option(0.01, "weight of the perplexity; below 0, responses of high perplexity weigh more")
    variant: Literal["paper", "released"] = option("paper", "the formula, or the released code's clamps and filter")


@implemented_by("objectives.shaping_steps:position", source="Deng et al. 2025, eq. 12")
@dataclass
class PositionConfig:
    """A + sign(A) gamma sigmoid(direction steepness (l_t - centre)), l_t a token's place in the response."""

    gamma: float = option(0.1, "largest addition", gt=0)
    direction: float = option(1.0, "above 0: later tokens weigh more; below: earlier ones")
    steepness: float = option(15.0, "m of the sigmoid", gt=0)
    centre: float = option(0.5, "n of the sigmoid (the paper prints -0.5, where the sigmoid is 1 everywhere)")
    variant: Literal["paper", "released"] = option("paper", "the formula, or with the released code's cap at |A| / 2")
    window: list[int] = option(
        [200, 300],
        "the training step from which on it is active, and that from which on it no longer is; 0: never",
        ge=0,
    )


@implemented_by("objectives.shaping_steps:sample_reinforcement", source="Zhu et al. 2025; Deng et al. 2025, Table 2")
@dataclass
class SampleReinforcementConfig:
    """Factors of the advantages of right and of wrong responses: negative sample reinforcement, Weighted-REINFORCE."""

    positive: float = option(0.1, "factor of the advantages of right responses; 0: wrong responses alone", ge=0)
    negative: float = option(1.0, "factor of the advantages of wrong responses; 0: right responses alone", ge=0)


@implemented_by("objectives.shaping_steps:sequence_weighting", source="Vanlioglu 2025, eq. 6-10", reads=("entropies",))
@dataclass
class SequenceWeightingConfig:
    """Token losses times softmax_i((A_i + alpha H_i / log V) / temperature)."""

    alpha: float = option(0.3, "weight of the entropy; paper: 0.3 (base model), 0.8 (instruct model)", ge=0)
    temperature: float = option(1.0, "P of the softmax; paper: 1 (base model), 1.8 (instruct model)", gt=0)
    level: Literal["step", "trajectory"] = option("step", "softmax at each token position, or one for whole sequences")


@implemented_by(
    "objectives.shaping_steps:forking_tokens",
    source="Wang et al. 2025; Deng et al. 2025, Table 2",
    reads=("old_entropies",),
)
@dataclass
class ForkingTokensConfig:
    """80/20: only the tokens with the highest entropy carry gradient."""

    share: float = option(0.2, "share of the mini-batch's tokens that keep their gradient", gt=0, le=1)


@implemented_by(
    "objectives.shaping_steps:clip_cov",
    source="Cui et al. 2025, eq. 10-12; Deng et al. 2025, Table 2",
    reads=("logprobs",),
)
@dataclass
class ClipCovConfig:
    """Clip-Cov: a random share of the tokens of high covariance leaves the gradient."""

    share: float = option(2e-4, "share of the mini-batch's tokens that leaves (at least one token)", gt=0, le=1)
    bounds: list[float] = option([1.0, 5.0], "least and largest covariance of a token that may leave")


@implemented_by(
    "objectives.shaping_steps:kl_cov", source="Cui et al. 2025, eq. 13; Deng et al. 2025, Table 2", reads=("logprobs",)
)
@dataclass
class KlCovConfig:
    """KL-Cov: an unclipped loss, and a penalty on the tokens of the highest covariance."""

    share: float = option(2e-3, "share of the mini-batch's tokens that pays; 2e-3 at 7B, 2e-4 at 32B", gt=0, le=1)
    coefficient: float = option(1.0, "weight of |log pi - log pi_old| on those tokens", gt=0)


@implemented_by("objectives.shaping_steps:mismatch_mask", source="Yao et al. 2025")
@dataclass
class MismatchMaskConfig:
    """Tokens whose probability differs too much between trainer and sampler leave the gradient."""

    most: float = option(
        2.0, "largest trainer/sampler probability ratio of a token that trains; the least is its inverse", ge=1
    )


@implemented_by("objectives.shaping_steps:overlong_mask", source="DAPO, 3.4")
@dataclass
class OverlongMaskConfig:
    """Responses cut at the cap leave the loss and its denominator. No settings."""


@dataclass
class ShapingConfig:
    """Steps that shape advantages and select tokens, between the baseline and the loss (docs/users/methods.md)."""

    steps: list[str] = option([], "names of the sections below, in the order in which the steps are applied")
    entropy_advantage: EntropyAdvantageConfig = field(default_factory=EntropyAdvantageConfig)
    perplexity: PerplexityConfig = field(default_factory=PerplexityConfig)
    position: PositionConfig = field(default_factory=PositionConfig)
    sample_reinforcement: SampleReinforcementConfig = field(default_factory=SampleReinforcementConfig)
    sequence_weighting: SequenceWeightingConfig = field(default_factory=SequenceWeightingConfig)
    forking_tokens: ForkingTokensConfig = field(default_factory=ForkingTokensConfig)
    clip_cov: ClipCovConfig = field(default_factory=ClipCovConfig)
    kl_cov: KlCovConfig = field(default_factory=KlCovConfig)
    mismatch_mask: MismatchMaskConfig = field(default_factory=MismatchMaskConfig)
    overlong_mask: OverlongMaskConfig = field(default_factory=OverlongMaskConfig)


SHAPING_STEPS = implementations(ShapingConfig)
"""The steps that ``shaping.steps`` may name, and their implementations."""
