"""`fr3e compile`: what it lists, and that a run then compiles nothing of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import jax
import pytest

from fr3e_jax.cli import main
from fr3e_jax.configuration import ConfigError, to_yaml
from fr3e_jax.programs.program import keep_executables
from fr3e_jax.verbs.compile_programs import compile_programs, forecast_programs


@pytest.fixture
def recipe(tmp_path, tiny_run):
    """A recipe in a file; afterwards no store is left."""
    jax.config.update("jax_enable_compilation_cache", False)
    config = tiny_run.config(
        runtime__compilation_cache=str(tmp_path / "cache"),
        runtime__compile_ahead=False,
        training__row_shapes=2,
        training__max_steps=2,
        rollout__cache_sizes=1,
    )
    (tmp_path / "recipe.yaml").write_text(to_yaml(config))
    yield tmp_path / "recipe.yaml", config
    keep_executables(None)
    jax.config.update("jax_enable_compilation_cache", True)


def test_the_list_names_programs_sizes_and_calls(recipe, capsys):
    assert main(["compile", str(recipe[0]), "--list", "--json", "--steps", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    (prefill,) = (one for one in found if one["name"] == "prefill" and one["calls"] > 2)
    assert prefill["seconds"] is None and prefill["sizes"]
    rows = [one["sizes"] for one in found if one["name"] == "accumulate"]
    assert 1 <= len(rows) <= 2 and all(" rows of " in sizes or "1 row of " in sizes for sizes in rows)
    assert main(["compile", str(recipe[0]), "--list", "--steps", "1"]) == 0
    shown = capsys.readouterr().out
    assert "programs in the first 1 steps" in shown and "responses of 5 tokens (rollout.expected_tokens)" in shown


@pytest.mark.slow
@pytest.mark.skipif(jax.device_count() > 1, reason="executables are kept on one device: make test")
def test_a_run_finds_its_programs_compiled(tmp_path):
    """But for those of a checkpoint, which come after the first steps. In processes of their own, as users have it."""
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    settings = [f"runtime.compilation_cache={tmp_path}/cache", "evaluation.prompts=16", "runtime.compile_ahead=false"]
    settings += [
        "training.max_steps=1",
        "training.row_shapes=3",
        "runtime.console=plain",
        "runtime.report=false",
        f"runtime.output_dir={tmp_path}",
    ]

    def fr3e(*arguments: str) -> str:
        command = [sys.executable, "-m", "fr3e_jax", *arguments, *settings]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "programs in the first 2 steps, 0 of them were in the cache" in fr3e("compile", "demo", "--steps", "2")
    compiled, fetched = map(
        int, re.search(r"compiled (\d+) programs and fetched (\d+)", fr3e("train", "demo")).groups()
    )
    assert compiled <= 12 and fetched > 20


def test_without_a_cache_nothing_is_compiled(tiny_run):
    calls = forecast_programs(tiny_run.config(), 1)
    with pytest.raises(ConfigError, match="runtime.compilation_cache is empty, so that nothing would be kept"):
        name = jax.config.jax_compilation_cache_dir
        jax.config.update("jax_compilation_cache_dir", None)
        try:
            compile_programs(calls, lambda one: None)
        finally:
            jax.config.update("jax_compilation_cache_dir", name)
