"""The table of every metric. A run in the tests fails on a name that is not here, and a test on a row nobody writes."""

from __future__ import annotations

from fr3e_jax.runs.declared_metrics import Metric as M
from fr3e_jax.runs.declared_metrics import MetricGroup

SHARE = "share, 0 to 1"

# fmt: off
# A row takes a line or two, so that it reads as a table.

ROLLOUTS = MetricGroup("Rollouts", "train", "every step that samples", (
    M("reward/mean", "reward",
      "mean over base rollouts, rejected prompts included; in `fr3e rft`, over responses", "higher",
      label="reward of base rollouts"),
    M("rewards/{f}", "reward", "mean of one reward function over all responses that were graded", "higher",
      when="`Trainer(reward=...)`, `judge.model`"),
    M("length/mean", "tokens", "mean length of a base rollout; in `fr3e rft`, of a response"),
    M("length/finished", SHARE, "base rollouts that end with a stop token, not at the length cap", "higher"),
    M("entropy/mean", "nats a token",
      "over the own tokens of base rollouts, as sampled; in `fr3e sft` and `fr3e rft`, over the trained tokens",
      label="entropy (nats a token)"),
    M("prompts/kept", "prompts", "prompts that train: the rewards of their base rollouts differ", "higher"),
    M("prompts/rejected", "prompts", "prompts whose base rollouts have equal rewards; they teach nothing", "lower"),
    M("prompts/expanded", "prompts", "kept prompts with a base rollout that was explored"),
    M("replay/stored", "prompts", "prompts with a success that is stored to be replayed"),
    M("replay/asked", "prompts", "prompts asked again since the start of the run, each with an earlier success"),
    M("replay/trained_tokens", "tokens", "tokens of earlier successes in the batch, which train once more"),
    M("prompts/least_rollouts", "rollouts", "fewest base rollouts of a prompt, where their numbers differ"),
    M("prompts/most_rollouts", "rollouts", "most base rollouts of a prompt, where their numbers differ"),
    M("base_groups/all_right", "prompts", "every base rollout has the verdict right"),
    M("base_groups/all_wrong", "prompts", "no base rollout has the verdict right"),
    M("base_groups/mixed", "prompts", "some base rollouts are right, some are not"),
    M("data/dropped_too_long", "prompts",
      "dropped since the start: longer than `data.max_prompt_tokens`; in `fr3e sft`, demonstrations", "lower"),
    M("data/dropped_unspeakable", "prompts",
      "dropped since the start: the tokenizer cannot encode them; the console names each", "lower"),
))

EXPLORATION = MetricGroup("Exploration", "train", "`explore.enabled`, and a prompt was explored", (
    M("explore/reward", "reward", "mean over explored rollouts", "higher"),
    M("explore/length", "tokens", "mean number of new tokens of an explored rollout"),
    M("explore/anchor_position", SHARE, "mean position of an anchor in its base response"),
    M("value/S_{j}", "reward", "mean value of state S_j; S_0 is the prompt (FR3E, eq. 13)"),
    M("alpha/mean", "factor", "modulation of advantages by the change of the value (FR3E, eq. 14): mean over states"),
    M("alpha/min", "factor", "smallest modulation of a state"),
    M("alpha/max", "factor", "largest modulation of a state"),
    M("state_groups/all_right", "states", "every rollout of the state has the verdict right"),
    M("state_groups/all_wrong", "states", "no rollout of the state has the verdict right"),
    M("state_groups/mixed", "states", "some rollouts of the state are right, some are not"),
))

RETURNS = MetricGroup("Kept bases", "train", "`returns.size`", (
    M("returns/kept", "successes", "own successes that wait for a visit"),
    M("returns/solved", "successes",
      "successes that left the store since the start: their prompts reach the target", "higher"),
    M("returns/visits", "successes", "successes continued in this step"),
    M("returns/wasted_share", SHARE, "running share of All-Wrong prompts, which decides when to return", "lower"),
    M("returns/reward", "reward", "mean over the continuations", when="`returns.size`, and a success was visited"),
    M("returns/length", "tokens",
      "mean number of new tokens of a continuation", when="`returns.size`, and a success was visited"),
    M("returns/depth", SHARE,
      "mean depth of a continuation in its success", when="`returns.size`, and a success was visited"),
    M("returns/mixed_states", SHARE,
      "visited states whose continuations have unequal rewards",
      "higher", when="`returns.size`, and a success was visited"),
))

