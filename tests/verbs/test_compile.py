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


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--topology", "h100"], "--topology 'h100' cannot be read; expected CHIP:SHAPE"),
        (["--topology", "h100:1"], "--topology h100:1x1 needs a CUDA plugin to compile for: `make cuda-plan`"),
        (
            ["--topology", "h100:1", "tools.kind=python", "tools.max_output_tokens=4"],
            "--topology: programs with tools, environments or stop texts are",
        ),
    ],
)
def test_topology_that_cannot_be_compiled_for_is_a_mistake(recipe, capsys, monkeypatch, arguments, says):
    monkeypatch.setattr("fr3e_jax.planning.absent_devices.find_cuda", lambda: None)
    assert main(["compile", recipe, *arguments]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and says in told


def test_without_a_cache_nothing_is_compiled(recipe, capsys, monkeypatch):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    name = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    try:
        assert main(["compile", recipe]) == 2
    finally:
        jax.config.update("jax_compilation_cache_dir", name)
    assert "runtime.compilation_cache is empty, so that nothing would be kept" in capsys.readouterr().err
