"""Every setting of a run, as typed dataclasses: one class per section of a recipe.

A field is declared once, with its default, its meaning and its bounds; ``--help`` and the range checks read it from
here. Durations are counted in steps or updates, sizes in tokens or rollouts; the name or the help text says which.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from fr3e_jax.configuration.environment_section import EnvironmentConfig
from fr3e_jax.configuration.experts_section import ExpertsConfig
from fr3e_jax.configuration.judge_section import JudgeConfig
from fr3e_jax.configuration.lora_section import LoraConfig
from fr3e_jax.configuration.model_names import ModelName
from fr3e_jax.configuration.options import option
from fr3e_jax.configuration.shaping_sections import ShapingConfig
from fr3e_jax.configuration.task_sections import CharCountConfig, LockConfig, MazeConfig, OrderConfig
from fr3e_jax.configuration.teacher_section import TeacherConfig


@dataclass
class ModelConfig:
    """The policy: a pretrained directory, or the shape of random weights."""

    path: str = option(
        "",
        "Hugging Face directory to start from (config.json, safetensors, tokenizer) or its address, gs:// or s3://; "
        "empty: random weights",
    )
    tokenizer: str = option(
        "", "tokenizer directory; empty: the one in model.path, else the embedded character tokenizer"
    )
    architecture: ModelName = option(
        "custom", "published sizes, for random weights and fr3e plan (a model.path must match); custom: the sizes below"
    )
    hidden_size: int = option(64, "width of the residual stream (random weights only)", ge=1)
    num_layers: int = option(3, "transformer blocks (random weights only)", ge=1)
    num_heads: int = option(4, "query heads (random weights only)", ge=1)
    num_kv_heads: int = option(2, "key/value heads; must divide num_heads (random weights only)", ge=1)
    intermediate_size: int = option(192, "width of the gated MLP (random weights only)", ge=1)
    max_position_embeddings: int = option(
        0, "positions of the network; 0: as its config.json says; more than it was trained for is your decision", ge=0
    )
    param_dtype: Literal["float32", "bfloat16"] = option(
        "float32", "storage type of parameters and optimizer state; bfloat16: for adapters, or rates of 1e-4 and more"
    )
    compute_dtype: Literal["float32", "bfloat16"] = option(
        "float32", "type of activations and KV caches; logits, softmax, log-probs and losses are always float32"
    )
    attention: Literal["auto", "xla", "pallas"] = option(
        "auto",
        "attention of rows and of decode steps: matrix products (xla), or fused kernels that keep scores out of memory "
        "and read only what is seen (pallas; TPU and GPU); auto: pallas where they compile, else xla",
    )
    lora: LoraConfig = field(default_factory=LoraConfig)
    experts: ExpertsConfig = field(default_factory=ExpertsConfig)


@dataclass
class DataConfig:
    """The task: prompts, demonstrations and their verifier."""

    task: str = option(
        "order",
        "order, maze, lock, char_count, datasets, gymnasium, verifiers, or 'FILE.py:NAME' / 'package.module:NAME' of "
        "your own task",
    )
    environment: str = option(
        "", "id for gymnasium.make (data.task=gymnasium), or module with load_environment() (data.task=verifiers)"
    )
    environment_options: list[str] = option([], "NAME=VALUE: arguments of that environment, such as size=8")
    root: str = option(
        "",
        "directory or address under which the files of dataset cards lie (data.task=datasets), or what a task of your "
        "own reads",
    )
    train: list[str] = option(
        [],
        "dataset cards to train on (data.task=datasets): CARD or CARD/SPLIT, CARD a name in configs/data or a file; or "
        "files of rows, or ids of the Hugging Face hub",
    )
    columns: list[str] = option(
        [], "NAME=PATH: columns of files without a card, such as answer=reward_model.ground_truth (docs/users/data.md)"
    )
    weights: list[float] = option(
        [], "share of each training card in the mixture; empty: in proportion to its problems", gt=0
    )
    eval: list[str] = option([], "dataset cards to evaluate on (data.task=datasets): CARD or CARD/SPLIT")
    template: str = option(
        "plain", "template that makes a prompt from a question: its name, or a file (docs/users/data.md)"
    )
    system: str = option("", "system message before each question, in a chat template")
    template_options: list[str] = option(
        [], "NAME=VALUE: variables of the chat template, such as enable_thinking=false or tools=FILE.json"
    )
    verifier: str = option(
        "",
        "'FILE.py:NAME' / 'package.module:NAME' of your own verifier, called in a worker; or a name (math, exact, ...) "
        "in place of that of cards and files; empty: the task's",
    )
    seed: int = option(0, "seed of prompt generation and order, independent of the run's seed", ge=0)
    development_share: float = option(
        0.0, "share of each training card that is kept from training for evaluation.split=development", ge=0, lt=1
    )
    train_problems: int = option(0, "train on the first so many problems, again and again; 0: on all", ge=0)
    max_prompt_tokens: int = option(64, "longer prompts are dropped and counted, never cut", ge=1)
    order: OrderConfig = field(default_factory=OrderConfig)
    lock: LockConfig = field(default_factory=LockConfig)
    char_count: CharCountConfig = field(default_factory=CharCountConfig)
    maze: MazeConfig = field(default_factory=MazeConfig)


@dataclass
class RewardsConfig:
    """Worker processes for verifiers that may hang, crash or run foreign code."""

    workers: int = option(
        0, "worker processes, up to twice as many while some are slow; 0: one per core, at most 16", ge=0
    )
    deadline_seconds: float = option(2.0, "CPU time for one answer; then its worker is killed, the reward is 0", gt=0)
    memory_mb: int = option(2048, "address space of a worker, in MB", ge=256)


@dataclass
class RolloutConfig:
    """First Return: base rollouts from the prompts."""

    prompts_per_round: int = option(32, "prompts sampled in a round; rounds repeat until the batch is full", ge=1)
    rollouts_per_prompt: int = option(16, "base rollouts of each prompt (N)", ge=1)
    sampling_rounds: int = option(
        1,
        "most rounds of N base rollouts of a prompt; there are more while fewer than N/2 are right or wrong, and N of "
        "all train, half of them right where there are as many (Reinforce-Ada)",
        ge=1,
    )
    allocation: Literal["uniform", "knapsack"] = option(
        "uniform",
        "base rollouts of each prompt: N, or N on average, more where they are expected to teach more by the running "
        "success rate of the problem (Knapsack RL)",
    )
    replay_share: float = option(
        0.0,
        "share of a round's prompts that are asked again, each with its latest own success in place of a rollout "
        "(ExGRPO); 0: off",
        ge=0,
        lt=1,
    )
    max_response_tokens: int = option(
        64, "cap on a response, stop token included; an explored response counts its prefix", ge=1
    )
    temperature: float = option(1.0, "sampling temperature of base and explored rollouts; 0 is greedy", ge=0)
    top_p: float = option(
        1.0, "nucleus: the smallest set of tokens with at least this mass; 1: all, as training needs", gt=0, le=1
    )
    stop_tokens: list[str] = option(
        [],
        "tokens that end a response, by text or id, besides those of the model's files; the first ends demonstrations",
    )
    stop_texts: list[str] = option([], "texts that end a response where a token completes one; they are not graded")
    reject_degenerate: bool = option(
        True, "drop prompts whose base rewards are all equal (FR3E 3.2); not with a teacher"
    )
    max_rounds_without_signal: int = option(
        10, "rounds that keep no prompt, after which the run stops with a message", ge=1
    )
    trunk_slots: int = option(8, "trunks decoded side by side", ge=1)
    lanes_per_trunk: int = option(16, "branches of one trunk decoded side by side", ge=1)
    decode_chunk: int = option(16, "decode steps of one compiled call; finished lanes are refilled between calls", ge=1)
    expected_tokens: int = option(
        0,
        "mean length of responses for which the shapes of micro-batches are declared, at most the cap; 0: half of it",
        ge=0,
    )
    cache_sizes: int = option(
        0,
        "at most so many sizes of rings, and of trunks that hold a response: the cap, a quarter of it, ...; 0: rings "
        "of the cap, a half, a quarter, ..., and trunks of two sizes",
        ge=0,
    )
    param_dtype: Literal["", "float32", "bfloat16", "int8"] = option(
        "",
        "type of the matrices that rollouts read, a copy if it differs (int8: of kernels alone); empty: as trained, on "
        "GPU the compute type",
    )


@dataclass
class ExploreConfig:
    """FR3E stage 2: anchors on base rollouts and rollouts from the states before them."""

    enabled: bool = option(True, "explore from anchors (FR3E); false: train the base rollouts (GRPO and relatives)")
    num_anchors: int = option(4, "anchors per expanded base rollout (K)", ge=1)
    rollouts_per_state: int = option(8, "rollouts from each state (M)", ge=1)
    max_correct: int = option(1, "correct base rollouts expanded per kept prompt", ge=0)
    max_wrong: int = option(1, "wrong base rollouts expanded per kept prompt", ge=0)
    anchor_selection: Literal["entropy", "logprob", "random", "uniform", "gradient", "delimiter"] = option(
        "entropy",
        "anchors: tokens of highest entropy, of lowest log-prob, at random, evenly spaced, of largest update, or "
        "the first tokens of reasoning steps (explore.delimiter)",
    )
    delimiter: str = option(
        "\\n", "text in the last token of a reasoning step (explore.anchor_selection=delimiter); \\n: a line break"
    )
    min_spacing: int = option(1, "least distance between two anchors, in tokens", ge=1)
    include_anchor_token: bool = option(
        False, "fork after the anchor token (the letter of FR3E eq. 9-10), not before it"
    )
    initial_state: Literal["base_mean", "fresh"] = option(
        "base_mean", "V(S_0): mean of the base rewards, or of M fresh rollouts from the prompt, which train as S_0"
    )
    train_states: bool = option(True, "train explored rollouts; false: they only estimate the values of their states")
    train_base: bool = option(False, "train base rollouts as well, as a group of their prompt")
    block_credit: bool = option(
        False, "train the expanded base rollout too, each block with V(S_j+1) - V(S_j), or with its credit in a tree"
    )


@dataclass
class ReturnConfig:
    """Kept bases: own successes of hard prompts are kept and continued again from depths within them."""

    size: int = option(0, "successes that are kept, of as many prompts; 0: off", ge=0)
    depth_rule: Literal["target", "fixed"] = option(
        "target",
        "depths around that from which half of the rollouts succeed, or always the same ones, evenly spaced (PrefixRL)",
    )
    visits: int = option(8, "kept successes that a round of returns continues", ge=1)
    max_share: float = option(
        0.8, "most of the sampled tokens that continuations take; else the share of All-Wrong prompts", gt=0, lt=1
    )
    depths: int = option(3, "depths of a success that a visit continues", ge=1)
    rollouts: int = option(8, "rollouts from each depth", ge=2)
    max_success_rate: float = option(0.25, "a prompt is hard up to this success rate of its base rollouts", gt=0, le=1)
    failures: bool = option(
        False, "also keep failures of prompts that are hard to fail, and continue them where half of the rollouts fail"
    )


@dataclass
class AdvantageConfig:
    """From rewards to advantages: baselines per group, and FR3E's adaptive modulation."""

    base_estimator: str = option(
        "grpo",
        "advantages of base rollouts: grpo (z-score), rloo (leave-one-out), mean (minus the mean), maxrl (the same "
        "over the mean), gae (from a critic: PPO), pass_at_k (those that maximise it), reward (itself), or "
        "'FILE.py:NAME' / 'package.module:NAME' of your own function of a group",
    )
    state_estimator: Literal["grpo", "rloo", "mean", "tree"] = option(
        "mean",
        "baseline of state groups (FR3E: mean), or step values on the prompt's whole tree (TreeRL, Hou et al. 2025)",
    )
    pass_at_k: int = option(4, "responses of a subset (advantage.base_estimator=pass_at_k)", ge=1)
    reward_range: Literal["zero_one", "minus_one_one"] = option(
        "zero_one", "advantages and values read rewards as graded, or 2 r - 1; metrics show rewards as graded"
    )
    unbiased_std: bool = option(
        False, "z-scores divide by the standard deviation with n - 1 (verl), not by the population's"
    )
    modulation: Literal["none", "exp", "sharpen"] = option(
        "exp",
        "alpha_j: exp(-(V(S_j) - V(S_j-1))) (FR3E eq. 14), the authors' sharpened variant, or 1; if S_0 trains, "
        "alpha_0 is 1, and in the sharpened variant the authors' own",
    )
    normalise_batch: bool = option(False, "z-score advantages over the full batch's tokens (PPO, REINFORCE++)")
    overlong_margin: int = option(
        0,
        "the reward falls by up to 1 over this many tokens before rollout.max_response_tokens (DAPO); 0: off",
        ge=0,
    )


