"""Every mesh of eight devices gives the tokens, loss, gradients and new weights of one device.

The network has eight query heads and four key/value heads, so that it can be split in eight with the latter kept whole.
"""

from __future__ import annotations

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from network_programs import adamw, dequantised, one_device, placed, shardings_on, train_programs

from fr3e_jax.learning.experience import TrainingBranch, TrainingTrunk
from fr3e_jax.learning.packing import counted_tokens, pack
from fr3e_jax.objectives.losses import aggregation_denominator
from fr3e_jax.policy.int8 import quantised, with_scales
from fr3e_jax.policy.network import build_network
from fr3e_jax.programs.decoder_programs import DecoderPrograms
from fr3e_jax.programs.host_arrays import params_on_mesh
from fr3e_jax.programs.mesh import make_mesh, rollout_mesh
from fr3e_jax.programs.program import programs_of
from fr3e_jax.programs.reshard import RolloutWeights
from fr3e_jax.programs.shapes import Shapes
from fr3e_jax.rollouts.engine import RolloutEngine
from fr3e_jax.rollouts.requests import Branch, Sampling, TrunkRequest

# Replica, fsdp, tensor: each axis alone, and all three.
MESHES = [(8, 1, 1), (1, 8, 1), (1, 1, 8), (2, 2, 2)]
# Training mesh (replica, fsdp, tensor, context), rollout_tensor, rollout_fsdp.
LAYOUTS = [
    ((1, 2, 1, 4), 4, 1),
    ((2, 2, 2), 1, 1),
    ((1, 8, 1), 2, 2),
]
PROMPTS = [np.array([3, 17, 0, 5, 9, 11, 2, 8]), np.array([1, 4, 19]), np.array([6, 6, 12, 13, 7, 15, 10, 18])]
SIZES = dict(
    vocab_size=40,
    hidden_size=64,
    num_heads=8,
    num_kv_heads=4,
    num_layers=1,
    intermediate_size=64,
    tie_word_embeddings=False,
)

pytestmark = pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 devices: FR3E_TEST_DEVICES=8 (make test-8)")


@pytest.fixture(scope="module")
def network(tiny_network):
    return tiny_network(**SIZES)


def sampled(network, mesh, params):
    """Base rollouts, then rollouts from states in their middle that read promoted caches."""
    programs = DecoderPrograms(network.graphdef, network.architecture, mesh)
    engine = RolloutEngine(programs, Shapes(8, 2, 8), seed=5)
    how = Sampling(stop_ids=(0,))
    requests = [
        TrunkRequest(ids, [Branch(len(ids), (0, i, n), 14, how) for n in range(3)]) for i, ids in enumerate(PROMPTS)
    ]
    base, promoted = engine.sample(params, requests, lambda i, rollouts, wait: [0, 2])
    trunks = [promoted[key] for key in sorted(promoted)]
    later = [
        TrunkRequest(t, [Branch(len(t.token_ids) - 1, (1, i, n), 8, how) for n in range(2)])
        for i, t in enumerate(trunks)
    ]
    explored, _ = engine.sample(params, later)
    return [rollout for row in base + explored for rollout in row]


def training_trunks():
    rng = np.random.default_rng(0)

    def branch(fork, length):
        ids = rng.integers(0, 40, length).astype(np.int32)
        return TrainingBranch(fork, ids, np.full(length, -3.0, np.float32), rng.normal(size=length).astype(np.float32))

    return [
        TrainingTrunk(ids.astype(np.int32), [branch(len(ids) - n % 2, 3 + 2 * n) for n in range(4)], 0)
        for ids in PROMPTS * 3
    ]


def layout(shardings):
    return jax.tree.map(lambda sharding: sharding.spec, shardings)


def specs(arrays):
    return layout(jax.tree.map(lambda leaf: leaf.sharding, arrays))


