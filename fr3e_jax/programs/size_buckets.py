"""The few sizes that programs are compiled for: lengths are padded up to one of them."""

from __future__ import annotations

import numpy as np

_LEAST_RING = 16  # columns
_FIRST_RING = 64  # where responses may become as long


def power_of_two(n: int, least: int = 1) -> int:
    """The smallest power of two that is at least ``n`` and ``least``."""
    return 1 << int(max(n - 1, least - 1, 0)).bit_length()


def size_bucket(size: int, least: int = 4) -> int:
    """The next of 4, 6, 8, 12, 16, 24, 32, ...: at most a third of it is empty, above ``least``."""
    power = power_of_two(size, least)
    return power * 3 // 4 if power > least and size <= power * 3 // 4 else power


def padded(x: np.ndarray, *sizes: int, fill: float = 0) -> np.ndarray:
    """``x`` with its first axes extended at their ends to ``sizes``; the new elements are ``fill``."""
    out = np.full((*sizes, *x.shape[len(sizes) :]), fill, x.dtype)
    out[tuple(map(slice, x.shape))] = x
    return out


def ring_size(tokens: int, most: int) -> int:
    """Columns of a ring that must hold ``tokens`` tokens now and ``most`` in the end: 64, 128, 256, 512, ...

    Each size is another program to compile, of some 20 MB on CPU. A ring of 16 or 32 columns would save no time that
    could be measured. A ring is never larger than ``most`` tokens need, in powers of two from 16.
    """
    return min(power_of_two(tokens, _FIRST_RING), power_of_two(most, _LEAST_RING))
