"""The depth to return to, by hand and against many random profiles."""

from __future__ import annotations

import numpy as np
import pytest

from fr3e_jax.objectives.return_depths import crossing_depth, probed_depths


@pytest.mark.parametrize(
    ("centre", "spacing", "count", "length", "expected"),
    [
        (10, 5, 3, 20, [5, 10, 15]),
        (10, 5, 2, 20, [8, 12]),  # 7.5 and 12.5, rounded to even
        (2, 5, 3, 20, [0, 2, 7]),  # not before the prompt
        (18, 5, 3, 20, [13, 18, 19]),  # at least one token is left
        (1, 1, 4, 2, [0, 1]),
        (0, 1, 1, 1, [0]),
    ],
)
def test_probed_depths(centre, spacing, count, length, expected):
    assert probed_depths(float(centre), float(spacing), count, length).tolist() == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.25, 0.5, 1.0], (8.0, True)),
        ([0.0, 1.0, 1.0], (6.0, True)),
        ([0.0, 0.25, 0.75], (10.0, True)),
        ([0.75, 0.25, 1.0], (2.0, False)),  # a fall is noise: both have the rate 0.5, so the crossing lies before
        ([0.5, 0.75, 1.0], (2.0, False)),
        ([0.0, 0.25, 0.25], (14.0, False)),
    ],
)
def test_crossing_depth(values, expected):
    assert crossing_depth(np.array([4, 8, 12]), np.array(values), 0.5, 2.0) == pytest.approx(expected)


def test_rates_are_made_to_rise_as_pooling_adjacent_violators_does():
    rng = np.random.default_rng(0)
    for _ in range(50):
        values, target = rng.random(5), 0.5
        pools = [[value] for value in values]
        while any(np.mean(a) > np.mean(b) for a, b in zip(pools, pools[1:], strict=False)):
            first = next(i for i in range(len(pools) - 1) if np.mean(pools[i]) > np.mean(pools[i + 1]))
            pools[first : first + 2] = [pools[first] + pools[first + 1]]
        rates = [float(np.mean(pool)) for pool in pools for _ in pool]
        depth, enclosed = crossing_depth(np.arange(5), values, target, 1.0)
        assert enclosed == (rates[0] < target <= rates[-1])
        if enclosed:
            assert np.interp(depth, range(5), rates) == pytest.approx(target)
