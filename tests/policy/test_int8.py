"""Kernels in int8: rounding and its edges by hand, and a network whose product is that of the rounded kernels."""

from __future__ import annotations

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from network_programs import dequantised

from fr3e_jax.policy.architecture import UnsupportedModel
from fr3e_jax.policy.int8 import (
    SCALE,
    channel_elements,
    quantise,
    quantised,
    with_scales,
)
from fr3e_jax.policy.modules import scaled_product
from fr3e_jax.policy.network import build_network

jitted = jax.jit(quantise)


def test_a_channel_is_rounded_to_the_nearest_of_its_255_numbers_halves_to_even():
    """With a largest weight of 127 the scale is 1, so that the numbers are the weights, rounded."""
    kernel = np.array([[127.0, -254.0], [2.5, 3.0], [3.5, -3.0], [-0.5, 1.0], [0.75, 0.0]], np.float32)
    values, scale = jitted(kernel)
    assert values.dtype == jnp.int8 and scale.dtype == jnp.float32
    np.testing.assert_array_equal(values, [[127, -127], [2, 2], [4, -2], [0, 0], [1, 0]])
    np.testing.assert_array_equal(scale, [1.0, 2.0])


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_no_weight_moves_by_more_than_half_a_step_and_the_largest_is_127(dtype):
    rng = np.random.default_rng(0)
    kernel = (rng.standard_normal((200, 40)) * 10.0 ** rng.integers(-30, 30, 40)).astype(dtype)
    values, scale = map(np.asarray, jitted(kernel))
    error = np.abs(kernel.astype(np.float64) - values.astype(np.float64) * scale)
    assert (error <= 0.5 * (1 + 1e-6) * scale).all()
    assert (np.abs(values).max(axis=0) == 127).all()
    np.testing.assert_array_equal(jitted(values.astype(np.float32) * scale)[0], values)


@pytest.mark.parametrize(
    ("channel", "numbers", "scale"),
    [
        pytest.param([0.0, -0.0, 0.0], [0, 0, 0], 0.0, id="zeros"),
        pytest.param([-3.0, 3.0, 0.0], [-127, 127, 0], np.float32(3) / 127, id="both ends"),
        pytest.param([1e-42, -1e-42, 0.0], [0, 0, 0], 0.0, id="below the normal numbers"),
        pytest.param([3e38, -3e38, 1e38], [127, -127, 42], np.float32(3e38) / 127, id="near the largest number"),
        pytest.param([np.nan, 1.0, 2.0], [0, 0, 0], np.nan, id="nan"),
        pytest.param([1.0, -np.inf, 2.0], [0, 0, 0], np.nan, id="infinite"),
    ],
)
def test_edges_of_a_channel_leave_the_others_alone(channel, numbers, scale):
    kernel = np.stack([np.array([4.0, -2.0, 1.0]), channel, np.array([0.5, 0.25, -1.0])], axis=1).astype(np.float32)
    values, found = jitted(kernel)
    np.testing.assert_array_equal(values[:, 1], numbers)
    np.testing.assert_allclose(found[1], scale, rtol=1e-6)
    for other in (0, 2):
        alone = jitted(kernel[:, [other] * 3])
        np.testing.assert_array_equal(values[:, other], alone[0][:, 0])
        assert found[other] == alone[1][0]


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_the_product_is_exact_before_its_one_rounding(dtype):
    """Whole numbers in x: their sums are exact in float32, so that one rounding, of the scaled sum, is all there is."""
    rng = np.random.default_rng(1)
    x, values = rng.integers(-64, 65, (5, 300)), rng.integers(-127, 128, (300, 7)).astype(np.int8)
    scale = rng.random(7).astype(np.float32)
    expected = ((x @ values.astype(np.int64)).astype(np.float32) * scale).astype(dtype)
    found = scaled_product(jnp.asarray(x.astype(dtype)), jnp.asarray(values), jnp.asarray(scale))  # jit may round less
    np.testing.assert_array_equal(np.asarray(found), expected)


def in_int8(network):
    """The network with int8 kernels, made of the same parameters."""
    graphdef, abstract, axes = build_network(network.architecture, completed=with_scales)
    params = jax.jit(partial(quantised, abstract))(network.params)
    return network._replace(graphdef=graphdef, abstract=abstract, axes=axes, params=params)


FAMILIES = {
    "qwen2": {},
    "qwen3": {"model_type": "qwen3", "tie_word_embeddings": False},
    "llama": {"model_type": "llama", "attention_bias": True},
    "gemma3": {"model_type": "gemma3_text", "num_layers": 2, "windows": (5, 0), "local_rope_theta": 50.0},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_network_in_int8_is_the_network_of_its_rounded_kernels(family, tiny_network):
    network = tiny_network(**{"num_layers": 1} | FAMILIES[family])
    narrow = in_int8(network)
    sequence = [np.array([3, 17, 0, 5, 9, 11, 2, 8])]
    [found], [rounded], [whole] = (
        one.full_logits(sequence) for one in (narrow, network._replace(params=dequantised(narrow.params)), network)
    )
    size = np.abs(whole).max()
    np.testing.assert_allclose(found, rounded, atol=1e-5 * size)
    assert 1e-3 * size < np.abs(found - whole).max() < 0.1 * size
    same = lambda a, b: all(jax.tree.leaves(jax.tree.map(np.array_equal, a, b)))
    kept = {"embedding", "norm", "head"} & narrow.params.keys()
    assert len(kept) == len(network.params) - 1 and all(same(narrow.params[k], network.params[k]) for k in kept)


def test_scales_have_the_logical_axis_of_their_columns(tiny):
    narrow = in_int8(tiny)
    layer = narrow.axes["layers"][0]
    assert layer["attention"]["key"][SCALE] == ("kv_heads",) and layer["down"][SCALE] == ("embed",)
    assert layer["gate"]["kernel"] == ("embed", "mlp")
    kernels = [leaf for leaf in jax.tree.leaves(narrow.abstract) if leaf.dtype == jnp.int8]
    assert len(kernels) == 7 * 2
    assert channel_elements(narrow.abstract) == (sum(k.size for k in kernels), sum(k.shape[1] for k in kernels))


def test_a_layer_with_other_matrices_is_refused_by_name(tiny):
    experts = {"model_type": "qwen3_moe", "num_experts": 4, "experts_per_token": 2, "expert_size": 8}
    mixture = dataclasses.replace(tiny.architecture, **experts)
    with pytest.raises(UnsupportedModel, match=r"experts/.* \[4, .*set rollout.param_dtype=bfloat16"):
        build_network(mixture, completed=with_scales)
