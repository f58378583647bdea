"""`fr3e export`: any run's weights, complete and replaceable, with the settings and tokenizer of its first model."""

from __future__ import annotations

import dataclasses
import json
import shutil

import jax
import ml_dtypes
import numpy as np
import pytest
import transformers
from safetensors.numpy import load_file

from fr3e_jax.cli import main
from fr3e_jax.configuration import load_config
from fr3e_jax.data.tokenizer import TextCodec
from fr3e_jax.policy.config_file import read_architecture
from fr3e_jax.policy.huggingface import load_params
from fr3e_jax.policy.network import build_network, initial_params
from fr3e_jax.session.model import configured_architecture
from fr3e_jax.session.run_weights import load_run_params
from fr3e_jax.verbs.export import export_run
from fr3e_jax.verbs.model_directory import CARD, RECORD, write_model
from fr3e_jax.verbs.supervised.demonstrations import sft

CHAT_TEMPLATE = "{{ messages[0].content }}>"
INDEX = "model.safetensors.index.json"


def saved(run):
    return load_config(run / "config.yaml", training=False)


def assert_equal(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for left, right in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(np.asarray(left).view(np.uint8), np.asarray(right).view(np.uint8))


@pytest.fixture(scope="module")
def exported(finished_run, tmp_path_factory):
    directory = tmp_path_factory.mktemp("exported") / "model"
    assert main(["export", str(finished_run), str(directory)]) == 0
    return directory


@pytest.fixture
def small_files(monkeypatch):
    """Weight files of at most 2 kB."""
    monkeypatch.setattr("fr3e_jax.verbs.model_directory.MAX_SHARD_BYTES", 2000)


@pytest.fixture
def foreign(tmp_path, tiny_run, small_files):
    """A Qwen3 checkpoint from elsewhere: two stops, sampling defaults, a chat template, bfloat16, shards."""
    directory, codec = tmp_path / "foreign", TextCodec.load()
    architecture = dataclasses.replace(
        configured_architecture(tiny_run.config(), len(codec)), model_type="qwen3", tie_word_embeddings=False
    )
    params = initial_params(architecture, jax.random.key(3), param_dtype="bfloat16")
    record = {"dtype": "bfloat16"}
    write_model(directory, architecture, params, codec, "", record)
    (directory / RECORD).unlink()
    edit(directory / "config.json", initializer_range=0.5, max_window_layers=7)
    edit(directory / "generation_config.json", eos_token_id=[1, 5], temperature=0.6, do_sample=True, top_k=20)
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    edit(directory / "tokenizer_config.json", added_by="somebody")
    return directory


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_the_export_is_the_newest_checkpoint_to_the_last_bit(exported, finished_run, session):
    params, step = load_run_params(session, finished_run)
    architecture = read_architecture(exported)
    assert architecture == session.model.architecture
    assert_equal(load_params(exported, architecture, session.model.abstract_params), params)
    record = json.loads((exported / RECORD).read_text())
    assert (record["step"], record["dtype"], record["run"]) == (step, "float32", str(finished_run))
    assert sorted(record["files"]) == sorted(path.name for path in exported.iterdir() if path.name != RECORD)


def test_transformers_reads_configuration_tokenizer_and_generation(exported, session):
    config = transformers.AutoConfig.from_pretrained(exported)
    assert (type(config).__name__, config.hidden_size) == ("Qwen2Config", session.model.architecture.hidden_size)
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    assert tokenizer("17=")["input_ids"] == session.texts.codec.encode("17=")
    generation = transformers.GenerationConfig.from_pretrained(exported)
    assert (generation.eos_token_id, generation.pad_token_id) == (
        session.texts.codec.stop_ids[0],
        session.texts.codec.pad_id,
    )


def test_types_are_as_requested_and_weights_of_many_bytes_have_several_files(
    finished_run, session, tmp_path, capsys, small_files
):
    arguments = ["--dtype", "bf16", "--step", "4"]
    assert main(["export", str(finished_run), str(tmp_path / "model"), *arguments]) == 0
    assert f"step 4 of {finished_run} as bfloat16" in capsys.readouterr().out
    index = json.loads((tmp_path / "model" / INDEX).read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 2 and files[0] == f"model-00001-of-0000{len(files)}.safetensors"
    assert index["metadata"]["total_size"] == 2 * session.model.architecture.num_parameters
    params, _ = load_run_params(session, finished_run)
    abstract = build_network(session.model.architecture, param_dtype="bfloat16")[1]
    loaded = load_params(tmp_path / "model", session.model.architecture, abstract)
    assert_equal(loaded, jax.tree.map(lambda leaf: np.asarray(leaf).astype(ml_dtypes.bfloat16), params))
    assert json.loads((tmp_path / "model" / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_an_untrained_foreign_checkpoint_is_exported_with_equal_files(foreign, tmp_path, tiny_run):
    settings = {"sft__steps": 1, "sft__batch_size": 2, "evaluation__prompts": 1, "optimizer__weight_decay": 0.0}
    config = tiny_run.config(
        model__path=str(foreign), model__param_dtype="bfloat16", sft__learning_rate=0.0, **settings
    )
    assert sft(config, tmp_path / "run") == 0
    assert export_run(saved(tmp_path / "run"), tmp_path / "run", tmp_path / "out") == 0
    out = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir() if path.name not in (RECORD, CARD)}
    came = {path.name: path.read_bytes() for path in foreign.iterdir()}
    weights = [name for name in came if name.startswith("model")]
    assert len(weights) > 3 and out.keys() == came.keys()
    jsons = {
        name: (json.loads(out[name]), json.loads(came[name])) for name in ("config.json", "generation_config.json")
    }
    assert all(left == right for left, right in jsons.values()), jsons
    assert {name: out[name] for name in out if name not in jsons} == {n: came[n] for n in came if n not in jsons}


def test_a_wider_type_of_a_foreign_checkpoint_keeps_its_other_settings(foreign, tmp_path):
    architecture = read_architecture(foreign)
    _, abstract, _ = build_network(architecture)
    params = load_params(foreign, architecture, abstract)
    write_model(
        tmp_path / "out", architecture, params, TextCodec.load(str(foreign)), str(foreign), {"dtype": "float32"}
    )
    config, source = (json.loads((path / "config.json").read_text()) for path in (tmp_path / "out", foreign))
    assert config == source | {"torch_dtype": "float32"} and source["torch_dtype"] == "bfloat16"
    assert_equal(load_params(tmp_path / "out", architecture, abstract), params)


def test_the_export_stops_wherever_the_run_stopped(foreign, tmp_path):
    """The tokenizer's end of text counts too, where the source's generation_config.json leaves it out."""
    edit(foreign / "generation_config.json", eos_token_id=5, pad_token_id=None)
    codec, architecture = TextCodec.load(str(foreign)), read_architecture(foreign)
    params = load_params(foreign, architecture, build_network(architecture)[1])
    write_model(tmp_path / "out", architecture, params, codec, str(foreign), {"dtype": "float32"})
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert (generation["eos_token_id"], generation["pad_token_id"], generation["top_k"]) == ([1, 5], 0, 20)


def test_an_earlier_export_is_replaced_whole(exported, finished_run, tmp_path, monkeypatch):
    target = tmp_path / "model"
    shutil.copytree(exported, target)
    with monkeypatch.context() as patch:
        patch.setattr("fr3e_jax.verbs.model_directory.MAX_SHARD_BYTES", 2000)
        assert main(["export", str(finished_run), str(target)]) == 0
    assert not (target / "model.safetensors").exists() and (target / INDEX).is_file()
    assert main(["export", str(finished_run), str(target)]) == 0
    assert (target / "model.safetensors").read_bytes() == (exported / "model.safetensors").read_bytes()
    assert not (target / INDEX).exists() and list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("failing", ["save_params", "TextCodec.save"])
def test_a_failed_export_leaves_the_earlier_directory(failing, exported, finished_run, tmp_path, monkeypatch):
    target = tmp_path / "model"
    shutil.copytree(exported, target)
    before = {path.name: path.read_bytes() for path in target.iterdir()}

    def fail(*arguments, **options):
        raise OSError("no space left on device")

    monkeypatch.setattr(f"fr3e_jax.verbs.model_directory.{failing}", fail)
    assert main(["export", str(finished_run), str(target)]) == 2
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before
    assert list(tmp_path.iterdir()) == [target]


def test_files_that_no_export_wrote_are_never_replaced(exported, finished_run, tmp_path, capsys):
    cases = {"model": ("config.json", "was not written by fr3e"), "earlier": ("README.md", "holds README.md, which no")}
    shutil.copytree(exported, tmp_path / "earlier")
    (tmp_path / "model").mkdir()
    for name, (file, message) in cases.items():
        (tmp_path / name / file).write_text("mine")
        assert main(["export", str(finished_run), str(tmp_path / name)]) == 2
        assert message in capsys.readouterr().err and (tmp_path / name / file).read_text() == "mine"
    (tmp_path / "file").write_text("mine")
    assert main(["export", str(finished_run), str(tmp_path / "file")]) == 2
    assert "is a file; expected a directory" in capsys.readouterr().err


def test_supervised_training_refuses_a_foreign_output_directory_before_it_starts(tmp_path, tiny_run, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.json").write_text("{}")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"runtime: {{output_dir: {tmp_path / 'runs'}}}\n")
    assert main(["sft", str(recipe), f"sft.output={tmp_path / 'out'}"]) == 2
    assert "was not written by fr3e" in capsys.readouterr().err and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--step", "99"], "holds no checkpoint of step 99; found the steps"),
        (["--dtype", "int8"], "invalid choice: 'int8'"),
    ],
)
def test_mistakes_are_one_line(finished_run, tmp_path, capsys, arguments, message):
    assert main(["export", str(finished_run), str(tmp_path / "out"), *arguments]) == 2
    captured = capsys.readouterr().err
    assert message in captured and captured.count("\n") == 1 and not (tmp_path / "out").exists()


def test_a_missing_starting_model_is_named(finished_run, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    text = (run / "config.yaml").read_text()
    assert "  path: ''\n" in text
    (run / "config.yaml").write_text(text.replace("  path: ''\n", f"  path: {tmp_path}/gone\n", 1))
    assert main(["export", str(run), str(tmp_path / "out")]) == 2
    assert f"{tmp_path}/gone" in capsys.readouterr().err


def test_the_weights_are_stored_in_the_type_that_the_record_says(exported):
    assert {array.dtype for array in load_file(exported / "model.safetensors").values()} == {np.dtype(np.float32)}
