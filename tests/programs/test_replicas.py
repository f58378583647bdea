"""Replicas that add up their own gradients give the gradient of one device; without `context`: test_every_mesh.py."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from network_programs import assert_close, one_device, placed, train_programs

from fr3e_jax.learning.experience import TrainingBranch, TrainingTrunk
from fr3e_jax.learning.packing import pack
from fr3e_jax.policy.router_sums import Balance
from fr3e_jax.programs.mesh import make_mesh
from fr3e_jax.programs.optimizer_programs import OptimizerPrograms

pytestmark = pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 devices: FR3E_TEST_DEVICES=8 (make test-8)")

SIZES = dict(vocab_size=40, hidden_size=32, num_heads=4, num_kv_heads=2, intermediate_size=64, num_layers=1)
DENOMINATOR, AT_START = 90.0, 1.0


def whole_products(params, gradients, batch, scale):
    """A gradient of integers: every order of its sums is exact."""
    fresh = jax.grad(lambda params: (scale * batch @ params["w"]).sum())(params)
    return jax.tree.map(jnp.add, gradients, fresh), {"loss": batch.sum(), "logprobs": 2 * batch}


def test_integer_gradients_are_those_of_one_sum_to_the_last_bit():
    """Three micro-batches, then the step w - g, and the values of the tokens in the order of their rows."""
    random, mesh = np.random.default_rng(0), make_mesh(2, 2, 2)
    weights = {"w": random.integers(-9, 9, (8, 4)).astype(np.float32)}
    shardings = {"w": NamedSharding(mesh, P("fsdp", "tensor"))}
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), weights)
    programs = OptimizerPrograms(mesh, optax.sgd(1.0), abstract, shardings, whole_products)
    params = jax.device_put(weights, shardings)
    batches = [random.integers(-99, 99, (16, 8)).astype(np.float32) for _ in range(3)]
    gradients = programs.zero_gradients(params)
    for batch in batches:
        gradients, sums = programs.accumulate(params, gradients, batch, 2.0)
        assert sums["loss"] == batch.sum()
        np.testing.assert_array_equal(programs.fetched([sums["logprobs"]])[0], 2 * batch)
    expected = 2 * np.repeat(np.concatenate(batches).sum(axis=0)[:, None], 4, axis=1)
    assert gradients["w"].shape == (2, 8, 4), "each replica has its own"
    np.testing.assert_array_equal(programs.total(gradients)["w"], expected)
    updated, _, norm = programs.apply(params, programs.init_optimizer(params), gradients)
    np.testing.assert_array_equal(updated["w"], weights["w"] - expected)
    np.testing.assert_allclose(norm, np.linalg.norm(expected), rtol=1e-6)


def micro_batches(shards, routed=False):
    """Two of them; the second has trunks and branches in a part of its rows only."""
    random = np.random.default_rng(1)
    routes = lambda length: np.stack([random.permutation(6)[:2] for _ in range(length)]).astype(np.uint8)

    def branch(fork, length):
        ids, numbers = random.integers(0, 40, length).astype(np.int32), random.normal(size=length).astype(np.float32)
        return TrainingBranch(fork, ids, numbers - 3, numbers, routes=routes(length) if routed else None)

    def trunk(count):
        ids = random.integers(0, 40, 9).astype(np.int32)
        branches = [branch(9 - n, 3 + 2 * n) for n in range(count)]
        return TrainingTrunk(ids, branches, 0, routes=routes(9) if routed else None)

    for trunks in ([trunk(3) for _ in range(8)], [trunk(1 + n) for n in range(3)]):
        yield from pack(trunks, tokens=10_000, pad_id=0, shards=shards)


def trained(network, mesh, routed=False, balance=(), **options):
    """The gradient of both micro-batches, their sums, and the log-probs of their tokens."""
    programs, params = train_programs(network, mesh, **options), placed(network, mesh)
    gradients, found = programs.zero_gradients(params), []
    for micro in micro_batches(8, routed):
        gradients, sums = programs.accumulate(params, gradients, micro.batch, DENOMINATOR, 0.8, AT_START, *balance)
        found.append(sums)
    logprobs = programs.fetched([sums.pop("logprobs") for sums in found])
    assert programs._accumulate._cache_size() == 1
    return jax.device_get((programs.total(gradients), found, logprobs))


@pytest.fixture(scope="module")
def dense(tiny_network):
    network = tiny_network(**SIZES)
    return network, trained(network, one_device())


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        (dict(replica=2, tensor=2, context=2), {}),
        (dict(replica=2, fsdp=2, context=2), {"attention": "pallas", "scan": True}),
    ],
    ids=str,
)
def test_gradients_of_replicas_add_up_to_that_of_one_device(sizes, options, dense):
    network, expected = dense
    assert_close(trained(network, make_mesh(**sizes), **options), expected, 2e-5)


def test_gradients_of_experts_in_replicas_add_up_to_that_of_one_device(tiny_network):
    moe = dict(model_type="qwen3_moe", num_experts=8, experts_per_token=2, expert_size=12)
    network = tiny_network(**SIZES, **moe)
    routes = dict(routed=True, balance=[Balance(0.3, 90.0)])
    expected = trained(network, one_device(), **routes)
    assert_close(trained(network, make_mesh(replica=2, fsdp=1, tensor=2, expert=2), **routes), expected, 2e-5)
