"""Recipes by name, and paths in them."""

import subprocess
import sys

import pytest

from fr3e_jax import shipped_files
from fr3e_jax.cli import main
from fr3e_jax.configuration import ConfigError, load_config
from fr3e_jax.configuration.provenance import save_config


def test_a_recipe_is_found_by_its_name_from_any_folder(tmp_path, monkeypatch):
    by_path = load_config("configs/demo.yaml")
    monkeypatch.chdir(tmp_path)
    assert load_config("demo") == load_config("demo.yaml") == load_config("configs/demo.yaml") == by_path
    assert load_config("grpo") == load_config("methods/grpo") != by_path
    (tmp_path / "demo.yaml").write_text("seed: 7\n")
    assert load_config("demo.yaml").seed == 7  # a file that exists wins
    assert load_config("demo").seed == by_path.seed


@pytest.mark.parametrize("verb", ["methods", "metrics"])
def test_a_pipe_whose_reader_has_gone_costs_no_line(verb):
    command = f"{sys.executable} -m fr3e_jax {verb} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode in (0, 141) and not done.stderr


def test_an_unknown_name_gets_the_nearest_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="no recipe dem0; nearest: demo"):
        load_config("dem0")


def test_every_recipe_is_listed(capsys):
    assert main(["methods"]) == 0
    listed = capsys.readouterr().out
    names = shipped_files.recipe_names()
    assert len(names) > 40 and all(f"\n  {name} " in listed for name in names)


def test_paths_in_a_recipe_are_relative_to_it(tmp_path, monkeypatch):
    folder = tmp_path / "study"
    (folder / "start").mkdir(parents=True)
    (folder / "check.py").write_text("def f(problem, response, finished): return 0.0\n")
    (folder / "mine.yaml").write_text(
        "include: demo\nmodel: {path: start}\ndata: {verifier: 'check.py:f', task: order}\n"
    )
    monkeypatch.chdir(tmp_path)
    config = load_config("study/mine.yaml")
    assert config.model.path == str(folder / "start")
    assert config.data.verifier == f"{folder / 'check.py'}:f"
    assert config.data.task == "order"
    (tmp_path / "start").mkdir()
    assert load_config("study/mine.yaml", ["model.path=start"]).model.path == "start"  # of the command line: as it is


def test_shipped_files_are_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert (shipped_files.existing("warm_starts/order") / "config.json").is_file()
    assert shipped_files.existing("warm_starts/nothing").as_posix() == "warm_starts/nothing"
    (tmp_path / "warm_starts" / "order").mkdir(parents=True)
    assert shipped_files.existing("warm_starts/order").as_posix() == "warm_starts/order"


def test_paths_in_the_settings_of_a_run_are_those_of_its_start(tmp_path, monkeypatch):
    """``fr3e sft`` leaves its own ``model`` beside them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run" / "model").mkdir(parents=True)
    config = load_config("demo", ["model.path=model"], training=False)
    save_config(config, tmp_path / "run", platform="cpu", device_kind="cpu")
    assert load_config(tmp_path / "run" / "config.yaml", training=False).model.path == "model"
