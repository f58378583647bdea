"""Contradictions between methods: shaping steps, estimators, divergence, critic; they concern training alone."""

from __future__ import annotations

from fr3e_jax.configuration.contradictions import Rules, faulty_name, is_range
from fr3e_jax.configuration.options import changed
from fr3e_jax.configuration.schema import Config, KlConfig, LossConfig
from fr3e_jax.configuration.shaping_sections import SHAPING_STEPS, ShapingConfig


def _unread_step(shaping: ShapingConfig) -> tuple[str, str, str] | None:
    """A setting of a shaping step that is not listed, the step, and the list with it."""
    steps = shaping.steps
    for name in SHAPING_STEPS:
        if name not in steps and (unread := changed(getattr(shaping, name))):
            return f"shaping.{name}.{unread[0]}", name, ",".join([*steps, name])
    return None


def _closed_window(shaping: ShapingConfig, most: int) -> str:
    """A nearest window that opens where the position's shaping is never active, or its window is no pair; else ""."""
    window = shaping.position.window
    if "position" not in shaping.steps:
        return ""
    if len(window) != 2 or 0 < window[1] <= window[0]:
        return f"[{window[0] if window else 0},0]"
    return f"[{most},{window[1]}]" if most and window[0] > most else ""


def _changes_rewards(kl: KlConfig) -> bool:
    return kl.coefficient > 0 and kl.place == "reward"


def _below_zero(config: Config) -> str:
    """A setting that makes some rewards negative, or ""."""
    if _changes_rewards(config.kl):
        return "kl.place=reward"
    if config.advantage.overlong_margin:
        return f"advantage.overlong_margin={config.advantage.overlong_margin}"
    return "advantage.reward_range=minus_one_one" if config.advantage.reward_range == "minus_one_one" else ""


def _reads_verdicts(config: Config, *, or_a_user_reads: bool = False) -> str:
    """The setting that reads whether responses are right, or a user's function of rewards; "" without one."""
    if config.explore.enabled:
        return "explore.enabled=true (V(S_j))"
    estimator = config.advantage.base_estimator
    reads = estimator == "pass_at_k" or (or_a_user_reads and ":" in estimator)
    return f"advantage.base_estimator={estimator}" if reads else ""


def _trains_on_rewards(config: Config) -> tuple[str, str] | None:
    """A setting of a critic or of kept successes, and one without."""
    if config.advantage.base_estimator == "gae":
        return "advantage.base_estimator=gae", "advantage.base_estimator=grpo"
    return (f"returns.size={config.returns.size}", "returns.size=0") if config.returns.size else None


def _covariance_step(steps: list[str]) -> str:
    return next((name for name in ("kl_cov", "clip_cov") if name in steps), "")


def _clipping(config: Config) -> tuple[str, str] | None:
    """A setting of the clipped surrogate that is not its default, and its default."""
    for name in changed(config.loss):
        if name in ("epsilon_low", "epsilon_high", "ratio", "dual_clip"):
            default = getattr(LossConfig(), name)
            return f"loss.{name}={getattr(config.loss, name)}", f"loss.{name}={default}"
    return ("kl_cov in shaping.steps", "shaping.steps without it") if "kl_cov" in config.shaping.steps else None


