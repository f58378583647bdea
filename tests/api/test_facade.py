"""The names of `fr3e_jax` and what a run stored, from Python."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

import fr3e_jax as fr3e


def test_the_import_loads_no_heavy_module_and_every_name_exists():
    script = (
        "import sys, fr3e_jax, fr3e_jax.user_code; "  # a worker of the grader imports both before anything else
        "print(sorted({'jax', 'numpy', 'flax', 'transformers', 'omegaconf', 'orbax'} & set(sys.modules)))"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"
    for name in fr3e.__all__:
        assert getattr(fr3e, name).__doc__ and name in dir(fr3e)


def test_an_unknown_name_is_answered_with_those_that_exist():
    with pytest.raises(AttributeError, match=r"no attribute 'trainer'; it has Callback, "):
        fr3e.trainer  # noqa: B018


def test_metrics_and_rollouts_of_a_run_are_columns(finished_run):
    metrics = fr3e.read_metrics(finished_run, frame="columns")
    assert metrics["step"] == [1, 2, 3, 4] and len(metrics["reward/mean"]) == 4
    held_out = fr3e.read_metrics(finished_run, kind="eval", frame="columns")
    assert held_out["step"] == [0, 2, 4]
    rollouts = fr3e.read_rollouts(finished_run, steps=[2], frame="columns")
    assert set(rollouts["step"]) == {2}
    assert len({len(column) for column in rollouts.values()}) == 1
    assert all(isinstance(text, str) for text in rollouts["response"])
    assert set(fr3e.read_rollouts(finished_run, kind="eval", frame="columns")["kind"]) == {"eval"}


def test_what_is_not_there_is_named(finished_run, tmp_path):
    with pytest.raises(fr3e.ConfigError, match="no rollouts of steps"):
        fr3e.read_rollouts(finished_run, steps=[99])
    with pytest.raises(fr3e.ConfigError):
        fr3e.read_metrics(tmp_path)


def test_a_data_frame_of_the_package_that_is_installed(finished_run, monkeypatch):
    """pandas before polars; without both, columns. The stand-ins record what they are given."""
    missing = {"pandas": None, "polars": None}
    installed = {name: SimpleNamespace(DataFrame=lambda columns, name=name, **_: (name, columns)) for name in missing}
    for packages, wanted in ((installed, "pandas"), ({"pandas": None}, "polars"), (missing, None)):
        for name, package in packages.items():
            monkeypatch.setitem(sys.modules, name, package)
        for read in (fr3e.read_metrics, fr3e.read_rollouts):
            columns = read(finished_run, frame="columns")
            assert isinstance(columns, dict) and read(finished_run) == ((wanted, columns) if wanted else columns)
    with pytest.raises(fr3e.ConfigError, match="pip install polars"):
        fr3e.read_metrics(finished_run, frame="polars")
