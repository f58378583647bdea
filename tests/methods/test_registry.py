"""The registry names what exists, leaves out no recipe and no choice, and is what docs/users/methods.md shows."""

from __future__ import annotations

import ast
import importlib
from functools import cache
from pathlib import Path

import pytest

from fr3e_jax.cli import main
from fr3e_jax.configuration import Config, load_config
from fr3e_jax.configuration.method_rules import SHAPING_STEPS
from fr3e_jax.configuration.settings import settings
from fr3e_jax.methods import METHODS, write_table
from fr3e_jax.methods.table import MARKERS

ROOT = Path(__file__).resolve().parents[2]


@cache
def configs() -> dict[str, Config]:
    """The settings of every recipe that the registry names."""
    return {recipe: load_config(ROOT / "configs" / recipe) for recipe in {method.recipe for method in METHODS}}


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
    names = {node.name for node in ast.parse((ROOT / "tests" / path).read_text()).body if hasattr(node, "name")}
    assert test in names and test.lower().startswith("test")


def test_every_recipe_of_a_method_is_in_the_registry():
    there = {f"methods/{path.name}" for path in (ROOT / "configs" / "methods").glob("*.yaml")}
    assert there <= set(configs())


@pytest.mark.parametrize(
    "path",
    [
        "advantage.base_estimator",
        "advantage.state_estimator",
        "advantage.modulation",
        "advantage.reward_range",
        "explore.anchor_selection",
        "explore.base_choice",
        "explore.allocation",
        "explore.initial_state",
        "kl.estimator",
        "kl.place",
        "loss.ratio",
    ],
)
def test_every_choice_has_a_recipe(path):
    section, name = path.split(".")
    used = {getattr(getattr(config, section), name) for config in configs().values()}
    unused = set(settings()[path].choices) - used
    assert unused <= {"kl.estimator": {"k1"}, "advantage.state_estimator": {"grpo", "rloo"}}.get(path, set())


def test_every_shaping_step_has_a_recipe():
    assert set(SHAPING_STEPS) == {step for config in configs().values() for step in config.shaping.steps}


def test_every_row_of_the_studys_table_2_is_there():
    assert {method.table2.partition(": ")[2] for method in METHODS if method.table2} == TABLE_2


def test_recipes_say_source_effect_and_command():
    for path in (ROOT / "configs" / "methods").glob("*.yaml"):
        header = [line for line in path.read_text().splitlines() if line.startswith("# ")]
        assert "Expected" in " ".join(header), path.name
        assert f"configs/methods/{path.name}" in header[-1] and header[-1].startswith("# Command: fr3e "), path.name
        assert configs()[f"methods/{path.name}"].name == path.stem, path.name


def test_the_page_shows_the_registry(tmp_path):
    page, committed = tmp_path / "methods.md", (ROOT / "docs" / "users" / "methods.md").read_text()
    page.write_text(committed)
    assert main(["methods", "--write", str(page)]) == 0
    assert page.read_text() == committed, "fr3e methods --write docs/users/methods.md"


def test_a_page_without_markers_is_left_alone(tmp_path, capsys):
    page = tmp_path / "page.md"
    for text in ("no table", MARKERS[1] + MARKERS[0], MARKERS[0] * 2 + MARKERS[1]):
        page.write_text(text)
        with pytest.raises(ValueError, match="once each, in this order; add them"):
            write_table(page)
        assert page.read_text() == text
    assert main(["methods", "--write", str(page)]) == 2 and "add them" in capsys.readouterr().err


def test_the_list_names_every_recipe(capsys):
    assert main(["methods"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {method.recipe_path} " in text for method in METHODS)
