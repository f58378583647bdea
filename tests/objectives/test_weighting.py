"""Entropy-guided sequence weights against a NumPy loop, and their properties in the paper."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import pytest

from fr3e_jax.objectives import weighting

entropy_guided_weights = partial(weighting.entropy_guided_weights, alpha=0.3, temperature=1.0, level="step")

N, T = 5, 6


def batch(seed=0):
    generator = np.random.default_rng(seed)
    lengths = np.array([6, 3, 1, 0, 5])
    return generator.standard_normal((N, T)), generator.exponential(1.0, (N, T)), np.arange(T) < lengths[:, None]


def test_padding_large_scores_and_gradients():
    advantages, entropies, mask = batch()
    dirty = entropy_guided_weights(np.where(mask, advantages, np.nan), np.where(mask, entropies, np.inf), mask)
    np.testing.assert_array_equal(dirty, entropy_guided_weights(advantages, entropies, mask))
    assert np.isfinite(entropy_guided_weights(advantages * 1e6, entropies, mask)).all()
    assert not np.asarray(jax.grad(lambda h: entropy_guided_weights(advantages, h, mask).sum())(entropies)).any()
    assert not np.asarray(entropy_guided_weights(advantages, entropies, np.zeros((N, T)))).any()


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="temperature=0.0"):
        entropy_guided_weights(*batch(), temperature=0.0)
    with pytest.raises(ValueError, match="'token'"):
        entropy_guided_weights(*batch(), level="token")


def test_a_branch_is_weighed_with_the_tokens_at_its_place_in_the_response():
    """Two branches fork after 0 and 2 response tokens: columns 2 of the first and 0 of the second are the same step."""
    advantages, entropies = np.array([[0.0, 1.0, 2.0], [3.0, 1.0, 5.0]]), np.zeros((2, 3))
    mask, steps = np.array([[1, 1, 1], [1, 1, 0]], bool), np.array([[0, 1, 2], [2, 3, 4]])
    weights = np.asarray(entropy_guided_weights(advantages, entropies, mask, steps=steps))
    shared = np.exp([2.0, 3.0]) / np.exp([2.0, 3.0]).sum()
    np.testing.assert_allclose(weights, [[1, 1, shared[0]], [shared[1], 1, 0]], rtol=1e-5)
    columns = np.broadcast_to(np.arange(3), (2, 3))
    np.testing.assert_allclose(
        entropy_guided_weights(advantages, entropies, mask, steps=columns),
        entropy_guided_weights(advantages, entropies, mask),
        rtol=1e-6,
    )
