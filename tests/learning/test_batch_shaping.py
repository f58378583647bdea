"""Shaping of mini-batches: the contents of the rows however they are cut, GSPO's ratios, the scoring passes."""

from __future__ import annotations

import copy

import jax
import numpy as np
import pytest
from encoded_prompts import prepare

from fr3e_jax.learning.batch_shaping import mini_batch_steps, shape_mini_batch
from fr3e_jax.learning.configured_programs import configured_train_programs
from fr3e_jax.learning.dispatch import finished
from fr3e_jax.learning.experience import TrainingTrunk, count_rollouts
from fr3e_jax.learning.learner import Learner
from fr3e_jax.learning.mini_batches import mini_batches, pack_mini_batch
from fr3e_jax.learning.scoring import score_packed
from fr3e_jax.learning.update import update_policy
from fr3e_jax.loop.first_return import base_trunks, first_return
from fr3e_jax.objectives.losses import aggregation_denominator
from fr3e_jax.policy.network import build_network
from fr3e_jax.programs.mesh import make_mesh
from fr3e_jax.programs.shardings import param_shardings
from fr3e_jax.runs.ledger import TokenLedger

STEP = 3
EVERY_STEP = [
    "overlong_mask",
    "mismatch_mask",
    "perplexity",
    "position",
    "sample_reinforcement",
    "sequence_weighting",
    "forking_tokens",
    "kl_cov",
    "entropy_advantage",
]
SETTINGS = {
    "explore__enabled": False,
    "shaping__steps": EVERY_STEP,
    "shaping__position__window": [0, 300],
    "shaping__forking_tokens__share": 0.5,
    "shaping__kl_cov__share": 0.2,
}


@pytest.fixture(scope="module")
def batch(session, params) -> list[TrainingTrunk]:
    problems = session.task.problems("train")
    groups = first_return(session, params, STEP, prepare(session.texts, [(i, problems[i]) for i in range(4)]))
    trunks = base_trunks(session.config, STEP, groups)
    for trunk in trunks:
        for number, branch in enumerate(trunk.branches):
            branch.finished = number != 0  # an untrained policy finishes hardly any response
    return trunks


@pytest.fixture(scope="module")
def shaping(session, tiny_run):
    return tiny_run.changed(session, **SETTINGS, training__mini_batch_rollouts=16)


@pytest.fixture(scope="module")
def programs(shaping):
    return shaping.model.train_programs(shaping.config)


@pytest.fixture(scope="module")
def alone(shaping, params):
    """The programs of `shaping` on one device, however many exist, and the parameters there."""
    mesh = make_mesh(devices=jax.devices()[:1])
    _, abstract, axes = build_network(shaping.model.architecture)
    shardings = param_shardings(mesh, abstract, axes, shaping.model.architecture)
    programs = configured_train_programs(
        shaping.config, shaping.model.architecture, shaping.model.graphdef, abstract, shardings, mesh
    )
    assert programs.shards == 1
    return programs, jax.device_put(jax.device_get(params), shardings)


@pytest.fixture(scope="module")
def plain(session):
    """Programs of the plain loss."""
    return session.model.train_programs(session.config)


def learner_of(programs, params) -> Learner:
    own = jax.tree.map(lambda leaf: leaf.copy(), params)
    return Learner(programs, own, programs.init_optimizer(own))


def shaped_rows(session, programs, params, batch, tokens: int, tiny_run):
    """Arrays of each branch after all steps, by (trunk, branch); the mini-batch; the metrics."""
    twin = tiny_run.changed(session, training__micro_batch_tokens=tokens)
    learner = learner_of(programs, params)
    packed = [pack_mini_batch(twin.learning, learner, part) for part in mini_batches(twin.learning, STEP, 0, batch)]
    options = {"into": "old_logprobs", "entropies": True}
    scores = finished(score_packed(twin.learning, learner, learner.params, batch, packed, **options))
    assert len(packed) == 1
    metrics = finished(shape_mini_batch(twin.learning, learner, STEP, batch, packed[0], scores))
    found = {}
    for micro in packed[0].micros:
        for p in micro.spans:
            rows = micro.batch
            arrays = (rows.advantages, rows.weights, rows.loss_mask, rows.penalised)
            found[packed[0].members[p.trunk], p.branch] = [array[p.where] for array in arrays]
    return found, packed[0], metrics


