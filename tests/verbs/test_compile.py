"""`fr3e compile`: what it lists, and that a run then compiles nothing of it."""

from __future__ import annotations

import json

import jax
import pytest

from fr3e_jax.cli import main
from fr3e_jax.configuration import to_yaml


@pytest.fixture
def recipe(tmp_path, tiny_run):
    (tmp_path / "recipe.yaml").write_text(to_yaml(tiny_run.config(runtime__compilation_cache="")))
    return str(tmp_path / "recipe.yaml")


def test_the_list_names_programs_and_sizes_in_the_order_of_their_first_use(recipe, capsys):
    assert main(["compile", recipe, "--list", "--json"]) == 0
    names = [one["name"] for one in json.loads(capsys.readouterr().out)]
    assert names[:3] == ["init_fn", "prefill", "empty_state"] and names.index("decode_chunk") < names.index("promote")
    assert main(["compile", recipe, "--list"]) == 0
    shown = capsys.readouterr().out
    assert f"{len(names)} programs; " in shown and " lanes, rings of 16, trunks of " in shown


def test_without_a_cache_nothing_is_compiled(recipe, capsys, monkeypatch):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    name = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    try:
        assert main(["compile", recipe]) == 2
    finally:
        jax.config.update("jax_compilation_cache_dir", name)
    assert "runtime.compilation_cache is empty, so that nothing would be kept" in capsys.readouterr().err
