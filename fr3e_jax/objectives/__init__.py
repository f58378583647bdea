"""The mathematics of exploration and policy updates, as pure functions on arrays.

No jit, no random state, no configuration, no input or output: callers bring arrays and static settings. All work under
`jax.jit`, `jax.vmap` and `jax.grad`, in float32; `pass_at_k` and `avg_at_k` are for the host.
"""

from fr3e_jax.objectives.advantages import (
    block_credit,
    fr3e_advantages,
    graded_values,
    group_advantages,
    grpo_advantages,
    mean_advantages,
    ranged_rewards,
    rloo_advantages,
    whitening,
)
from fr3e_jax.objectives.allocation import divide_rollouts
from fr3e_jax.objectives.anchors import (
    AnchorRules,
    anchor_scores,
    block_index,
    boundary_anchors,
    select_anchors,
    uniform_anchors,
)
from fr3e_jax.objectives.divergence import bounded_log_ratio, kl_k1, kl_k2, kl_k3, sequence_log_ratios
from fr3e_jax.objectives.entropy import (
    branching_factor,
    log_perplexity,
    normalised_entropy,
    token_entropy,
    token_logprobs,
    update_magnitude,
)
from fr3e_jax.objectives.filters import archive_open, is_degenerate, running_share
from fr3e_jax.objectives.losses import (
    aggregation_denominator,
    clipped_surrogate,
    entropy_bonus,
    token_divisors,
    truncated_importance_weight,
)
from fr3e_jax.objectives.pass_at_k import avg_at_k, pass_at_k
from fr3e_jax.objectives.reductions import masked_mean, masked_std, masked_sum
from fr3e_jax.objectives.redundancy import n_gram_redundancy
from fr3e_jax.objectives.returns import clipped_value_losses, generalised_advantages
from fr3e_jax.objectives.selection import (
    clip_cov_tokens,
    forking_tokens,
    kl_cov_losses,
    kl_cov_tokens,
    largest_share,
    matching_tokens,
    soft_overlong_penalty,
    token_covariances,
)
from fr3e_jax.objectives.shaping import (
    entropy_based_advantages,
    pass_at_k_advantages,
    perplexity_shaped_advantages,
    perplexity_weights,
    position_shaped_advantages,
    sample_reinforcement,
    unlikeliness_factors,
)
from fr3e_jax.objectives.tool_branching import branches_after_answer, entropy_from
from fr3e_jax.objectives.tree import tree_advantages
from fr3e_jax.objectives.values import (
    initial_modulation,
    state_values,
    trajectory_modulation,
    value_differences,
    value_modulation,
)
from fr3e_jax.objectives.weighting import entropy_guided_weights

__all__ = [
    "aggregation_denominator",
    "anchor_scores",
    "AnchorRules",
    "archive_open",
    "avg_at_k",
    "block_credit",
    "block_index",
    "boundary_anchors",
    "bounded_log_ratio",
    "branches_after_answer",
    "branching_factor",
    "clip_cov_tokens",
    "clipped_surrogate",
    "clipped_value_losses",
    "divide_rollouts",
    "entropy_based_advantages",
    "entropy_bonus",
    "entropy_from",
    "entropy_guided_weights",
    "forking_tokens",
    "fr3e_advantages",
    "generalised_advantages",
    "graded_values",
    "group_advantages",
    "grpo_advantages",
    "initial_modulation",
    "is_degenerate",
    "kl_cov_losses",
    "kl_cov_tokens",
    "kl_k1",
    "kl_k2",
    "kl_k3",
    "largest_share",
    "log_perplexity",
    "masked_mean",
    "masked_std",
    "masked_sum",
    "matching_tokens",
    "mean_advantages",
    "n_gram_redundancy",
    "normalised_entropy",
    "pass_at_k",
    "pass_at_k_advantages",
    "perplexity_shaped_advantages",
    "perplexity_weights",
    "position_shaped_advantages",
    "ranged_rewards",
    "rloo_advantages",
    "running_share",
    "sample_reinforcement",
    "select_anchors",
    "sequence_log_ratios",
    "soft_overlong_penalty",
    "state_values",
    "token_covariances",
    "token_divisors",
    "token_entropy",
    "token_logprobs",
    "trajectory_modulation",
    "tree_advantages",
    "truncated_importance_weight",
    "uniform_anchors",
    "unlikeliness_factors",
    "update_magnitude",
    "value_differences",
    "value_modulation",
    "whitening",
]
