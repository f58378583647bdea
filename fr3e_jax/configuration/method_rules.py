"""Contradictions between methods: shaping steps, estimators, divergence, critic. Each names a reason and a remedy."""

from __future__ import annotations

import difflib

from fr3e_jax.configuration.contradictions import training_rule
from fr3e_jax.configuration.options import changed
from fr3e_jax.configuration.schema import Config, CriticConfig, KlConfig
from fr3e_jax.configuration.settings import settings
from fr3e_jax.configuration.shaping_sections import SHAPING_STEPS, ShapingConfig

_LEAVES = [path for path in settings(ShapingConfig, "shaping.") if path != "shaping.steps"]
_WINDOWED = [name for name in SHAPING_STEPS if f"shaping.{name}.until_step" in _LEAVES]


@training_rule("shaping.steps")
def steps_are_known(config: Config) -> str | None:
    for step in config.shaping.steps:
        if step not in SHAPING_STEPS:
            nearest = difflib.get_close_matches(step, SHAPING_STEPS, n=1, cutoff=0)[0]
            return f"shaping.steps has {step!r}; expected one of {', '.join(SHAPING_STEPS)}; nearest: {nearest}"
        if config.shaping.steps.count(step) > 1:
            return f"shaping.steps has {step} twice, which would apply it to its own result; list it once"
    return None


@training_rule("shaping.steps", *_LEAVES)
def settings_of_steps_are_read(config: Config) -> str | None:
    for name in SHAPING_STEPS:
        unread = changed(getattr(config.shaping, name))
        if unread and name not in config.shaping.steps:
            listed = ",".join([*config.shaping.steps, name])
            return (
                f"shaping.{name}.{unread[0]} is not read, as {name} is not in shaping.steps; "
                f"nearest: shaping.steps=[{listed}]"
            )
    return None


@training_rule(
    "shaping.steps",
    *(f"shaping.{name}.{end}_step" for name in _WINDOWED for end in ("from", "until")),
    "training.max_steps",
)
def windows_open(config: Config) -> str | None:
    for name in _WINDOWED:
        section, most = getattr(config.shaping, name), config.training.max_steps
        if name not in config.shaping.steps:
            continue
        if section.until_step and section.until_step <= section.from_step:
            return (
                f"shaping.{name}.until_step={section.until_step} is not after shaping.{name}.from_step="
                f"{section.from_step}: it is never active; set shaping.{name}.until_step=0 (to the end)"
            )
        if most and section.from_step > most:
            return (
                f"shaping.{name}.from_step={section.from_step} is beyond training.max_steps={most}: it is never "
                f"active; nearest: shaping.{name}.from_step={most}"
            )
    return None


@training_rule("shaping.steps")
def covariance_methods_exclude_each_other(config: Config) -> str | None:
    if {"clip_cov", "kl_cov"} <= set(config.shaping.steps):
        return (
            "shaping.steps has clip_cov and kl_cov: the first takes tokens of high covariance out of a clipped loss, "
            "the second penalises them in one that is not clipped; set shaping.steps without one of them"
        )
    return None


@training_rule("shaping.steps", "loss.dual_clip", "loss.ratio")
def covariance_methods_have_their_loss(config: Config) -> str | None:
    listed = [name for name in ("kl_cov", "clip_cov") if name in config.shaping.steps]
    if listed and config.loss.ratio == "sequence":
        return (
            f"{listed[0]} in shaping.steps reads the ratio of each token, but loss.ratio=sequence gives all tokens of "
            "a response the same ratio; set loss.ratio=token"
        )
    if "kl_cov" in listed and config.loss.dual_clip:
        return (
            f"loss.dual_clip={config.loss.dual_clip:g} clips the loss, which kl_cov in shaping.steps leaves unclipped; "
            "set loss.dual_clip=0"
        )
    return None


@training_rule("shaping.sample_reinforcement.positive", "shaping.sample_reinforcement.negative")
def some_samples_are_reinforced(config: Config) -> str | None:
    s = config.shaping.sample_reinforcement
    if s.positive or s.negative or "sample_reinforcement" not in config.shaping.steps:
        return None
    return (
        "shaping.sample_reinforcement.positive=0 and shaping.sample_reinforcement.negative=0 leave no advantage; "
        "set shaping.sample_reinforcement.negative=1"
    )


