"""The sizes of rings."""

from __future__ import annotations

import pytest

from fr3e_jax.programs.size_buckets import ring_size


@pytest.mark.parametrize(
    ("tokens", "most", "expected"),
    [
        (1, 24, 32),
        (16, 24, 32),
        (24, 24, 32),  # all that is needed in the end
        (1, 4096, 64),
        (65, 4096, 128),
        (129, 4096, 256),
        (65, 100, 128),
        (257, 4096, 512),
        (513, 600, 1024),
        (3, 5, 16),
    ],
)
def test_ring_sizes_are_few_and_never_above_the_largest_need(tokens, most, expected):
    assert ring_size(tokens, most) == expected
