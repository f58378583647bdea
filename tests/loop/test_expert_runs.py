"""Runs of a network with experts: recorded routes in the rows of FR3E, resumption, export, and refusals."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from run_comparison import assert_same_run
from stops import nth, run_with_stops

import fr3e_jax.learning.mini_batches as mini_batches
from fr3e_jax.configuration import ConfigError
from fr3e_jax.data.tokenizer import TextCodec
from fr3e_jax.loop.train import train
from fr3e_jax.policy.architecture import Architecture
from fr3e_jax.policy.network import initial_params
from fr3e_jax.runs.metrics import read_metrics
from fr3e_jax.session.session import open_session
from fr3e_jax.verbs.model_directory import write_model

EXPERTS = dict(model_type="qwen3_moe", num_experts=4, experts_per_token=2, expert_size=12, norm_topk_prob=True)


def write_mixture(directory, **changes):
    codec = TextCodec.load()
    sizes = dict(hidden_size=16, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=8, intermediate_size=32)
    architecture = Architecture(vocab_size=len(codec), **sizes | EXPERTS | changes)
    params = initial_params(architecture, jax.random.key(3))
    write_model(directory, architecture, params, codec, "", {"dtype": "float32"})


@pytest.fixture(scope="module")
def mixture(tmp_path_factory, tiny_run):
    """A run of three steps, whose micro-batches are watched."""
    folder, seen = tmp_path_factory.mktemp("mixture"), []
    write_mixture(folder / "base", dense_layers=(0,))
    settings = {"model__path": str(folder / "base"), "evaluation__every": 0, "training__max_steps": 3}
    settings |= {"model__experts__balance_coefficient": 0.1}
    config = lambda **others: tiny_run.config(**settings | others)
    packed = mini_batches.pack

    def watched(*arguments, **options):
        found = packed(*arguments, **options)
        seen.extend(found)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mini_batches, "pack", watched)
        assert train(config(), folder / "whole") == 0
    session = open_session(config())
    return SimpleNamespace(folder=folder, config=config, seen=seen, session=session)


def test_every_token_of_a_run_trains_on_its_recorded_route(mixture):
    assert len(mixture.seen) >= 3
    for micro in mixture.seen:
        rows = micro.batch.rows
        assert rows.trunk_routes.shape[1] == rows.branch_routes.shape[1] == 2  # one sparse layer
        for routes, real in ((rows.trunk_routes, rows.trunk_segment > 0), (rows.branch_routes, rows.segment > 0)):
            chosen = np.moveaxis(routes, 1, -1)[real]
            assert (chosen[:, 0] != chosen[:, 1]).all(), "a token's experts are two"


def test_log_probs_of_sampler_and_trainer_are_equal(mixture):
    records = [r for r in read_metrics(mixture.folder / "whole" / "metrics.jsonl") if r["kind"] == "train"]
    gaps = [r["logprob_gap/max"] for r in records if "logprob_gap/max" in r]  # a step may train carried trunks alone
    assert gaps and max(gaps) < 1e-5


def test_metrics_of_routers_are_those_of_the_trained_tokens(mixture):
    records = [r for r in read_metrics(mixture.folder / "whole" / "metrics.jsonl") if r["kind"] == "train"]
    assert len(records) == 3
    for record in records:
        assert 1 <= record["router/busiest_expert"] <= record["router/busiest_expert_max"] <= 2
        assert 0 < record["router/entropy"] < np.log(4) and record["loss/balance"] > 0
        assert 0 <= record["router/changed_routes"] < 0.5


def test_only_rollouts_that_may_train_record_routes(mixture):
    assert mixture.session.sampler.engine.programs.routes == 0
    assert open_session(mixture.config(), keeps_routes=True).sampler.engine.programs.routes == 2


@pytest.mark.slow
def test_a_run_with_experts_stopped_inside_a_step_ends_equal(mixture, tmp_path, monkeypatch):
    run_with_stops(tmp_path / "run", mixture.config(), monkeypatch, [nth("first_return", 9)])
    assert_same_run(tmp_path / "run", mixture.folder / "whole", mixture.session)


REFUSED = [
    ({"rollout__param_dtype": "int8"}, "experts/.*set rollout.param_dtype=bfloat16"),
    ({"training__scan_layers": True}, "1 of 2 layers have experts, .* set training.scan_layers=false"),
    ({"advantage__base_estimator": "gae", "explore__enabled": False}, "a critic with experts is not supported"),
    (
        {"model__experts__balance_coefficient": 0.1, "model__lora__rank": 2, "model__lora__targets": ["q_proj"]},
        "balance_coefficient=0.1: with adapters routers do not train; set model.experts.balance_coefficient=0",
    ),
    (
        {"model__lora__rank": 2, "model__experts__balance_coefficient": 0},
        r"gate_proj: experts have no adapters; set model.lora.targets=\[q_proj,k_proj,v_proj,o",
    ),
]


@pytest.mark.parametrize(
    ("settings", "message"), REFUSED, ids=lambda value: next(iter(value)) if isinstance(value, dict) else ""
)
def test_settings_that_experts_lack_are_refused_with_the_way_out(mixture, settings, message):
    with pytest.raises((ConfigError, ValueError), match=message):
        open_session(mixture.config(**settings))


def test_a_loss_for_balance_without_experts_is_refused(tiny_run):
    with pytest.raises(ValueError, match="balance_coefficient=0.1: the network has no experts; set .*_coefficient=0"):
        open_session(tiny_run.config(model__experts__balance_coefficient=0.1))


def test_an_axis_of_experts_without_experts_is_refused(tiny_run):
    config = tiny_run.config(mesh__expert=jax.device_count(), mesh__fsdp=1)
    if jax.device_count() == 1:
        config.mesh.expert = 2
        with pytest.raises(ValueError, match="mesh.expert=2"):
            open_session(config)
        return
    with pytest.raises(ValueError, match="the network has no experts; set mesh.expert=1"):
        open_session(config)
