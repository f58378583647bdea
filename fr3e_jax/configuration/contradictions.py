"""Settings that contradict each other: tables of rules, each of which says how to resolve its contradiction."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fr3e_jax.configuration.evaluation_sets import set_settings
from fr3e_jax.configuration.lora_section import ALL_LINEAR, TARGETS
from fr3e_jax.configuration.recipe import CODE, FILES
from fr3e_jax.configuration.schema import Config, EvaluationConfig, ModelConfig
from fr3e_jax.configuration.settings import as_yaml, setting_value
from fr3e_jax.stores.objects import is_remote, why_unusable

Rules = dict[str, tuple[Callable[[Config], Any], str]]
"""Rules by name: a function of the settings, whose result is true (or a text, or a tuple) where they contradict each
other, and the message, with a remedy. In the message, ``{section.field}`` becomes the setting with its value,
``{=section.field}`` its value alone, and each ``{}`` the function's result, or the next entry of its tuple.
"""

_SLOT = re.compile(r"\{(=?)([a-z_0-9]+(?:\.[a-z_0-9]+)+)?\}")


def broken_rules(config: Config, rules: Rules) -> Iterator[str]:
    """The messages of the rules that ``config`` breaks."""
    for is_broken, message in rules.values():
        if result := is_broken(config):
            results = iter(result if isinstance(result, tuple) else (result,))

            def filled(slot: re.Match[str], results: Iterator[Any] = results) -> str:
                alone, path = slot.groups()
                if path is None:
                    return str(next(results))
                value = as_yaml(setting_value(config, path))
                return value if alone else f"{path}={value}"

            yield _SLOT.sub(filled, message)


def faulty_name(names: Sequence[str], choices: Sequence[str]) -> str:
    """The fault of a list of names, for a message: an unknown or a repeated one; empty if there is none."""
    for name in names:
        if name not in choices:
            nearest = difflib.get_close_matches(name, choices, n=1, cutoff=0.0)[0]
            return f"{name!r}; expected some of {', '.join(choices)}; nearest: {nearest}"
        if names.count(name) > 1:
            return f"{name} twice; list it once"
    return ""


def first_set(section: Any, *names: str) -> str:
    """The first of these fields of a section that has a value; empty if none has."""
    return next((name for name in names if getattr(section, name)), "")


def is_range(values: Sequence[float]) -> bool:
    """Return whether these are two numbers, the smaller one first."""
    return len(values) == 2 and values[0] < values[1]


TRACKERS = ("tensorboard", "wandb", "trackio", "mlflow")
PLACES = ("runtime.run_dir", "runtime.output_dir", "runtime.compilation_cache", *FILES)
"""Settings that take a path or an address in an object store."""
LOCAL = (*CODE, "model.lora.path", "sft.output")
"""Settings that take a path of this machine alone."""
CACHES = ("gs", "s3")  # the stores that jax's own compilation cache opens


def _faulty_targets(targets: Sequence[str]) -> str:
    if not targets:
        return f"nothing; expected {ALL_LINEAR}, or some of {', '.join(TARGETS)}"
    if ALL_LINEAR in targets and len(targets) > 1:
        return f"{ALL_LINEAR} beside others; expected {ALL_LINEAR} alone, or the others"
    return faulty_name(targets, (ALL_LINEAR, *TARGETS))


def _unusable_store(config: Config) -> tuple[str, str, str] | None:
    """A setting, its address, and the reason for which a run would fail at its first read or write."""
    addresses = ((path, setting_value(config, path)) for path in PLACES)
    faults = ((path, value, why_unusable(value)) for path, value in addresses if is_remote(value))
    return next(((path, value, reason) for path, value, reason in faults if reason), None)


def _is_out_of_reach(cache: str) -> bool:
    return is_remote(cache) and cache.partition("://")[0] not in CACHES


def _pass_at_more(evaluation: EvaluationConfig) -> tuple[int, int, str] | None:
    largest, samples = max(evaluation.pass_at, default=0), evaluation.samples
    if largest <= samples:
        return None
    less = f"drop {largest} from evaluation.pass_at" if samples else "evaluation.pass_at=[] (greedy answers alone)"
    return largest, largest, less


def _unreadable_set(evaluation: EvaluationConfig, names: list[str]) -> str:
    try:
        set_settings(evaluation, names)
    except ValueError as error:
        return str(error)
    return ""


ENVIRONMENT_TASKS = ("gymnasium", "verifiers")  # that bring an environment


def reads_files(task: str) -> bool:
    return task == "datasets" or ":" in task  # a user's own task may read any setting


RULES: Rules = {
    "targets_are_known": (lambda c: _faulty_targets(c.model.lora.targets), "model.lora.targets has {}"),
    "trackers_are_known": (lambda c: faulty_name(c.runtime.trackers, TRACKERS), "runtime.trackers has {}"),
    "stores_can_be_used": (_unusable_store, "{}={}: {}"),
    "the_cache_can_be_used": (
        lambda c: _is_out_of_reach(c.runtime.compilation_cache),
        "{runtime.compilation_cache}: jax keeps it in a folder, or at gs:// or s3://; set one of them",
    ),
    "files_are_local": (
        lambda c: next((path for path in LOCAL if is_remote(setting_value(c, path))), ""),
        "{} is in an object store, where only models, data and runs may be; copy it here and set its path "
        "(sft.output empty: the model lies in model/ of the run directory)",
    ),
    "rollout_sizes_have_an_effect": (
        lambda c: c.mesh.rollout_fsdp != 1 and c.mesh.rollout_tensor < 1 and not c.mesh.sampler_devices,
        "{mesh.rollout_fsdp} is not read with {mesh.rollout_tensor}, which gives rollouts no layout of their own; "
        "nearest: mesh.rollout_tensor=1",
    ),
    "devices_that_sample_have_a_layout": (
        lambda c: c.mesh.sampler_devices and c.mesh.rollout_tensor == 0,
        "{mesh.rollout_tensor} gives rollouts the layout of training, and {mesh.sampler_devices} are not in it; "
        "nearest: mesh.rollout_tensor=1",
    ),
    "pass_at_k_has_k_samples": (
        lambda c: _pass_at_more(c.evaluation),
        "evaluation.pass_at asks for pass@{} of {evaluation.samples} samples; set evaluation.samples={}, or {}",
    ),
    "entries_of_sets_can_be_read": (lambda c: _unreadable_set(c.evaluation, c.data.eval), "{}"),
    "curriculum_starts_short": (
        lambda c: c.data.task == "order" and c.data.order.sft_min_operands > c.data.order.num_operands,
        "{data.order.sft_min_operands} is more than {data.order.num_operands}; "
        "nearest: data.order.sft_min_operands={=data.order.num_operands}",
    ),
    "words_have_a_length": (
        lambda c: len(c.data.char_count.letters) != 2 or c.data.char_count.letters[0] > c.data.char_count.letters[1],
        "{data.char_count.letters} is no range; set the letters of the shortest and of the longest word, as "
        "data.char_count.letters=[5,20]",
    ),
    "walls_lie_between_cells": (
        lambda c: c.data.task == "maze" and c.data.maze.side % 2 == 0 and c.data.maze.side - 1,
        "{data.maze.side} is even; nearest: data.maze.side={}",
    ),
    "cards_are_read": (
        lambda c: not reads_files(c.data.task) and first_set(c.data, "train", "eval", "weights", "root", "columns"),
        "data.{} is not read by {data.task}; nearest: data.task=datasets",
    ),
    "an_environment_is_played": (
        lambda c: c.data.task in ENVIRONMENT_TASKS and not c.environment.enabled,
        "{data.task} plays an environment, and {environment.kind}; nearest: environment.kind=task",
    ),
    "an_environment_is_read": (
        lambda c: (
            c.data.task not in ENVIRONMENT_TASKS
            and ":" not in c.data.task
            and first_set(c.data, "environment", "environment_options")
        ),
        "data.{} is not read by {data.task}; nearest: data.task=gymnasium or verifiers",
    ),
    "a_named_verifier_grades_cards": (
        lambda c: c.data.task != "datasets" and c.data.verifier and ":" not in c.data.verifier,
        "{data.verifier} takes the place of the verifier of cards and files, which {data.task} does not read; set "
        "FILE.py:NAME or package.module:NAME of your own, or data.verifier empty",
    ),
    "a_part_of_one_set_is_taken": (
        lambda c: c.data.train_problems and len(c.data.train) > 1,
        "{data.train_problems} takes the first problems of one set, but data.train names several; name one, or set "
        "data.train_problems=0",
    ),
    "each_card_has_a_weight": (
        lambda c: c.data.task == "datasets" and len(c.data.weights) not in (0, len(c.data.train)),
        "{data.weights} has not one entry for each of {data.train}; set one weight for each card, or data.weights=[] "
        "for shares by number of problems",
    ),
    "schedule_has_room_to_decay": (
        lambda c: 0 < c.optimizer.decay_updates <= c.optimizer.warmup_updates,
        "{optimizer.decay_updates} is not above {optimizer.warmup_updates}, after which the rate decays; set "
        "optimizer.decay_updates above {=optimizer.warmup_updates}, or 0 for a rate that stays",
    ),
    "dual_clip_exceeds_one": (
        lambda c: 0 < c.loss.dual_clip <= 1,
        "{loss.dual_clip} would cut the ratio 1 itself; set loss.dual_clip=3, or 0 for off",
    ),
    "importance_cap_keeps_one": (
        lambda c: 0 < c.loss.importance_cap < 1,
        "{loss.importance_cap} would cut the weight 1 itself; set loss.importance_cap=2, or 0 for off",
    ),
    "rft_leaves_something_out": (
        lambda c: c.rft.select != "random" and not c.rft.responses,
        "{rft.select} has no effect, as {rft.responses} selects every right response; set rft.responses to the number "
        "wanted",
    ),
}


def _truncation_effect(config: Config) -> str:
    """Truncation renormalises what is left, so that π_trainer / π_sampler is the mass that the filter keeps."""
    if config.rollout.top_p == 1:
        return ""
    if cap := config.loss.importance_cap:
        return f"loss.importance_cap={cap:g} would weigh tokens by the mass that is kept"
    if "mismatch_mask" in config.shaping.steps:
        return "mismatch_mask in shaping.steps would drop tokens by the mass that is kept"
    return "the gradient would be that of a policy that no rollout follows"


def _effect_of_a_single_rollout(config: Config) -> str:
    estimator = config.advantage.base_estimator
    if config.rollout.rollouts_per_prompt > 1:
        return ""
    if config.teacher.path and config.teacher.alone:
        return ""  # no reward is compared
    if config.drops_equal_rewards:
        return "rollout.reject_degenerate=true drops every prompt"
    if estimator not in ("gae", "reward") and (not config.explore.enabled or config.explore.train_base):
        return f"advantage.base_estimator={estimator} gives advantage 0"
    return ""  # no group is needed


def _steps_of_a_profile(steps: int, most: int) -> tuple[int, int, int] | None:
    needed = steps + 3  # two warm-up steps before them, a traced step after them
    return (needed, steps, needed) if steps and 0 < most < needed else None


LEAST_BFLOAT16_RATE = 1e-4
"""The least peak rate at which full weights may train in bfloat16.

