"""Recipes, includes and overrides become one checked configuration; each mistake is one line with its place."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fr3e_jax.configuration import Config, ConfigError, load_config
from fr3e_jax.configuration.settings import setting_value, settings


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text("name: tried\nexplore:\n  num_anchors: 3\noptimizer:\n  learning_rate: 1e-5\n")
    return path


def refusal(recipe: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(recipe, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_recipe_sets_what_it_names_and_leaves_defaults(recipe):
    config = load_config(recipe)
    assert isinstance(config, Config)
    assert (config.name, config.explore.num_anchors, config.optimizer.learning_rate) == ("tried", 3, 1e-5)
    assert config.explore.rollouts_per_state == Config().explore.rollouts_per_state


def test_overrides_win_over_the_recipe_and_later_ones_over_earlier(recipe):
    config = load_config(recipe, ["explore.num_anchors=5", "evaluation.pass_at=[1,4]", "explore.num_anchors=2"])
    assert config.explore.num_anchors == 2
    assert config.evaluation.pass_at == [1, 4]


def test_a_section_can_be_overridden_as_a_mapping(recipe):
    config = load_config(recipe, ["data.order={num_operands: 7}", "explore={num_anchors: 2, min_spacing: 3}"])
    assert (config.data.order.num_operands, config.explore.num_anchors, config.explore.min_spacing) == (7, 2, 3)


@pytest.mark.parametrize("text", ["1e5", "3", "null", "a: b", "x=y", "a #b", "[1", "", "yes"])
def test_text_settings_take_the_value_as_it_stands(recipe, text):
    assert load_config(recipe, [f"sft.output={text}"]).sft.output == text


def test_quotes_around_a_text_value_are_dropped(recipe):
    assert load_config(recipe, ["sft.output='a b'"]).sft.output == "a b"


def test_includes_come_first_in_their_order_and_relative_to_their_file(tmp_path):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "base.yaml").write_text("seed: 1\nname: base\ntraining: {epochs: 5, max_steps: 7}\n")
    (tmp_path / "shared" / "more.yaml").write_text("include: base.yaml\nseed: 2\ntraining: {epochs: 6}\n")
    (tmp_path / "last.yaml").write_text("seed: 3\n")
    (tmp_path / "top.yaml").write_text("include: [shared/more.yaml, last.yaml]\nname: top\n")
    config = load_config(tmp_path / "top.yaml")
    assert (config.name, config.seed, config.training.epochs, config.training.max_steps) == ("top", 3, 6, 7)


def test_a_file_included_twice_is_no_circle(tmp_path):
    (tmp_path / "base.yaml").write_text("seed: 1\n")
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text("include: base.yaml\n")
    (tmp_path / "top.yaml").write_text("include: [a.yaml, b.yaml]\n")
    assert load_config(tmp_path / "top.yaml").seed == 1


def test_includes_in_a_circle_name_the_chain(tmp_path):
    (tmp_path / "a.yaml").write_text("include: b.yaml\n")
    (tmp_path / "b.yaml").write_text("include: a.yaml\n")
    message = refusal(tmp_path / "a.yaml")
    assert "circle" in message and f"{tmp_path / 'a.yaml'} -> {tmp_path / 'b.yaml'} -> {tmp_path / 'a.yaml'}" in message


def test_unknown_recipe_names_the_nearest(recipe):
    assert refusal(recipe.with_name("recip.yaml")).endswith(f"nearest: {recipe}")


def test_unknown_include_names_the_including_file(tmp_path, recipe):
    (tmp_path / "top.yaml").write_text("include: recipes.yaml\n")
    message = refusal(tmp_path / "top.yaml")
    assert message.startswith(f"{tmp_path / 'top.yaml'}: include") and message.endswith(f"nearest: {recipe}")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("explore.num_anchor=2", "explore.num_anchor is not a setting; nearest: explore.num_anchors"),
        ("teacher.weights=2", "teacher.weights is not a setting; nearest: teacher.weight"),  # data.weights is one
        ("explor.num_anchors=2", "explor.num_anchors is not a setting; nearest: explore.num_anchors"),
        ("num_anchors=2", "num_anchors is not a setting; nearest: explore.num_anchors"),
        ("explore={num_anchor: 2}", "explore.num_anchor is not a setting; nearest: explore.num_anchors"),
        ("evaluation.pass_at.0=5", "evaluation.pass_at.0 is not a setting; nearest: evaluation.pass_at"),
        ("xyzzy=2", "xyzzy is not a setting; sections: model, data"),
        ("num_generations=8", "num_generations is not a setting; here it is rollout.rollouts_per_prompt"),
        ("lr=1e-4", "lr is not a setting; here it is optimizer.learning_rate"),
        ("actor_rollout_ref.actor.kl_loss_coef=0.1", "here it is kl.coefficient"),
        ("clip_ratio=0.2", "here it is loss.epsilon_low and loss.epsilon_high"),
        ("explore.num_anchors=two", "expected int >= 1; nearest: explore.num_anchors=4"),
        ("explore.num_anchors=2.7", "expected int >= 1; nearest: explore.num_anchors=3"),
        ("explore.num_anchors=0", "expected int >= 1; nearest: explore.num_anchors=1"),
        (
            "explore.num_anchors=true",
            "=true is not valid; expected int >= 1; nearest: explore.num_anchors=4",
        ),
        ("explore.num_anchors=", "explore.num_anchors=null is not valid"),
        ("data.order.num_operands=70", "expected int >= 2 and <= 16; nearest: data.order.num_operands=16"),
        ("rollout.top_p=0", "expected float > 0 and <= 1; nearest: rollout.top_p=1"),
        ("optimizer.learning_rate=nan", "optimizer.learning_rate=nan is not valid"),
        ("optimizer.learning_rate=inf", "optimizer.learning_rate=inf is not valid"),
        ("explore.enabled=2", "expected true | false"),
        ("loss.aggregation=tokenmean", "nearest: loss.aggregation=token_mean"),
        ("evaluation.pass_at=1,8", "expected [int >= 1, ...]; nearest: evaluation.pass_at=[1,8]"),
        ("data.train=a.jsonl,b.jsonl", "nearest: data.train=[a.jsonl,b.jsonl]"),
        ("name=my run: 1/2", "name='my run: 1/2' cannot be part of the run's directory"),
        ("name=my run: 1/2", "nearest: name='my run: 1-2', or set runtime.run_dir"),
        ("name=..", "nearest: name='run'"),
        ("name=", "nearest: name='run'"),
        (
            "training.max_steps=\u22121",
            "training.max_steps=-1 is not valid; expected int >= 0; nearest: training.max_steps=0",
        ),
        ("evaluation.pass_at=[1,a]", "evaluation.pass_at=[1,a] is not valid"),
        ("evaluation.pass_at=[0]", "evaluation.pass_at=[0] is not valid"),
        ("evaluation.pass_at=[1", "cannot read the value of 'evaluation.pass_at=[1'"),
        ("explore=3", "explore is a section, not a value (3); set a field, e.g. explore.enabled"),
        ("explore.num_anchors", "'explore.num_anchors' is not key=value, for example"),
        ("=3", "'=3' is not key=value"),
        ("data.seed=${seed}", "data.seed=${seed} is not valid; expected int >= 0"),
        ("seed=???", "seed=??? is not valid; expected int >= 0"),
        ("evaluation.pass_at=['${nowhere}']", "evaluation.pass_at=[${nowhere}] is not valid"),
    ],
)
def test_mistakes_on_the_command_line_are_one_line_with_the_nearest_choice(recipe, override, expected):
    message = refusal(recipe, override)
    assert message.startswith("command line: ") and expected in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("explore:\n  num_anchor: 2\n", "explore.num_anchor is not a setting; nearest: explore.num_anchors"),
        ("explore:\n  num_anchors: 0\n", "explore.num_anchors=0 is not valid; expected int >= 1"),
        ("explore: 4\n", "explore is a section, not a value (4)"),
        ("- 1\n", "is a list; expected sections"),
        ("seed: 1\nseed: 2\n", "cannot be read as YAML"),
        ("seed: [1\n", "cannot be read as YAML"),
        ("include: {a: b}\n", "expected a file name or a list of file names"),
    ],
)
def test_mistakes_in_a_recipe_name_the_file(tmp_path, text, expected):
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    message = refusal(path)
    assert message.startswith(f"{path}: ") and expected in message


def test_a_mistake_in_an_included_file_names_that_file(tmp_path):
    (tmp_path / "base.yaml").write_text("sedd: 1\n")
    (tmp_path / "top.yaml").write_text("include: base.yaml\n")
    assert refusal(tmp_path / "top.yaml").startswith(f"{tmp_path / 'base.yaml'}: sedd is not a setting; nearest: seed")


@given(st.data())
def test_the_nearest_choice_is_always_a_valid_one(data):
    setting = data.draw(st.sampled_from([each for each in settings().values() if each.kind in (int, float)]))
    value = data.draw(st.integers(-(10**6), 10**6) | st.floats())
    assert setting.allows(setting.nearest(value))


def test_a_value_for_a_section_without_settings_is_refused(recipe):
    message = refusal(recipe, "shaping.overlong_mask=true")
    assert message.endswith("shaping.overlong_mask is a section, not a value (True); it has no settings; leave it out")


def test_a_recipe_may_hold_sizes_beside_a_model_and_the_command_line_may_not(tmp_path):
    path = tmp_path / "sized.yaml"
    path.write_text("model: {path: somewhere, num_kv_heads: 3, hidden_size: 7}\nmesh: {tensor: 8}\n")
    assert load_config(path).model.num_kv_heads == 3
    assert "model.num_layers=2 has no effect, for model.path=somewhere has its own" in refusal(
        path, "model.num_layers=2"
    )
    refused = refusal(path, "model.path=", "model.architecture=qwen2.5-0.5b", "model.num_layers=2")
    assert "for model.architecture=qwen2.5-0.5b has its own" in refused


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("optimizer.learning_rate=1e\u22124", 1e-4), ("optimizer.learning_rate=1e\u20134", 1e-4),
        ("optimizer.learning_rate=\u00a03e\u20115\u202f", 3e-5), ("mesh.fsdp=\u22121", -1),
        ("evaluation.pass_at=8", [8]), ("runtime.trackers=wandb", ["wandb"]),
    ],
)  # fmt: skip
def test_typeset_dashes_are_read_as_typed_ones_and_one_value_is_a_list(tmp_path, override, value):
    path, text = override.split("=")
    assert setting_value(load_config("demo", [override]), path) == value
    content: dict = {"include": "demo"}
    *sections, name = path.split(".")
    content[sections[0]] = {name: yaml.safe_load(text) if "[" in text else text}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(content))
    assert setting_value(load_config(tmp_path / "recipe.yaml"), path) == value


@pytest.mark.parametrize("override", ["training.max_steps=10\u2074", "training.max_steps=1\u00d710", "seed=1 000"])
def test_what_is_no_number_as_typed_is_refused(override):
    with pytest.raises(ConfigError, match="is not valid; expected int >= 0"):
        load_config("demo", [override])


@pytest.mark.parametrize("content", ["", " \n", "# seed: 1\n", "---\n", "{}", "null", "explore:\n", "include: []\n"])
def test_a_recipe_without_a_setting_is_refused(tmp_path, content):
    (tmp_path / "mine.yaml").write_text(content)
    assert "mine.yaml: has no settings; expected sections" in refusal(tmp_path / "mine.yaml")


@pytest.mark.parametrize(
    ("recipe", "overrides", "name"),
    [
        ("demo", [], "grpo++, adaptive return"),
        ("demo_fr3e", ["shaping.steps=[kl_cov]"], "fr3e+kl_cov"),
        ("methods/dr_grpo", [], "dr-grpo"),
        ("methods/gspo", [], "gspo"),
        ("methods/grpo", ["rollout.replay_share=0.5"], "grpo+replay"),
        ("methods/knapsack", [], "grpo+++knapsack"),
        ("methods/prefix_rl", [], "grpo++, PrefixRL"),
        ("methods/reinforce_ada", [], "reinforce-ada"),
        ("methods/reinforce_pp", [], "reinforce++"),
        ("methods/ppo", [], "ppo"),
    ],
)
def test_a_recipe_is_named_by_its_method(recipe, overrides, name):
    assert load_config(recipe, overrides).algorithm == name
