"""Settings that contradict each other: one small rule for each contradiction, which says how to resolve it."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from fr3e_jax.configuration.evaluation_sets import set_settings
from fr3e_jax.configuration.lora_section import ALL_LINEAR, TARGETS
from fr3e_jax.configuration.schema import Config, ModelConfig
from fr3e_jax.stores.objects import is_remote, why_unusable


@dataclass(frozen=True)
class SettingRule:
    """``problem`` returns a message with contradiction and remedy, or None; ``paths`` are the settings it reads."""

    paths: tuple[str, ...]
    training_only: bool
    problem: Callable[[Config], str | None]


RULES: list[SettingRule] = []


def rule(*paths: str, training_only: bool = False) -> Callable:
    """Declare a contradiction between ``paths``; ``training_only``: sft, eval and sample ignore it."""

    def declare(problem: Callable[[Config], str | None]) -> Callable[[Config], str | None]:
        RULES.append(SettingRule(paths, training_only, problem))
        return problem

    return declare


@rule("model.lora.targets")
def targets_are_known(config: Config) -> str | None:
    """A contradiction within ``model.lora.targets``."""
    targets = config.model.lora.targets
    if not targets:
        return f"model.lora.targets is empty; expected {ALL_LINEAR}, or some of {', '.join(TARGETS)}"
    for name in targets:
        if name == ALL_LINEAR and len(targets) > 1:
            return f"model.lora.targets has {ALL_LINEAR} beside others; expected {ALL_LINEAR} alone, or the others"
        if name not in (ALL_LINEAR, *TARGETS):
            nearest = next(iter(difflib.get_close_matches(name, [ALL_LINEAR, *TARGETS], n=1, cutoff=0.0)))
            return (
                f"model.lora.targets has {name!r}; expected {ALL_LINEAR}, or some of {', '.join(TARGETS)}; "
                f"nearest: {nearest}"
            )
        if targets.count(name) > 1:
            return f"model.lora.targets has {name} twice; list it once"
    return None


@rule("model.lora.path")
def adapters_are_local(config: Config) -> str | None:
    """An adapter is read from a folder."""
    path = config.model.lora.path
    if is_remote(path):
        return f"model.lora.path={path} is in an object store; copy it here and set its folder"
    return None


TRACKERS = ("wandb", "trackio", "mlflow")


@rule("runtime.trackers")
def trackers_are_known(config: Config) -> str | None:
    for name in config.runtime.trackers:
        if name not in TRACKERS:
            nearest = next(iter(difflib.get_close_matches(name, TRACKERS, n=1, cutoff=0.0)))
            return f"runtime.trackers has {name!r}; expected some of {', '.join(TRACKERS)}; nearest: {nearest}"
        if config.runtime.trackers.count(name) > 1:
            return f"runtime.trackers has {name} twice; list it once"
    return None


PLACES = (
    "runtime.run_dir",
    "runtime.output_dir",
    "runtime.compilation_cache",
    "model.path",
    "model.tokenizer",
    "data.root",
    "data.path",
    "data.eval_path",
)
"""Settings that take a path or an address in an object store."""
CODE = ("data.task", "data.verifier", "tools.kind", "environment.kind")
"""Settings that may name a file of the user's code."""
CACHES = ("gs", "s3")  # the stores that jax's own compilation cache opens


@rule(*PLACES)
def stores_can_be_used(config: Config) -> str | None:
    """Otherwise a run would fail at its first read or write."""
    for name in PLACES:
        section, field = name.split(".")
        value = getattr(getattr(config, section), field)
        if is_remote(value) and (reason := why_unusable(value)):
            return f"{name}={value}: {reason}"
    cache = config.runtime.compilation_cache
    if is_remote(cache) and cache.partition("://")[0] not in CACHES:
        return f"runtime.compilation_cache={cache}: jax keeps it in a folder, or at gs:// or s3://; set one of them"
    return None