@dataclass
class LossConfig:
    """The policy loss: PPO with clip-higher, and the average over its tokens."""

    epsilon_low: float = option(0.22, "the ratio is clipped below at 1 - epsilon_low", ge=0, lt=1)
    epsilon_high: float = option(0.28, "the ratio is clipped above at 1 + epsilon_high (clip-higher)", ge=0)
    ratio: Literal["token", "sequence"] = option(
        "token", "the policy ratio: of each token, or of a whole sequence (GSPO; epsilons of about 3e-4 and 4e-4)"
    )
    aggregation: Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "token_sum_norm"] = option(
        "token_mean", "average of the token losses of the global mini-batch"
    )
    dual_clip: float = option(0.0, "cap c on the ratio of negative advantages (usually 3); 0: off", ge=0)
    importance_cap: float = option(
        0.0,
        "cap of truncated trainer/sampler importance weights; 0: off; default 2 where the sampler differs, or replays",
        ge=0,
    )
    entropy_coefficient: float = option(0.0, "weight of the entropy bonus", ge=0)
    function: str = option(
        "", "'FILE.py:NAME' / 'package.module:NAME' of your own loss of tokens; empty: the clipped surrogate"
    )


@dataclass
class KlConfig:
    """Divergence from a reference policy, which is held only where the coefficient is above 0."""

    coefficient: float = option(0.0, "weight of the divergence; 0: no reference policy is held", ge=0)
    estimator: Literal["k1", "k2", "k3"] = option(
        "k3", "log-ratio (kl.place=reward only), half its square, or the unbiased positive one"
    )
    place: Literal["loss", "reward"] = option("loss", "a term of the loss, or subtracted from each token's reward")
    reset_every: int = option(0, "training steps between two resets of the reference to the policy; 0: never", ge=0)
    reset_on_plateau: int = option(
        0, "reset after this many steps without a higher mean base reward; 0: never (ProRL)", ge=0
    )


