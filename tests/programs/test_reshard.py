"""The rollouts' copy of the weights: its type, the moment it is made, and that sampling reads the same policy.

Layouts over several devices: test_every_mesh.py and test_mesh_programs.py.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from network_programs import shardings_on

from fr3e_jax.configuration.lora_section import TARGETS
from fr3e_jax.policy.int8 import quantised, with_scales
from fr3e_jax.policy.lora import Adapted, LoraSettings, build_adapted_network, joined, merged
from fr3e_jax.policy.network import build_network
from fr3e_jax.programs.frozen_base import FrozenBase
from fr3e_jax.programs.host_arrays import params_on_mesh
from fr3e_jax.programs.mesh import make_mesh
from fr3e_jax.programs.reshard import RolloutWeights, _Refinement, read_type
from fr3e_jax.programs.shardings import param_shardings


@pytest.fixture(scope="module")
def placed(tiny_network):
    """A network that computes in bfloat16 from float32 weights on all devices of the session."""
    network, mesh = tiny_network(compute_dtype="bfloat16", num_layers=1), make_mesh()
    shardings = shardings_on(network, mesh)
    return network, mesh, shardings, params_on_mesh(network.params, shardings)


def test_same_layout_and_type_make_no_copy(placed):
    network, _, shardings, params = placed
    for dtype in ("", "float32"):
        weights = RolloutWeights(network.abstract, shardings, shardings, dtype)
        assert not weights.copies and weights.of(params) is params


def test_matrices_are_converted_and_vectors_kept(placed):
    network, _, shardings, params = placed
    weights = RolloutWeights(network.abstract, shardings, shardings, "bfloat16")
    copy = weights.of(params)
    for before, after, sharding in zip(*map(jax.tree.leaves, (params, copy, shardings)), strict=True):
        assert after.dtype == (jnp.bfloat16 if before.ndim > 1 else jnp.float32) and after.sharding == sharding
        np.testing.assert_array_equal(after, before.astype(after.dtype))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize(
    ("setting", "stored", "compute", "platform", "read"),
    [
        ("", "float32", "bfloat16", "gpu", "bfloat16"),
        ("", "float32", "bfloat16", "gpu 7.0", "bfloat16"),
        ("", "float32", "bfloat16", "cpu", ""),
        ("", "float32", "bfloat16", "tpu", ""),
        ("", "float32", "float32", "gpu", ""),
        ("", "bfloat16", "bfloat16", "gpu", ""),
        ("", "bfloat16", "float32", "gpu", ""),
        ("float32", "float32", "bfloat16", "gpu", "float32"),
        ("int8", "float32", "bfloat16", "gpu", "int8"),
    ],
)
def test_gpu_reads_a_copy_in_the_compute_type_unless_the_setting_names_a_type(setting, stored, compute, platform, read):
    assert read_type(setting, stored, compute, platform) == read


def test_a_copy_is_made_once_for_each_set_of_weights_and_compiled_once(placed):
    network, _, shardings, params = placed
    weights = RolloutWeights(network.abstract, shardings, shardings, "bfloat16")
    first = weights.of(params)
    assert weights.of(params) is first
    other = jax.tree.map(lambda leaf: leaf + 1, params)
    second = weights.of(other)
    assert second is not first and float(second["embedding"][0, 0]) != float(first["embedding"][0, 0])
    weights.release()
    assert weights.of(other) is not second
    assert weights.reshard._cache_size() == 1


def test_bfloat16_copy_has_the_policy_of_the_float32_weights(placed):
    """Up to the rounding of products: with float32 weights the pass rounds the matrices itself."""
    network, _, shardings, params = placed
    copy = RolloutWeights(network.abstract, shardings, shardings, "bfloat16").of(params)
    sequence = [np.array([3, 17, 0, 5, 9, 11])]
    [expected], [found] = (network._replace(params=weights).full_logits(sequence) for weights in (params, copy))
    np.testing.assert_allclose(found, expected, atol=0.02 * np.abs(expected).max())


@pytest.fixture(scope="module")
def in_int8(placed):
    """Shapes of the network in int8, its layout in training and, over ``tensor``, in rollouts; and its weights."""
    network, mesh, *_ = placed
    _, abstract, axes = build_network(network.architecture, completed=with_scales)
    decoding = make_mesh(1, -1, 2 if jax.device_count() % 2 == 0 else 1)
    source, target = (param_shardings(one, abstract, axes, network.architecture) for one in (mesh, decoding))
    return abstract, target, RolloutWeights(abstract, source, target, "bfloat16")


def test_the_copy_in_int8_has_the_bits_that_the_host_rounds_in_the_layout_of_rollouts(placed, in_int8):
    """Also where a channel is split over devices; what has no scale is converted to the type that it is read in."""
    network, _, _, params = placed
    abstract, target, weights = in_int8
    assert weights.copies
    copy, expected = weights.of(params), quantised(abstract, network.params)
    for (path, leaf), wanted, sharding in zip(
        jax.tree.leaves_with_path(copy), jax.tree.leaves(expected), jax.tree.leaves(target), strict=True
    ):
        in_layer = path[0].key == "layers"
        assert leaf.dtype == (jnp.float32 if leaf.ndim == 1 else jnp.int8 if in_layer else jnp.bfloat16), path
        assert leaf.sharding.is_equivalent_to(sharding, leaf.ndim)
        np.testing.assert_array_equal(leaf, wanted.astype(leaf.dtype))
    assert weights.of(params) is copy


class _Mesh:
    """The part of a mesh that its cuts are read from."""

    def __init__(self, *sizes):
        self.devices = np.arange(np.prod(sizes)).reshape(sizes)


@pytest.mark.parametrize(
    ("source", "target", "exists"),
    [
        ((1, 8, 1), (2, 1, 4), True),
        ((1, 4, 2), (1, 1, 8), True),
        ((1, 6, 1), (3, 1, 2), True),
        ((1, 3, 2), (2, 1, 3), False),
    ],
)
def test_two_meshes_have_a_common_refinement_if_their_sizes_nest(source, target, exists):
    assert _Refinement.exists(_Mesh(*source), _Mesh(*target)) is exists


@pytest.mark.parametrize("merges", [True, False])
def test_adapters_reach_the_layout_of_rollouts_merged_or_beside_their_base(tiny, merges):
    """On several devices from kernels split over ``fsdp`` to kernels split over ``tensor``."""
    lora = LoraSettings(2, 6.0, TARGETS)
    _, abstract, axes = build_adapted_network(tiny.architecture, lora)
    count = jax.device_count()
    training, decoding = make_mesh(), make_mesh(1, -1, 2 if count % 2 == 0 else 1)
    on = lambda mesh, part, names: param_shardings(mesh, part, names, tiny.architecture)
    source, target = (
        Adapted(*(on(mesh, *part) for part in zip(abstract, axes, strict=True))) for mesh in (training, decoding)
    )
    draw = np.random.default_rng(0).standard_normal
    adapters = jax.tree.map(lambda leaf: draw(leaf.shape).astype(leaf.dtype), abstract.adapters)
    base = FrozenBase(abstract.base, source.base, lora.scale, lambda: params_on_mesh(tiny.params, source.base))
    layouts = source[:1] + target[:1] if merges else (joined(source), joined(target))
    like = abstract.base if merges else joined(abstract)
    weights = RolloutWeights(like, *layouts, base=base, merges=merges)
    assert weights.copies == (merges or count > 1)
    found = weights.of(params_on_mesh(adapters, source.adapters))
    expected = merged(lora.scale, Adapted(tiny.params, adapters)) if merges else joined(Adapted(tiny.params, adapters))
    for leaf, wanted, sharding in zip(*map(jax.tree.leaves, (found, expected, layouts[1])), strict=True):
        assert leaf.sharding.is_equivalent_to(sharding, leaf.ndim)
        np.testing.assert_allclose(leaf, wanted, rtol=1e-6, atol=1e-6)
