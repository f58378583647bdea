"""Each rule refuses its contradiction, names the origin of the settings, and accepts its own advice."""

from __future__ import annotations

import shlex

import pytest

from fr3e_jax.configuration import ConfigError, load_config
from fr3e_jax.configuration.check import RULES, TRAINING_RULES

# rule: contradicting settings; settings that resolve it; a text of the advice, if it does not name the first of these
CASES = {  # after a space, one of several contradictions of a rule
    "a_loss_of_ones_own_clips_itself": (
        "loss.function=mine.py:loss loss.ratio=sequence",
        "loss.ratio=token",
        "does not read loss.ratio=sequence",
    ),
    "rewards_of_tokens_are_read by a user's estimator": (
        "advantage.base_estimator=mine.py:gfpo kl.coefficient=0.01 kl.place=reward explore.enabled=false",
        "kl.place=loss",
    ),
    "files_are_local of adapters": (
        "model.lora.path=gs://bucket/adapter",
        "model.lora.path=adapter",
        "model.lora.path is in an object store",
    ),
    "targets_are_known": (
        "model.lora.targets=[q_proj,k_porj] model.lora.rank=8",
        "model.lora.targets=[q_proj,k_proj]",
        "nearest: k_proj",
    ),
    "updates_survive_rounding": (
        "model.param_dtype=bfloat16 optimizer.learning_rate=1e-6",
        "model.param_dtype=float32",
        "set model.param_dtype=float32, beside which rollout.param_dtype=bfloat16 halves what rollouts read",
    ),
    "rollout_sizes_have_an_effect": ("mesh.rollout_fsdp=2", "mesh.rollout_tensor=1"),
    "devices_that_sample_have_a_layout": ("mesh.sampler_devices=4 mesh.rollout_tensor=0", "mesh.rollout_tensor=1"),
    "pass_at_k_has_k_samples": ("evaluation.pass_at=[1,32]", "evaluation.samples=32"),
    "stores_can_be_used": (
        "runtime.run_dir=nostore://bucket/run",
        "runtime.run_dir=s3://bucket/run",
        "nothing here opens nostore://; set gs://, s3://",
    ),
    "the_cache_can_be_used": (
        "runtime.compilation_cache=memory://bucket/cache",
        "runtime.compilation_cache=cache",
        "jax keeps it in a folder",
    ),
    "files_are_local of code": (
        "data.task=s3://bucket/mine.py:Task",
        "data.task=order",
        "copy it here and set its path",
    ),
    "files_are_local of models": (
        "sft.output=s3://bucket/model",
        "sft.output=model",
        "sft.output empty: the model lies in model/ of the run directory",
    ),
    "trackers_are_known": ("runtime.trackers=[wandp]", "runtime.trackers=[wandb]", "nearest: wandb"),
    "entries_of_sets_can_be_read": (
        "\"evaluation.sets=['aime25 samples=32']\" data.task=datasets data.train=[gsm8k] data.eval=[aime24]",
        "\"evaluation.sets=['aime24 samples=32']\"",
        "nearest: aime24",
    ),
    "words_have_a_length": (
        "data.char_count.letters=[5,4] data.task=char_count",
        "data.char_count.letters=[5,20]",
    ),
    "walls_lie_between_cells": ("data.maze.side=8 data.task=maze", "data.maze.side=7"),
    "curriculum_starts_short": ("data.order.sft_min_operands=6", "data.order.sft_min_operands=5"),
    "schedule_has_room_to_decay": (
        "optimizer.warmup_updates=5 optimizer.decay_updates=5",
        "optimizer.decay_updates=6",
        "set optimizer.decay_updates above 5",
    ),
    "an_environment_is_played": ("data.task=gymnasium data.environment=FrozenLake-v1", "environment.kind=task"),
    "an_environment_is_read": ("data.environment=FrozenLake-v1", "data.environment=", "nearest: data.task=gymnasium"),
    "cards_are_read": ("data.columns=[question=q]", "data.columns=[]", "nearest: data.task=datasets"),
    "each_card_has_a_weight": (
        "data.weights=[1] data.task=datasets data.train=[gsm8k,math_train] data.eval=[gsm8k]",
        "data.weights=[1,2]",
        "set one weight for each card",
    ),
    "prompts_are_named": (
        "data.task=datasets data.eval=[gsm8k]",
        "data.train=[gsm8k]",
        "for example data.train=[gsm8k]",
    ),
    "evaluation_sets_are_named": (
        "data.task=datasets data.train=[gsm8k]",
        "data.eval=[math500]",
        "for example data.eval=[gsm8k]",
    ),
    "dual_clip_exceeds_one": ("loss.dual_clip=1", "loss.dual_clip=3"),
    "rollouts_follow_the_distribution_that_trains": ("rollout.top_p=0.9", "rollout.top_p=1"),
    "importance_cap_keeps_one": ("loss.importance_cap=0.5", "loss.importance_cap=2"),
    "adapters_are_not_rounded_away": ("rollout.param_dtype=int8 model.lora.rank=4", "model.lora.rollouts=product"),
    "batch_holds_a_mini_batch": ("training.mini_batch_rollouts=513", "training.mini_batch_rollouts=512"),
    "run_ends": ("training.max_steps=0", "training.max_sampled_tokens=9", "e.g. training.max_steps=100"),
    "rollouts_differ": ("rollout.temperature=0", "rollout.temperature=1"),
    "base_group_has_a_baseline": ("rollout.rollouts_per_prompt=1", "rollout.rollouts_per_prompt=2"),
    "returned_rollouts_are_groups_of_their_own": (
        "returns.size=8 explore.enabled=false advantage.overlong_margin=4",
        "advantage.overlong_margin=0",
    ),
    "only_plain_rollouts_are_sampled_again": ("rollout.sampling_rounds=4", "explore.enabled=false"),
    "replayed_responses_join_a_plain_group": (
        "rollout.replay_share=0.5 advantage.base_estimator=gae explore.enabled=false",
        "advantage.base_estimator=grpo",
    ),
    "allotted_rollouts_are_a_plain_group": (
        "rollout.allocation=knapsack rollout.sampling_rounds=2 data.train_problems=64 explore.enabled=false",
        "rollout.sampling_rounds=1",
    ),
    "problems_come_again": (
        "rollout.allocation=knapsack explore.enabled=false",
        "data.train_problems=64",
        "set data.train_problems=1024",
    ),
    "a_named_verifier_grades_cards": (
        "data.verifier=exact",
        "data.verifier=mine.py:check",
        "set FILE.py:NAME or package.module:NAME of your own",
    ),
    "a_part_of_one_set_is_taken": (
        "data.train_problems=64 data.task=datasets data.train=[gsm8k,math_train] data.eval=[gsm8k]",
        "data.train=[gsm8k]",
        "name one",
    ),
    "a_hard_prompt_has_a_success": ("rollout.rollouts_per_prompt=3 returns.size=8", "returns.max_success_rate=0.3334"),
    "state_group_has_a_baseline": ("explore.rollouts_per_state=1", "explore.rollouts_per_state=2"),
    "exploration_expands_something": ("explore.max_correct=0 explore.max_wrong=0", "explore.enabled=false"),
    "anchors_fit_into_a_response": ("explore.min_spacing=22", "rollout.max_response_tokens=67"),
    "rft_leaves_something_out": (
        "rft.select=entropy rft.responses=0",
        "rft.responses=100",
        "set rft.responses to the number wanted",
    ),
    "something_trains": ("explore.train_states=false", "explore.block_credit=true"),
    "bases_train_once": ("explore.block_credit=true explore.train_base=true", "explore.train_base=false"),
    "a_delimiter_has_text": (
        "explore.delimiter= explore.anchor_selection=delimiter",
        "explore.delimiter=';'",
        "set it to the text that ends a step",
    ),
    "a_tree_is_not_modulated": ("advantage.state_estimator=tree", "advantage.modulation=none"),
    "a_group_has_subsets": (
        "advantage.pass_at_k=32 advantage.base_estimator=pass_at_k explore.enabled=false",
        "advantage.pass_at_k=16",
    ),
    "a_profiled_run_is_long_enough": ("runtime.profile_steps=4 training.max_steps=6", "training.max_steps=7"),
    "steps_are_known": ("shaping.steps=[perplexty]", "shaping.steps=[perplexity]", "nearest: perplexity"),
    "settings_of_steps_are_read": ("shaping.entropy_advantage.alpha=0.1", "shaping.steps=[entropy_advantage]"),
    "windows_open": (
        "shaping.position.window=[101,0] shaping.steps=[position]",
        "shaping.position.window=[100,0]",
    ),
    "covariances_have_bounds": (
        "shaping.clip_cov.bounds=[5,1] shaping.steps=[clip_cov]",
        "shaping.clip_cov.bounds=[1,5]",
    ),
    "covariance_methods_exclude_each_other": (
        "shaping.steps=[clip_cov,kl_cov]",
        "shaping.steps=[kl_cov]",
        "set shaping.steps without one of them",
    ),
    "covariance_methods_have_their_ratio": ("loss.ratio=sequence shaping.steps=[clip_cov]", "loss.ratio=token"),
    "kl_cov_has_its_loss": ("shaping.steps=[kl_cov] loss.dual_clip=3", "loss.dual_clip=0"),
    "some_samples_are_reinforced": (
        "shaping.sample_reinforcement.positive=0 shaping.steps=[sample_reinforcement] "
        "shaping.sample_reinforcement.negative=0",
        "shaping.sample_reinforcement.negative=1",
    ),
    "divergence_settings_are_read": ("kl.reset_every=10", "kl.coefficient=0.01", "set kl.coefficient=0.001"),
    "the_divergence_has_a_gradient": ("kl.estimator=k1 kl.coefficient=0.01 explore.enabled=false", "kl.place=reward"),
    "rewards_of_tokens_are_those_of_the_group": (
        "kl.place=reward kl.coefficient=0.01 rollout.sampling_rounds=4 explore.enabled=false",
        "kl.place=loss",
    ),
    "rewards_of_tokens_are_read by states": ("kl.place=reward kl.coefficient=0.01", "kl.place=loss"),
    "rewards_of_tokens_are_read by subsets": (
        "kl.place=reward kl.coefficient=0.01 advantage.base_estimator=pass_at_k explore.enabled=false",
        "kl.place=loss",
    ),
    "maxrl_divides_by_a_success_rate": (
        "advantage.base_estimator=maxrl advantage.reward_range=minus_one_one explore.enabled=false",
        "advantage.base_estimator=mean",
    ),
    "a_critic_replaces_exploration": ("advantage.base_estimator=gae", "explore.enabled=false"),
    "a_divergence_over_the_vocabulary_is_a_loss": (
        "teacher.beta=0.5 teacher.path=x",
        "teacher.place=loss",
        "set teacher.place=loss, or teacher.beta=1",
    ),
    "rewards_are_left_out_by_all critics": (
        "teacher.alone=true teacher.path=x advantage.base_estimator=gae explore.enabled=false",
        "advantage.base_estimator=grpo",
    ),
    "rewards_are_left_out_by_all successes": (
        "teacher.alone=true teacher.path=x returns.size=4 explore.enabled=false",
        "teacher.alone=false",
    ),
    "critic_settings_are_read": (
        "critic.lam=0.95",
        "advantage.base_estimator=gae explore.enabled=false",
        "set advantage.base_estimator=gae",
    ),
    "the_policy_learns_too": (
        "critic.warmup_steps=100 advantage.base_estimator=gae explore.enabled=false",
        "critic.warmup_steps=99",
    ),
    "overlong_rewards_are_read by states": ("advantage.overlong_margin=8", "advantage.overlong_margin=0"),
    "overlong_rewards_are_read by subsets": (
        "advantage.overlong_margin=8 advantage.base_estimator=pass_at_k explore.enabled=false",
        "advantage.overlong_margin=0",
    ),
    "overlong_margin_fits": ("advantage.overlong_margin=65 explore.enabled=false", "advantage.overlong_margin=64"),
    "one_writer_beside_the_policy": ("environment.kind=task tools.kind=python", "tools.kind=none"),
    "tool_settings_are_read in an environment": (
        "tools.result={output} environment.kind=task",
        "tools.result=",
        "environment.turn_end and environment.observation in its place",
    ),
    "a_judge_has_an_address": (
        "judge.base_url=api.openai.com/v1 judge.model=m",
        "judge.base_url=https://api.openai.com/v1",
        "up to /v1: https://api.openai.com/v1",
    ),
    "keys_are_named": (
        "judge.key_variable=sk-abc judge.model=m judge.base_url=http://127.0.0.1:1/v1",
        "judge.key_variable=OPENAI_API_KEY",
    ),
    "scores_have_a_range": (
        "judge.score_range=[1,1] judge.model=m judge.base_url=http://127.0.0.1:1/v1",
        "judge.score_range=[1,5]",
    ),
    "words_have_scores": (
        "judge.words=[yes-or-no] judge.model=m judge.base_url=http://127.0.0.1:1/v1",
        "judge.words=[yes=10,no=0]",
        "set WORD=SCORE",
    ),
    "the_score_is_a_group": (
        "judge.pattern=score judge.model=m judge.base_url=http://127.0.0.1:1/v1",
        "judge.pattern=(score)",
        "has 0 groups; expected one",
    ),
    "a_judge_alone_calls_no_verifier": (
        "data.verifier=mine.py:check judge.model=m judge.base_url=http://127.0.0.1:1/v1",
        "judge.weight=0.5",
    ),
    "the_environment_is_the_judge": (
        "judge.model=m judge.base_url=http://127.0.0.1:1/v1 environment.kind=task",
        "judge.model=",
        "set judge.model empty",
    ),
    "the_environment_gives_the_rewards": (
        "environment.kind=task data.verifier=mine.py:check",
        "data.verifier=",
        "return its reward from step()",
    ),
    "an_observation_has_its_place": (
        "environment.observation=) environment.kind=task",
        "environment.observation={observation})",
        "{observation}",
    ),
    "an_answer_leaves_room in an environment": (
        "environment.max_observation_tokens=64 environment.kind=task",
        "environment.max_observation_tokens=16",
    ),
    "rewards_have_a_range": (
        "environment.reward_range=[-8,-1] environment.kind=task",
        "environment.reward_range=[-8,0]",
        "set environment.reward_range=[-1,1]",
    ),
    "tool_settings_are_read": ("tools.begin=<<", "tools.kind=python"),
    "a_call_has_marks": ("tools.kind=mine.py:look tools.begin=<t>", "tools.end=</t>", "tools.end='</tool>'"),
    "an_answer_has_its_place": (
        "tools.result=) tools.kind=python",
        "tools.result={output})",
        "set it to a text with {output} in it",
    ),
    "an_answer_leaves_room": ("tools.max_output_tokens=64 tools.kind=python", "tools.max_output_tokens=16"),
}


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "defaults.yaml"
    path.write_text("name: defaults\n")
    return path


