"""Experts on eight devices give the values and gradients of one device."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from network_programs import one_device, shardings_on

from fr3e_jax.learning.experience import TrainingBranch, TrainingTrunk
from fr3e_jax.learning.packing import pack
from fr3e_jax.policy.experts import Kernels, apply_experts, routed
from fr3e_jax.policy.network import ForwardOptions
from fr3e_jax.policy.router_sums import Balance
from fr3e_jax.programs.context_axis import EXPERT, row_axes
from fr3e_jax.programs.expert_axis import split_experts
from fr3e_jax.programs.host_arrays import params_on_mesh
from fr3e_jax.programs.mesh import MeshMismatch, batch_shards, make_mesh, rollout_mesh
from fr3e_jax.programs.row_scorer import RowScorer
from fr3e_jax.programs.shardings import batch_sharding, mesh_layout, replicated
from fr3e_jax.programs.train_programs import _accumulate, supervised_token_losses

eight = pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 devices: FR3E_TEST_DEVICES=8 (make test-8)")
U, X, C, E, F = 48, 8, 3, 16, 12  # tokens, experts, experts of a token, width, columns
MESHES = {
    "experts": dict(expert=8, fsdp=1),
    "all": dict(expert=2, fsdp=2, tensor=2),
    "tensor": dict(fsdp=2, tensor=4),
    "context": dict(fsdp=2, context=2, tensor=2),
}


@eight
@pytest.mark.parametrize("sizes", MESHES.values(), ids=MESHES)
def test_split_experts_equal_those_of_one_device_with_gradients(sizes):
    mesh = make_mesh(**sizes)
    draw = np.random.default_rng(0).standard_normal
    kernels = Kernels(*(draw(s).astype(np.float32) / 3 for s in ((X, E, F), (X, E, F), (X, F, E))))
    x, logits, readout = (draw(s).astype(np.float32) for s in ((U, E), (U, X), (U, E)))
    logits[:, 3] -= 20  # an expert without tokens
    on = lambda a: jax.device_put(a, NamedSharding(mesh, P(row_axes(mesh))))

    def slopes(apply):
        def read(x, logits, kernels):
            added = apply(x, routed(logits, C, normalised=True), kernels, activation="silu")
            return jnp.sum(added * readout), added

        return jax.jit(jax.grad(read, (0, 1, 2), has_aux=True))

    with jax.default_matmul_precision("highest"):
        expected = slopes(apply_experts)(x, logits, kernels)
        found = slopes(split_experts(mesh))(on(x), on(logits), kernels)
    assert all(np.abs(leaf).max() > 0.1 for leaf in jax.tree.leaves(expected))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), found, expected)


@eight
def test_a_device_holds_its_part_of_the_experts_and_other_weights_as_with_fsdp(tiny_network):
    network = tiny_network(
        model_type="qwen3_moe", num_experts=8, experts_per_token=2, expert_size=64, hidden_size=1024, num_layers=1
    )
    mesh = make_mesh(fsdp=2, expert=4)
    shardings = shardings_on(network, mesh)["layers"][0]
    assert shardings["experts"]["gate"].spec == P(EXPERT, "fsdp", None)
    assert shardings["experts"]["down"].spec == P(EXPERT, None, "fsdp")
    assert shardings["attention"]["query"]["kernel"].spec == P(("fsdp", EXPERT), None)
    assert batch_shards(mesh) == 8 and rollout_mesh(mesh) is mesh
    assert rollout_mesh(mesh, tensor=2).shape == dict(replica=4, fsdp=1, context=1, tensor=2)


@eight
def test_experts_that_the_axis_does_not_divide_are_refused(tiny_network):
    network = tiny_network(model_type="qwen3_moe", num_experts=6, experts_per_token=2, expert_size=64)
    with pytest.raises(
        MeshMismatch, match="mesh.expert=4 does not divide dimension 0 .experts, 6. of layers.0.experts.down"
    ):
        shardings_on(network, make_mesh(fsdp=2, expert=4))


@eight
def test_experts_and_parts_of_rows_on_one_mesh_are_refused():
    with pytest.raises(MeshMismatch, match="mesh.expert=2 and mesh.context=2: experts are not split where rows are"):
        make_mesh(fsdp=2, expert=2, context=2)


def gradient(network, mesh, batch):
    """The gradient of the log-probs' sum of rows with recorded routes and of a loss for balance, and the sums."""
    layout = mesh_layout(mesh)
    scorer = RowScorer(
        network.graphdef, 16, batch_shards(mesh) * layout.parts, ForwardOptions(remat="block", layout=layout)
    )
    shardings = shardings_on(network, mesh)
    accumulate = partial(_accumulate, scorer, supervised_token_losses, None, None)
    params, zeros = (
        params_on_mesh(tree, shardings) for tree in (network.params, jax.tree.map(np.zeros_like, network.params))
    )
    inputs = params, zeros, jax.device_put(batch, batch_sharding(mesh)), jnp.float32(1), jnp.float32(1)
    balance = Balance(jnp.float32(3), jnp.float32(batch.loss_mask.sum()), jnp.arange(8, dtype=jnp.float32))
    slopes, sums = jax.jit(accumulate, out_shardings=(shardings, replicated(mesh)))(*inputs, None, balance)
    return jax.device_get((slopes, sums))


@eight
@pytest.mark.parametrize("sizes", [MESHES["all"], MESHES["context"]], ids=["all", "context"])
def test_gradient_of_rows_with_recorded_routes_is_that_of_one_device(sizes, tiny_network):
    network = tiny_network(model_type="qwen3_moe", num_experts=8, experts_per_token=2, expert_size=12, num_layers=1)
    random = np.random.default_rng(0)
    draw = lambda length: random.integers(0, 20, length).astype(np.int32)
    routes = lambda length: np.stack([random.permutation(8)[:2] for _ in range(length)]).astype(np.uint8)

    def branch(fork, length):
        nothing = np.zeros(length, np.float32)
        return TrainingBranch(fork, draw(length), nothing, nothing, routes=routes(length))

    trunks = [TrainingTrunk(draw(9), [branch(9 - n, 4 + n) for n in range(3)], 0, routes=routes(9)) for _ in range(8)]
    (micro,) = pack(trunks, tokens=10_000, pad_id=0, shards=8)
    with jax.default_matmul_precision("highest"):
        expected = gradient(network, one_device(), micro.batch)
        found = gradient(network, make_mesh(**sizes), micro.batch)
    assert all(np.abs(leaf).max() > 1e-2 for leaf in jax.tree.leaves(expected))
    np.testing.assert_array_equal(found[1]["expert_tokens"], expected[1]["expert_tokens"])
    assert expected[1]["expert_tokens"].sum() == 2 * micro.loss_tokens
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), found, expected)
