"""Router replay: the sampler records the experts of every token, and the trainer passes the same ones."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from network_programs import decoder_on, one_device, placed, train_programs

from fr3e_jax.configuration.experts_section import ExpertsConfig
from fr3e_jax.learning.experience import TrainingBranch, TrainingTrunk
from fr3e_jax.learning.packing import pack
from fr3e_jax.learning.routers import balance_of, router_metrics
from fr3e_jax.policy.rows import row_states, run_trunks
from fr3e_jax.programs.row_scorer import RowScorer
from fr3e_jax.programs.shapes import Shapes
from fr3e_jax.rollouts.requests import Branch, Sampling, TrunkRequest

PLAIN = Sampling(temperature=1.0)
PROMPTS = [np.array([3, 17, 0, 5, 9, 11, 2, 8], np.int32), np.array([1, 4, 19], np.int32)]
SIZES = dict(model_type="qwen3_moe", num_layers=3, num_experts=6, experts_per_token=2, expert_size=12)


def sample(network):
    """Branches of two prompts, and of a promoted one; more requests than slots, so that slots are filled again."""
    decoder = decoder_on(network, Shapes(1, 2, 4), seed=3, records_routes=True)
    engine, params = decoder.engine, decoder.params
    requests = [
        TrunkRequest(prompt, [Branch(fork, (0, i, n), 6 + 5 * n, PLAIN) for n, fork in enumerate((len(prompt), 2, 1))])
        for i, prompt in enumerate(PROMPTS)
    ]
    rollouts, promoted = engine.sample(params, requests, lambda i, found, wait: (1,) if i == 0 else ())
    again = TrunkRequest(promoted[0, 1], [Branch(fork, (1, 0, fork), 7, PLAIN) for fork in (1, 5, 13)])
    explored, _ = engine.sample(params, [again])
    groups = [(r.token_ids, r.branches, row) for r, row in zip([*requests, again], [*rollouts, *explored], strict=True)]
    return SimpleNamespace(params=params, groups=groups)


@pytest.fixture(scope="module")
def network(tiny_network):
    return tiny_network(**SIZES, dense_layers=(1,))


@pytest.fixture(scope="module")
def sampled(network):
    return sample(network)


def own_routes(network, params, sequence):
    ids = np.zeros((1, 64), np.int32)
    ids[0, : len(sequence)] = sequence
    return np.asarray(jax.jit(run_trunks, static_argnums=0)(network.graphdef, params, ids).routes)[0, : len(sequence)]


def test_recorded_routes_are_those_of_a_full_pass(network, sampled):
    for trunk, branches, rollouts in sampled.groups:
        for branch, rollout in zip(branches, rollouts, strict=True):
            expected = own_routes(network, sampled.params, [*trunk[: branch.fork], *rollout.token_ids])
            assert rollout.routes.dtype == np.uint8 and rollout.routes.shape == (len(rollout.token_ids), 2 * 2)
            np.testing.assert_array_equal(rollout.routes, expected[branch.fork :])
            np.testing.assert_array_equal(rollout.trunk_routes[: branch.fork], expected[: branch.fork])
            assert len(rollout.trunk_routes) == len(trunk)


def training_trunks(groups, *, replayed=True):
    """The sampled branches as training trunks; without ``replayed`` without their routes."""

    def branch(asked, rollout):
        ids, nothing = rollout.token_ids, np.zeros(len(rollout.token_ids), np.float32)
        routes = rollout.routes if replayed else None
        return TrainingBranch(asked.fork, ids, nothing + 1, rollout.logprobs, routes=routes)

    return [
        TrainingTrunk(trunk, list(map(branch, asked, found)), 0, routes=found[0].trunk_routes if replayed else None)
        for trunk, asked, found in groups
    ]


def flattened(trunks):
    """Each branch as the only one of a trunk that ends at its fork."""
    return [
        TrainingTrunk(t.token_ids[: b.fork], [b], 0, routes=None if t.routes is None else t.routes[: b.fork])
        for t in trunks
        for b in t.branches
    ]


def scored(network, params, trunks):
    """Log-probs of all branches, one after another, and their gradient's norm at the routers."""
    scorer = RowScorer(network.graphdef)

    def of(params, rows):
        return scorer.score(params, rows, jnp.float32(1.0))[0]

    found = {}
    for micro in pack(trunks, tokens=4096, pad_id=0):
        rows = jax.tree.map(jnp.asarray, micro.batch.rows)
        logprobs = np.asarray(jax.jit(of)(params, rows))
        for span in micro.spans:
            found[span.trunk, span.branch] = logprobs[span.where]
    return np.concatenate([found[key] for key in sorted(found)])


def moved(network):
    """Other weights, whose routers prefer other experts."""
    random = np.random.default_rng(5)
    return jax.tree.map(lambda leaf: leaf + 0.2 * random.standard_normal(leaf.shape).astype(leaf.dtype), network.params)


def test_branches_pass_the_recorded_routes_of_trunk_and_branch_as_their_flattened_sequences(network, sampled):
    params, replayed = moved(network), training_trunks(sampled.groups)
    shared, alone = (scored(network, params, trunks) for trunks in (replayed, flattened(replayed)))
    np.testing.assert_allclose(shared, alone, rtol=1e-5, atol=1e-5)
    anew = scored(network, params, training_trunks(sampled.groups, replayed=False))
    assert np.abs(anew - shared).max() > 0.1, "the weights have not moved enough to choose other experts"


