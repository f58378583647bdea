"""The sizes of rings and trunks: enough for what they hold, and few."""

from __future__ import annotations

import pytest

from fr3e_jax.rollouts.cache_sizes import CacheSizes


@pytest.mark.parametrize("most", [0, 1, 2, 3])
@pytest.mark.parametrize(("prompt", "response"), [(16, 20), (24, 77), (1, 1), (300, 700), (1024, 16384)])
def test_every_length_has_room_in_one_of_few_sizes(most, prompt, response):
    sizes = CacheSizes(most, prompt, response)
    step = max((prompt + response) // 200, 1)
    trunks = {n: sizes.trunk(n) for n in [*range(1, prompt + response, step), prompt + response]}
    promoted = {n: sizes.promoted(n) for n in trunks}
    rings = {n: sizes.ring(n, response) for n in [*range(1, response, step), response]}
    assert all(size >= n for found in (trunks, promoted, rings) for n, size in found.items())
    of_prompts = sizes.trunk(prompt)
    longer = {size for n, size in trunks.items() if n > of_prompts}
    if most or prompt + response <= 256:
        assert {size for n, size in trunks.items() if n <= prompt} <= {of_prompts} or not most
        assert len(longer) <= (most or 1) and set(promoted.values()) <= longer | {sizes.promoted(1)}
    if most:
        assert len(set(rings.values())) <= most
        assert max(trunks.values()) < prompt + response + 160, "the largest trunk is not rounded up to a power of two"


def test_the_sizes_of_7b_at_16k():
    sizes = CacheSizes(2, 1024, 16384)
    assert {sizes.ring(n, 16384) for n in (1, 4096, 4097, 16384)} == {4096, 16384}
    assert [sizes.trunk(n) for n in (5, 1024, 1025, 4352, 4353, 17408)] == [1024, 1024, 4352, 4352, 17408, 17408]
    assert sizes.promoted(700) == 4352, "a trunk of its own size would be one more program"


def test_a_branch_beyond_the_known_lengths_still_gets_room():
    assert CacheSizes(1, 10, 20).ring(100, 100) >= 100
    assert CacheSizes(0, 10, 20).trunk(500) >= 500