An update of AdamW is about the rate, and bfloat16 rounds away what is below 2^-9 of a weight: 4e-5 at 0.02, a usual
deviation of weights. At 1e-6 a weight in fifty moves in a hundred updates.
"""


BFLOAT16_ADVICE = (
    "set model.param_dtype=float32, beside which rollout.param_dtype=bfloat16 halves what rollouts read, or "
    "model.lora.rank=32, which trains adapters in float32 on weights in bfloat16"
)


def is_rounded_away(model: ModelConfig, learning_rate: float) -> bool:
    """Return whether full weights would train in bfloat16 at too low a rate."""
    adapters = model.lora.rank or model.lora.path
    return model.param_dtype == "bfloat16" and not adapters and learning_rate < LEAST_BFLOAT16_RATE


TRAINING_RULES: Rules = {
    "updates_survive_rounding": (
        lambda c: is_rounded_away(c.model, c.optimizer.learning_rate) and f"{LEAST_BFLOAT16_RATE:g}",
        "{model.param_dtype} rounds away most updates of {optimizer.learning_rate} (at least {} is expected); "
        + BFLOAT16_ADVICE,
    ),
    "batch_holds_a_mini_batch": (
        lambda c: c.training.mini_batch_rollouts > c.training.batch_rollouts,
        "{training.mini_batch_rollouts} is more than {training.batch_rollouts}; "
        "nearest: training.mini_batch_rollouts={=training.batch_rollouts}",
    ),
    "run_ends": (
        lambda c: not c.training.max_steps and not c.training.max_sampled_tokens,
        "a run with {training.max_steps} and {training.max_sampled_tokens} never ends; set one of them, e.g. "
        "training.max_steps=100",
    ),
    "prompts_are_named": (
        lambda c: c.data.task == "datasets" and not c.data.train,
        "{data.task} has no cards to train on; set data.train, for example data.train=[gsm8k]",
    ),
    "evaluation_sets_are_named": (
        lambda c: (
            c.data.task == "datasets"
            and not c.data.eval
            and (c.evaluation.start or c.evaluation.end or c.evaluation.every)
        ),
        "{data.task} has no cards to evaluate on, before and after training; set data.eval, for example "
        "data.eval=[gsm8k], or evaluation.start=false, evaluation.end=false and evaluation.every=0",
    ),
    "rollouts_differ": (
        lambda c: c.rollout.temperature == 0,
        "{rollout.temperature} makes all rollouts of a prompt equal, so that no advantage differs from 0; set "
        "rollout.temperature=1",
    ),
    "rollouts_follow_the_distribution_that_trains": (
        _truncation_effect,
        "{rollout.top_p} draws from a truncated distribution, but training scores the full one: {}; set "
        "rollout.top_p=1 (evaluation.top_p may stay below 1)",
    ),
    "base_group_has_a_baseline": (
        _effect_of_a_single_rollout,
        "{rollout.rollouts_per_prompt} is a group without spread: {}; nearest: rollout.rollouts_per_prompt=2",
    ),
    "a_profiled_run_is_long_enough": (
        lambda c: _steps_of_a_profile(c.runtime.profile_steps, c.training.max_steps),
        "{runtime.profile_steps} needs {} steps (2 of warm-up, {} measured, 1 traced), but the run has "
        "{training.max_steps}; nearest: training.max_steps={}",
    ),
}