@dataclass
class CriticConfig:
    """The value network of PPO (advantage.base_estimator=gae): a copy of the policy's network with a scalar head."""

    learning_rate: float = option(
        1e-5, "peak learning rate of its AdamW; all else is as in the optimizer section", ge=0
    )
    warmup_steps: int = option(10, "first training steps in which only the critic learns (Cheng et al. 2025: 10)", ge=0)
    clip: float = option(0.5, "largest change of a value from the old one within a step's loss; 0: no clip", ge=0)
    gamma: float = option(1.0, "discount of GAE", gt=0, le=1)
    lam: float = option(1.0, "lambda of GAE", ge=0, le=1)


@dataclass
class OptimizerConfig:
    """AdamW and its schedule; one update is one mini-batch."""

    learning_rate: float = option(1e-6, "peak learning rate of AdamW", ge=0)
    warmup_updates: int = option(0, "optimizer steps of linear warm-up, which starts at one step's share", ge=0)
    decay_updates: int = option(
        0, "optimizer steps until the rate, by a cosine that follows the warm-up, reaches zero; 0: it stays", ge=0
    )
    beta2: float = option(0.95, "decay of the second moment", ge=0, lt=1)
    weight_decay: float = option(0.0, "decoupled weight decay, on matrices only", ge=0)
    max_grad_norm: float = option(1.0, "the global gradient norm is clipped to this; 0: off", ge=0)


