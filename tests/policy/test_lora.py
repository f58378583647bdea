"""Low-rank adapters: what they add to a network, and their files in PEFT's format."""

from __future__ import annotations

import dataclasses
import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fr3e_jax.configuration.lora_section import TARGETS
from fr3e_jax.policy.adapter_files import CONFIG, WEIGHTS, load_adapters, read_adapter_settings, save_adapters
from fr3e_jax.policy.architecture import UnsupportedModel
from fr3e_jax.policy.lora import (
    Adapted,
    LoraSettings,
    build_adapted_network,
    check_fits,
    initial_adapters,
    joined,
    merged,
    split,
)

LORA = LoraSettings(rank=2, alpha=6.0, targets=TARGETS)
SEQUENCES = [np.array([3, 17, 0, 5, 9, 11])]


def adapted(network, lora=LORA):
    """The network of ``joined`` parameters, new adapters, and the same after training."""
    graphdef, abstract, _ = build_adapted_network(network.architecture, lora)
    new = initial_adapters(network.architecture, lora, abstract.adapters, jax.random.key(1))
    rng = np.random.default_rng(2)
    moved = jax.tree.map(lambda leaf: np.asarray(leaf + 0.3 * rng.standard_normal(leaf.shape), np.float32), new)
    return network._replace(graphdef=graphdef), new, moved


def with_params(network, params):
    [logits] = network._replace(params=params).full_logits(SEQUENCES)
    return logits


def test_new_adapters_change_no_bit_of_the_logits(tiny):
    network, new, _ = adapted(tiny)
    [base] = tiny.full_logits(SEQUENCES)
    assert with_params(network, joined(Adapted(tiny.params, new))).tobytes() == base.tobytes()
    whole = merged(LORA.scale, Adapted(tiny.params, new))
    for kernel, before in zip(*map(jax.tree.leaves, (whole, tiny.params)), strict=True):
        assert np.asarray(kernel).tobytes() == before.tobytes()


def test_merged_weights_have_the_logits_of_base_and_adapters(tiny):
    network, _, moved = adapted(tiny)
    beside = with_params(network, joined(Adapted(tiny.params, moved)))
    into = with_params(tiny, merged(LORA.scale, Adapted(tiny.params, moved)))
    [base] = tiny.full_logits(SEQUENCES)
    np.testing.assert_allclose(into, beside, rtol=1e-5, atol=1e-4)
    assert np.abs(beside - base).max() > 1


def test_a_joined_tree_splits_into_its_parts(tiny):
    _, new, _ = adapted(tiny)
    base, adapters = split(joined(Adapted(tiny.params, new)))
    assert jax.tree.structure(base) == jax.tree.structure(tiny.params)
    assert jax.tree.structure(adapters) == jax.tree.structure(new)


def test_adapters_stand_at_their_targets_alone(tiny):
    _, abstract, _ = build_adapted_network(
        tiny.architecture, dataclasses.replace(LORA, targets=("q_proj", "down_proj"))
    )
    layer = abstract.adapters["layers"][1]
    assert sorted(layer) == ["attention", "down"] and sorted(layer["attention"]) == ["query"]
    assert [layer["down"]["adapter"][part].shape for part in "ab"] == [(48, 2), (2, 32)]


def test_first_factors_are_uniform_as_those_of_peft(tiny):
    """±1/√in: kaiming_uniform_ with a = √5."""
    wide = dataclasses.replace(tiny.architecture, hidden_size=1024, intermediate_size=64)
    abstract = build_adapted_network(wide, LORA)[1].adapters
    drawn = initial_adapters(wide, LORA, abstract, jax.random.key(0))["layers"][0]["gate"]["adapter"]
    assert np.abs(drawn["a"]).max() == pytest.approx(1024**-0.5, rel=0.01)
    assert np.std(drawn["a"]) == pytest.approx(1024**-0.5 / np.sqrt(3), rel=0.05)
    assert not np.any(drawn["b"])


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        (LoraSettings(17, 1.0, ("q_proj",)), "rank=17 is more than the 16 rows .* expected at most 16"),
        (LoraSettings(1, 1.0, ("c_attn",)), "no projection c_attn; expected some of"),
    ],
)
def test_adapters_that_the_network_cannot_have_are_refused(tiny, lora, message):
    with pytest.raises(UnsupportedModel, match=message):
        check_fits(tiny.architecture, lora)