def test_log_probs_of_a_sampler_in_bfloat16_are_nearer_with_its_routes(tiny_network):
    sizes = SIZES | dict(num_layers=1, num_experts=32, experts_per_token=4)
    network, half = tiny_network(**sizes), sample(tiny_network(**sizes, compute_dtype="bfloat16"))
    differs = [
        np.sort(own_routes(network, network.params, [*trunk[: b.fork], *r.token_ids])[b.fork :]) != np.sort(r.routes)
        for trunk, branches, found in half.groups
        for b, r in zip(branches, found, strict=True)
    ]
    assert np.concatenate(differs).any(), "rounding has changed no route"
    samplers = np.concatenate([r.logprobs for _, _, row in half.groups for r in row])
    gaps = [
        np.abs(scored(network, network.params, training_trunks(half.groups, replayed=on)) - samplers)
        for on in (True, False)
    ]
    assert gaps[0].max() < gaps[1].max() / 2 and gaps[0].mean() < gaps[1].mean()


def test_gradient_of_given_routes_reaches_the_routers(network, sampled):
    rows = jax.tree.map(jnp.asarray, pack(training_trunks(sampled.groups), tokens=4096, pad_id=0)[0].batch.rows)
    loss = lambda params: jnp.sum(row_states(network.graphdef, params, rows) ** 3)
    slopes = jax.jit(jax.grad(loss))(network.params)
    for layer in (0, 2):
        assert np.abs(slopes["layers"][layer]["experts"]["router"]["kernel"]).max() > 1e-3


def test_a_micro_batch_of_known_and_unknown_routes_is_refused(sampled):
    trunks = training_trunks(sampled.groups)
    trunks[0].branches[1].routes = None
    with pytest.raises(ValueError, match="1 of 12 trunks and branches of a micro-batch have no recorded routes"):
        pack(trunks, tokens=4096, pad_id=0)


@pytest.fixture(scope="module")
def update(network, sampled):
    """The gradient and the sums of trunks, in micro-batches of up to ``tokens`` positions; default: moved weights."""
    programs, elsewhere = train_programs(network, loss=None, experts=6), moved(network)

    def of(trunks, tokens=4096, coefficient=0.5, weights=elsewhere):
        params = placed(network._replace(params=weights), one_device())
        micros, slopes, sums = pack(trunks, tokens=tokens, pad_id=0), programs.zero_gradients(params), []
        config = SimpleNamespace(model=SimpleNamespace(experts=ExpertsConfig(balance_coefficient=coefficient)))
        counted = sum(micro.loss_tokens for micro in micros)
        for micro in micros:
            balance = balance_of(config.model.experts.balance_coefficient, programs, micros)
            slopes, found = programs.accumulate(params, slopes, micro.batch, counted, 1.0, None, *balance)
            sums.append(jax.device_get(found))
        return SimpleNamespace(micros=len(micros), slopes=jax.device_get(slopes), sums=sums, tokens=counted)

    return of


def test_router_metrics_and_balance_do_not_depend_on_packing_or_micro_batches(update, sampled):
    trunks = training_trunks(sampled.groups)
    partly = trunks[0].branches[0]
    partly.loss_mask = np.arange(len(partly.token_ids)) % 2 == 0  # as if a tool had written the others
    whole, cut = update(trunks), update(flattened(trunks), tokens=100)
    assert whole.micros == 1 and cut.micros > 1
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), cut.slopes, whole.slopes)
    counts = [np.sum([part["expert_tokens"] for part in one.sums], axis=0) for one in (cut, whole)]
    np.testing.assert_array_equal(*counts)
    recorded = np.concatenate([branch.routes[branch.trains] for trunk in trunks for branch in trunk.branches])
    expected = [np.bincount(recorded[:, at : at + 2].reshape(-1), minlength=6) for at in (0, 2)]
    np.testing.assert_array_equal(counts[0], expected)
    found, expected = (router_metrics(one.sums, one.tokens) for one in (cut, whole))
    assert found == pytest.approx(expected, rel=1e-5)
    assert expected["router/busiest_expert_max"] == pytest.approx(counts[0].max() / (whole.tokens / 3))
    assert 0.2 < expected["router/changed_routes"] < 0.9 and expected["loss/balance"] > 0


def test_no_route_is_changed_under_the_weights_that_sampled(network, update, sampled):
    found = update(training_trunks(sampled.groups), weights=network.params)
    assert router_metrics(found.sums, found.tokens)["router/changed_routes"] == 0


def test_the_loss_for_balance_changes_the_gradients_of_routers_alone(update, sampled):
    trunks = training_trunks(sampled.groups)
    without, with_it = update(trunks, coefficient=1e-30), update(trunks)
    same = lambda a, b: np.abs(a - b).max() < 1e-6
    for path, leaf in jax.tree.leaves_with_path(jax.tree.map(same, without.slopes, with_it.slopes)):
        assert leaf == ("router" not in jax.tree_util.keystr(path)), path