BATCH = MetricGroup("Full batch", "train", "every step", (
    M("advantage/mean", "advantage", "mean over the trained tokens",
      label="advantage (mean)"),
    M("advantage/std", "advantage", "standard deviation over the trained tokens",
      label="advantage (standard deviation)"),
    M("advantage/max_abs", "advantage", "largest size of an advantage"),
    M("batch/rollouts", "rollouts", "size of the batch"),
    M("batch/trunks", "trunks", "trunks of the batch"),
    M("batch/carried_rollouts", "rollouts", "rollouts that an earlier step sampled"),
    M("batch/age_mean", "steps",
      "mean age of a rollout: steps since it was sampled", "lower"),
    M("batch/age_max", "steps", "largest age of a rollout", "lower"),
    M("batch/age_share_0", SHARE, "rollouts that this step sampled", "higher"),
    M("batch/age_share_1", SHARE, "rollouts that the step before sampled"),
    M("batch/age_share_2_or_more", SHARE, "rollouts that are older", "lower"),
))

SCORING = MetricGroup("Sampler and trainer", "train", "the batch has such rollouts", (
    M("logprob_gap/mean", "nats", "mean size of the difference of the trainer's and the sampler's log-probs", "lower"),
    M("logprob_gap/max", "nats", "largest such difference; a large one is a numerical problem", "lower"),
    M("logprob_gap/kl", "nats", "estimate (k3) of KL(sampler ‖ trainer) per token", "lower"),
    M("sampler_ratio/fresh", "nats",
      "mean size of the log ratio, weights before the update to weights that sampled, of this step's rollouts",
      "lower"),
    M("sampler_ratio/carried", "nats", "the same for carried and replayed rollouts"),
    M("sampler_ratio/fresh_outside", SHARE,
      "tokens of this step's rollouts whose ratio is outside the clip range before the first update", "lower"),
    M("sampler_ratio/carried_outside", SHARE, "the same for carried and replayed rollouts", "lower"),
))

UPDATES = MetricGroup("Updates of the policy", "train", "every step", (
    M("loss/policy", "loss", "mean loss of the optimizer steps; its size says nothing about success"),
    M("ratio/mean", "factor", "mean of new to old probability of a trained token; near 1 in a stable run"),
    M("clip/low", SHARE, "trained tokens whose ratio was clipped below", when="not with `kl_cov`"),
    M("clip/high", SHARE, "trained tokens whose ratio was clipped above", when="not with `kl_cov`"),
    M("clip/dual", SHARE,
      "trained tokens that met the dual clip; 0 without `loss.dual_clip`", when="not with `kl_cov`"),
    M("entropy/trained", "nats a token", "mean entropy of the trained tokens at their update"),
    M("kl/mean", "nats a token", "mean divergence from the reference policy", when="`kl.coefficient`, `kl.place=loss`"),
    M("kl/reward", "nats a token",
      "mean divergence subtracted from rewards", when="`kl.coefficient`, `kl.place=reward`"),
    M("kl/reset", "0 or 1", "whether the reference became the policy after this step", when="`kl.coefficient`"),
    M("teacher/reverse_kl", "nats a token",
      "divergence of the policy from the teacher at trained tokens: over the vocabulary, or sampled (advantage)",
      "lower", when="`teacher.path`"),
    M("teacher/reverse_kl_quarter_{j}", "nats a token", "the same in the j-th quarter of the responses, 1 to 4",
      "lower", when="`teacher.place=advantage`"),
    M("teacher/share", SHARE, "trained tokens at which the teacher speaks", when="`teacher.path`"),
    M("lora/relative_change", SHARE,
      "norm of the adapters' products over that of the kernels that they change", when="`model.lora.rank`"),
    M("gradient_norm/mean", "norm", "mean over the optimizer steps, before clipping"),
    M("gradient_norm/max", "norm", "largest of the optimizer steps, before clipping"),
    M("learning_rate", "rate", "of the last optimizer step"),
    M("updates", "optimizer steps", "optimizer steps of this step; in `fr3e rft`, of the iteration"),
    M("updates/empty", "mini-batches", "mini-batches without a token left to train", "lower"),
    M("packing/useful_share", SHARE, "trained positions over padded ones", "higher"),
))

