"""Every setting of a run, as typed dataclasses: one class per section of a recipe.

A field is declared once, with its default, its meaning and its bounds; the command line's ``--help``, the range checks
and the documentation are read from here. Durations are counted in updates (optimizer batches), sizes in tokens or
rollouts, and say so in their names or their help.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


def option(default: Any, meaning: str, **bounds: float) -> Any:
    """A dataclass field with a meaning and optional bounds ``ge``, ``gt``, ``le``, ``lt`` (on each item of a list)."""
    unknown = set(bounds) - {"ge", "gt", "le", "lt"}
    if unknown:
        raise TypeError(f"option() got unknown bounds {sorted(unknown)}; expected ge, gt, le, lt")
    metadata = {"meaning": meaning, "bounds": bounds}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass
class ModelConfig:
    """The policy: a pretrained directory, or the shape of random weights."""

    path: str = option(
        "", "Hugging Face directory to start from (config.json, safetensors, tokenizer); empty: random weights"
    )
    tokenizer: str = option(
        "", "tokenizer directory; empty: the one in model.path, else the embedded character tokenizer"
    )
    architecture: Literal[
        "custom",
        "qwen2.5-0.5b",
        "qwen2.5-1.5b",
        "qwen2.5-3b",
        "qwen2.5-7b",
        "qwen2.5-14b",
        "qwen2.5-32b",
        "qwen2.5-72b",
        "qwen2.5-math-1.5b",
        "qwen2.5-math-7b",
        "qwen2.5-math-72b",
        "qwen3-0.6b",
        "qwen3-1.7b",
        "qwen3-4b",
        "qwen3-8b",
        "qwen3-14b",
        "qwen3-32b",
    ] = option(
        "custom", "published sizes, for random weights and fr3e plan (model.path must have them); custom: those below"
    )
    hidden_size: int = option(64, "width of the residual stream (random weights only)", ge=1)
    num_layers: int = option(3, "transformer blocks (random weights only)", ge=1)
    num_heads: int = option(4, "query heads (random weights only)", ge=1)
    num_kv_heads: int = option(2, "key/value heads; must divide num_heads (random weights only)", ge=1)
    intermediate_size: int = option(192, "width of the gated MLP (random weights only)", ge=1)
    rope_theta: float = option(10000.0, "base of the rotary position embedding (random weights only)", gt=0)
    tie_word_embeddings: bool = option(True, "share input embedding and output head (random weights only)")
    param_dtype: Literal["float32", "bfloat16"] = option("float32", "storage type of parameters and optimizer state")
    compute_dtype: Literal["float32", "bfloat16"] = option(
        "float32", "type of activations and KV caches; logits, softmax, log-probs and losses are always float32"
    )


@dataclass
class OrderConfig:
    """The embedded procedural task: evaluate a flat expression, one reduction per line."""

    modulus: int = option(10, "arithmetic is modulo this number; operands and results are single digits", ge=2, le=10)
    num_operands: int = option(5, "operands of an RL or evaluation prompt", ge=2, le=16)
    sft_min_operands: int = option(3, "shortest expression of the supervised curriculum", ge=2, le=16)
    verifier: Literal["answer", "strict"] = option(
        "answer", "answer: right last digit and right number of steps; strict: every step a precedence-valid reduction"
    )


@dataclass
class DataConfig:
    """The task: prompts, demonstrations and the verifier that belongs to them."""

    task: str = option(
        "order", "'order', 'gsm8k_calculator', 'datasets', or 'FILE.py:NAME' / 'package.module:NAME' of your own task"
    )
    root: str = option("", "directory under which the files of dataset cards lie (data.task=datasets)")
    train: list[str] = option(
        [], "dataset cards to train on (data.task=datasets): CARD or CARD/SPLIT, CARD a name in configs/data or a file"
    )
    weights: list[float] = option([], "share of each training card in the mixture; empty: by its problems", gt=0)
    eval: list[str] = option([], "dataset cards to evaluate on (data.task=datasets): CARD or CARD/SPLIT")
    template: str = option("plain", "how a question becomes a prompt: a named template (see docs/users/data.md)")
    verifier: str = option(
        "", "'FILE.py:NAME' / 'package.module:NAME' of your own verifier, called in a worker; empty: the task's"
    )
    path: str = option("", "training file (JSONL or JSONL.gz) of a task that reads one")
    eval_path: str = option(
        "", "held-out file; empty: a 'test' file beside data.path, else a held-out share of data.path"
    )
    seed: int = option(0, "seed of prompt generation and order, apart from the run's seed", ge=0)
    max_prompt_tokens: int = option(64, "prompts longer than this are dropped and counted, never cut", ge=1)
    order: OrderConfig = field(default_factory=OrderConfig)


@dataclass
class RewardsConfig:
    """Worker processes for verifiers that may hang, crash or run foreign code."""

    workers: int = option(0, "worker processes, up to twice as many beside slow ones; 0: one per core (to 16)", ge=0)
    deadline_seconds: float = option(2.0, "a worker that needs longer for one answer is killed; the reward is 0", gt=0)
    memory_mb: int = option(2048, "address space of a worker, in MB", ge=256)
    jobs_per_worker: int = option(1000, "a worker is replaced after so many answers", ge=1)
    canary_every: int = option(100, "answers between two checks of a worker against known verdicts", ge=1)
    cache_size: int = option(100_000, "verdicts remembered by gold and given answer; 0: none", ge=0)


@dataclass
class RolloutConfig:
    """First Return: base rollouts from the prompts."""

    prompts_per_round: int = option(32, "prompts sampled at once; rounds repeat until the batch is full", ge=1)
    rollouts_per_prompt: int = option(16, "base rollouts of each prompt (N)", ge=1)
    max_response_tokens: int = option(64, "cap on a response, stop token included; explored ones share the cap", ge=1)
    temperature: float = option(1.0, "sampling temperature of base and explored rollouts; 0 is greedy", ge=0)
    top_p: float = option(1.0, "nucleus: smallest set of tokens with at least this mass", gt=0, le=1)
    top_k: int = option(0, "only the k most probable tokens; 0: all", ge=0)
    reject_degenerate: bool = option(True, "drop prompts whose base rewards are all equal (FR3E 3.2)")
    max_rounds_without_signal: int = option(10, "stop with a message after this many rounds that keep no prompt", ge=1)
    trunk_slots: int = option(8, "trunks decoded side by side", ge=1)
    lanes_per_trunk: int = option(16, "branches of one trunk decoded side by side", ge=1)
    decode_chunk: int = option(16, "decode steps of one compiled call; finished lanes are refilled between calls", ge=1)
    param_dtype: Literal["", "float32", "bfloat16"] = option(
        "", "type of the matrices that rollouts read, a copy if it is not model.param_dtype; empty: model.param_dtype"
    )


@dataclass
class ExploreConfig:
    """FR3E stage 2: anchors on base rollouts and rollouts from the states before them."""

    enabled: bool = option(True, "explore from anchors (FR3E); false: train the base rollouts (GRPO and relatives)")
    num_anchors: int = option(4, "anchors per expanded base rollout (K)", ge=1)
    rollouts_per_state: int = option(8, "rollouts from each state (M)", ge=1)
    max_correct: int = option(1, "correct base rollouts expanded per kept prompt", ge=0)
    max_wrong: int = option(1, "wrong base rollouts expanded per kept prompt", ge=0)
    base_choice: Literal["random", "best"] = option(
        "random", "which correct and wrong ones: at random, or those of the highest mean log-prob of a token first"
    )
    allocation: Literal["uniform", "success_rate"] = option(
        "uniform", "rollouts of a state: all the same, or a round's total spent more where the base success rate is low"
    )
    allocation_least: int = option(2, "least rollouts of a state (explore.allocation=success_rate)", ge=2)
    allocation_most: int = option(32, "most rollouts of a state (explore.allocation=success_rate)", ge=2)
    anchor_selection: Literal["entropy", "logprob", "random", "uniform", "gradient", "delimiter"] = option(
        "entropy",
        "anchors: highest entropy, lowest log-prob of the drawn token, at random, evenly spaced, largest update, or "
        "where a token with explore.delimiter has ended a step",
    )
    delimiter: str = option(
        "\\n", "text in the last token of a reasoning step (explore.anchor_selection=delimiter); \\n: a line break"
    )
    min_spacing: int = option(1, "least distance between two anchors, in tokens", ge=1)
    exclude_first: int = option(0, "first response tokens that cannot be anchors", ge=0)
    exclude_last: int = option(0, "last response tokens that cannot be anchors", ge=0)
    include_anchor_token: bool = option(
        False, "fork after the anchor token (the letter of FR3E eq. 9-10), not before it"
    )
    initial_state: Literal["base_mean", "fresh"] = option(
        "base_mean", "V(S_0): mean of the base rewards, or M fresh rollouts from the prompt that train too as S_0"
    )
    train_states: bool = option(True, "explored rollouts train; false: they only estimate the values of their states")
    train_base: bool = option(False, "base rollouts train as well, as a group of their prompt")
    archive_size: int = option(
        0, "correct bases of hard prompts kept to be explored again in later steps; 0: off", ge=0
    )
    archive_revisits: int = option(8, "archived bases explored again in each round", ge=1)
    archive_max_success_rate: float = option(0.25, "a prompt is hard up to this base success rate", gt=0, le=1)
    archive_threshold: float = option(
        0.65, "the archive is used while the running share of All-Wrong prompts is at least this", ge=0, le=1
    )
    block_credit: bool = option(
        False, "the expanded base rollout trains too, each block with V(S_j+1) - V(S_j), or its step value (tree)"
    )
    max_success_rate: float = option(1.0, "expand only prompts whose base success rate is at most this", gt=0, le=1)


@dataclass
class AdvantageConfig:
    """From rewards to advantages: baselines per group, and FR3E's adaptive modulation."""

    base_estimator: Literal["grpo", "rloo", "mean", "gae", "pass_at_k", "reward"] = option(
        "grpo",
        "baseline of base rollouts: z-score (GRPO), leave-one-out (RLOO), minus the mean, a critic (gae: PPO); or the "
        "advantages that maximise pass@k, or the reward itself",
    )
    state_estimator: Literal["grpo", "rloo", "mean", "tree"] = option(
        "mean", "baseline of state groups; FR3E: minus V(S_j); tree: step values of the prompt's whole tree (TreeRL)"
    )
    pass_at_k: int = option(4, "responses of a subset (advantage.base_estimator=pass_at_k)", ge=1)
    reward_range: Literal["zero_one", "minus_one_one"] = option(
        "zero_one", "what advantages and values are made from: rewards as graded, or 2 r - 1; metrics show the former"
    )
    unbiased_std: bool = option(False, "z-scores divide by the n-1 standard deviation (verl) and not the population's")
    modulation: Literal["none", "exp", "sharpen"] = option(
        "exp", "alpha_j = exp(-(V(S_j) - V(S_j-1))) (FR3E eq. 14), the authors' sharpened variant, or 1"
    )
    initial_modulation: Literal["one", "authors"] = option(
        "one", "alpha_0 when S_0 trains: 1, or the authors' exp(-(1 - V(S_0)))"
    )
    normalise_batch: bool = option(
        False, "advantages minus their mean over the full batch's tokens, over their deviation (PPO, REINFORCE++)"
    )
    overlong_margin: int = option(
        0,
        "tokens before rollout.max_response_tokens over which the reward falls by up to 1 (DAPO); 0: off",
        ge=0,
    )


