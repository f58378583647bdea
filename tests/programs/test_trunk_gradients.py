"""Trunk tokens that train: scores, values and gradients equal those of the same tokens as a branch of their own."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from network_programs import assert_close, one_device, placed, train_programs
from packed_trunks import training_trunk

from fr3e_jax.learning.mini_batches import MiniBatch, read_spans
from fr3e_jax.learning.packing import pack
from fr3e_jax.policy.rows import predictors, row_pass
from fr3e_jax.programs.mesh import make_mesh
from fr3e_jax.programs.train_programs import LossSettings

OPTIONS = dict(tokens=150, pad_id=0, aggregation="seq_mean_token_mean")
DENOMINATOR, TEMPERATURE = 9.0, 0.8


def trunks():
    """Bases that train beside branches from two states each, and a prompt with two responses; tokens below 20."""
    made = []
    for seed, prompt, response, branches in ((1, 4, 21, [(9, 12), (17, 5)]), (2, 3, 9, [(4, 8), (11, 1)])):
        trunk = training_trunk(seed, prompt + response, [*branches, (prompt, response)])
        trunk.branches[-1].token_ids, trunk.branches[-1].on_trunk = trunk.token_ids[prompt:], True
        made.append(trunk)
    return [*made, training_trunk(3, 6, [(6, 7), (6, 3)])]


def run(network, mesh, *, trained_trunks, scored=False, **options):
    """Log-probs ``[trunk][branch]`` of the gradient's pass, gradients, and the loss of a mini-batch.

    If ``scored``, the scoring program has the same log-probs.
    """
    loss = LossSettings(entropy_coefficient=0.05)
    programs = train_programs(network, mesh, loss=loss, chunk=16, **options)
    params, batch = placed(network, mesh), trunks()
    micros = pack(batch, **OPTIONS, shards=programs.shards, trained_trunks=trained_trunks)
    gradients, total, scores = programs.zero_gradients(params), 0.0, []
    for micro in micros:
        gradients, sums = programs.accumulate(params, gradients, micro.batch, DENOMINATOR, TEMPERATURE, 1.0)
        total += float(sums["loss"])
        scores.append(np.asarray(sums["logprobs"]))
        if scored:
            found = programs.score(params, micro.batch.rows, TEMPERATURE)[0]
            np.testing.assert_allclose(found, scores[-1], rtol=1e-5, atol=1e-5)
    logprobs = [[np.zeros(0)] * len(trunk.branches) for trunk in batch]
    read_spans(MiniBatch(list(range(len(batch))), batch, micros), scores, logprobs)
    positions = sum(micro.positions for micro in micros)
    return SimpleNamespace(found=(logprobs, jax.device_get(gradients), total), positions=positions)


@pytest.fixture(scope="module")
def network(tiny_network):
    sizes = dict(vocab_size=40, hidden_size=64, num_heads=4, num_kv_heads=2, head_dim=16, intermediate_size=64)
    return tiny_network(**sizes, model_type="gemma2", windows=(7, 0), num_layers=2)


@pytest.fixture(scope="module")
def apart(network):
    """All bases as branches of their prompts."""
    return run(network, one_device(), trained_trunks=False)


def test_scores_and_gradients_of_trunk_tokens_equal_those_of_a_branch(network, apart):
    ours = run(network, one_device(), trained_trunks=True, scored=True)
    assert ours.positions < apart.positions
    assert_close(ours.found, apart.found)


@pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 devices: FR3E_TEST_DEVICES=8 (make test-8)")
def test_trunk_tokens_of_split_rows_in_fused_kernels_equal_those_of_a_branch(network, apart):
    mesh = make_mesh(1, 2, 2, context=2)
    assert_close(run(network, mesh, trained_trunks=True, attention="pallas", scan=True).found, apart.found)


def test_routers_decide_on_trunk_tokens_as_on_those_of_a_branch(tiny_network):
    moe = dict(model_type="qwen3_moe", num_experts=6, experts_per_token=2, expert_size=12, head_dim=8)
    network = tiny_network(vocab_size=40, hidden_size=32, num_heads=4, num_kv_heads=2, num_layers=1, **moe)
    found, read = [], jax.jit(lambda p, rows, counted: row_pass(network.graphdef, p, rows, counted=counted)[1])
    for trained_trunks in (True, False):
        micros = pack(trunks(), tokens=1000, pad_id=0, trained_trunks=trained_trunks)
        parts = [read(network.params, micro.batch.rows, micro.batch.loss_mask) for micro in micros]
        found.append(jax.tree.map(lambda *parts: np.sum(parts, axis=0), *parts))
    ours, apart = found
    assert ours.tokens.sum() == 2 * sum(len(one.token_ids) for trunk in trunks() for one in trunk.branches)
    np.testing.assert_array_equal(ours.tokens, apart.tokens)
    np.testing.assert_allclose(ours.probabilities, apart.probabilities, rtol=1e-5)
    np.testing.assert_allclose(ours.entropy, apart.entropy, rtol=1e-5)


def test_a_trunk_token_is_predicted_by_the_token_before_it():
    (micro,) = pack(trunks()[1:2], tokens=1000, pad_id=0, trained_trunks=True)
    rows = micro.batch.rows
    (stem,) = [p for p in micro.spans if p.start >= rows.lanes * p.capacity]
    found = np.asarray(predictors(rows))[0, stem.start : stem.start + stem.length]
    np.testing.assert_array_equal(found, np.arange(3, 11) - 1)
    np.testing.assert_array_equal(rows.trunk_ids[0, found + 1], trunks()[1].branches[2].token_ids[:8])
