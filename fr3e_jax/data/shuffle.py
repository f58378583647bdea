"""Endless shuffled sequences: every epoch is another permutation, computed at any position in constant time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import grain

MAX_LENGTH = 2**32 - 1


def shuffled_indices(length: int, seed: int | Sequence[int]) -> grain.MapDataset:
    """An endless sequence of indices in epochs, each of which is another permutation of ``range(length)``.

    Random access takes constant time and memory, because the permutation is a block cipher and not a table.
    """
    import grain  # imported here because it loads jax, which `fr3e data` and verifiers do not need

    if not 0 < length <= MAX_LENGTH:
        raise ValueError(f"cannot shuffle {length} problems; expected from 1 to {MAX_LENGTH}")
    # grain's key of an epoch is seed + epoch. Without the hash, seed 1 would start with the second epoch of seed 0.
    key = int(np.random.SeedSequence(seed).generate_state(1)[0])
    return grain.MapDataset.range(length).shuffle(seed=key).repeat()