@rule("sft.output", *CODE)
def files_are_local(config: Config) -> str | None:
    """Models are written into folders, and code is loaded from them."""
    if is_remote(config.sft.output):
        return (
            f"sft.output={config.sft.output} is in an object store, and the model is written into a folder; set it "
            "empty: the model then lies in model/ of the run directory, which may be in a store"
        )
    for name in CODE:
        section, field = name.split(".")
        value = getattr(getattr(config, section), field)
        if is_remote(value):
            return f"{name}={value} is in an object store, and code is loaded from files; copy it here and set its path"
    return None


def _is_given(model: ModelConfig) -> bool:
    """true if a directory or a published architecture gives the network's sizes."""
    return bool(model.path) or model.architecture != "custom"


@rule("model.num_kv_heads", "model.num_heads")
def kv_heads_divide_heads(config: Config) -> str | None:
    heads, kv_heads = config.model.num_heads, config.model.num_kv_heads
    if _is_given(config.model) or heads % kv_heads == 0:
        return None
    divisors = [n for n in range(1, heads + 1) if heads % n == 0]
    nearest = min(divisors, key=lambda n: abs(n - kv_heads))
    return (
        f"model.num_kv_heads={kv_heads} does not divide model.num_heads={heads}; nearest: model.num_kv_heads={nearest}"
    )


@rule("model.hidden_size", "model.num_heads")
def head_size_is_even(config: Config) -> str | None:
    width, heads = config.model.hidden_size, config.model.num_heads
    if _is_given(config.model) or width % (2 * heads) == 0:
        return None
    nearest = max(1, round(width / (2 * heads))) * 2 * heads
    return (
        f"model.hidden_size={width} does not divide into model.num_heads={heads} heads of an even size, "
        f"which rotary positions need; nearest: model.hidden_size={nearest}"
    )


@rule("mesh.tensor", "model.num_heads", "model.intermediate_size")
def tensor_shards_divide_the_network(config: Config) -> str | None:
    shards, heads, columns = config.mesh.tensor, config.model.num_heads, config.model.intermediate_size
    if _is_given(config.model) or (heads % shards == 0 and columns % shards == 0):
        return None
    nearest = max(n for n in range(1, min(shards, heads) + 1) if heads % n == 0 and columns % n == 0)
    return (
        f"mesh.tensor={shards} does not divide model.num_heads={heads} and "
        f"model.intermediate_size={columns}; nearest: mesh.tensor={nearest}"
    )


@rule("mesh.replica", "mesh.fsdp", "mesh.tensor")
def one_mesh_size_is_inferred(config: Config) -> str | None:
    sizes = {axis: getattr(config.mesh, axis) for axis in ("replica", "fsdp", "tensor")}
    for name, size in sizes.items():
        if size == 0:
            return f"mesh.{name}=0 is not a number of devices; set mesh.{name}=-1 to take all that the others leave"
    inferred = [name for name, size in sizes.items() if size == -1]
    if len(inferred) < 2:
        return None
    other = next(name for name in inferred if name != "fsdp")
    settings = " and ".join(f"mesh.{name}=-1" for name in inferred)
    return f"{settings} leave the mesh undetermined; nearest: mesh.{other}=1"


@rule("mesh.rollout_tensor", "mesh.rollout_fsdp")
def rollout_sizes_have_an_effect(config: Config) -> str | None:
    fsdp = config.mesh.rollout_fsdp
    if config.mesh.rollout_tensor or fsdp == 1:
        return None
    return (
        f"mesh.rollout_fsdp={fsdp} is not read with mesh.rollout_tensor=0, the layout of training; "
        "nearest: mesh.rollout_tensor=1"
    )


@rule("evaluation.pass_at", "evaluation.samples")
def pass_at_k_has_k_samples(config: Config) -> str | None:
    largest, samples = max(config.evaluation.pass_at, default=0), config.evaluation.samples
    if largest <= samples:
        return None
    less = f"drop {largest} from evaluation.pass_at" if samples else "evaluation.pass_at=[] (greedy answers alone)"
    return (
        f"evaluation.pass_at asks for pass@{largest} of evaluation.samples={samples} samples; "
        f"set evaluation.samples={largest}, or {less}"
    )


