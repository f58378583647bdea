"""Every recipe of the repository can be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from fr3e_jax.configuration import load_config, to_yaml

CONFIGS = Path(__file__).parents[2] / "configs"
RECIPES = sorted([*CONFIGS.glob("*.yaml"), *CONFIGS.glob("experiments/*/*.yaml")])


def test_there_are_recipes():
    assert RECIPES


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_recipe_builds_and_its_resolved_form_builds_the_same(recipe, tmp_path):
    config = load_config(recipe)
    (tmp_path / "again.yaml").write_text(to_yaml(config))
    assert load_config(tmp_path / "again.yaml") == config