def test_micro_batches_and_the_order_of_trunks_change_nothing(shaping, alone, batch, tiny_run):
    programs, params = alone
    whole, _, metrics = shaped_rows(shaping, programs, params, batch, 10_000, tiny_run)
    cut, mini_batch, cut_metrics = shaped_rows(shaping, programs, params, batch, 1, tiny_run)
    assert len(mini_batch.micros) > 1
    assert cut_metrics == pytest.approx(metrics, rel=1e-4, abs=1e-6)
    for key, arrays in whole.items():
        for ours, theirs in zip(cut[key], arrays, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    order = list(reversed(range(len(batch))))
    turned, _, _ = shaped_rows(shaping, programs, params, [batch[i] for i in order], 10_000, tiny_run)
    for (trunk, branch), arrays in whole.items():
        for ours, theirs in zip(turned[order.index(trunk), branch], arrays, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 devices: FR3E_TEST_DEVICES=8 (make test-8)")
def test_eight_devices_shape_as_one_does(shaping, programs, params, alone, batch, tiny_run):
    assert programs.shards > 1
    expected, _, metrics = shaped_rows(shaping, *alone, batch, 10_000, tiny_run)
    found, _, found_metrics = shaped_rows(shaping, programs, params, batch, 10_000, tiny_run)
    assert found_metrics == pytest.approx(metrics, rel=1e-4, abs=1e-6)
    for key, arrays in expected.items():
        for ours, theirs in zip(found[key], arrays, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_selected_tokens_leave_the_rows_and_stay_in_the_denominator(shaping, programs, params, batch, tiny_run):
    found, mini_batch, metrics = shaped_rows(shaping, programs, params, batch, 10_000, tiny_run)
    finished = [branch.finished for trunk in mini_batch.trunks for branch in trunk.branches]
    lengths = [len(branch.token_ids) for trunk in mini_batch.trunks for branch in trunk.branches]
    assert mini_batch.counted.tolist() == [n if ended else 0 for n, ended in zip(lengths, finished, strict=True)]
    kept = sum(int(mask.sum()) for _, _, mask, _ in found.values())
    assert kept == np.ceil(0.5 * sum(mini_batch.counted))
    assert metrics["shaping/forking_tokens/kept"] == pytest.approx(kept / sum(mini_batch.counted))
    assert aggregation_denominator(mini_batch.counted, "token_mean") == mini_batch.counted.sum()
    assert sum(penalised.sum() for *_, penalised in found.values()) == np.floor(0.2 * sum(mini_batch.counted))


def test_the_loss_applies_an_entropy_advantage_at_the_end_of_the_list(shaping, tiny_run):
    assert [step.__name__ for step, _ in mini_batch_steps(shaping.config.shaping)] == EVERY_STEP[:-1]
    twin = tiny_run.changed(shaping, shaping__steps=["entropy_advantage", "forking_tokens"])
    assert [step.__name__ for step, _ in mini_batch_steps(twin.config.shaping)] == [
        "entropy_advantage",
        "forking_tokens",
    ]


@pytest.mark.slow
def test_the_entropy_advantage_is_the_same_in_the_loss_and_before_it(session, plain, params, batch, tiny_run):
    """The other steps do not touch its inputs: as the last step it is in the loss, as the first on scored entropies."""
    results = []
    for steps in (["forking_tokens", "entropy_advantage"], ["entropy_advantage", "forking_tokens"]):
        options = {"shaping__steps": steps, "training__mini_batch_rollouts": count_rollouts(batch)}
        twin = tiny_run.changed(session, explore__enabled=False, **options)
        learner = learner_of(
            twin.model.train_programs(twin.config) if steps[-1] == "entropy_advantage" else plain, params
        )
        metrics = update_policy(twin.learning, learner, STEP, copy.deepcopy(batch), TokenLedger())
        results.append((jax.device_get(learner.params), metrics))
    (first, metrics), (second, other) = results
    assert metrics["loss/policy"] == pytest.approx(other["loss/policy"], rel=1e-5)
    assert 0 < metrics["shaping/entropy_advantage/ratio"] <= 0.5
    for left, right in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-6)


def test_mini_batches_are_scored_again_only_after_an_update(session, plain, params, batch, tiny_run, monkeypatch):
    """The first mini-batch of a full batch is shaped by the scoring pass, each later one by its own."""
    from fr3e_jax.learning import batch_shaping as module

    scored, original = [], module.score_packed

    def noted(session, learner, params, batch, packed, **options):
        scored.append(learner.updates)
        return original(session, learner, params, batch, packed, **options)

    monkeypatch.setattr(module, "score_packed", noted)
    settings = {"explore__enabled": False, "training__mini_batch_rollouts": 4}
    twin = tiny_run.changed(session, **settings, shaping__steps=["sequence_weighting"])
    learner = learner_of(plain, params)
    metrics = update_policy(twin.learning, learner, STEP, copy.deepcopy(batch), TokenLedger())
    assert metrics["updates"] > 1 and scored == list(range(1, int(metrics["updates"])))
    scored.clear()
    still = tiny_run.changed(session, **settings, shaping__steps=["perplexity", "forking_tokens"])
    update_policy(still.learning, learner_of(plain, params), STEP, copy.deepcopy(batch), TokenLedger())
    assert scored == []


GSPO = """
import jax, jax.numpy as jnp

def gspo(logprobs, advantages, sequence_log_ratios, sequence_sampler_gaps):
    ratio = jnp.exp(sequence_log_ratios + logprobs - jax.lax.stop_gradient(logprobs))
    losses = jnp.maximum(-ratio * advantages, -jnp.clip(ratio, 1 - 0.001, 1 + 0.002) * advantages)
    return losses, {"gap": sequence_sampler_gaps}
"""


def test_a_loss_of_the_users_own_reads_ratios_of_whole_responses(session, params, batch, tiny_run, tmp_path):
    """GSPO as a user's function gives the weights of ``loss.ratio=sequence``."""
    (tmp_path / "mine.py").write_text(GSPO)
    settings = {"explore__enabled": False, "training__mini_batch_rollouts": 8}
    clips = {"loss__ratio": "sequence", "loss__epsilon_low": 0.001, "loss__epsilon_high": 0.002}
    shifted, results = copy.deepcopy(batch), []
    for trunk in shifted:
        for branch in trunk.branches:
            branch.sampler_logprobs = branch.sampler_logprobs - 0.25
    for options in (clips, {"loss__function": f"{tmp_path}/mine.py:gspo"}):
        twin = tiny_run.changed(session, **settings, **options)
        learner = learner_of(twin.model.train_programs(twin.config), params)
        metrics = update_policy(twin.learning, learner, STEP, copy.deepcopy(shifted), TokenLedger())
        results.append((metrics, jax.tree.leaves(learner.params)))
    (built_in, expected), (mine, weights) = results
    assert mine["updates"] > 1 and mine["loss/policy"] == pytest.approx(built_in["loss/policy"], rel=1e-5)
    assert mine["loss/gap"] == pytest.approx(0.25, rel=1e-4)
    for left, right in zip(weights, expected, strict=True):
        np.testing.assert_allclose(left, right, atol=1e-6)


def test_a_mini_batch_without_a_token_makes_no_update(session, plain, params, batch, tiny_run):
    twin = tiny_run.changed(session, explore__enabled=False, shaping__steps=["overlong_mask"])
    cut = copy.deepcopy(batch)
    for trunk in cut:
        for branch in trunk.branches:
            branch.finished = False
    learner = learner_of(plain, params)
    metrics = update_policy(twin.learning, learner, STEP, cut, TokenLedger())
    assert metrics["updates"] == learner.updates == 0 and metrics["updates/empty"] >= 1
    for left, right in zip(jax.tree.leaves(learner.params), jax.tree.leaves(params), strict=True):
        np.testing.assert_array_equal(left, right)
