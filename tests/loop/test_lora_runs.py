"""Runs that train adapters: what a checkpoint holds, resumption, export and a start from an adapter."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from run_comparison import assert_same_run, newest, reader
from stops import nth, run_with_stops

from fr3e_jax.configuration import ConfigError, load_config
from fr3e_jax.configuration.lora_section import LoraConfig
from fr3e_jax.data.tokenizer import TextCodec
from fr3e_jax.loop.train import train
from fr3e_jax.policy.huggingface import load_params
from fr3e_jax.policy.lora import Adapted, adapter_pairs, joined
from fr3e_jax.policy.network import initial_params
from fr3e_jax.runs.checkpoint_content import flatten_arrays
from fr3e_jax.runs.metrics import read_metrics
from fr3e_jax.session.model import configured_architecture
from fr3e_jax.session.run_weights import load_run_params
from fr3e_jax.session.session import open_session
from fr3e_jax.verbs.export import export_run
from fr3e_jax.verbs.model_directory import write_model
from fr3e_jax.verbs.supervised.demonstrations import sft

LORA = {"model__lora__rank": 2, "model__lora__alpha": 4.0, "kl__coefficient": 0.1}


def write_base(directory, config, seed):
    codec = TextCodec.load()
    architecture = configured_architecture(config, len(codec))
    params = initial_params(architecture, jax.random.key(seed))
    write_model(directory, architecture, params, codec, "", {"dtype": "float32"})
    return params


@pytest.fixture(scope="module")
def adapted(tmp_path_factory, tiny_run):
    """A run of three steps, its base, and a session of its own."""
    folder = tmp_path_factory.mktemp("adapted")
    base = write_base(folder / "base", tiny_run.config(), seed=3)
    settings = LORA | {"model__path": str(folder / "base")}
    config = lambda steps, **others: tiny_run.config(**settings | {"training__max_steps": steps} | others)
    whole = folder / "whole"
    assert train(config(3), whole) == 0
    session = open_session(config(3))
    runs = dict(folder=folder, base=base, config=config, whole=whole)
    return SimpleNamespace(**runs, session=session, saved=newest(whole, session))


def bits(tree):
    return {name: np.asarray(leaf).tobytes() for name, leaf in flatten_arrays(tree).items()}


@pytest.mark.slow
def test_a_stopped_run_of_adapters_ends_equal(adapted, tmp_path, monkeypatch):
    """The signal comes between two mini-batches: adapters and moments have moved, the step has not ended."""
    run_with_stops(tmp_path / "run", adapted.config(3), monkeypatch, [nth("update", 3)])
    assert_same_run(tmp_path / "run", adapted.whole, adapted.session)


def test_a_checkpoint_holds_adapters_and_no_base(adapted):
    arrays, host = adapted.saved
    session = adapted.session
    start = session.model.fresh_params(session.config)
    assert all("/adapter/" in name for name in flatten_arrays(arrays["params"]))
    sizes = {part: sum(leaf.size for leaf in jax.tree.leaves(arrays[part])) for part in arrays}
    assert sizes["reference"] == sizes["params"] and sizes["optimizer"] == pytest.approx(2 * sizes["params"], abs=3)
    assert bits(arrays["reference"]) == bits(start), "the reference is the base: new adapters, which add 0"
    moved = bits(arrays["params"])
    assert all(moved[name] != value for name, value in bits(start).items())
    assert host["identity"]["base_weights"] == session.model.base_fingerprint()


def test_the_sampler_reads_what_is_trained(adapted):
    """The merged copy's log-probs are the trainer's, and the base moves as far as the metric says."""
    records = [record for record in read_metrics(adapted.whole / "metrics.jsonl") if record["kind"] == "train"]
    assert max(record["logprob_gap/max"] for record in records) < 1e-5
    assert records[0]["lora/relative_change"] < records[-1]["lora/relative_change"]


def test_product_makes_no_copy_and_samples_from_the_same_policy(adapted):
    session = open_session(adapted.config(3, model__lora__rollouts="product"))
    weights, params = session.sampler.weights, adapted.saved[0]["params"]
    assert adapted.session.sampler.weights.copies and not weights.copies
    whole = weights.of(params)
    held = {id(leaf) for leaf in jax.tree.leaves((params, session.model.base.params()))}
    assert {id(leaf) for leaf in jax.tree.leaves(whole)} == held
    ids = np.tile(np.array([3, 1, 4, 1, 5, 9, 2, 6], np.int32), (8, 1))
    merged = adapted.session.sampler.weights.of(params)
    logits = [
        one.sampler.engine.programs.prefill(read, ids).hidden
        for one, read in ((session, whole), (adapted.session, merged))
    ]
    np.testing.assert_allclose(*logits, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_adapters_in_float32_on_a_base_in_bfloat16_are_sampled_without_a_gap(adapted, tmp_path):
    """With ``product`` nothing is rounded between training and rollouts."""
    types = {"model__param_dtype": "bfloat16", "model__lora__rollouts": "product"}
    types |= {"kl__coefficient": 0.0, "explore__enabled": False}
    config = adapted.config(2, evaluation__samples=0, evaluation__pass_at=[], **types)
    assert train(config, tmp_path / "run") == 0
    records = [record for record in read_metrics(tmp_path / "run" / "metrics.jsonl") if record["kind"] == "train"]
    assert records[1]["lora/relative_change"] > 0.01 and records[1]["logprob_gap/max"] < 1e-5
    session = open_session(config)
    base = jax.tree.leaves(session.model.base.params())
    assert {leaf.dtype.name for leaf in base} == {"bfloat16"}
    arrays, _ = newest(tmp_path / "run", session)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(arrays["params"])} == {"float32"}
    saved = load_config(tmp_path / "run" / "config.yaml", training=False)
    assert export_run(saved, tmp_path / "run", tmp_path / "exported", dtype="float32") == 0
    float32 = jax.tree.map(lambda x: x.update(dtype=np.float32), session.model.base.abstract)
    found = load_params(tmp_path / "exported", session.model.architecture, float32)
    of_base = flatten_arrays(session.model.base.params())
    for kernel, adapter in adapter_pairs(Adapted(found, arrays["params"])):
        name = next(name for name, leaf in flatten_arrays(found).items() if leaf is kernel)
        expected = np.float64(of_base[name]) + 2.0 * np.float64(adapter["a"]) @ np.float64(adapter["b"])
        np.testing.assert_allclose(kernel, expected, rtol=1e-6, atol=1e-7, err_msg="rounded to the base's type")


def test_the_export_is_the_base_with_its_adapters_merged(adapted):
    directory, config = adapted.folder / "merged", load_config(adapted.whole / "config.yaml", training=False)
    assert export_run(config, adapted.whole, directory) == 0
    session, (arrays, _) = adapted.session, adapted.saved
    base = session.model.base
    found = load_params(directory, session.model.architecture, base.abstract)
    expected = {name: leaf for name, leaf in flatten_arrays(base.params()).items()}
    changed = 0
    for kernel, adapter in adapter_pairs(Adapted(found, arrays["params"])):
        changed += 1
        name = next(name for name, leaf in flatten_arrays(found).items() if leaf is kernel)
        product = np.float64(adapter["a"]) @ np.float64(adapter["b"])
        np.testing.assert_allclose(kernel, np.float64(expected.pop(name)) + 2.0 * product, rtol=1e-6, atol=1e-7)
    assert changed == 7
    found = bits(found)
    assert expected and all(found[name] == np.asarray(leaf).tobytes() for name, leaf in expected.items())


def test_an_exported_adapter_starts_a_run_and_brings_its_settings(adapted):
    directory, config = adapted.folder / "adapter", load_config(adapted.whole / "config.yaml", training=False)
    assert export_run(config, adapted.whole, directory, adapter=True) == 0
    assert json.loads((directory / "adapter_config.json").read_text())["base_model_name_or_path"] == config.model.path
    start = adapted.config(3, model__lora__rank=0, model__lora__alpha=16.0, model__lora__path=str(directory))
    session = open_session(start)
    assert (start.model.lora.rank, start.model.lora.alpha) == (2, 4.0)
    assert bits(session.model.fresh_params(start)) == bits(adapted.saved[0]["params"])
    with pytest.raises(ConfigError, match=r"rank=4, alpha=4.* are not those of .*rank=2, alpha=4.*leave them out"):
        open_session(adapted.config(3, model__lora__rank=4, model__lora__path=str(directory)))


def test_an_adapter_without_a_base_that_others_have_is_not_exported(adapted, tmp_path):
    config = load_config(adapted.whole / "config.yaml", training=False)
    with_model = lambda **changes: dataclasses.replace(config, model=dataclasses.replace(config.model, **changes))
    for changed, message in (
        (with_model(path=""), "random weights of seed .* leave it out to export the merged model"),
        (with_model(lora=LoraConfig()), "trained all weights .* leave it out"),
    ):
        with pytest.raises(ConfigError, match=message):
            export_run(changed, adapted.whole, tmp_path / "out", adapter=True)


def test_another_base_than_before_is_refused(adapted, tiny_run):
    other = adapted.folder / "other"
    write_base(other, tiny_run.config(), seed=4)
    config = adapted.config(4, model__path=str(other))
    with pytest.raises(ConfigError, match="network, base or teacher: base weights: .* in the checkpoint"):
        train(config, adapted.whole, resume=True)
    with pytest.raises(ValueError, match="were trained on other base weights"):
        load_run_params(open_session(config), adapted.whole)


def test_supervised_adapters_end_in_a_merged_model(adapted, tmp_path, tiny_run):
    settings = {"sft__steps": 2, "sft__batch_size": 2, "evaluation__prompts": 1, "sft__start": "model"}
    config = adapted.config(1, **settings)
    assert sft(config, tmp_path / "run") == 0
    session = adapted.session
    with reader(tmp_path / "run") as checkpoints:
        arrays, _ = checkpoints.restore(2, {"params": session.model.sharded_abstract_params()}, partial=True)
    wanted = session.model.whole(arrays["params"])
    found = load_params(tmp_path / "run" / "model", session.model.architecture, session.model.base.abstract)
    assert bits(found) == bits(wanted) != bits(session.model.base.params())
    with pytest.raises(ConfigError, match="sft.start=random .* leave model.lora out"):
        sft(adapted.config(1, **settings | {"sft__start": "random"}), tmp_path / "other")


@pytest.mark.slow
def test_a_critic_starts_from_base_and_adapters(adapted, tmp_path):
    """PPO: the critic is a whole network of its own, and begins as the policy that the adapters make."""
    directory = adapted.folder / "critic_start"
    config = load_config(adapted.whole / "config.yaml", training=False)
    assert export_run(config, adapted.whole, directory, adapter=True) == 0
    settings = {"explore__enabled": False, "advantage__base_estimator": "gae", "critic__learning_rate": 0.0}
    ppo = adapted.config(1, model__lora__rank=0, model__lora__alpha=16.0, model__lora__path=str(directory), **settings)
    assert train(ppo, tmp_path / "ppo") == 0
    session = open_session(ppo)
    arrays, _ = newest(tmp_path / "ppo", session)
    start = session.model.whole(session.model.fresh_params(ppo))
    assert bits(arrays["critic"]["params"]["network"]) == bits(start)
    assert jax.tree.structure(joined(Adapted(start, arrays["params"]))) != jax.tree.structure(start)
