"""Teachers that do not fit the policy, its tokens or its loss are refused by name."""

from __future__ import annotations

import dataclasses
import json
import shutil

import jax
import pytest
from network_programs import one_device

from fr3e_jax.configuration import ConfigError, load_config
from fr3e_jax.data.tokenizer import TextCodec
from fr3e_jax.policy.architecture import Architecture
from fr3e_jax.policy.config_file import read_architecture
from fr3e_jax.programs.mesh import make_mesh
from fr3e_jax.session.session import open_session
from fr3e_jax.session.teacher import check_tokenizers, open_teacher
from fr3e_jax.verbs.model_directory import save_model


@pytest.fixture(scope="module")
def model(tmp_path_factory, session):
    path = tmp_path_factory.mktemp("teacher") / "model"
    save_model(session, session.model.fresh_params(session.config), path)
    return path


@pytest.fixture
def copied(model, tmp_path):
    """The teacher's directory, copied, with the keys of a JSON file changed."""

    def make(file="config.json", **changes):
        path = tmp_path / "changed"
        shutil.copytree(model, path, dirs_exist_ok=True)
        content = json.loads((path / file).read_text())
        (path / file).write_text(json.dumps(content | changes))
        return path

    return make


def swapped(path):
    """Exchange the ids of 1 and 2: as many tokens, of other texts."""
    content = json.loads((path / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["1"], vocabulary["2"] = vocabulary["2"], vocabulary["1"]
    (path / "tokenizer.json").write_text(json.dumps(content))
    return path


def test_another_tokenizer_is_refused_though_it_has_as_many_tokens(copied, model):
    codec = TextCodec.load("")
    check_tokenizers(str(model), codec)
    with pytest.raises(ValueError, match=r"has another tokenizer: 2 ids differ, as \d+, which is '2' there and '1'"):
        check_tokenizers(str(swapped(copied())), codec)


def test_other_ends_and_openings_and_no_tokenizer_are_refused(copied, model):
    codec = TextCodec.load("")
    plus = codec.tokenizer.get_vocab()["+"]
    ended = copied("generation_config.json", eos_token_id=plus)
    content = json.loads((ended / "tokenizer_config.json").read_text())
    (ended / "tokenizer_config.json").write_text(json.dumps(content | {"eos_token": "+"}))
    with pytest.raises(ValueError, match=r"ends responses with .*, the policy with .*; set rollout.stop_tokens=\["):
        check_tokenizers(str(ended), codec)
    codec.stop_at(["+"], [])
    check_tokenizers(str(ended), codec)
    codec.opening = [3]
    with pytest.raises(ValueError, match="opens texts with nothing, the policy with"):
        check_tokenizers(str(model), codec)
    bare = copied()
    for file in bare.glob("token*"):
        file.unlink()
    with pytest.raises(FileNotFoundError, match="teacher.path=.* has no tokenizer.json .*copy the files"):
        check_tokenizers(str(bare), codec)


@pytest.mark.parametrize(
    ("changes", "settings", "message"),
    [
        (dict(vocab_size=4), {}, r"teacher.path=\S+: it has 4 tokens \(vocab_size\), fewer than the 24"),
        (dict(max_position_embeddings=9), {}, r"teacher.path=\S+: it has 9 positions .* needs 18"),
        (dict(model_type="rwkv"), {}, r"teacher.path=\S+: .*rwkv"),
        (
            {},
            {"loss__function": ""},
            "teacher.place=advantage adds to advantages, which loss.function=.* does not read",
        ),
    ],
    ids=str,
)
def test_networks_and_losses_that_do_not_fit_are_refused(
    copied, session, tiny_run, tmp_path, changes, settings, message
):
    (tmp_path / "mine.py").write_text("def plain(logprobs):\n    return -logprobs\n")
    settings = {name: f"{tmp_path}/mine.py:plain" for name in settings}
    config = tiny_run.config(teacher__path=str(copied(**changes)), **settings)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        open_teacher(config, session.model.architecture, one_device())


@pytest.mark.skipif(jax.device_count() < 4, reason="needs 4 devices")
def test_a_mesh_that_does_not_fit_the_teacher_is_refused(copied, session, tiny_run):
    config = tiny_run.config(teacher__path=str(copied(vocab_size=100_003, hidden_size=18)))
    policy = dataclasses.replace(session.model.architecture, hidden_size=16)
    with pytest.raises(ValueError, match=r"teacher.path=\S+: mesh"):
        open_teacher(config, policy, make_mesh(1, 4, 1, jax.devices()[:4]))


def test_a_teacher_in_int8_keeps_none_of_the_arrays_that_were_loaded(model, session, tiny_run):
    config = tiny_run.config(teacher__path=str(model), teacher__param_dtype="int8")
    teacher = open_teacher(config, session.model.architecture, one_device())
    before = jax.live_arrays()  # held, or an array to come may get the id of one that is gone
    leaves = jax.tree.leaves(teacher.params())
    assert {id(array) for array in jax.live_arrays()} - set(map(id, before)) == {id(leaf) for leaf in leaves}


def test_a_session_that_trains_reads_the_teacher_and_others_do_not(tiny_run, copied):
    broken = copied()
    (broken / "model.safetensors").unlink()
    config = tiny_run.config(teacher__path=str(broken))
    assert open_session(config).model.teacher is None
    teacher = open_session(config, keeps_routes=True).model.teacher
    assert isinstance(read_architecture(broken), Architecture) and teacher.columns == 24
    with pytest.raises(ConfigError, match=r"model.safetensors"):
        teacher.params()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["teacher.weight=2"], "teacher.weight=2.0 has no effect without a teacher; set teacher.path=FOLDER"),
        (["teacher.path=x", "teacher.entropy_share=20"], "teacher.entropy_share"),
    ],
    ids=str,
)
def test_settings_of_a_teacher_that_contradict_each_other(settings, message):
    with pytest.raises(ConfigError, match=message):
        load_config("configs/demo_grpo.yaml", settings)


def test_a_single_rollout_is_enough_for_a_teacher_alone():
    settings = ["teacher.path=x", "teacher.alone=true", "rollout.rollouts_per_prompt=1"]
    assert load_config("configs/demo_grpo.yaml", settings).algorithm == "grpo+teacher"
