"""Runs whose rollouts read kernels in int8: what they record, what corrects them, and that they go on bit for bit."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from network_programs import dequantised
from run_comparison import assert_same_run
from stops import nth, run_with_stops

from fr3e_jax.configuration import load_config
from fr3e_jax.configuration.sampler_rules import uncorrected
from fr3e_jax.loop import train as train_module
from fr3e_jax.loop.train import train
from fr3e_jax.policy.int8 import SCALE
from fr3e_jax.policy.lora import ADAPTER
from fr3e_jax.policy.rows import run_trunks
from fr3e_jax.rollouts.requests import Branch, Sampling, TrunkRequest
from fr3e_jax.runs.metrics import read_metrics
from fr3e_jax.session.model import Model
from fr3e_jax.session.session import open_session

INT8 = {"rollout__param_dtype": "int8", "loss__importance_cap": 2.0, "training__max_steps": 3}


@pytest.fixture(scope="module")
def narrow(tmp_path_factory, tiny_run):
    """An FR3E run of three steps, and a session of its settings."""
    config, path = tiny_run.config(**INT8), tmp_path_factory.mktemp("int8") / "run"
    assert train(config, path) == 0
    session = open_session(config)
    fresh = session.model.fresh_params(config)
    params = fresh | {"embedding": fresh["embedding"] * 20}  # entropies then differ clearly from token to token
    return SimpleNamespace(config=config, path=path, session=session, params=params)


def test_the_gap_is_measured_by_scoring_every_fresh_token(narrow):
    records = read_metrics(narrow.path / "metrics.jsonl", kind="train")
    assert len(records) == 3
    for record in records:
        assert 1e-4 < record["logprob_gap/mean"] < 0.05 and 0 < record["logprob_gap/kl"] < 1e-3


def test_a_stopped_run_ends_with_the_same_bits(narrow, tmp_path, monkeypatch):
    """The kernels in int8 are no part of a checkpoint: they follow from the weights."""
    run_with_stops(tmp_path / "run", narrow.config, monkeypatch, [nth("explore", 12)])
    assert_same_run(tmp_path / "run", narrow.path, narrow.session)


@pytest.fixture(scope="module")
def sampled(narrow):
    """Base rollouts, then branches from two states of each of two promoted ones; and the weights that sampled them."""
    engine, weights = narrow.session.sampler.engine, narrow.session.sampler.weights.of(narrow.params)
    trunks = [np.array([3, 5, 7, 2], np.int32), np.array([4, 9], np.int32)]
    way = Sampling(stop_ids=(1,))
    requests = [TrunkRequest(t, [Branch(len(t), (0, i, n), 10, way) for n in range(3)]) for i, t in enumerate(trunks)]
    longest = lambda i, rollouts, wait: [int(np.argmax([len(r.token_ids) for r in rollouts]))]
    base, promoted = engine.sample(weights, requests, longest)
    keys = sorted(promoted)
    bases = [promoted[key].token_ids for key in keys]
    forks = [(len(trunks[key[0]]) + 1, len(ids)) for key, ids in zip(keys, bases, strict=True)]
    branches = [[Branch(fork, (1, i, fork), 8, way) for fork in own] for i, own in enumerate(forks)]
    cached = [TrunkRequest(promoted[key], own) for key, own in zip(keys, branches, strict=True)]
    explored, _ = engine.sample(weights, cached)
    found = SimpleNamespace(engine=engine, weights=weights, trunks=trunks, base=base, bases=bases, branches=branches)
    found.explored = explored
    return found


def test_branches_from_promoted_caches_are_those_of_the_flattened_sequence(sampled):
    flat = [TrunkRequest(ids, own) for ids, own in zip(sampled.bases, sampled.branches, strict=True)]
    fresh, _ = sampled.engine.sample(sampled.weights, flat)
    for row, wanted in zip(sampled.explored, fresh, strict=True):
        for ours, theirs in zip(row, wanted, strict=True):
            np.testing.assert_array_equal(ours.token_ids, theirs.token_ids)
            np.testing.assert_allclose(ours.logprobs, theirs.logprobs, rtol=1e-5, atol=1e-5)


def test_recorded_logprobs_and_entropies_are_those_of_the_sampling_policy(narrow, sampled, tiny_run):
    """Of the rounded kernels, not of the trained ones: anchors are placed by what the branches are drawn from."""
    rounded = dequantised(sampled.weights)
    pairs = [(ids, len(ids), rollout) for ids, row in zip(sampled.trunks, sampled.base, strict=True) for rollout in row]
    for ids, own, row in zip(sampled.bases, sampled.branches, sampled.explored, strict=True):
        pairs += [(ids, branch.fork, rollout) for branch, rollout in zip(own, row, strict=True)]
    apart = 0.0
    for ids, fork, rollout in pairs:
        whole = np.concatenate([ids[:fork], rollout.token_ids])
        logprobs, trained = (
            tiny_run.log_softmax(tiny_run.full_logits(narrow.session, params, whole))[fork - 1 : -1]
            for params in (rounded, narrow.params)
        )
        own = np.arange(len(rollout.token_ids)), rollout.token_ids
        np.testing.assert_allclose(rollout.logprobs, logprobs[own], atol=1e-4)
        np.testing.assert_allclose(rollout.entropies, -(np.exp(logprobs) * logprobs).sum(axis=-1), atol=1e-4)
        apart = max(apart, np.abs(rollout.logprobs - trained[own]).max())
    assert apart > 1e-2, "the trained policy is another one"


def test_adapters_stay_in_their_type_beside_a_base_in_int8(tiny_run):
    settings = INT8 | {"model__lora__rank": 2, "model__lora__alpha": 4.0, "model__lora__rollouts": "product"}
    session = open_session(tiny_run.config(**settings))
    fresh = session.model.fresh_params(session.config)
    adapters = jax.tree.map(lambda leaf: leaf + jnp.float32(0.1), fresh)
    weights = session.sampler.weights.of(adapters)
    query = weights["layers"][0]["attention"]["query"]
    assert query["kernel"].dtype == jnp.int8 and SCALE in query and query[ADAPTER]["a"].dtype == jnp.float32
    np.testing.assert_array_equal(query[ADAPTER]["a"], adapters["layers"][0]["attention"]["query"][ADAPTER]["a"])
    ids = np.tile(np.array([3, 1, 4, 1, 5, 9, 2, 6], np.int32), (8, 1))
    found = session.sampler.engine.programs.prefill(weights, ids).hidden
    expected = jax.jit(run_trunks, static_argnums=0)(session.model.graphdef, dequantised(weights), ids).hidden
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("overrides", "cap"),
    [
        ([], 0.0),
        (["rollout.param_dtype=int8"], 2.0),
        (["rollout.param_dtype=int8", "loss.importance_cap=0"], 0.0),
        (["rollout.param_dtype=int8", "loss.importance_cap=3"], 3.0),
        (["rollout.param_dtype=bfloat16"], 2.0),
        (["rollout.param_dtype=bfloat16", "model.compute_dtype=bfloat16"], 0.0),
        (["rollout.param_dtype=bfloat16", "model.param_dtype=bfloat16"], 0.0),
        (["model.lora.rank=4", "model.param_dtype=bfloat16"], 2.0),
        (["model.lora.rank=4", "model.param_dtype=bfloat16", "model.lora.rollouts=product"], 0.0),
    ],
    ids=lambda x: ",".join(x) or "defaults" if isinstance(x, list) else None,
)
def test_importance_weights_are_on_where_the_sampler_differs_unless_the_recipe_says(overrides, cap):
    assert load_config("demo_fr3e", overrides).loss.importance_cap == cap


def test_a_run_without_the_correction_says_so(tiny_run, tmp_path, capsys, monkeypatch):
    config = tiny_run.config(**INT8 | {"loss__importance_cap": 0.0, "runtime__console": "plain"})
    monkeypatch.setattr(train_module, "train_steps", lambda run: None)
    assert train(config, tmp_path / "run") == 0
    assert "rollout.param_dtype=int8: rollouts are sampled from other numbers" in capsys.readouterr().out
    config.loss.importance_cap = 2.0
    assert not [*uncorrected(config)]


def test_a_run_from_weights_that_are_not_finite_ends_in_a_line(tiny_run, tmp_path, capsys, monkeypatch):
    """One number of one kernel is enough: the scale of its channel is NaN, and so is every logit."""
    fresh = Model.fresh_params

    def ruined(model, config):
        params = fresh(model, config)
        kernel = params["layers"][0]["down"]["kernel"]
        params["layers"][0]["down"]["kernel"] = kernel.at[3, 1].set(jnp.inf)
        return params

    monkeypatch.setattr(Model, "fresh_params", ruined)
    assert train(tiny_run.config(**INT8), tmp_path / "run") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fr3e: stopped at step 0: the logits of") and "choose others" in line