def test_every_rule_has_a_case():
    assert {*RULES, *TRAINING_RULES} == {name.partition(" ")[0] for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_a_contradiction_is_refused_with_advice_that_resolves_it_and_only_training_rules_are_waived(recipe, name):
    wrong, mended, *advice = CASES[name]
    wrong = shlex.split(wrong)
    with pytest.raises(ConfigError) as caught:
        load_config(recipe, wrong)
    message = str(caught.value)
    assert (advice[0] if advice else mended) in message and "\n" not in message
    assert f"{wrong[0].partition('=')[0]}: command line" in message
    load_config(recipe, [*wrong, *shlex.split(mended)])
    if name.partition(" ")[0] in TRAINING_RULES:
        load_config(recipe, wrong, training=False)
    else:
        with pytest.raises(ConfigError, match="set |nearest: "):
            load_config(recipe, wrong, training=False)


def test_settings_of_an_environment_need_its_kind(recipe):
    told = "command line: environment.max_turns=3 has no effect without an environment; set environment.kind=task, or"
    with pytest.raises(ConfigError, match=told):
        load_config(recipe, ["environment.max_turns=3"])
    for kind in ("none", "task"):  # none turns a recipe's environment off
        assert load_config(recipe, ["environment.max_turns=3", f"environment.kind={kind}"]).environment.kind == kind


def test_settings_of_adapters_need_a_rank(recipe):
    with pytest.raises(ConfigError, match="command line: model.lora.alpha=4.0 has no effect .* set model.lora.rank=8"):
        load_config(recipe, ["model.lora.alpha=4"])
    for rank in (0, 4):  # 0 turns a recipe's adapters off
        assert load_config(recipe, ["model.lora.alpha=4", f"model.lora.rank={rank}"]).model.lora.rank == rank


def test_the_message_names_the_origin_of_each_setting(tmp_path):
    path = tmp_path / "mini.yaml"
    path.write_text("training: {mini_batch_rollouts: 64}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path, ["training.batch_rollouts=32"])
    where = f"(training.mini_batch_rollouts: {path}, training.batch_rollouts: command line)"
    assert str(caught.value).endswith(where)


@pytest.mark.parametrize(
    "overrides",
    [
        ["rollout.reject_degenerate=false"],
        ["explore.enabled=false", "explore.max_correct=0", "explore.max_wrong=0", "explore.rollouts_per_state=1"],
        ["rollout.rollouts_per_prompt=1", "rollout.reject_degenerate=false"],
        ["explore.min_spacing=21"],
        ["explore.train_states=false", "explore.train_base=true"],
        ["explore.enabled=false", "explore.block_credit=true", "explore.train_base=true"],
        ["kl.estimator=k2", "kl.coefficient=0.01"],
        ["explore.enabled=false", "advantage.state_estimator=tree", "explore.train_states=false"],
        ["model.param_dtype=bfloat16", "model.lora.rank=4", "optimizer.learning_rate=1e-6"],
        ["model.param_dtype=bfloat16", "optimizer.learning_rate=1e-4"],
        ["advantage.base_estimator=pass_at_k", "advantage.pass_at_k=32"],
        [
            "explore.enabled=false",
            "advantage.base_estimator=reward",
            "rollout.rollouts_per_prompt=1",
            "rollout.reject_degenerate=false",
        ],
    ],
)
def test_unusual_but_consistent_settings_are_accepted(recipe, overrides):
    assert load_config(recipe, overrides) != load_config(recipe)


@pytest.mark.parametrize(
    ("overrides", "effect"),
    [
        ([], "drops every prompt"),
        (["rollout.reject_degenerate=false", "explore.enabled=false"], "base_estimator=grpo gives advantage 0"),
        (["rollout.reject_degenerate=false", "explore.train_base=true"], "base_estimator=grpo gives advantage 0"),
    ],
)
def test_a_single_base_rollout_is_refused_for_its_actual_effect(recipe, overrides, effect):
    with pytest.raises(ConfigError, match=effect):
        load_config(recipe, ["rollout.rollouts_per_prompt=1", *overrides])


@pytest.mark.parametrize(
    ("overrides", "effect"),
    [
        (["rollout.top_p=0.9"], "of a policy that no rollout follows; set rollout.top_p=1 (evaluation"),
        (["rollout.top_p=0.9", "loss.importance_cap=2"], "loss.importance_cap=2 would weigh tokens by the mass"),
        (["rollout.top_p=0.9", "shaping.steps=[mismatch_mask]"], "mismatch_mask in shaping.steps would drop tokens"),
    ],
)
def test_truncated_rollouts_are_refused_for_their_actual_effect_and_evaluation_may_truncate(recipe, overrides, effect):
    with pytest.raises(ConfigError) as caught:
        load_config(recipe, overrides)
    assert effect in str(caught.value)
    load_config(recipe, overrides, training=False)
    load_config(recipe, ["evaluation.top_p=0.95", *overrides[1:]])


def test_a_greedy_only_evaluation_needs_an_empty_pass_at(recipe):
    with pytest.raises(ConfigError, match=r"set evaluation.samples=16, or evaluation.pass_at=\[\] \(greedy answers"):
        load_config(recipe, ["evaluation.samples=0"])
    assert load_config(recipe, ["evaluation.samples=0", "evaluation.pass_at=[]"]).evaluation.samples == 0
