"""`fr3e export` reads the settings of the run instead of a recipe, and passes full type names."""

from __future__ import annotations

import pytest

from fr3e_jax.cli import main


@pytest.fixture
def run_dir(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    (path / "config.yaml").write_text("name: tried\nmodel: {hidden_size: 128}\n")
    return path


@pytest.fixture
def calls(monkeypatch):
    """A stand-in for `export_run`; each call is recorded and returns 0."""
    recorded = []
    stand_in = lambda *arguments, **options: recorded.append((arguments, options)) or 0
    monkeypatch.setattr("fr3e_jax.verbs.export.export_run", stand_in)
    return recorded


@pytest.mark.parametrize(
    ("options", "passed"),
    [
        ([], {"dtype": "", "step": None, "adapter": False}),
        (["--dtype", "f16", "--step", "20", "--adapter"], {"dtype": "float16", "step": 20, "adapter": True}),
    ],
)
def test_export_takes_the_settings_of_the_run_and_passes_its_options(run_dir, calls, tmp_path, options, passed):
    assert main(["export", str(run_dir), str(tmp_path / "out"), *options]) == 0
    [((config, run, directory), keywords)] = calls
    assert (config.name, config.model.hidden_size, run, directory) == ("tried", 128, run_dir, tmp_path / "out")
    assert keywords == passed


def test_help_names_run_and_directory_and_no_recipe(capsys):
    assert main(["export", "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: fr3e export") and "example: fr3e export runs/" in text
    assert "RECIPE" not in text and "key=value" not in text