ROUTERS = MetricGroup("Routers of experts", "train", "a network with experts", (
    M("router/entropy", "nats", "mean entropy of a router's distribution over experts at a trained token"),
    M("router/busiest_expert", "times the even share",
      "load of the busiest expert in a mini-batch's trained tokens, mean over layers; 1 is even", "lower"),
    M("router/busiest_expert_max", "times the even share", "the same of the layer where it is largest", "lower"),
    M("router/changed_routes", SHARE,
      "recorded experts of trained tokens that the router would not choose at their update", "lower",
      when="`fr3e train`"),
    M("loss/balance", "loss",
      "loss for balanced experts, without its coefficient; the number of experts a token passes if loads are even",
      "lower", when="`model.experts.balance_coefficient`"),
))

_STEP = "in `shaping.steps`"
SHAPING = MetricGroup("Shaping steps", "train", "the step is " + _STEP, (
    M("shaping/entropy_advantage/ratio", "factor", "mean of what was added, over the size of the advantage"),
    M("shaping/perplexity/weight_abs", "standard deviations",
      "mean size of the standardised log-perplexity of a response"),
    M("shaping/position/added", "advantage", "mean growth of the advantage's size by the place in the response"),
    M("shaping/sample_reinforcement/positive_share", SHARE,
      "weight of the right responses in the sum of advantages' sizes"),
    M("shaping/sequence_weighting/scale", "factor", "mean factor of a token's loss"),
    M("shaping/forking_tokens/kept", SHARE, "tokens that carry gradient"),
    M("shaping/forking_tokens/threshold", "nats", "least entropy of a token that carries gradient"),
    M("shaping/clip_cov/masked", SHARE, "tokens that leave the gradient because of their covariance"),
    M("shaping/kl_cov/masked", SHARE, "tokens that pay the penalty because of their covariance"),
    M("shaping/mismatch_mask/masked", SHARE,
      "tokens that leave the gradient because trainer and sampler differ", "lower"),
    M("shaping/overlong_mask/masked", SHARE, "responses that leave the loss because the length cap cut them", "lower"),
))

CRITIC = MetricGroup("Critic", "train", "`advantage.base_estimator=gae`", (
    M("critic/loss", "loss", "mean loss of the critic's updates", "lower"),
    M("critic/gradient_norm", "norm", "mean over the critic's updates, before clipping"),
    M("critic/value", "reward", "mean value before the updates"),
    M("critic/explained_variance", "at most 1", "share of the returns' variance that the values explain", "higher"),
    M("critic/warming_up", "0 or 1", "whether only the critic learnt in this step"),
))

IN_ENVIRONMENTS = "`environment.kind`"

EPISODES = (
    M("environment/turns", "turns", "mean number of turns of an episode", when=IN_ENVIRONMENTS),
    M("environment/ended", SHARE, "episodes that the environment ended", when=IN_ENVIRONMENTS),
    M("environment/out_of_turns", SHARE,
      "episodes that ended after `environment.max_turns` turns", when=IN_ENVIRONMENTS),
    M("environment/cut_off", SHARE, "episodes whose response was cut at its cap", "lower", when=IN_ENVIRONMENTS),
    M("environment/faults", SHARE,
      "episodes in which the environment failed; should be 0", "lower", when=IN_ENVIRONMENTS),
    M("environment/reward_turn_{j}", "reward",
      "mean reward of turn j, of the episodes that have it", when=IN_ENVIRONMENTS),
)

JUDGED = "`judge.model`"

JUDGE = (
    M("judge/calls", "calls", "requests to the judge, retries included, since the record before", when=JUDGED),
    M("judge/cached", "answers", "that came from `judge.cache`, or from an equal request under way", when=JUDGED),
    M("judge/retries", "calls", "tries after a first one that failed", "lower", when=JUDGED),
    M("judge/prompt_tokens", "tokens", "of the judge's prompts, as the endpoint counts them", when=JUDGED),
    M("judge/completion_tokens", "tokens", "of the judge's answers", when=JUDGED),
)

