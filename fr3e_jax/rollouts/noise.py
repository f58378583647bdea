"""Names of randomness: every random number of a run is keyed by the run's seed and a name, never by order or time.

The first part of a name is its purpose, so that no two uses of randomness share a stream. The decoder keys the noise of
a token by ``(purpose, step, prompt, base, state, branch)`` and the token's position; the host draws from `Noise`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BASE, STATE, EVALUATION, SAMPLE, CHOICE, SHUFFLE, RETURN = range(7)
REPLAY = 8


@dataclass(frozen=True)
class Noise:
    """Random choices of the host. This seed and the names are the whole state of a run's randomness."""

    seed: int

    def generator(self, *names: int) -> np.random.Generator:
        """A generator that depends on the seed and ``names`` (a purpose first) alone."""
        return np.random.default_rng([self.seed, *names])