TRAINING_RULES: Rules = {
    "steps_are_known": (lambda c: faulty_name(c.shaping.steps, tuple(SHAPING_STEPS)), "shaping.steps has {}"),
    "settings_of_steps_are_read": (
        lambda c: _unread_step(c.shaping),
        "{} is not read, as {} is not in shaping.steps; nearest: shaping.steps=[{}]",
    ),
    "windows_open": (
        lambda c: _closed_window(c.shaping, c.training.max_steps),
        "{shaping.position.window} is no window of steps up to {training.max_steps}, so the step is never active; "
        "nearest: shaping.position.window={} (0 at its end: for good)",
    ),
    "covariances_have_bounds": (
        lambda c: not is_range(c.shaping.clip_cov.bounds),
        "{shaping.clip_cov.bounds} is no range; set the least covariance and the largest, as "
        "shaping.clip_cov.bounds=[1,5]",
    ),
    "covariance_methods_exclude_each_other": (
        lambda c: {"clip_cov", "kl_cov"} <= set(c.shaping.steps),
        "shaping.steps has clip_cov and kl_cov: the first takes tokens of high covariance out of a clipped loss, the "
        "second penalises them in one that is not clipped; set shaping.steps without one of them",
    ),
    "covariance_methods_have_their_ratio": (
        lambda c: c.loss.ratio == "sequence" and _covariance_step(c.shaping.steps),
        "{} in shaping.steps reads the ratio of each token, but {loss.ratio} gives all tokens of a response the same "
        "ratio; set loss.ratio=token",
    ),
    "a_loss_of_ones_own_clips_itself": (
        lambda c: c.loss.function and _clipping(c),
        "{loss.function} computes the loss of each token itself and does not read {}; set {}, or loss.function=''",
    ),
    "kl_cov_has_its_loss": (
        lambda c: "kl_cov" in c.shaping.steps and c.loss.dual_clip,
        "{loss.dual_clip} clips the loss, which kl_cov in shaping.steps leaves unclipped; set loss.dual_clip=0",
    ),
    "some_samples_are_reinforced": (
        lambda c: (
            "sample_reinforcement" in c.shaping.steps
            and not (c.shaping.sample_reinforcement.positive or c.shaping.sample_reinforcement.negative)
        ),
        "{shaping.sample_reinforcement.positive} and {shaping.sample_reinforcement.negative} leave no advantage; set "
        "shaping.sample_reinforcement.negative=1",
    ),
    "divergence_settings_are_read": (
        lambda c: not c.kl.coefficient and (changed(c.kl) or [""])[0],
        "kl.{} is not read with {kl.coefficient}; set kl.coefficient=0.001, or leave it out",
    ),
    # E[∇ k1] = E[∇ log π] = 0 over the policy's own tokens; as a term of the reward, k1 has the gradient of the KL.
    "the_divergence_has_a_gradient": (
        lambda c: c.kl.coefficient and c.kl.place == "loss" and c.kl.estimator == "k1",
        "{kl.estimator} with {kl.place} adds noise alone: its gradient is that of log pi, whose mean over the policy's "
        "own tokens is 0; set kl.estimator=k3 or kl.estimator=k2, or kl.place=reward, where k1 is exact",
    ),
    "rewards_of_tokens_are_read": (
        lambda c: _changes_rewards(c.kl) and _reads_verdicts(c, or_a_user_reads=True),
        "{kl.place} changes rewards token by token after responses are graded, and {} reads one verdict on each; set "
        "kl.place=loss",
    ),
    "rewards_of_tokens_are_those_of_the_group": (
        lambda c: (
            _changes_rewards(c.kl)
            and c.rollout.sampling_rounds > 1
            and c.advantage.base_estimator not in ("gae", "reward")
        ),
        "{kl.place} compares the rollouts that train, and with {rollout.sampling_rounds} a prompt has others, which "
        "its baseline counts; set kl.place=loss, or rollout.sampling_rounds=1",
    ),
    "a_divergence_over_the_vocabulary_is_a_loss": (
        lambda c: c.teacher.path and c.teacher.place == "advantage" and c.teacher.beta != 1,
        "{teacher.beta} is not read with {teacher.place}, which knows the sampled token alone; set teacher.place=loss, "
        "or teacher.beta=1",
    ),
    "rewards_are_left_out_by_all": (
        lambda c: c.teacher.path and c.teacher.alone and _trains_on_rewards(c),
        "{teacher.alone} leaves rewards out, and {} reads them; set {}, or teacher.alone=false",
    ),
    "maxrl_divides_by_a_success_rate": (
        lambda c: c.advantage.base_estimator == "maxrl" and _below_zero(c),
        "{advantage.base_estimator} divides by the mean reward of a group, so rewards must lie in [0, 1], and {} makes "
        "some of them negative; leave that out, or set advantage.base_estimator=mean",
    ),
    "a_critic_replaces_exploration": (
        lambda c: c.advantage.base_estimator == "gae" and c.explore.enabled,
        "{advantage.base_estimator} takes values from a critic, but {explore.enabled} takes them from rollouts; set "
        "explore.enabled=false (PPO), or advantage.base_estimator=grpo",
    ),
    "critic_settings_are_read": (
        lambda c: c.advantage.base_estimator != "gae" and (changed(c.critic) or [""])[0],
        "critic.{} is not read with {advantage.base_estimator}; set advantage.base_estimator=gae, or leave it out",
    ),
    "the_policy_learns_too": (
        lambda c: (
            c.advantage.base_estimator == "gae"
            and 0 < c.training.max_steps <= c.critic.warmup_steps
            and f"critic.warmup_steps={c.training.max_steps - 1}"
        ),
        "{critic.warmup_steps} leaves the policy unchanged in all {training.max_steps} steps; nearest: {}",
    ),
    "overlong_margin_fits": (
        lambda c: c.advantage.overlong_margin > c.rollout.max_response_tokens,
        "{advantage.overlong_margin} is more than {rollout.max_response_tokens}; "
        "nearest: advantage.overlong_margin={=rollout.max_response_tokens}",
    ),
    "overlong_rewards_are_read": (
        lambda c: c.advantage.overlong_margin and _reads_verdicts(c),
        "{advantage.overlong_margin} lowers rewards of long responses, and {} asks which are right; set "
        "advantage.overlong_margin=0, and add overlong_mask to shaping.steps to leave out responses that are cut",
    ),
}