@rule("evaluation.sets", "data.eval")
def entries_of_sets_can_be_read(config: Config) -> str | None:
    try:
        set_settings(config)
    except ValueError as error:
        return str(error)
    return None


@rule("data.order.sft_min_operands", "data.order.num_operands")
def curriculum_starts_short(config: Config) -> str | None:
    least, most = config.data.order.sft_min_operands, config.data.order.num_operands
    if config.data.task != "order" or least <= most:
        return None
    return (
        f"data.order.sft_min_operands={least} is more than data.order.num_operands={most}; "
        f"nearest: data.order.sft_min_operands={most}"
    )


@rule("data.chain.ambiguous", "data.chain.sft_min_length", "data.chain.length")
def chains_hold_their_operations(config: Config) -> str | None:
    chain = config.data.chain
    for name in ("ambiguous", "sft_min_length"):
        if config.data.task == "chain" and (value := getattr(chain, name)) > chain.length:
            return (
                f"data.chain.{name}={value} is more than data.chain.length={chain.length}; "
                f"nearest: data.chain.{name}={chain.length}"
            )
    return None


@rule("data.task", "data.train", "data.eval", "data.weights", "data.root")
def cards_are_read(config: Config) -> str | None:
    data = config.data
    unread = [name for name in ("train", "eval", "weights", "root") if getattr(data, name)]
    if not unread or data.task == "datasets" or ":" in data.task:  # a user's own task may read any setting
        return None
    return f"data.{unread[0]} is not read by data.task={data.task}; nearest: data.task=datasets"


@rule("data.task", "data.path", "data.eval_path")
def cards_name_their_files(config: Config) -> str | None:
    data = config.data
    unread = [name for name in ("path", "eval_path") if getattr(data, name)]
    if not unread or data.task != "datasets":
        return None
    return (
        f"data.{unread[0]} is not read by data.task=datasets, whose cards name files under data.root; set data.root, "
        "data.train and data.eval"
    )


@rule("data.weights", "data.train")
def each_card_has_a_weight(config: Config) -> str | None:
    weights, cards = len(config.data.weights), len(config.data.train)
    if not weights or weights == cards or config.data.task != "datasets":
        return None
    return (
        f"data.weights has {weights} entries, but data.train names {cards} cards; set one weight for each card, or "
        "data.weights=[] for shares by number of problems"
    )


@rule("optimizer.schedule", "optimizer.decay_updates", "optimizer.warmup_updates")
def schedule_has_room_to_decay(config: Config) -> str | None:
    optimizer = config.optimizer
    if optimizer.schedule == "constant" or optimizer.decay_updates > optimizer.warmup_updates:
        return None
    return (
        f"optimizer.schedule={optimizer.schedule} reaches zero at optimizer.decay_updates={optimizer.decay_updates}, "
        f"not after optimizer.warmup_updates={optimizer.warmup_updates}; "
        f"set optimizer.decay_updates above {optimizer.warmup_updates}, or optimizer.schedule=constant"
    )


@rule("loss.dual_clip")
def dual_clip_exceeds_one(config: Config) -> str | None:
    cap = config.loss.dual_clip
    if cap == 0 or cap > 1:
        return None
    return f"loss.dual_clip={cap:g} would cut the ratio 1 itself; set loss.dual_clip=3, or 0 for off"


@rule("loss.importance_cap")
def importance_cap_keeps_one(config: Config) -> str | None:
    cap = config.loss.importance_cap
    if cap == 0 or cap >= 1:
        return None
    return f"loss.importance_cap={cap:g} would cut the weight 1 itself; set loss.importance_cap=2, or 0 for off"


@rule("rft.select", "rft.responses")
def rft_leaves_something_out(config: Config) -> str | None:
    rft = config.rft
    if rft.select == "random" or rft.responses:
        return None
    return (
        f"rft.select={rft.select} has no effect, as rft.responses=0 selects every right response; "
        "set rft.responses to the number wanted"
    )