VERDICTS = MetricGroup("Verdicts, tools and environments", "train", "every step; in `fr3e rft`, every iteration", (
    M("verifier/right", "responses", "the verifier accepts the response ([grading](grading.md))", "higher"),
    M("verifier/wrong", "responses", "the answer was read and is not the gold answer"),
    M("verifier/restated", "responses", "the answer equals the gold one, but is a formula that was to be worked out"),
    M("verifier/other_form", "responses", "the answer equals the gold one, but has not the form that was asked for"),
    M("verifier/no_answer", "responses", "no answer in the place that was asked for, or the response was cut", "lower"),
    M("verifier/refused", "responses", "the answer is too long, too deep or too large a number", "lower"),
    M("verifier/string_only", "responses",
      "the answer could not be read, and its text differs from the gold one", "lower"),
    M("verifier/timeout", "responses", "the verifier was not done at the deadline; should be 0", "lower"),
    M("verifier/worker_died", "responses", "the verifier's process ended twice in a row; should be 0", "lower"),
    M("verifier/error", "responses", "the verifier raised; should be 0", "lower"),
    M("verifier/judge_timeout", "responses", "the judge gave no answer in time, several times", "lower", when=JUDGED),
    M("verifier/judge_unreachable", "responses",
      "the judge could not be reached, was overloaded, or refused the request", "lower", when=JUDGED),
    M("verifier/judge_unparseable", "responses", "the judge's answer has no score in it", "lower", when=JUDGED),
    *JUDGE,
    M("tools/answered", "calls", "calls that the tool answered", when="`tools.kind`"),
    M("tools/error", "calls", "calls that the tool refused or that raised", "lower", when="`tools.kind`"),
    M("tools/timeout", "calls", "calls that were not done at the deadline", "lower", when="`tools.kind`"),
    M("tools/cut", "calls", "answers cut at `tools.max_output_tokens`", "lower", when="`tools.kind`"),
    M("tools/calls_per_rollout", "calls", "mean number of calls of a rollout", when="`tools.kind`"),
    M("tools/given_share", SHARE, "tokens of the rollouts that a tool wrote", when="`tools.kind`"),
    *EPISODES,
    M("environment/cut", "observations",
      "observations cut at `environment.max_observation_tokens`", "lower", when=IN_ENVIRONMENTS),
    M("environment/given_share", SHARE, "tokens of the rollouts that the environment wrote", when=IN_ENVIRONMENTS),
))

COST = MetricGroup("Cost", "train", "every record", (
    M("tokens/sampled_tokens", "tokens", "tokens that the sampler emitted; `training.max_sampled_tokens` counts them"),
    M("tokens/reused_prefix_positions", "positions", "prefix positions read from a trunk's cache", "higher"),
    M("tokens/prefill_positions", "positions", "positions computed to fill a trunk's cache"),
    M("tokens/lane_steps", "lane steps", "lanes times decode steps, idle lanes included"),
    M("tokens/loss_tokens", "tokens", "tokens that entered a loss"),
    M("tokens/trained_positions", "positions", "positions that passed through the network in updates"),
    M("tokens/padded_positions", "positions", "the same with padding"),
    M("seconds/first_return", "s", "wall time of sampling and grading from prompts", "lower", when="`fr3e train`"),
    M("seconds/explore", "s", "wall time of sampling and grading from states", "lower", when="`explore.enabled`"),
    M("seconds/return", "s", "wall time of visits to kept bases", "lower", when="`returns.size`"),
    M("seconds/score", "s", "wall time of the old log-probs, reference and critic", "lower", when="`fr3e train`"),
    M("seconds/update", "s", "wall time of the optimizer steps", "lower"),
    M("seconds/store", "s", "wall time of handing rollouts to the writer", "lower", when="`runtime.store_rollouts`"),
    M("seconds/evaluate", "s", "wall time of evaluations since the record before", "lower"),
    M("seconds/checkpoint", "s", "wall time of checkpoints since the record before", "lower"),
    M("seconds/reshard", "s",
      "wall time of copying weights into the layout of rollouts", "lower", when="layouts differ"),
    M("seconds/sample", "s", "wall time of sampling the responses", "lower", when="`fr3e rft`"),
    M("seconds/select", "s", "wall time of selecting responses", "lower", when="`fr3e rft`"),
    M("seconds/grading_wait", "s",
      "wall time of waiting for verdicts, part of the stages", "lower", when="`fr3e train`, `rft`"),
    M("speed/sampled_tokens_per_second", "tokens/s", "sampled tokens over all wall time, training included", "higher"),
    M("compile/programs", "programs", "programs made ready since the record before: compiled or fetched"),
    M("compile/cache_hits", "programs", "those fetched from the cache"),
    M("compile/seconds", "s", "wall time of both", "lower"),
    M("wall_seconds", "s", "wall time of the whole run so far"),
    M("cpu_seconds", "s", "CPU time of the whole run so far, over all its processes"),
))