def trained(network, mesh, **options):
    """Scores, gradients, sums, norm and weights of two optimizer steps, and how many programs each step compiled."""
    programs = train_programs(network, mesh, optimizer=adamw(learning_rate=1e-3), chunk=16, **options)
    params = placed(network, mesh)
    trunks, state, found = training_trunks(), programs.init_optimizer(params), SimpleNamespace(compiled=[], steps=[])
    denominator = aggregation_denominator(counted_tokens(trunks), "token_mean", norm_length=20)
    micros = pack(trunks, tokens=10_000, pad_id=0, shards=programs.shards)
    found.shapes = len({micro.batch.loss_mask.shape for micro in micros})
    for _ in range(2):
        gradients, parts = programs.zero_gradients(params), []
        for micro in micros:
            mask = np.asarray(micro.batch.loss_mask)
            scores = programs.score(params, micro.batch.rows, 1.0)
            gradients, sums = programs.accumulate(params, gradients, micro.batch, denominator, 1.0)
            parts.append(([float(np.asarray(x)[mask].sum()) for x in scores], jax.device_get(sums)))
        totals, sums = jax.tree.map(lambda *values: sum(values), *parts)
        total = programs.total(gradients)
        host = jax.device_get(total)
        assert specs(total) == specs(params) and specs(gradients) == layout(programs.gradient_shardings)
        params, state, norm = programs.apply(params, state, gradients)
        assert specs(state) == layout(programs.optimizer_shardings)
        found.steps.append((totals, host, sums, float(norm), jax.device_get(params)))
        found.compiled.append({name: program._cache_size() for name, program in programs_of(programs).items()})
    return found


@pytest.fixture(scope="module")
def single(network):
    mesh = one_device()
    params = placed(network, mesh)
    return SimpleNamespace(rollouts=sampled(network, mesh, params), training=trained(network, mesh))


def assert_same_rollouts(found, expected):
    assert len(found) == len(expected) > 15
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours.token_ids, theirs.token_ids)
        np.testing.assert_allclose(ours.logprobs, theirs.logprobs, rtol=1e-4, atol=1e-5)
        assert ours.finished == theirs.finished


@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_sampled_tokens_equal_those_of_one_device(sizes, network, single):
    mesh = make_mesh(*sizes)
    params = placed(network, mesh)
    assert_same_rollouts(sampled(network, mesh, params), single.rollouts)


@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_training_equals_that_of_one_device_and_a_second_step_compiles_nothing(sizes, network, single):
    assert_same_training(trained(network, make_mesh(*sizes)), single.training)


@pytest.mark.parametrize("attention", ["xla", "pallas"])
def test_long_row_options_train_as_the_default_on_one_device(network, single, attention):
    long = dict(remat="block", attention_block=16, scan=True, attention=attention)
    assert_same_training(trained(network, make_mesh(1, 2, 4), **long), single.training)


def assert_same_training(found, expected):
    assert found.compiled[0] == found.compiled[1] and max(found.compiled[0].values()) == found.shapes
    for ours, theirs in zip(found.steps, expected.steps, strict=True):
        for left, right in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-5 * np.abs(right).max())


def test_rollouts_take_context_as_fsdp_without_a_copy(network, single):
    mesh = make_mesh(1, 2, 2, context=2)
    decoding = rollout_mesh(mesh)
    source, target = shardings_on(network, mesh), shardings_on(network, decoding)
    weights = RolloutWeights(network.abstract, source, target)
    assert not weights.copies
    params = params_on_mesh(network.params, source)
    assert_same_rollouts(sampled(network, decoding, weights.of(params)), single.rollouts)


@pytest.mark.parametrize(("sizes", "tensor", "fsdp"), LAYOUTS, ids=str)
def test_resharded_weights_sample_the_tokens_of_one_device(sizes, tensor, fsdp, network, single):
    mesh = make_mesh(*sizes[:3], context=sizes[3] if len(sizes) > 3 else 1)
    decoding = rollout_mesh(mesh, tensor=tensor, fsdp=fsdp)
    source, target = shardings_on(network, mesh), shardings_on(network, decoding)
    weights = RolloutWeights(network.abstract, source, target)
    params = weights.of(params_on_mesh(network.params, source))
    for leaf, sharding, value in zip(*map(jax.tree.leaves, (params, target, network.params)), strict=True):
        assert leaf.sharding == sharding
        np.testing.assert_array_equal(leaf, value)
    assert_same_rollouts(sampled(network, decoding, params), single.rollouts)


def test_kernels_in_int8_sample_on_a_mesh_the_tokens_of_their_rounded_values_on_one_device(network):
    graphdef, abstract, axes = build_network(network.architecture, completed=with_scales)
    narrow = network._replace(graphdef=graphdef, abstract=abstract, axes=axes)
    rounded = dequantised(jax.tree.map(np.asarray, quantised(abstract, network.params)))
    alone, mesh = one_device(), make_mesh(1, 4, 2)
    expected = sampled(network, alone, params_on_mesh(rounded, shardings_on(network, alone)))
    source = shardings_on(narrow, mesh)
    weights = RolloutWeights(abstract, source, source)
    params = weights.of(placed(network, mesh))
    assert_same_rollouts(sampled(narrow, mesh, params), expected)