@dataclass
class LossConfig:
    """The policy loss: clip-higher PPO and how its tokens are averaged."""

    epsilon_low: float = option(0.22, "the ratio is clipped below at 1 - epsilon_low", ge=0, lt=1)
    epsilon_high: float = option(0.28, "the ratio is clipped above at 1 + epsilon_high (clip-higher)", ge=0)
    ratio: Literal["token", "sequence"] = option(
        "token", "the policy ratio: of each token, or of the whole sequence (GSPO; epsilons of about 3e-4 and 4e-4)"
    )
    aggregation: Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "token_sum_norm"] = option(
        "token_mean", "how token losses of the global mini-batch become one number"
    )
    dual_clip: float = option(0.0, "cap c on the ratio of negative advantages (usually 3); 0: off", ge=0)
    importance_cap: float = option(
        0.0, "cap of the truncated trainer/sampler importance weight (usually 2); 0: off", ge=0
    )
    entropy_coefficient: float = option(0.0, "weight of the entropy bonus", ge=0)


@dataclass
class EntropyAdvantageConfig:
    """RwE, eq. 5-7: A_t + min(alpha H_t, |A_t| / kappa)."""

    alpha: float = option(0.4, "weight of the entropy; paper: 0.4 for GRPO, 0.1 for PPO", gt=0)
    kappa: float = option(2.0, "the bonus is at most |A_t| / kappa; above 1 it keeps the sign", gt=1)


