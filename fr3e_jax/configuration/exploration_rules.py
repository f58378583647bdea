"""Contradictions between settings that find, explore and credit states; they concern training alone."""

from __future__ import annotations

from math import ceil

from fr3e_jax.configuration.contradictions import Rules, reads_files
from fr3e_jax.configuration.schema import Config, ExploreConfig


def _rate_of_one_success(rate: float, rollouts: int) -> tuple[str, str] | None:
    """``1/rollouts``, and as a number of four digits that is not less, if ``rate`` is below it."""
    if rate * rollouts >= 1:
        return None
    return f"1/{rollouts}", f"{ceil(10**4 / rollouts) / 10**4:g}"


def _longer_response(explore: ExploreConfig, cap: int) -> tuple[int, int] | None:
    least = (explore.num_anchors - 1) * explore.min_spacing + 1
    return (least, least) if explore.enabled and least > cap else None


def _without_plain_groups(config: Config) -> tuple[str, str] | None:
    """A setting by which base rollouts are no group of fixed size that trains on its rewards, and one without."""
    for is_set, setting, remedy in (
        (config.explore.enabled, "explore.enabled=true", "explore.enabled=false"),
        (config.rollout.sampling_rounds > 1, "rollout.sampling_rounds", "rollout.sampling_rounds=1"),
        (config.rollout.rollouts_per_prompt == 1, "rollout.rollouts_per_prompt=1", "rollout.rollouts_per_prompt=2"),
        (config.advantage.base_estimator == "gae", "advantage.base_estimator=gae", "advantage.base_estimator=grpo"),
    ):
        if is_set:
            return setting, remedy
    return None


def _changed_verdicts(config: Config) -> tuple[str, str] | None:
    """A setting that changes the rewards of returned rollouts, and one that does not."""
    advantage = config.advantage
    for is_set, setting, remedy in (
        (config.kl.coefficient > 0 and config.kl.place == "reward", "kl.place=reward", "kl.place=loss"),
        (advantage.base_estimator == "gae", "advantage.base_estimator=gae", "advantage.base_estimator=grpo"),
        (advantage.overlong_margin, "advantage.overlong_margin", "advantage.overlong_margin=0"),
    ):
        if config.returns.size and is_set:
            return setting, remedy
    return None


TRAINING_RULES: Rules = {
    "state_group_has_a_baseline": (
        lambda c: c.explore.enabled and c.explore.rollouts_per_state == 1,
        "with {explore.rollouts_per_state}, V(S_j) equals the only reward, so every advantage is 0; "
        "nearest: explore.rollouts_per_state=2",
    ),
    "exploration_expands_something": (
        lambda c: c.explore.enabled and c.explore.max_correct + c.explore.max_wrong == 0,
        "{explore.enabled} with {explore.max_correct} and {explore.max_wrong} expands nothing; set one of them to 1, "
        "or explore.enabled=false",
    ),
    "anchors_fit_into_a_response": (
        lambda c: _longer_response(c.explore, c.rollout.max_response_tokens),
        "{explore.num_anchors} with {explore.min_spacing} needs responses of {} tokens; lower one of them, or set "
        "rollout.max_response_tokens={} (now {=rollout.max_response_tokens})",
    ),
    "something_trains": (
        lambda c: c.explore.enabled and not (c.explore.train_states or c.explore.train_base or c.explore.block_credit),
        "{explore.train_states} with {explore.train_base} and {explore.block_credit} trains nothing; set "
        "explore.block_credit=true (VinePPO), which trains the expanded bases on the estimated values",
    ),
    "bases_train_once": (
        lambda c: c.explore.enabled and c.explore.block_credit and c.explore.train_base,
        "{explore.block_credit} trains the expanded bases with the credit of their blocks, and {explore.train_base} "
        "trains them a second time with the advantage of their group; set explore.train_base=false, or "
        "explore.block_credit=false",
    ),
    "a_delimiter_has_text": (
        lambda c: c.explore.enabled and c.explore.anchor_selection == "delimiter" and not c.explore.delimiter,
        "explore.delimiter is empty, and every token contains the empty text; set it to the text that ends a step, "
        "or explore.anchor_selection=uniform",
    ),
    "a_tree_is_not_modulated": (
        lambda c: c.explore.enabled and c.advantage.state_estimator == "tree" and c.advantage.modulation != "none",
        "{advantage.state_estimator} compares the values of states itself and does not read {advantage.modulation}; "
        "set advantage.modulation=none",
    ),
    "a_group_has_subsets": (
        lambda c: (
            c.advantage.base_estimator == "pass_at_k"
            and (c.explore.train_base or not c.explore.enabled)
            and c.advantage.pass_at_k > c.rollout.rollouts_per_prompt
        ),
        "{advantage.pass_at_k} is more than {rollout.rollouts_per_prompt}: no prompt has a subset of "
        "{=advantage.pass_at_k} responses; nearest: advantage.pass_at_k={=rollout.rollouts_per_prompt}",
    ),
    "returned_rollouts_are_groups_of_their_own": (
        _changed_verdicts,
        "{returns.size} gives each depth of a success a baseline from the verdicts of its own rollouts, which {} would "
        "change; set {}, or returns.size=0",
    ),
    "only_plain_rollouts_are_sampled_again": (
        lambda c: c.rollout.sampling_rounds > 1 and c.explore.enabled,
        "{rollout.sampling_rounds} samples prompts again from their start, but {explore.enabled} branches from "
        "the first rollouts; set explore.enabled=false, or rollout.sampling_rounds=1",
    ),
    "replayed_responses_join_a_plain_group": (
        lambda c: c.rollout.replay_share and _without_plain_groups(c),
        "{rollout.replay_share} puts an earlier success into the group of its prompt's rollouts, which {} does not "
        "leave as it is; set {}, or rollout.replay_share=0",
    ),
    "allotted_rollouts_are_a_plain_group": (
        lambda c: c.rollout.allocation == "knapsack" and _without_plain_groups(c),
        "{rollout.allocation} divides the rollouts of whole groups among prompts, which {} does not leave as they are; "
        "set {}, or rollout.allocation=uniform",
    ),
    "problems_come_again": (
        lambda c: c.rollout.allocation == "knapsack" and not c.data.train_problems and not reads_files(c.data.task),
        "{rollout.allocation} reads the success of problems that were sampled before, and {data.task} has no end of "
        "new ones; set data.train_problems=1024, or rollout.allocation=uniform",
    ),
    "a_hard_prompt_has_a_success": (
        lambda c: c.returns.size and _rate_of_one_success(c.returns.max_success_rate, c.rollout.rollouts_per_prompt),
        "{returns.max_success_rate} is below {}, the least success rate of a prompt with a success with "
        "{rollout.rollouts_per_prompt}: none is kept; nearest: returns.max_success_rate={}",
    ),
}