@dataclass
class TrainingConfig:
    """Batches and the length of the run."""

    batch_rollouts: int = option(512, "rollouts accumulated before an update (a full batch)", ge=1)
    mini_batch_rollouts: int = option(128, "rollouts of one optimizer step", ge=1)
    epochs: int = option(1, "passes over a full batch", ge=1)
    surplus: Literal["carry", "drop"] = option(
        "carry",
        "kept rollouts beyond a full batch: carry them to the next, which then trains on older weights' rollouts "
        "(FR3E 5.1 does not say), or drop them",
    )
    micro_batch_tokens: int = option(
        4096,
        "positions, padding included, of one call of the gradient program; a larger trunk takes several rows",
        ge=1,
    )
    token_chunk: int = option(
        1024, "tokens (of each batch shard) whose logits exist at once; on CPU at most 256 of a large vocabulary", ge=1
    )
    remat: Literal["none", "dots", "block"] = option(
        "none", "the backward pass recomputes: nothing; all but the matrix products (dots); all of a layer (block)"
    )
    scan_layers: bool = option(
        False, "compile one layer for all of them (quick for deep models), instead of each layer by itself"
    )
    attention_block: int = option(
        0, "tokens of a row whose attention scores exist at once, recomputed in the backward pass; 0: all", ge=0
    )
    max_steps: int = option(100, "full batches to train on; 0: no limit", ge=0)
    max_sampled_tokens: int = option(0, "stop once the sampler has emitted this many tokens; 0: no limit", ge=0)