@dataclass
class PerplexityConfig:
    """STUDY, eq. 11: A (1 - alpha w), w the standardised ln PPL of a response in its group."""

    alpha: float = option(0.01, "weight of the perplexity", gt=0)
    prefer: Literal["low", "high"] = option("low", "which responses weigh more: of low perplexity, or of high")
    variant: Literal["paper", "released"] = option("paper", "the formula, or the released code's clamps and filter")
    from_step: int = option(0, "first training step it is active in", ge=0)
    until_step: int = option(0, "first training step it is active in no more; 0: to the end", ge=0)


@dataclass
class PositionConfig:
    """STUDY, eq. 12: A + sign(A) gamma sigmoid(direction steepness (l_t - centre)), l_t a token's place."""

    gamma: float = option(0.1, "largest addition", gt=0)
    direction: float = option(1.0, "above 0: later tokens weigh more; below: earlier ones")
    steepness: float = option(15.0, "m of the sigmoid", gt=0)
    centre: float = option(0.5, "n of the sigmoid (the paper prints -0.5, where it is 1 everywhere)")
    variant: Literal["paper", "released"] = option("paper", "the formula, or with the released code's cap at |A| / 2")
    from_step: int = option(200, "first training step it is active in", ge=0)
    until_step: int = option(300, "first training step it is active in no more; 0: to the end", ge=0)