@training_rule(*settings(KlConfig, "kl."))
def divergence_settings_are_read(config: Config) -> str | None:
    unread = changed(config.kl)
    if config.kl.coefficient or not unread:
        return None
    return f"kl.{unread[0]} is not read with kl.coefficient=0; set kl.coefficient=0.001, or leave kl.{unread[0]} out"


@training_rule("kl.estimator", "kl.place", "kl.coefficient")
def the_divergence_has_a_gradient(config: Config) -> str | None:
    """E[∇ k1] = E[∇ log π] = 0 over the policy's own tokens; as a term of the reward, k1 has the gradient of the KL."""
    if not config.kl.coefficient or config.kl.place == "reward" or config.kl.estimator != "k1":
        return None
    return (
        "kl.estimator=k1 with kl.place=loss adds noise alone: its gradient is that of log pi, whose mean over the "
        "policy's own tokens is 0; set kl.estimator=k3 or kl.estimator=k2, or kl.place=reward, where k1 is exact"
    )


@training_rule("kl.place", "explore.enabled")
def rewards_of_tokens_have_a_group(config: Config) -> str | None:
    if not config.kl.coefficient or config.kl.place == "loss" or not config.explore.enabled:
        return None
    return (
        "kl.place=reward changes rewards after responses are scored, but explore.enabled=true computes V(S_j) from "
        "them before that; set kl.place=loss, or explore.enabled=false"
    )


@training_rule("kl.place", "kl.coefficient", "advantage.base_estimator")
def subsets_read_what_is_right(config: Config) -> str | None:
    if not config.kl.coefficient or config.kl.place == "loss" or config.advantage.base_estimator != "pass_at_k":
        return None
    return (
        "kl.place=reward changes rewards by a divergence, but advantage.base_estimator=pass_at_k only asks which "
        "responses are right; set kl.place=loss"
    )


@training_rule("advantage.base_estimator", "explore.enabled")
def a_critic_replaces_exploration(config: Config) -> str | None:
    if config.advantage.base_estimator != "gae" or not config.explore.enabled:
        return None
    return (
        "advantage.base_estimator=gae takes values from a critic, but explore.enabled=true takes them from rollouts; "
        "set explore.enabled=false (PPO), or advantage.base_estimator=grpo"
    )


@training_rule("advantage.base_estimator", *settings(CriticConfig, "critic."))
def critic_settings_are_read(config: Config) -> str | None:
    unread = changed(config.critic)
    if config.advantage.base_estimator == "gae" or not unread:
        return None
    return (
        f"critic.{unread[0]} is not read with advantage.base_estimator={config.advantage.base_estimator}; "
        f"set advantage.base_estimator=gae, or leave critic.{unread[0]} out"
    )


@training_rule("critic.warmup_steps", "training.max_steps")
def the_policy_learns_too(config: Config) -> str | None:
    warmup, most = config.critic.warmup_steps, config.training.max_steps
    if config.advantage.base_estimator != "gae" or not most or warmup < most:
        return None
    return (
        f"critic.warmup_steps={warmup} leaves the policy unchanged in all training.max_steps={most} steps; "
        f"nearest: critic.warmup_steps={most - 1}"
    )


@training_rule("advantage.overlong_margin", "rollout.max_response_tokens")
def overlong_margin_fits(config: Config) -> str | None:
    margin, most = config.advantage.overlong_margin, config.rollout.max_response_tokens
    if margin <= most:
        return None
    return (
        f"advantage.overlong_margin={margin} is more than rollout.max_response_tokens={most}; "
        f"nearest: advantage.overlong_margin={most}"
    )


@training_rule("advantage.overlong_margin", "advantage.base_estimator")
def overlong_rewards_are_read(config: Config) -> str | None:
    if not config.advantage.overlong_margin or config.advantage.base_estimator != "pass_at_k":
        return None
    return (
        f"advantage.overlong_margin={config.advantage.overlong_margin} lowers rewards of long responses, but "
        "advantage.base_estimator=pass_at_k only asks which responses are right; set advantage.overlong_margin=0, and "
        "add overlong_mask to shaping.steps to leave out responses that are cut"
    )


@training_rule("advantage.overlong_margin", "explore.enabled")
def states_are_valued_by_success(config: Config) -> str | None:
    if not config.advantage.overlong_margin or not config.explore.enabled:
        return None
    return (
        f"advantage.overlong_margin={config.advantage.overlong_margin} lowers rewards of long responses, "
        "but explore.enabled=true reads success rates from rewards (V(S_j)); set explore.enabled=false, or "
        "advantage.overlong_margin=0"
    )
