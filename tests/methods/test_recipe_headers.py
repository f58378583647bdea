"""Recipe headers are in the fixed form, name functions and tests that exist, and fill docs/users/methods.md."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache
from pathlib import Path

import pytest

from fr3e_jax.cli import main
from fr3e_jax.configuration import Config, load_config
from fr3e_jax.configuration.settings import settings
from fr3e_jax.configuration.shaping_sections import SHAPING_STEPS
from fr3e_jax.methods import HeaderError, read_methods, recipe_headers
from fr3e_jax.methods.recipe_headers import read_method

ROOT = Path(__file__).resolve().parents[2]
METHODS = read_methods(ROOT / "configs")


@cache
def configs() -> list[Config]:
    """The settings of every recipe that can train, those of the ablations of FR3E included."""
    trains = {method.recipe for method in METHODS} - {"configs/mixture_fr3e.yaml"}
    ablations = (ROOT / "configs" / "experiments" / "fr3e_ablations").glob("*.yaml")
    return [load_config(path) for path in (*(ROOT / recipe for recipe in sorted(trains)), *sorted(ablations))]


TABLE_2 = {
    "entropy-based advantage shaping",
    "negative sample reinforcement",
    "pass@k training",
    "clip-higher",
    "covariance-aware gradient detach",
    "forking tokens",
    "KL reference reset",
    "covariance-aware KL penalty",
    "progressive tool integration",
    "entropy-based adaptive rollout",
}


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_function_and_test_exist(method):
    module, _, name = method.function.rpartition(".")
    assert callable(getattr(importlib.import_module(f"fr3e_jax.{module}"), name))
    path, _, test = method.test.partition("::")
    names = {node.name for node in ast.parse((ROOT / path).read_text()).body if hasattr(node, "name")}
    assert test in names and test.lower().startswith("test")


@pytest.mark.parametrize(
    "path",
    [
        "advantage.base_estimator",
        "advantage.state_estimator",
        "advantage.modulation",
        "advantage.reward_range",
        "explore.anchor_selection",
        "explore.initial_state",
        "kl.estimator",
        "kl.place",
        "loss.ratio",
    ],
)
def test_every_choice_has_a_recipe(path):
    section, name = path.split(".")
    used = {getattr(getattr(config, section), name) for config in configs()}
    unused = set(settings()[path].choices) - used
    assert unused <= {"advantage.state_estimator": {"grpo", "rloo"}}.get(path, set())


def test_every_shaping_step_has_a_recipe():
    assert set(SHAPING_STEPS) == {step for config in configs() for step in config.shaping.steps}


def test_every_row_of_the_studys_table_2_is_there():
    assert {method.table_2.partition(": ")[2] for method in METHODS if method.table_2} == TABLE_2


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.recipe)
def test_the_command_and_the_runs_name_are_those_of_the_recipe(method):
    assert method.recipe in method.command
    assert method.command.startswith("fr3e ") or method.recipe == "configs/demo.yaml", "make demo runs that one"
    assert load_config(ROOT / method.recipe, training=False).name == Path(method.recipe).stem


def test_no_two_recipes_have_the_same_method_name():
    names = [method.name for method in METHODS]
    assert len(set(names)) == len(names)


HEADER = {
    "Method": "KL-Cov",
    "Group": "Samples and tokens",
    "Source": "Cui et al. 2025",
    "Function": "objectives.selection.kl_cov_losses",
    "Test": "tests/objectives/test_selection.py::test_kl_cov",
    "Summary": "an unclipped loss\n#   and a penalty",
    "Expected": "entropy stays",
    "Deviation": "none",
    "Command": "fr3e train x.yaml",
}


@pytest.fixture
def recipe(tmp_path):
    def write(header: dict[str, str], body: str = "name: x\n# Sorce: a comment below the header\n") -> Path:
        path = tmp_path / "x.yaml"
        path.write_text("".join(f"# {name}: {text}\n" for name, text in header.items()) + body)
        return path

    return write


def test_a_header_is_read_with_its_continued_lines_and_ends_where_the_settings_begin(recipe):
    method = read_method(recipe(HEADER), "configs/x.yaml")
    assert (method.name, method.summary) == ("KL-Cov", "an unclipped loss and a penalty")
    assert (method.deviation, method.table_2, method.hardware) == ("", "", "")
    assert method.recipe == "configs/x.yaml"


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({k: v for k, v in HEADER.items() if k != "Test"}, r"x\.yaml: .* missing 1 required .*: 'test'"),
        (HEADER | {"Sorce": "Cui et al. 2025"}, r"x\.yaml: .* unexpected keyword argument 'sorce'"),
        (HEADER | {"Group": "Sampling"}, r"x\.yaml: found the group 'Sampling'; expected one of FR3E and its options"),
    ],
    ids=["missing", "misspelt", "group"],
)
def test_a_damaged_header_is_refused_with_its_file_and_the_field(recipe, header, message):
    with pytest.raises(HeaderError, match=message):
        read_method(recipe(header), "configs/x.yaml")


def test_without_configs_the_command_says_where_it_looked(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(recipe_headers, "root", lambda: None)
    monkeypatch.chdir(ROOT)
    assert main(["methods"]) == 0, "the working directory is a checkout"
    monkeypatch.chdir(tmp_path)
    assert main(["methods"]) == 2
    message = capsys.readouterr().err
    assert f"found no recipes in {tmp_path / 'configs'}" in message
    assert "run this command in a checkout" in message


def test_the_pages_variants_are_settings_of_their_recipes():
    page = (ROOT / "docs" / "users" / "methods.md").read_text()
    rows = [line.split(" | ") for line in page.partition("## Variants")[2].partition("## ")[0].splitlines()[6:] if line]
    for _, recipes, listed in rows:
        for variant in re.findall(r"`([^`]+=[^`]+)`", listed):
            recipe = re.findall(r"`(\w+)`", recipes)[0]
            assert load_config(recipe, variant.split(" ")) != load_config(recipe), variant
    assert len(rows) > 10


def test_every_shipped_recipe_is_in_the_catalogue():
    shipped = {*(ROOT / "configs").glob("*.yaml"), *(ROOT / "configs" / "methods").glob("*.yaml")}
    assert {path.relative_to(ROOT).as_posix() for path in shipped} == {method.recipe for method in METHODS}


def test_a_users_recipe_without_a_header_is_left_out_of_the_catalogue(tmp_path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "mine.yaml").write_text("# Notes of mine.\nname: mine\n")
    assert read_methods(tmp_path / "configs") == []


def test_the_list_names_the_recipes_of_an_experiment(capsys):
    assert main(["methods"]) == 0
    assert re.search(r"\n  experiments/order_9 +\w+(,\s+\w+)+\n", capsys.readouterr().out)