@dataclass
class SampleReinforcementConfig:
    """Negative sample reinforcement (Zhu et al. 2025): factors of advantages by their sign."""

    positive: float = option(0.1, "factor of positive advantages; 0: negative samples alone", ge=0)
    negative: float = option(1.0, "factor of negative advantages; 0: positive samples alone", ge=0)


@dataclass
class UnlikelinessConfig:
    """He et al. 2025, rewarding the unlikely: A (1 - beta (G - rank) / G) where A > 0."""

    beta: float = option(0.25, "how much of its advantage the likeliest response of a group loses", gt=0, le=1)


@dataclass
class SequenceWeightingConfig:
    """EGSW, eq. 6-10: token losses times softmax_i((A_i + alpha H_i) / temperature)."""

    alpha: float = option(0.3, "weight of the entropy; paper: 0.3 (base model), 0.8 (instruct model)", ge=0)
    temperature: float = option(1.0, "P of the softmax; paper: 1 (base model), 1.8 (instruct model)", gt=0)
    level: Literal["step", "trajectory"] = option("step", "softmax at each token position, or one for whole sequences")
    length_normalised: bool = option(False, "trajectory: mean entropy of the sequence, not its sum")
    normalised_entropy: bool = option(False, "entropies divided by log V")
    rescale: bool = option(False, "weights times the number of sequences, so that the gradient is not scaled by 1/N")


