"""Contradictions between settings that find, explore and credit states."""

from __future__ import annotations

from math import ceil

from fr3e_jax.configuration.contradictions import training_rule
from fr3e_jax.configuration.schema import TREE_ESTIMATORS, Config


def _one_in(count: int) -> str:
    """The least share of four digits that is at least 1/count."""
    return f"{ceil(10**4 / count) / 10**4:g}"


@training_rule("explore.rollouts_per_state")
def state_group_has_a_baseline(config: Config) -> str | None:
    if not config.explore.enabled or config.explore.rollouts_per_state > 1:
        return None
    return (
        "with explore.rollouts_per_state=1, V(S_j) equals the only reward, so every advantage is 0; "
        "nearest: explore.rollouts_per_state=2"
    )


@training_rule("explore.enabled", "explore.max_correct", "explore.max_wrong")
def exploration_expands_something(config: Config) -> str | None:
    if not config.explore.enabled or config.explore.max_correct + config.explore.max_wrong > 0:
        return None
    return (
        "explore.enabled=true with explore.max_correct=0 and explore.max_wrong=0 expands nothing; "
        "set one of them to 1, or explore.enabled=false"
    )


@training_rule("explore.max_success_rate", "rollout.rollouts_per_prompt", "rollout.reject_degenerate")
def exploration_meets_a_prompt(config: Config) -> str | None:
    limit, base = config.explore.max_success_rate, config.rollout.rollouts_per_prompt
    if not config.explore.enabled or not config.rollout.reject_degenerate or limit * base >= 1:
        return None
    return (
        f"explore.max_success_rate={limit:g} is below 1/{base}, the least success rate of a kept prompt with "
        f"rollout.rollouts_per_prompt={base}: no prompt is expanded; nearest: explore.max_success_rate={_one_in(base)}"
    )


@training_rule(
    "rollout.max_response_tokens",
    "explore.num_anchors",
    "explore.min_spacing",
)
def anchors_fit_into_a_response(config: Config) -> str | None:
    explore, tokens = config.explore, config.rollout.max_response_tokens
    least = (explore.num_anchors - 1) * explore.min_spacing + 1
    if not explore.enabled or least <= tokens:
        return None
    return (
        f"explore.num_anchors={explore.num_anchors} with explore.min_spacing={explore.min_spacing} needs responses of "
        f"{least} tokens; lower one of them, or set rollout.max_response_tokens={least} (now {tokens})"
    )


@training_rule("advantage.initial_modulation", "explore.initial_state")
def initial_modulation_has_a_group(config: Config) -> str | None:
    sampled = config.explore.initial_state == "fresh"
    if not config.explore.enabled or sampled or config.advantage.initial_modulation == "one":
        return None
    return (
        f"advantage.initial_modulation={config.advantage.initial_modulation} weights the group of S_0, which "
        f"explore.initial_state={config.explore.initial_state} does not train; "
        "set explore.initial_state=fresh, or advantage.initial_modulation=one"
    )


@training_rule("explore.allocation_least", "explore.allocation_most")
def allocation_bounds_are_in_order(config: Config) -> str | None:
    least, most = config.explore.allocation_least, config.explore.allocation_most
    if config.explore.allocation == "uniform" or least <= most:
        return None
    return (
        f"explore.allocation_least={least} is more than explore.allocation_most={most}; "
        f"nearest: explore.allocation_least={most}"
    )


@training_rule(
    "explore.allocation", "explore.allocation_least", "explore.rollouts_per_state", "explore.allocation_most"
)
def allocation_has_room(config: Config) -> str | None:
    explore = config.explore
    least, most = explore.allocation_least, explore.allocation_most
    if not explore.enabled or explore.allocation == "uniform" or least <= explore.rollouts_per_state <= most:
        return None
    return (
        f"explore.allocation={explore.allocation} divides {explore.rollouts_per_state} rollouts a state on average "
        f"(explore.rollouts_per_state) into {least} to {most} (explore.allocation_least, explore.allocation_most), "
        f"which is impossible; nearest: explore.rollouts_per_state={min(max(explore.rollouts_per_state, least), most)}"
    )