@pytest.fixture
def directory(tiny, tmp_path):
    _, _, moved = adapted(tiny)
    save_adapters(tmp_path, tiny.architecture, LORA, moved, base="somewhere", dtype="float32")
    return tmp_path


def test_a_pinned_base_is_an_id_and_its_revision_to_peft(tiny, tmp_path):
    save_adapters(tmp_path, tiny.architecture, LORA, adapted(tiny)[2], base="Org/Name@0123abc", dtype="float32")
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == ("Org/Name", "0123abc")
    assert read_adapter_settings(tmp_path) == LORA


def loaded(tiny, directory):
    _, abstract, _ = build_adapted_network(tiny.architecture, LORA)
    everywhere = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shardings = jax.tree.map(lambda _: everywhere, abstract.adapters)
    return load_adapters(directory, tiny.architecture, LORA, abstract.adapters, shardings)


def test_adapters_come_back_from_their_files_to_the_last_bit(tiny, directory):
    assert read_adapter_settings(directory) == LORA
    _, _, moved = adapted(tiny)
    found = loaded(tiny, directory)
    assert jax.tree.structure(found) == jax.tree.structure(moved)
    for ours, theirs in zip(*map(jax.tree.leaves, (found, moved)), strict=True):
        assert np.asarray(ours).tobytes() == theirs.tobytes()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"use_dora": True}, "use_dora=True .magnitudes"),
        ({"peft_type": "IA3"}, "peft_type='IA3' .expected 'LORA'"),
        ({"rank_pattern": {"q_proj": 4}}, "ranks that differ"),
        ({"bias": "all"}, "bias='all' .trained biases"),
        ({"init_lora_weights": "pissa_niter_4"}, "changed the weights of its base"),
        ({"r": 0, "lora_alpha": None}, r"r=0 .expected a positive integer.; lora_alpha=None"),
        ({"target_modules": ".*_proj"}, "expected a list of names"),
        ({"layer_replication": [[0, 4], [2, 5]]}, "layers that are built several times"),
        ({"use_new_lora": True, "loftq_config": {}, "other": None}, "has use_new_lora=True .an unknown setting.; only"),
    ],
)
def test_settings_of_peft_that_change_an_adapter_are_refused_by_name(directory, setting, message):
    path = directory / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | setting))
    with pytest.raises(UnsupportedModel, match=f"{message}.*merge_and_unload"):
        read_adapter_settings(directory)


def test_dropout_of_an_adapter_is_named(directory, caplog):
    path = directory / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | {"lora_dropout": 0.05}))
    assert read_adapter_settings(directory) == LORA
    assert f"{path} has lora_dropout=0.05; training goes on without dropout" in caplog.text


def test_files_that_do_not_fit_are_refused_by_name(tiny, directory):
    tensors = load_file(directory / WEIGHTS)
    first, second, third, *_ = sorted(tensors)
    tensors["other"] = tensors.pop(first)
    tensors[second] = tensors[second][:, :1].copy()
    tensors[third] = tensors[third].astype(np.int32)
    save_file(tensors, directory / WEIGHTS)
    with pytest.raises(UnsupportedModel) as error:
        loaded(tiny, directory)
    for part in ("unexpected other", f"missing {first}", f"{second} has shape", f"{third} is of type I32"):
        assert part in str(error.value)
    (directory / WEIGHTS).unlink()
    with pytest.raises(UnsupportedModel, match=f"no {WEIGHTS} in"):
        loaded(tiny, directory)
    (directory / CONFIG).unlink()
    with pytest.raises(FileNotFoundError, match=f"no {CONFIG} in .* as PEFT's save_pretrained"):
        read_adapter_settings(directory)