@dataclass
class ForkingTokensConfig:
    """80/20 (Wang et al. 2025): only the tokens with the highest entropy carry gradient."""

    share: float = option(0.2, "share of the mini-batch's tokens that keep their gradient", gt=0, le=1)


@dataclass
class ClipCovConfig:
    """Clip-Cov (Cui et al. 2025): some tokens of high covariance leave the gradient."""

    share: float = option(2e-4, "share of the mini-batch's tokens that leaves (at least one token)", gt=0, le=1)
    low: float = option(1.0, "lower bound of the covariance of those drawn from")
    high: float = option(5.0, "upper bound of it")


@dataclass
class KlCovConfig:
    """KL-Cov (Cui et al. 2025): an unclipped loss, and a penalty on the tokens of the highest covariance."""

    share: float = option(2e-3, "share of the mini-batch's tokens that pays; 2e-3 at 7B, 2e-4 at 32B", gt=0, le=1)
    coefficient: float = option(1.0, "weight of |log pi - log pi_old| on those tokens", gt=0)


@dataclass
class MismatchMaskConfig:
    """Tokens that trainer and sampler see too differently leave the gradient."""

    low: float = option(0.5, "least trainer/sampler probability ratio of a token that trains", gt=0, le=1)
    high: float = option(2.0, "largest such ratio", ge=1)


@dataclass
class ShapingConfig:
    """What shapes advantages and selects tokens between the baseline and the loss (docs/users/methods.md)."""

    steps: list[str] = option(
        [],
        "in the order in which they are applied: entropy_advantage, perplexity, position, sample_reinforcement, "
        "unlikeliness, sequence_weighting, forking_tokens, clip_cov, kl_cov, mismatch_mask, overlong_mask",
    )
    entropy_advantage: EntropyAdvantageConfig = field(default_factory=EntropyAdvantageConfig)
    perplexity: PerplexityConfig = field(default_factory=PerplexityConfig)
    position: PositionConfig = field(default_factory=PositionConfig)
    sample_reinforcement: SampleReinforcementConfig = field(default_factory=SampleReinforcementConfig)
    unlikeliness: UnlikelinessConfig = field(default_factory=UnlikelinessConfig)
    sequence_weighting: SequenceWeightingConfig = field(default_factory=SequenceWeightingConfig)
    forking_tokens: ForkingTokensConfig = field(default_factory=ForkingTokensConfig)
    clip_cov: ClipCovConfig = field(default_factory=ClipCovConfig)
    kl_cov: KlCovConfig = field(default_factory=KlCovConfig)
    mismatch_mask: MismatchMaskConfig = field(default_factory=MismatchMaskConfig)


@dataclass
class KlConfig:
    """Divergence from a reference policy; the reference is held only where the coefficient is above 0."""

    coefficient: float = option(0.0, "weight of the divergence; 0: no reference policy is held", ge=0)
    estimator: Literal["k1", "k2", "k3"] = option("k3", "log-ratio, half its square, or the unbiased positive one")
    place: Literal["loss", "reward"] = option("loss", "a term of the loss, or taken off each token's reward")
    reset_every: int = option(0, "training steps after which the policy becomes its own reference; 0: never", ge=0)
    reset_on_plateau: int = option(
        0, "the same after so many steps without a higher mean base reward; 0: never (ProRL)", ge=0
    )
    reset_optimizer: bool = option(True, "a reset starts the optimizer's moments anew (ProRL)")


