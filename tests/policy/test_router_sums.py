"""Sums over routers' decisions by hand, and the loss that balances experts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fr3e_jax.policy.router_sums import Balance, RouterSums, balance_loss, count_routes, router_sums
from fr3e_jax.policy.rows import Rows, row_pass

PROBABILITIES = np.array([[0.5, 0.25, 0.125, 0.125], [0.25, 0.25, 0.25, 0.25], [0.1, 0.2, 0.3, 0.4]], np.float32)
PASSED = np.array([[0, 2], [1, 0], [0, 1]], np.uint8)
COUNTED = np.array([True, True, False])


@jax.jit
def sums_of(x, kernel, passed=PASSED, counted=COUNTED):
    return router_sums(lambda x: x @ kernel, x, passed, counted)


def test_sums_are_over_the_tokens_that_count():
    sums = sums_of(np.log(PROBABILITIES), np.eye(4, dtype=np.float32))
    np.testing.assert_array_equal(sums.tokens, [2, 1, 1, 0])
    np.testing.assert_allclose(sums.probabilities, [0.75, 0.5, 0.375, 0.375], rtol=1e-6)
    np.testing.assert_allclose(sums.entropy, (1.75 + 2) * np.log(2), rtol=1e-6)
    # The first token's own are 0 and 1, of which it passed one; the first two of equal ones are the second's own.
    np.testing.assert_allclose(sums.changed, 0.5)


def test_experts_are_own_exactly_where_top_k_takes_them():
    draw = np.random.default_rng(0).integers(0, 3, (40, 6)).astype(np.float32)  # many ties
    own, same = jax.lax.top_k(draw, 3)[1], np.eye(6, dtype=np.float32)
    passed = np.stack([np.random.default_rng(n).permutation(6)[:3] for n in range(40)])
    wanted = np.mean([len(set(a) - set(b)) / 3 for a, b in zip(passed, np.asarray(own), strict=True)])
    every = np.ones(40, bool)
    assert sums_of(draw, same, own, every).changed == 0
    np.testing.assert_allclose(sums_of(draw, same, passed, every).changed / 40, wanted, rtol=1e-6)


def test_gradients_of_probabilities_reach_the_router_alone():
    x = np.random.default_rng(1).standard_normal((3, 5)).astype(np.float32)
    kernel = np.random.default_rng(2).standard_normal((5, 4)).astype(np.float32)
    read = lambda x, kernel: jnp.sum(sums_of(x, kernel).probabilities * jnp.arange(4.0))
    of_x, of_kernel = jax.jit(jax.grad(read, (0, 1)))(x, kernel)
    assert np.abs(of_kernel).max() > 0.1 and np.abs(of_x).max() == 0


def layers(tokens, probabilities):
    nothing = jnp.zeros(len(tokens))
    return RouterSums(np.array(tokens), np.array(probabilities, np.float32), nothing, nothing)


def test_balance_is_the_number_of_experts_of_a_token_where_loads_are_even():
    even = layers([[5, 5, 5, 5]] * 3, [[2.5, 2.5, 2.5, 2.5]] * 3)  # 10 tokens, two experts each
    assert balance_loss(even, Balance(1.0, 10.0), 10) == pytest.approx(2)
    to_one = layers([[10, 10, 0, 0]] * 3, [[5, 5, 0, 0]] * 3)
    assert balance_loss(to_one, Balance(1.0, 10.0), 10) == pytest.approx(4)


def test_balance_of_micro_batches_adds_up_with_the_routes_of_all():
    first, second = layers([[4, 2, 0]], [[1.5, 0.5, 1]]), layers([[0, 1, 1]], [[0.25, 0.5, 0.25]])
    both = jax.tree.map(jnp.add, first, second)
    routes = np.array([4, 3, 1])
    parts = [balance_loss(one, Balance(1.0, 4.0, routes), tokens) for one, tokens in ((first, 3), (second, 1))]
    whole = balance_loss(both, Balance(1.0, 4.0), 4)
    assert sum(parts) == pytest.approx(float(whole), rel=1e-6)
    assert whole == pytest.approx(3 * (4 * 1.75 + 3 * 1 + 1 * 1.25) / 16)


def test_routes_are_counted_over_the_tokens_of_the_mask():
    routes = np.array([[[[0, 1, 2]], [[2, 2, 1]]]], np.uint8)  # [B, Q, N, T]
    np.testing.assert_array_equal(count_routes(routes, np.array([[[True, True, False]]]), 4), [1, 1, 2, 0])


def test_counting_tokens_adds_nothing_to_the_pass_of_a_dense_network(tiny_network):
    network = tiny_network()
    ids, lanes = jnp.zeros((1, 4), jnp.int32), jnp.ones((1, 2, 3), jnp.int32)
    rows = Rows(ids, ids + 1, ids, lanes, lanes, lanes, lanes, lanes)

    def traced(counted):
        read = lambda params: row_pass(network.graphdef, params, rows, counted=counted)
        return str(jax.make_jaxpr(read)(network.params))

    assert traced(np.ones((1, 2, 3), bool)) == traced(None)