SUPERVISED = MetricGroup("Supervised training", "train", "`fr3e sft`, `fr3e rft`", (
    M("loss/supervised", "nats a token", "mean cross-entropy of the trained tokens", "lower"),
    M("iteration", "", "number of the iteration", when="`fr3e rft`"),
    M("entropy/sampled", "nats a token", "mean entropy of the responses as sampled", when="`fr3e rft`"),
    M("rft/sampled", "responses", "sampled in the iteration", when="`fr3e rft`"),
    M("rft/right", "responses", "with the verdict right", "higher", when="`fr3e rft`"),
    M("rft/usable_right", "responses", "right ones that passed the filters", "higher", when="`fr3e rft`"),
    M("rft/usable_wrong", "responses", "wrong ones that passed the filters", when="`fr3e rft`"),
    M("rft/selected_right", "responses", "right ones that train", when="`fr3e rft`"),
    M("rft/selected_wrong", "responses", "wrong ones that train (`rft.negative_share`)", when="`fr3e rft`"),
    M("rft/dropped_unfinished", "responses", "cut at the length cap", "lower", when="`fr3e rft`"),
    M("rft/dropped_no_answer", "responses", "without an answer, or a verdict on it", "lower", when="`fr3e rft`"),
    M("rft/dropped_no_digit", "responses", "whose answer has no digit", "lower", when="`fr3e rft`"),
    M("rft/dropped_redundant", "responses", "that repeat themselves", "lower", when="`fr3e rft`"),
    M("rft/entropy_right", "nats a token", "mean entropy of the usable right responses", when="`rft.select=entropy`"),
    M("rft/entropy_selected", "nats a token", "mean entropy of those selected", when="`rft.select=entropy`"),
    M("rft/branching_factor_right", "tokens",
      "mean branching factor of the usable right responses", when="`rft.select=branching_factor`"),
    M("rft/branching_factor_selected", "tokens",
      "mean branching factor of those selected", when="`rft.select=branching_factor`"),
))

HELD_OUT = MetricGroup("Evaluation", "eval", "every evaluation", (
    M("avg@{k}", "reward", "mean over k samples of each problem", "higher", when="`evaluation.samples`"),
    M("pass@{k}", SHARE,
      "problems with a right answer among k samples, estimated without bias", "higher", when="`evaluation.pass_at`"),
    M("rewards/{f}", "reward", "mean of one reward function over all responses", "higher",
      when="`Trainer(reward=...)`, `judge.model`"),
    M("greedy", "reward", "mean over the greedy answers", "higher"),
    M("avg", "reward",
      "mean over benchmarks of each one's avg@k, or greedy without samples",
      "higher", when="`evaluation.sets` with unequal samples"),
    M("length/mean", "tokens", "mean length of a sample, or of the greedy answer without samples"),
    M("prompts", "problems", "problems evaluated"),
    M("prompts_too_long", "problems", "left out because of their length", "lower"),
    M("prompts_unspeakable", "problems",
      "left out because the tokenizer cannot encode them; the console names them", "lower"),
    M("no_answer", SHARE, "responses without an answer where the convention wants it", "lower"),
    M("not_graded", "responses", "whose verifier or judge timed out or failed", "lower"),
    *JUDGE,
    M("tools/calls_per_rollout", "calls", "mean number of calls of a response", when="`tools.kind`"),
    *EPISODES,
    M("{set}/avg@{k}", "reward",
      "avg@k of one benchmark; the plain name is the mean over benchmarks", "higher", when="several benchmarks"),
    M("{set}/pass@{k}", SHARE, "pass@k of one benchmark", "higher", when="several benchmarks"),
    M("{set}/greedy", "reward", "of one benchmark", "higher", when="several benchmarks"),
    M("{set}/length/mean", "tokens", "of one benchmark", when="several benchmarks"),
))

GROUPS = (
    ROLLOUTS, EXPLORATION, RETURNS, BATCH, SCORING, UPDATES, ROUTERS, SHAPING, CRITIC, VERDICTS, COST, SUPERVISED,
    HELD_OUT,
)