@dataclass
class CriticConfig:
    """The value network of PPO (advantage.base_estimator=gae): a copy of the policy's network with a scalar head."""

    learning_rate: float = option(1e-5, "peak learning rate of its AdamW; the rest is the optimizer section's", ge=0)
    warmup_steps: int = option(10, "first training steps in which only the critic learns (RwE: 10)", ge=0)
    clip: float = option(0.5, "values move at most so far from the old ones within a step's loss; 0: no clip", ge=0)
    gamma: float = option(1.0, "discount of GAE", gt=0, le=1)
    lam: float = option(1.0, "lambda of GAE", ge=0, le=1)


@dataclass
class OptimizerConfig:
    """AdamW and its schedule; one update is one mini-batch."""

    learning_rate: float = option(1e-6, "peak learning rate of AdamW", ge=0)
    schedule: Literal["constant", "linear", "cosine"] = option("constant", "after the warm-up: flat, or decay to zero")
    warmup_updates: int = option(0, "optimizer steps of linear warm-up", ge=0)
    decay_updates: int = option(0, "optimizer steps until a linear or cosine schedule reaches zero", ge=0)
    beta1: float = option(0.9, "decay of the first moment", ge=0, lt=1)
    beta2: float = option(0.95, "decay of the second moment", ge=0, lt=1)
    epsilon: float = option(1e-8, "AdamW's epsilon", gt=0)
    weight_decay: float = option(0.0, "decoupled weight decay, on matrices only", ge=0)
    max_grad_norm: float = option(1.0, "global gradient norm is clipped to this; 0: off", ge=0)


@dataclass
class TrainingConfig:
    """Batches and the length of the run."""

    batch_rollouts: int = option(512, "rollouts accumulated before an update (a full batch)", ge=1)
    mini_batch_rollouts: int = option(128, "rollouts of one optimizer step", ge=1)
    epochs: int = option(1, "passes over a full batch", ge=1)
    surplus: Literal["carry", "drop"] = option("carry", "kept rollouts beyond a full batch: carry to the next, or drop")
    micro_batch_tokens: int = option(
        4096, "positions, padding counted, of one gradient program call; a larger trunk is put into several rows", ge=1
    )
    token_chunk: int = option(1024, "tokens (of each batch shard) whose logits exist at once", ge=1)
    remat: Literal["none", "dots", "block"] = option(
        "none", "what the backward pass computes again: nothing; all but the matrix products; everything in a layer"
    )
    scan_layers: bool = option(
        False, "one compiled layer for all of them (quick to compile for deep models), not each layer its own"
    )
    attention_block: int = option(
        0, "tokens of a row whose attention scores exist at once; they are computed again backward; 0: all", ge=0
    )
    sampler_logprob_tolerance: float = option(
        0.0,
        "the sampler's log-probs serve as old ones where an eighth of them is this close to the trainer's; 0: off",
        ge=0,
    )
    max_steps: int = option(100, "full batches to train on; 0: no limit", ge=0)
    max_sampled_tokens: int = option(0, "stop once the sampler has emitted this many tokens; 0: no limit", ge=0)


@dataclass
class SftConfig:
    """Supervised warm start on the task's demonstrations (``fr3e sft``); the rest of AdamW is ``optimizer``'s."""

    start: Literal["model", "random"] = option(
        "model", "start from model.path (random weights where that is empty), or always from random weights"
    )
    output: str = option("", "Hugging Face directory to write at the end; empty: model/ in the run directory")
    output_dtype: Literal["float32", "bfloat16"] = option("float32", "type of the weights in that directory")
    steps: int = option(1000, "optimizer steps of supervised fine-tuning", ge=1)
    batch_size: int = option(64, "demonstrations per optimizer step", ge=1)
    micro_batch_size: int = option(0, "demonstrations of one gradient program call; 0: the whole batch", ge=0)
    learning_rate: float = option(1e-3, "peak learning rate, decayed to zero by a cosine", ge=0)
    warmup_updates: int = option(20, "optimizer steps of linear warm-up", ge=0)
    curriculum_steps: int = option(0, "first steps that mix in shorter problems, where the task has them", ge=0)
    log_every: int = option(50, "steps between two lines of metrics", ge=1)