@training_rule("explore.train_states", "explore.train_base", "explore.block_credit")
def something_trains(config: Config) -> str | None:
    explore = config.explore
    if not explore.enabled or explore.train_states or explore.train_base or explore.block_credit:
        return None
    return (
        "explore.train_states=false with explore.train_base=false and explore.block_credit=false trains nothing; "
        "set explore.block_credit=true (VinePPO), which trains the expanded bases on the estimated values"
    )


@training_rule("explore.block_credit", "explore.train_base")
def bases_train_once(config: Config) -> str | None:
    explore = config.explore
    if not explore.enabled or not explore.block_credit or not explore.train_base:
        return None
    return (
        "explore.block_credit=true trains the expanded bases with the credit of their blocks, and "
        "explore.train_base=true trains them a second time with the advantage of their group; set "
        "explore.train_base=false, or explore.block_credit=false"
    )


@training_rule("returns.depth_rule", "returns.size", "explore.enabled")
def anchors_to_return_to_are_placed(config: Config) -> str | None:
    if not config.returns.size or config.returns.depth_rule != "anchors" or config.explore.enabled:
        return None
    return (
        "returns.depth_rule=anchors returns to the anchors of Explore, and explore.enabled=false places none; set "
        "returns.depth_rule=target, or explore.enabled=true"
    )


@training_rule("explore.delimiter", "explore.anchor_selection")
def a_delimiter_has_text(config: Config) -> str | None:
    explore = config.explore
    if not explore.enabled or explore.anchor_selection != "delimiter" or explore.delimiter:
        return None
    return (
        "explore.delimiter is empty, and every token contains the empty text; set it to the text that ends a step, "
        "or explore.anchor_selection=uniform"
    )


@training_rule("advantage.state_estimator", "advantage.modulation")
def a_tree_is_not_modulated(config: Config) -> str | None:
    a = config.advantage
    if not config.explore.enabled or a.state_estimator not in TREE_ESTIMATORS or a.modulation == "none":
        return None
    return (
        f"advantage.state_estimator={a.state_estimator} compares the values of states itself and does not "
        f"read advantage.modulation={a.modulation}; set advantage.modulation=none"
    )


@training_rule("advantage.pass_at_k", "rollout.rollouts_per_prompt", "advantage.base_estimator")
def a_group_has_subsets(config: Config) -> str | None:
    k, base, explore = config.advantage.pass_at_k, config.rollout.rollouts_per_prompt, config.explore
    read = config.advantage.base_estimator == "pass_at_k" and (explore.train_base or not explore.enabled)
    if not read or k <= base:
        return None
    return (
        f"advantage.pass_at_k={k} is more than rollout.rollouts_per_prompt={base}: no prompt has a subset of {k} "
        f"responses; nearest: advantage.pass_at_k={base}"
    )


@training_rule(
    "returns.size",
    "kl.coefficient",
    "kl.place",
    "advantage.base_estimator",
    "advantage.overlong_margin",
    "tools.branching",
)
def returned_rollouts_are_groups_of_their_own(config: Config) -> str | None:
    if not config.returns.size:
        return None
    in_reward = config.kl.coefficient > 0 and config.kl.place == "reward"
    for setting, wrong, remedy in (
        ("kl.place=reward", in_reward, "kl.place=loss"),
        ("advantage.base_estimator=gae", config.advantage.base_estimator == "gae", "advantage.base_estimator=grpo"),
        ("advantage.overlong_margin", bool(config.advantage.overlong_margin), "advantage.overlong_margin=0"),
        ("tools.branching=true", config.tools.branching, "tools.branching=false"),
    ):
        if wrong:
            return (
                f"returns.size={config.returns.size} gives each depth of a success a baseline from the verdicts of its "
                f"own rollouts, which {setting} would change; set {remedy}, or returns.size=0"
            )
    return None


@training_rule("returns.max_success_rate", "rollout.rollouts_per_prompt", "returns.size")
def a_hard_prompt_has_a_success(config: Config) -> str | None:
    limit, base = config.returns.max_success_rate, config.rollout.rollouts_per_prompt
    if not config.returns.size or limit * base >= 1:
        return None
    return (
        f"returns.max_success_rate={limit:g} is below 1/{base}, the least success rate of a prompt with a success with "
        f"rollout.rollouts_per_prompt={base}: none is kept; nearest: returns.max_success_rate={_one_in(base)}"
    )
