"""Types for the annotations of this package: device and NumPy arrays (scalars included), plain numbers."""

from __future__ import annotations

import jax
import numpy as np

AnyArray = jax.Array | np.ndarray | np.floating | np.integer | np.bool_
Number = int | float