@dataclass
class RftConfig:
    """Rejection-sampling fine-tuning (``fr3e rft``; STUDY 4.4.1) on responses drawn as ``rollout`` says.

    The rest of AdamW is ``optimizer``'s; each iteration starts it anew.
    """

    iterations: int = option(2, "rounds of sampling, filtering, selecting and fine-tuning", ge=1)
    prompts: int = option(256, "prompts sampled in an iteration", ge=1)
    cut_after_answer: bool = option(True, "a response ends with its first closed \\boxed{...}, if it has one")
    require_digit: bool = option(True, "drop responses without a digit")
    max_redundancy: float = option(0.31, "drop responses of which more 3-grams than this share repeat", ge=0, le=1)
    select: Literal["random", "entropy", "branching_factor"] = option(
        "random", "right responses taken first: any, those of the highest mean entropy, or mean branching factor"
    )
    share: float = option(1.0, "share of an iteration's right responses that is selected", gt=0, le=1)
    responses: int = option(1100, "most right responses selected in an iteration; 0: no limit", ge=0)
    negative_share: float = option(0.05, "share of wrong responses, drawn at random, in what is trained on", ge=0, lt=1)
    epochs: int = option(1, "passes over what an iteration selected", ge=1)
    batch_size: int = option(32, "responses per optimizer step; those of a prompt stay together", ge=1)
    learning_rate: float = option(1e-5, "peak learning rate", ge=0)
    output: str = option("", "Hugging Face directory to write at the end; empty: model/ in the run directory")
    output_dtype: Literal["float32", "bfloat16"] = option("float32", "type of the weights in that directory")


@dataclass
class EvaluationConfig:
    """Held-out evaluation: greedy, avg@k and pass@k."""

    prompts: int = option(256, "held-out prompts evaluated, of each evaluation set", ge=1)
    samples: int = option(16, "samples per prompt for avg@k and pass@k", ge=1)
    pass_at: list[int] = option([8, 16], "the k of pass@k, each at most evaluation.samples", ge=1)
    temperature: float = option(1.0, "sampling temperature of the samples; the greedy answer is separate", gt=0)
    top_p: float = option(1.0, "nucleus of the samples", gt=0, le=1)
    every: int = option(0, "training steps between evaluations; 0: only before and after", ge=0)


@dataclass
class CheckpointConfig:
    """When checkpoints are written and which are kept."""

    every: int = option(10, "training steps between checkpoints; the last step is always saved", ge=1)
    keep_last: int = option(2, "newest checkpoints kept", ge=1)
    keep_best: int = option(1, "best checkpoints by held-out avg@k kept besides", ge=0)


@dataclass
class ToolsConfig:
    """Tools that the policy calls while it answers, and branching after their answers (ARPO)."""

    kind: str = option("none", "none, calculator, python (confined), or 'FILE.py:NAME' of your own function of a call")
    begin: str = option("", "what opens a call; empty: the tool's own ('<<' or a python fence)")
    end: str = option("", "what closes a call, and stops decoding until the answer is there; empty: the tool's own")
    result: str = option("", "what is appended, with {output} for the answer; empty: the tool's own")
    max_calls: int = option(4, "calls of a response that are answered; later ones are ordinary text", ge=1)
    max_output_tokens: int = option(32, "tokens of an answer, a longer one is cut; they count for the cap too", ge=1)
    seconds: float = option(3.0, "CPU time of a call of python, and half of the time on the clock of any call", gt=0)
    branching: bool = option(
        False, "after a tool's answer branch where the entropy has risen (ARPO), until rollout.rollouts_per_prompt"
    )
    initial_rollouts: int = option(8, "rollouts of a prompt before any branching (ARPO)", ge=1)
    beam: int = option(2, "continuations of a state after an answer, the first included (ARPO)", ge=2)
    branch_probability: float = option(0.5, "p of clip(u - w dH, 0, 1) <= p, the rule of branching (ARPO)", ge=0, le=1)
    entropy_weight: float = option(0.2, "w of that rule", ge=0)
    entropy_tokens: int = option(
        20, "drawn tokens whose entropies are compared: first of all, and after an answer", ge=1
    )


