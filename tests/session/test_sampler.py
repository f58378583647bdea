"""The share of a call's tokens that is sampled, from which the time left follows."""

from __future__ import annotations

import numpy as np
import pytest

from fr3e_jax.session.sampler import sampled_share


@pytest.mark.parametrize("mean", [20, 200, 5000])
def test_the_share_is_about_that_of_the_tokens_and_not_of_the_responses_that_ended(mean):
    """120 responses side by side, of lengths that a seed draws and a cap of 256 cuts."""
    lengths = np.minimum(np.random.default_rng(0).geometric(1 / mean, 120), 256)
    for step in (32, 128, 224):
        sampled, done = int(np.minimum(lengths, step).sum()), int((lengths <= step).sum())
        assert sampled_share(sampled, done, [256] * 120) == pytest.approx(sampled / lengths.sum(), abs=0.12)


def test_edges():
    assert sampled_share(0, 0, [8, 8]) == 0.0
    assert 0.4 < sampled_share(8, 0, [8, 8]) < 0.7  # nothing has ended: up to the caps
    assert sampled_share(16, 2, [8, 8]) == 1.0
    assert sampled_share(2, 2, [8, 8]) == 1.0  # all ended at once
