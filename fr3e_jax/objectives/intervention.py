"""Token replacement: which tokens are replaced, and how much a replacement changes accuracy. NumPy, on the host.

Dimension key: T tokens, k continuations, P problems.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from fr3e_jax.objectives.arrays import checked_shapes

GROUPS = ("entropy:top", "entropy:bottom", "random", "position:early", "position:late", "low-ppl", "high-ppl")
"""Groups of tokens; each may be followed by a share in percent, as in ``entropy:top20%``."""
SHARE = 0.2
"""The share of all groups: the top 20 % of tokens by entropy, of positions, of responses by
perplexity. (Deng et al. 2025.)"""


@checked_shapes
def intervention(original: Float[np.ndarray, "_ _"], substituted: Float[np.ndarray, "_ _"]) -> Float[np.ndarray, " _"]:
    """I_t = (1/k) Σ_j Acc_j(q, o_<t, o_t) − (1/k) Σ_j Acc_j(q, o_<t, õ_t), ``[T, k]`` → ``[T]``.

    (Deng et al. 2025, eq. 6.)

    Raises:
      ValueError: the two sides differ in shape.
    """
    if original.shape != substituted.shape:
        raise ValueError(f"found accuracies {original.shape} and {substituted.shape}; expected equal shapes")
    return np.asarray(original, np.float64).mean(axis=1) - np.asarray(substituted, np.float64).mean(axis=1)


def read_group(text: str) -> tuple[str, float]:
    """The group and the share of ``entropy:top20%``; without a share, `SHARE`.

    Raises:
      ValueError: there is no such group, or the share is not a number above 0 and up to 100.
    """
    for group in GROUPS:
        if text.startswith(group):
            rest = text.removeprefix(group).removeprefix(":")
            try:
                share = float(rest.removesuffix("%")) / 100 if rest else SHARE
            except ValueError:
                break
            if 0 < share <= 1:
                return group, share
    raise ValueError(
        f"found the group of tokens {text!r}; expected one of {', '.join(GROUPS)}, with a share such as 20% or without"
    )


@checked_shapes
def highest(values: Float[np.ndarray, " T"], share: float) -> Bool[np.ndarray, " T"]:
    """The ``share`` of places with the highest values, at least one; of equal values the first."""
    chosen = np.zeros(len(values), bool)
    count = min(len(values), max(1, round(share * len(values))))
    chosen[np.argsort(-np.asarray(values), kind="stable")[:count]] = True
    return chosen


def replaceable(
    group: str,
    share: float,
    entropies: Sequence[Float[np.ndarray, " _"]],
    logprobs: Sequence[Float[np.ndarray, " _"]],
    allowed: Sequence[Bool[np.ndarray, " _"]],
) -> list[Int[np.ndarray, " _"]]:
    """The places of each response that belong to a group of tokens.

    ``entropy:top`` and ``entropy:bottom`` rank the tokens of all responses together; ``random`` takes all of them.
    ``position:early`` and ``position:late`` are the top-entropy tokens (the top 20 % of all) in the first and the
    last ``share`` of their response (Deng et al. 2025, figure 6b). ``low-ppl`` and ``high-ppl`` are the top-entropy
    tokens of the ``share`` of responses with the lowest and the highest perplexity exp(−mean log-prob) (Deng et al.
    2025, figure 5b).

    Args:
      group: one of `GROUPS`.
      share: of its name, see there.
      entropies, logprobs: of each response's tokens.
      allowed: tokens that can be replaced: sampled ones, but no stop token.
    """
    sizes = [len(row) for row in entropies]
    pooled, usable = np.concatenate([*entropies, []]), np.concatenate([*allowed, []]).astype(bool)

    def ranked(values: np.ndarray, of: float) -> np.ndarray:
        chosen = np.zeros(len(values), bool)
        places = np.flatnonzero(usable)
        chosen[places[highest(values[places], of)]] = True
        return chosen

    if not usable.any():
        return [np.zeros(0, np.int64) for _ in sizes]
    if group == "entropy:top":
        taken = ranked(pooled, share)
    elif group == "entropy:bottom":
        taken = ranked(-pooled, share)
    elif group == "random":
        taken = usable
    elif group.startswith("position:"):
        relative = np.concatenate([(np.arange(size) + 0.5) / size for size in sizes])
        early = group.endswith("early")
        taken = ranked(pooled, SHARE) & (relative <= share if early else relative >= 1 - share)
    else:
        surprise = np.array([-row.mean() if len(row) else np.inf for row in logprobs])  # ln PPL
        responses = highest(-surprise if group == "low-ppl" else np.where(np.isinf(surprise), -np.inf, surprise), share)
        taken = ranked(pooled, SHARE) & np.repeat(responses, sizes)
    return [np.flatnonzero(row) for row in np.split(taken & usable, np.cumsum(sizes)[:-1])]