@dataclass
class MeshConfig:
    """How devices are laid out; replica x fsdp x tensor must be their number, one of the three may be -1."""

    replica: int = option(1, "copies of the parameters, each with its share of the batch; -1: what is left", ge=-1)
    fsdp: int = option(-1, "shards of parameters and batch; -1: all devices that the others leave", ge=-1)
    tensor: int = option(1, "shards of heads and MLP columns; -1: all devices that the others leave", ge=-1)
    rollout_tensor: int = option(
        0, "rollouts decode with a copy of the weights in so many tensor shards; 0: in the layout of training", ge=-1
    )
    rollout_fsdp: int = option(1, "fsdp shards of that copy; each is gathered at every decode step", ge=-1)
    rollout_replica: int = option(-1, "repetitions of it, each with a share of the rollouts; -1: the rest", ge=-1)


@dataclass
class RuntimeConfig:
    """Where a run writes and what it shows."""

    output_dir: str = option("runs", "run directories are made here")
    run_dir: str = option("", "exact run directory; empty: output_dir/NAME-DATE-TIME")
    compilation_cache: str = option("~/.cache/fr3e_jax/xla", "persistent XLA compilation cache; empty: none")
    keep_host_memory: bool = option(True, "on CPU: freed memory stays with the process, for speed")
    tensorboard: bool = option(True, "write TensorBoard event files")
    store_rollouts: bool = option(True, "store every rollout (compressed JSONL) for analysis")
    console: Literal["auto", "live", "plain", "none"] = option("auto", "live display, plain lines, or nothing")
    processes: Literal["auto", "one"] = option(
        "auto",
        "auto: join the processes that the environment tells of (docs/users/several_processes.md); one: run alone",
    )
    join_seconds: int = option(300, "several processes wait so long for one another at the start", ge=1)
    heartbeat_seconds: int = option(100, "a process that is silent for so long is lost, and ends the others", ge=5)
    profile_steps: int = option(
        0, "steps measured after two of warm-up, one more traced, as many looked on at (--profile); 0: none", ge=0
    )


@dataclass
class Config:
    """All settings of a run."""

    name: str = option("run", "name of the run, part of its directory")
    seed: int = option(0, "seed of initial weights, sampling noise and every random choice of the loop", ge=0)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    rewards: RewardsConfig = field(default_factory=RewardsConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    explore: ExploreConfig = field(default_factory=ExploreConfig)
    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)
    shaping: ShapingConfig = field(default_factory=ShapingConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    kl: KlConfig = field(default_factory=KlConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    sft: SftConfig = field(default_factory=SftConfig)
    rft: RftConfig = field(default_factory=RftConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    tools: ToolsConfig = field(default_factory=ToolsConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)

    @property
    def algorithm(self) -> str:
        """Short name of what these settings amount to, for summaries and file names."""
        steps = "".join(f"+{step}" for step in self.shaping.steps)
        if self.explore.enabled:
            return "fr3e" + steps
        plus = self.rollout.reject_degenerate and self.loss.epsilon_high > self.loss.epsilon_low
        name = {"gae": "ppo", "reward": "reinforce"}.get(self.advantage.base_estimator, self.advantage.base_estimator)
        if self.loss.ratio == "sequence" and name == "grpo":
            name = "gspo"
        return name + ("++" if plus and name == "grpo" else "") + steps