@dataclass
class SftConfig:
    """Supervised warm start on the task's demonstrations (``fr3e sft``); other AdamW settings are in ``optimizer``."""

    start: Literal["model", "random"] = option(
        "model", "start from model.path (if empty: random weights), or always from random weights"
    )
    output: str = option("", "Hugging Face directory to write at the end; empty: model/ in the run directory")
    steps: int = option(1000, "optimizer steps of supervised fine-tuning", ge=1)
    batch_size: int = option(64, "demonstrations per optimizer step", ge=1)
    learning_rate: float = option(1e-3, "peak learning rate, decayed to zero by a cosine", ge=0)
    curriculum_steps: int = option(0, "first steps that mix in shorter problems, if the task has them", ge=0)


@dataclass
class RftConfig:
    """Rejection-sampling fine-tuning (``fr3e rft``; Deng et al. 2025, 4.4.1) on responses drawn as ``rollout`` says.

    AdamW has the settings in ``optimizer``; each iteration starts with fresh moments.
    """

    iterations: int = option(2, "rounds of sampling, filtering, selecting and fine-tuning", ge=1)
    prompts: int = option(256, "prompts sampled in an iteration", ge=1)
    max_redundancy: float = option(0.31, "drop responses with a larger share of repeated 3-grams", ge=0, le=1)
    select: Literal["random", "entropy", "branching_factor"] = option(
        "random", "right responses selected first: any, or those of the highest mean entropy or mean branching factor"
    )
    responses: int = option(1100, "most right responses selected in an iteration; 0: no limit", ge=0)
    negative_share: float = option(
        0.05, "share of wrong responses, drawn at random, among the training responses", ge=0, lt=1
    )


