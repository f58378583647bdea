"""Groups without signal.

Dimension key: M rewards of a group (base rollouts of a prompt, or branches of a state); `batch` is any leading axes.
"""

from __future__ import annotations

import numpy as np


def is_degenerate(rewards: np.ndarray) -> bool:
    """True if r_1 = … = r_M: the group has no advantage to learn from. (FR3E, 3.2.) ``rewards``: ``[M]``, M ≥ 1."""
    return bool(np.all(rewards == rewards[0]))
