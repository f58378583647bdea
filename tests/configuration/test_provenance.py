"""A run directory holds its provenance, and its settings can be used as a recipe."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fr3e_jax.configuration import Config, collect, load_config, save_config
from fr3e_jax.configuration.provenance import git_state, read_provenance
from fr3e_jax.configuration.schema import DataConfig

DEVICE = {"platform": "cpu", "device_kind": "cpu"}


def test_saved_settings_load_as_the_same_configuration(tmp_path):
    config = load_config(
        _recipe(tmp_path), ["optimizer.learning_rate=1e-5", "sft.output=1e5", "evaluation.pass_at=[1]"]
    )
    save_config(config, tmp_path / "run", **DEVICE)
    assert load_config(tmp_path / "run" / "config.yaml") == config


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(
    system=st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="$\\?")),
    rate=st.floats(0, 1, allow_subnormal=False),
)
def test_any_text_and_any_float_survive_the_round_trip(tmp_path, system, rate):
    config = replace(Config(), data=DataConfig(template="chat", system=system))
    config.optimizer.learning_rate = rate
    save_config(config, tmp_path, **DEVICE)
    assert load_config(tmp_path / "config.yaml") == config


def test_interpolations_are_saved_resolved(tmp_path):
    save_config(load_config(_recipe(tmp_path), ["data.seed=3", "seed=3"]), tmp_path, **DEVICE)
    assert load_config(tmp_path / "config.yaml", ["seed=4"]).data.seed == 3


def test_provenance_names_versions_device_verb_and_command(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["fr3e", "train", "a b.yaml", "seed=1"])
    save_config(Config(), tmp_path, verb="sft", platform="gpu", device_kind="H200")
    saved = json.loads((tmp_path / "provenance.json").read_text())
    assert (saved["verb"], saved["platform"], saved["device_kind"]) == ("sft", "gpu", "H200")
    assert saved["command"] == "fr3e train 'a b.yaml' seed=1"
    assert set(saved["versions"]) == {"python", "jax", "flax", "optax", "orbax-checkpoint", "transformers", "numpy"}
    assert saved["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))


def test_a_resumed_run_keeps_the_earlier_provenance(tmp_path, monkeypatch):
    for command in ("first", "second", "third"):
        monkeypatch.setattr(sys, "argv", [command])
        save_config(Config(), tmp_path, **DEVICE)
    saved = read_provenance(tmp_path)
    assert saved["command"] == "third"
    assert [entry["command"] for entry in saved["earlier"]] == ["first", "second"]
    assert all("earlier" not in entry for entry in saved["earlier"])


def test_the_device_is_asked_of_jax_only_when_it_is_not_given(monkeypatch):
    import jax

    assert collect()["platform"] == jax.default_backend()
    monkeypatch.setitem(sys.modules, "jax", None)  # importing it now raises
    assert collect(**DEVICE)["device_kind"] == "cpu"


def test_git_state_knows_clean_from_dirty_and_ignores_foreign_repositories(tmp_path):
    source = tmp_path / "module.py"
    source.write_text("x = 1\n")
    assert git_state(source) is None
    _git(tmp_path, "init", "-q")
    _git(tmp_path, "add", "module.py")
    _git(tmp_path, "commit", "-q", "-m", "first")
    installed = tmp_path / "installed.py"
    installed.write_text("y = 1\n")
    assert git_state(installed) is None, "an untracked file is not of this repository, though that has a commit"
    installed.unlink()
    clean = git_state(source)
    assert clean["dirty"] is False and len(clean["commit"]) == 40
    source.write_text("x = 2\n")
    assert git_state(source) == {"commit": clean["commit"], "dirty": True}


def test_no_git_program_is_tolerated(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert collect(**DEVICE)["git"] is None


def _recipe(folder):
    path = folder / "recipe.yaml"
    path.write_text("name: saved\n")
    return path


def _git(folder, *arguments):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    try:
        subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True)
    except FileNotFoundError:
        pytest.skip("git is not installed")