@dataclass
class EvaluationConfig:
    """Held-out evaluation: greedy, avg@k and pass@k."""

    split: Literal["test", "development"] = option(
        "test", "held-out problems: those for results, or those on which settings are chosen"
    )
    prompts: int = option(256, "held-out prompts evaluated, of each evaluation set", ge=1)
    samples: int = option(16, "samples per prompt for avg@k and pass@k; 0: the greedy answer alone", ge=0)
    pass_at: list[int] = option([8, 16], "the k of pass@k, each at most evaluation.samples", ge=1)
    temperature: float = option(1.0, "sampling temperature of the samples; the greedy answer is separate", gt=0)
    top_p: float = option(1.0, "nucleus of the samples", gt=0, le=1)
    sets: list[str] = option(
        [],
        "other settings for single sets of data.eval: 'SET name=value ...' of prompts, samples, pass_at, temperature, "
        "top_p, as in 'aime24 samples=256 pass_at=1,256'; 'gsm8k samples=0' is greedy only",
    )
    every: int = option(0, "training steps between evaluations; 0: only before and after", ge=0)
    start: bool = option(True, "evaluate the weights that training starts from")
    end: bool = option(True, "evaluate the last weights")


@dataclass
class CheckpointConfig:
    """The steps at which checkpoints are written, and the checkpoints that are kept."""

    every: int = option(
        10, "training steps between checkpoints (of `fr3e sft`, lines of metrics); the last is always saved", ge=1
    )
    minutes: float = option(
        0.0,
        "minutes after the last checkpoint, when a step is saved, too; 0: `every` alone decides",
        ge=0,
    )
    keep_last: int = option(2, "newest checkpoints kept", ge=1)
    keep_best: int = option(1, "best checkpoints by held-out accuracy that are kept as well", ge=0)


@dataclass
class ToolsConfig:
    """Tools that the policy calls while it answers."""

    kind: str = option("none", "none, python (confined), or 'FILE.py:NAME' of your own function of a call")
    begin: str = option("", "text that opens a call; empty: the tool's own (a python fence)")
    end: str = option("", "text that closes a call and stops decoding until the answer is there; empty: the tool's own")
    result: str = option("", "text that is appended, with {output} for the answer; empty: the tool's own")
    max_calls: int = option(4, "calls of a response that are answered; later calls are ordinary text", ge=1)
    max_output_tokens: int = option(
        32, "tokens of an answer, cut if longer; they count towards rollout.max_response_tokens", ge=1
    )
    seconds: float = option(3.0, "CPU time of a python call; any call may take twice as long by the clock", gt=0)


@dataclass
class MeshConfig:
    """Layout of devices, whose number is the product of its sizes: one of replica, fsdp and tensor may be -1."""

    replica: int = option(
        1, "copies of the parameters, each with its share of the batch; -1: all devices that the others leave", ge=-1
    )
    fsdp: int = option(-1, "shards of parameters and batch; -1: all devices that the others leave", ge=-1)
    context: int = option(
        1, "shards of parameters and of each training row's positions, for long rows; rollouts take it as fsdp", ge=1
    )
    expert: int = option(1, "groups that the experts are split into; else as a part of fsdp", ge=1)
    tensor: int = option(1, "shards of heads and MLP columns; -1: all devices that the others leave", ge=-1)
    rollout_tensor: int = option(
        -1,
        "tensor shards of a copy of the weights for rollouts; 0: rollouts use the layout of training; -1: on GPUs and "
        "TPUs as few as leave three quarters of the memory, where training splits the weights, else 0",
        ge=-1,
    )
    rollout_fsdp: int = option(
        1, "fsdp shards of that copy, gathered at every decode step; the devices hold as many copies as they can", ge=1
    )
    sampler_devices: int = option(
        0,
        "devices that only sample: the next batch, with the weights before, while the others train; 0: all do both, in "
        "turns (one process; docs/users/on_a_gpu.md)",
        ge=0,
    )


