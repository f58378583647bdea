"""Tokens in and out of the gradient: the authors' numbers, exact shares of the batch, independence of its order."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fr3e_jax.objectives import selection
from fr3e_jax.objectives.losses import clipped_surrogate
from fr3e_jax.objectives.reductions import masked_mean
from fr3e_jax.objectives.selection import kl_cov_tokens, soft_overlong_penalty, token_covariances

forking_tokens = partial(selection.forking_tokens, share=0.2)
clip_cov_tokens = partial(selection.clip_cov_tokens, share=2e-4, low=1.0, high=5.0)
kl_cov_losses = partial(selection.kl_cov_losses, coefficient=1.0)
matching_tokens = partial(selection.matching_tokens, low=0.5, high=2.0)

OLD = np.array([[-0.1, -2.0, -0.5, -1.2], [-0.05, -3.0, -0.9, -0.4]], np.float32)
NEW = np.array([[-0.2, -1.5, -0.5, -1.6], [-0.02, -3.4, -0.7, -0.4]], np.float32)
ADVANTAGES = np.array([[1.5] * 4, [-1.5] * 4], np.float32)
MASK = np.array([[1, 1, 1, 1], [1, 1, 1, 0]], bool)


def test_kl_cov_as_its_authors_compute_it():
    """Loss and gradient of the released code for one token of seven."""
    penalised = kl_cov_tokens(token_covariances(NEW, ADVANTAGES, MASK), MASK, share=0.2)
    np.testing.assert_array_equal(penalised, [[0, 0, 0, 0], [0, 1, 0, 0]])

    def loss(new):
        return masked_mean(kl_cov_losses(new, OLD, ADVANTAGES, MASK, penalised), MASK)

    value, slope = jax.value_and_grad(loss)(NEW)
    np.testing.assert_allclose(value, -0.22179315610223854, rtol=1e-5)
    expected = [
        [-0.193893732159286, -0.3532974146453169, -0.21428571397959184, -0.14364000965957982],
        [0.22081168553173694, 0.0007828670065186116, 0.2617291620889947, 0.0],
    ]
    np.testing.assert_allclose(slope, expected, rtol=1e-4, atol=1e-7)


def test_clip_cov_as_its_authors_compute_it():
    """With every candidate drawn: which tokens lose their gradient, and the loss of the others."""
    covariances = token_covariances(NEW, ADVANTAGES, MASK)

    def loss(new):
        losses, stats = clipped_surrogate(new, OLD, ADVANTAGES, MASK, epsilon_low=0.2, epsilon_high=0.2)
        clipped = stats["clipped_low"] | stats["clipped_high"]
        out = clip_cov_tokens(covariances, MASK, clipped, np.full(OLD.shape, 0.5), share=1.0, low=0.3, high=5.0)
        return masked_mean(jnp.where(out, 0.0, losses), MASK)

    value, slope = jax.value_and_grad(loss)(NEW)
    np.testing.assert_allclose(value, 0.2531865523693152, rtol=1e-5)
    expected = [[0, 0, 0, -0.14364000965957982], [0.22081168553173694, 0, 0.2617291620889947, 0]]
    np.testing.assert_allclose(slope, expected, rtol=1e-5)


@pytest.mark.parametrize("share", [0.02, 0.1])
def test_clip_cov_draws_its_share_of_the_batch_among_the_candidates(share):
    generator = np.random.default_rng(1)
    covariances, mask = generator.uniform(-6, 6, (10, 40)), generator.random((10, 40)) < 0.8
    clipped = generator.random((10, 40)) < 0.1
    drawn = [
        np.asarray(clip_cov_tokens(covariances, mask, clipped, u, share=share)) for u in generator.random((2, 10, 40))
    ]
    for found in drawn:
        assert found.sum() == int(share * mask.sum())
        assert ((covariances > 1) & (covariances < 5) & mask & ~clipped)[found].all()
    assert (drawn[0] != drawn[1]).any()


def test_equal_scores_select_no_more_than_the_share():
    assert np.asarray(kl_cov_tokens(np.zeros((4, 25)), np.ones((4, 25)), share=0.1)).sum() == 10
    assert not np.asarray(forking_tokens(np.ones((2, 3)), np.zeros((2, 3)))).any()


def test_a_percentage_is_refused():
    with pytest.raises(ValueError, match="fraction"):
        forking_tokens(OLD, MASK, share=20.0)


def test_soft_overlong_penalty_falls_along_the_margin():
    penalties = soft_overlong_penalty(np.array([0, 80, 90, 100, 130]), max_length=100, margin=20)
    np.testing.assert_allclose(penalties, [0, 0, -0.5, -1, -1])
    with pytest.raises(ValueError, match="margin=0"):
        soft_overlong_penalty(np.array([1]), max_length=100, margin=0)


def test_tokens_drawn_by_another_policy_are_masked():
    gaps = np.log([1.0, 0.49, 0.51, 1.99, 2.01])
    np.testing.assert_array_equal(matching_tokens(gaps, np.zeros(5), np.ones(5)), [1, 0, 1, 1, 0])
    np.testing.assert_array_equal(matching_tokens(gaps, np.zeros(5), np.zeros(5)), np.zeros(5))
