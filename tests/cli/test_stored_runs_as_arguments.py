"""Every verb that reads a run reads one at an address; every path that must be on this machine refuses an address."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import fr3e_jax
from fr3e_jax.cli import main
from fr3e_jax.cli.arguments import on_this_machine
from fr3e_jax.cli.parser import OneLineParser
from fr3e_jax.cli.verb_table import VERBS, load_verb
from fr3e_jax.configuration import ConfigError
from fr3e_jax.stores.mirror import MirroredRun, mirrored_files
from fr3e_jax.stores.objects import Store

RUNS = "memory://stored-runs-as-arguments"
TAKE_ADDRESSES = {("analyse", "--baseline"), ("eval", "--model"), ("runs", "folder")}
"""Arguments with a metavar of a file or folder that may be an address; a RUN always may."""


@pytest.fixture(scope="module")
def stored(finished_run, tmp_path_factory):
    """A run in a folder, and two copies of it in a store; this machine has fetched nothing yet."""
    for name in ("one", "two"):
        store, run = Store(f"{RUNS}/{name}"), MirroredRun("uploaded")
        for file in mirrored_files(finished_run):
            store.upload(file, finished_run / file)
            run.files[file] = [(finished_run / file).stat().st_size, 0]
        run.write(store)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FR3E_STORE_CACHE", str(tmp_path_factory.mktemp("copies")))
        yield SimpleNamespace(folder=finished_run, address=f"{RUNS}/one", recipe=finished_run / "config.yaml")


def printed(capsys, *arguments) -> str:
    assert main(list(map(str, arguments))) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("verb", "options"), [("show", ["--step", "2"]), ("analyse", ["--json", "--only", "pass_at_k"])]
)
def test_a_verb_says_the_same_of_a_run_at_an_address_and_in_a_folder(stored, capsys, tmp_path, verb, options):
    options = [*options, *(["--out", tmp_path] if verb == "analyse" else [])]
    told = [printed(capsys, verb, run, *options).replace("one", "run") for run in (stored.folder, stored.address)]
    assert told[0] == told[1] and len(told[0]) > 200


def test_lists_pages_and_comparisons_of_runs_at_addresses(stored, capsys):
    runs = json.loads(printed(capsys, "runs", RUNS, "--json"))
    assert sorted(run["path"].rpartition("/")[2] for run in runs) == ["one", "two"]
    assert {run["state"] for run in runs} == {"finished"}
    assert "report.html" in printed(capsys, "report", stored.address)
    compared = [
        printed(capsys, "compare", *places, "--json", "-") for places in ([stored.address, f"{RUNS}/two"], [RUNS])
    ]
    assert compared[0] == compared[1] and "/two" in compared[0]


def test_a_model_is_exported_from_an_address(stored, capsys, tmp_path):
    printed(capsys, "export", stored.address, tmp_path / "model", "--step", "3")
    assert (tmp_path / "model" / "model.safetensors").exists()


def test_python_reads_a_run_at_an_address(stored):
    for read in (fr3e_jax.read_metrics, fr3e_jax.read_rollouts):
        assert read(stored.address) == read(stored.folder)
    assert fr3e_jax.load_policy(stored.address, step=3).step == 3


@pytest.mark.slow
@pytest.mark.parametrize("verb", [
    ["eval", "--json"],
    ["sample", "--prompt", "1", "--json"],
    ["intervene", "--problems", "2", "--rollouts", "1"],
])  # fmt: skip
def test_a_verb_takes_its_weights_from_an_address(stored, capsys, verb):
    assert printed(capsys, verb[0], stored.recipe, *verb[1:], "--run", stored.address)


def test_a_path_that_must_be_on_this_machine_refuses_an_address():
    for name in VERBS:
        parser = OneLineParser(prog=f"fr3e {name}")
        load_verb(name).declare(parser)
        for action in parser._actions:
            option = (action.option_strings or [action.dest])[-1]
            if action.metavar in ("FILE", "DIR", "PAGE") and (name, option) not in TAKE_ADDRESSES:
                assert action.type is on_this_machine, f"fr3e {name} {option}"
    with pytest.raises(argparse.ArgumentTypeError, match="gs://b/x is in an object store; expected a file or folder"):
        on_this_machine("gs://b/x")
    with pytest.raises(ConfigError, match="argument --out: gs://b/x is in an object store"):
        parser = OneLineParser(prog="fr3e")
        load_verb("analyse").declare(parser)
        parser.parse_args(["run", "--out", "gs://b/x"])


@pytest.mark.parametrize(("arguments", "told"), [
    (["report", "s3://b/run", "--serve"], "s3://b/run is in an object store, and --serve follows a folder"),
    (["sweep", "demo", "runtime.output_dir=memory://b", "seed=0,1"], "and a sweep keeps its table in a folder"),
    (["show", "memory://nothing/here"], "memory://nothing/here holds no run; expected the address of an earlier run"),
    (["show", "gs:/b/run"], "gs:/b/run has one slash after gs:; expected an address such as gs://b/run"),
])  # fmt: skip
def test_a_mistaken_address_is_named(arguments, told, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("FR3E_STORE_CACHE", str(tmp_path))
    assert main(arguments) == 2
    assert told in capsys.readouterr().err


def test_a_path_object_that_was_an_address_is_named():
    with pytest.raises(ConfigError, match="gs:/b/run has one slash after gs:; expected an address such as gs://b/run"):
        fr3e_jax.read_metrics(Path("gs://b/run"))