training_rule = partial(rule, training_only=True)


@training_rule("training.mini_batch_rollouts", "training.batch_rollouts")
def batch_holds_a_mini_batch(config: Config) -> str | None:
    mini, batch = config.training.mini_batch_rollouts, config.training.batch_rollouts
    if mini <= batch:
        return None
    return (
        f"training.mini_batch_rollouts={mini} is more than training.batch_rollouts={batch}; "
        f"nearest: training.mini_batch_rollouts={batch}"
    )


@training_rule("training.max_steps", "training.max_sampled_tokens")
def run_ends(config: Config) -> str | None:
    if config.training.max_steps or config.training.max_sampled_tokens:
        return None
    return (
        "a run with training.max_steps=0 and training.max_sampled_tokens=0 never ends; set one of them, "
        "e.g. training.max_steps=100"
    )


@training_rule("data.task", "data.train", "data.eval")
def datasets_are_named(config: Config) -> str | None:
    data = config.data
    empty = [name for name in ("train", "eval") if not getattr(data, name)]
    if data.task != "datasets" or not empty:
        return None
    use = "train on" if empty[0] == "train" else "evaluate on, before and after training"
    return f"data.task=datasets has no cards to {use}; set data.{empty[0]}, for example data.{empty[0]}=[gsm8k]"


@training_rule("rollout.temperature")
def rollouts_differ(config: Config) -> str | None:
    if config.rollout.temperature > 0:
        return None
    return (
        "rollout.temperature=0 makes all rollouts of a prompt equal, so that no advantage differs from 0; "
        "set rollout.temperature=1"
    )


@training_rule("rollout.top_p", "loss.importance_cap", "shaping.steps")
def rollouts_follow_the_distribution_that_trains(config: Config) -> str | None:
    """Truncation renormalises what is left, so that π_trainer / π_sampler is the mass that the filter keeps."""
    rollout = config.rollout
    if rollout.top_p == 1:
        return None
    if config.loss.importance_cap:
        effect = f"loss.importance_cap={config.loss.importance_cap:g} would weigh tokens by the mass that is kept"
    elif "mismatch_mask" in config.shaping.steps:
        effect = "mismatch_mask in shaping.steps would drop tokens by the mass that is kept"
    else:
        effect = "the gradient would be that of a policy that no rollout follows"
    return (
        f"rollout.top_p={rollout.top_p:g} draws from a truncated distribution, but training scores the full one: "
        f"{effect}; set rollout.top_p=1 (evaluation.top_p may stay below 1)"
    )


@training_rule("rollout.rollouts_per_prompt", "rollout.reject_degenerate", "explore.enabled", "explore.train_base")
def base_group_has_a_baseline(config: Config) -> str | None:
    if config.rollout.rollouts_per_prompt > 1:
        return None
    if config.rollout.reject_degenerate:
        effect = "rollout.reject_degenerate=true drops every prompt"
    elif config.advantage.base_estimator in ("gae", "reward"):  # no group is needed
        return None
    elif not config.explore.enabled or config.explore.train_base:
        effect = f"advantage.base_estimator={config.advantage.base_estimator} gives advantage 0"
    else:
        return None
    return f"rollout.rollouts_per_prompt=1 is a group without spread: {effect}; nearest: rollout.rollouts_per_prompt=2"


@training_rule("runtime.profile_steps", "training.max_steps")
def a_profiled_run_is_long_enough(config: Config) -> str | None:
    steps, most = config.runtime.profile_steps, config.training.max_steps
    needed = steps + 3  # two warm-up steps before them, a traced step after them
    if not steps or not most or most >= needed:
        return None
    return (
        f"runtime.profile_steps={steps} needs {needed} steps (2 of warm-up, {steps} measured, 1 traced), "
        f"but the run has training.max_steps={most}; nearest: training.max_steps={needed}"
    )
