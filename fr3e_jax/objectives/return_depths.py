"""Depths of an own success from which to continue: where about half of the continuations succeed. NumPy, on the host.

Dimension key: D depths that were probed, M rollouts from each.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from fr3e_jax.objectives.arrays import checked_shapes


def probed_depths(centre: float, spacing: float, count: int, length: int) -> Int[np.ndarray, " _"]:
    """At most ``count`` depths around ``centre``, ``spacing`` tokens apart: rising, distinct, from 0 to length − 1.

    A depth is the number of response tokens that a continuation is given. ``length`` is that of the whole response,
    with its stop token: at least one token is left to sample.
    """
    offsets = (np.arange(count) - (count - 1) / 2) * spacing
    return np.unique(np.clip(np.round(centre + offsets), 0, max(0, length - 1)).astype(np.int64))


@checked_shapes
def crossing_depth(
    depths: Int[np.ndarray, " D"], values: Float[np.ndarray, " D"], target: float, spacing: float
) -> tuple[float, bool]:
    """The depth at which the success rate crosses ``target``, and whether the probed depths enclose it.

    Deeper prefixes of a success leave less to do, so the rates are first made to rise with depth (isotonic
    regression, by its max-min formula). Between two depths the crossing is interpolated. If all rates are above the
    target, it is one ``spacing`` before the first depth; if all are below, one behind the last.

    Args:
      depths: rising.
      values: success rates, 0 to 1.
      target: the wanted rate.
      spacing: the step outside of the probed depths, in tokens.
    """
    places = range(len(values))
    rates = np.array(
        [max(min(values[i : j + 1].mean() for j in places if j >= k) for i in places if i <= k) for k in places]
    )
    if rates[0] >= target:
        return float(depths[0]) - spacing, False
    if rates[-1] < target:
        return float(depths[-1]) + spacing, False
    above = int(np.argmax(rates >= target))
    low, high = rates[above - 1], rates[above]
    share = (target - low) / (high - low)
    return float(depths[above - 1] + share * (depths[above] - depths[above - 1])), True