@dataclass
class RuntimeConfig:
    """Outputs of a run, and its processes."""

    output_dir: str = option(
        "runs", "directory in which run directories are made, or an address: gs://, s3:// (docs/users/launch.md)"
    )
    run_dir: str = option("", "exact run directory or address; empty: output_dir/NAME-DATE-TIME")
    compilation_cache: str = option(
        "~/.cache/fr3e_jax/xla",
        "folder of compiled programs, a directory or gs://, s3://; empty: none",
    )
    compile_ahead: bool = option(
        True,
        "in one process with several cores: threads compile what the run is about to need while it samples",
    )
    allow_changes: bool = option(
        False, "--resume of train, sft and rft goes on with another seed, other data or another tokenizer than before"
    )
    trackers: list[str] = option(
        ["tensorboard"], "receivers of the metrics: tensorboard (files), wandb, trackio, mlflow (which need a package)"
    )
    tracker_project: str = option("fr3e_jax", "project or experiment of the run with these services")
    store_rollouts: bool = option(
        True, "store every rollout and every held-out response (compressed JSONL) for analysis"
    )
    report: bool = option(True, "write report.html, a page that shows the run, at its end (fr3e report RUN)")
    console: Literal["auto", "live", "plain", "none"] = option("auto", "live display, plain lines, or nothing")
    heartbeat_seconds: int = option(
        100,
        "a process that is silent for so long is lost, and the others end; at the start they wait three times as long",
        ge=5,
    )
    profile_steps: int = option(
        0,
        "steps profiled after two warm-up steps; then one is traced; 0: none",
        ge=0,
    )


@dataclass
class Config:
    """All settings of a run."""

    name: str = option("run", "name of the run, part of its directory")
    seed: int = option(0, "seed of initial weights, sampling noise and every random choice of the loop", ge=0)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    rewards: RewardsConfig = field(default_factory=RewardsConfig)
    judge: JudgeConfig = field(default_factory=JudgeConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    explore: ExploreConfig = field(default_factory=ExploreConfig)
    returns: ReturnConfig = field(default_factory=ReturnConfig)
    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)
    shaping: ShapingConfig = field(default_factory=ShapingConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    kl: KlConfig = field(default_factory=KlConfig)
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    sft: SftConfig = field(default_factory=SftConfig)
    rft: RftConfig = field(default_factory=RftConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    tools: ToolsConfig = field(default_factory=ToolsConfig)
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)

    @property
    def drops_equal_rewards(self) -> bool:
        """True if groups of equal rewards do not train; a teacher has something to say about them, too."""
        return self.rollout.reject_degenerate and not self.teacher.path

    @property
    def algorithm(self) -> str:
        """Short name of the method that these settings make, for people."""
        added = [*self.shaping.steps] + ["teacher"] * bool(self.teacher.path)
        added += ["knapsack"] * (self.rollout.allocation == "knapsack") + ["replay"] * (self.rollout.replay_share > 0)
        returning = {"target": ", adaptive return", "fixed": ", PrefixRL"}[self.returns.depth_rule]
        rest = "".join(f"+{name}" for name in added) + returning * (self.returns.size > 0)
        if self.explore.enabled:
            return "fr3e" + rest
        estimator = self.advantage.base_estimator.rpartition(":")[2]
        name = {"gae": "ppo", "reward": "reinforce"}.get(estimator, estimator)
        if name == "mean" and self.loss.aggregation == "token_sum_norm":
            name = "dr-grpo"
        if name == "reinforce" and self.advantage.normalise_batch:
            name = "reinforce++"
        if name == "grpo" and self.loss.ratio == "sequence":
            name = "gspo"
        if name == "grpo" and self.rollout.sampling_rounds > 1:
            name = "reinforce-ada"
        if name == "grpo" and self.drops_equal_rewards and self.loss.epsilon_high > self.loss.epsilon_low:
            name = "grpo++"
        return name + rest
