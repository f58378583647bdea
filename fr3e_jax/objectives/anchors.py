"""Anchors: the tokens of a base response that exploration re-draws, and the blocks that they cut the response into.

An anchor is the 0-based response index k of a token that was *sampled with* entropy H_k. Its state is everything before
it, so that each rollout from the state draws that token anew:

    response     t0 t1 t2 t3 t4 t5 t6          anchors 2 and 5
    states       S_1 = q t0 t1                 S_2 = q t0 t1 t2 t3 t4
    block index   0  0  1  1  1  2  2          B_1 = t0 t1, B_2 = t2 t3 t4, B_3 = t5 t6

Position 0 is never an anchor: its state is the bare prompt, which is S_0 and has V(S_0) already. That leaves the
min(K, length − 1) anchors of a response. Under the other reading (``include_anchor_token``: FR3E eq. 9-10 to the
letter, the state ends *with* the anchor token) position 0 is free and the last one is barred, whose state is the
finished response; there the forks are ``anchors + 1``.

Tools write a part of some responses. The mask ``sampled`` is true for the tokens that the policy chose; None stands for
all. A tool's token is never an anchor, and never the first token after a state: rollouts would not re-draw a choice of
the policy there.

Functions take one response; `jax.vmap` them over a batch. Dimension key: J states after S_0 (= anchors), T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int, Shaped

from fr3e_jax.objectives.arrays import AnyArray, checked_shapes


@dataclass(frozen=True)
class AnchorRules:
    """The positions that may be anchors, and their number: hashable, so that a compiled program can depend on it.

    Position p of a response is allowed if exclude_first ≤ p < length − exclude_last; see the module for position 0.

    Attributes:
      num_anchors: K, the most anchors of a response.
      min_spacing: the least distance between two anchors, in tokens.
      exclude_first: tokens at the start of a response that are no anchors.
      exclude_last: tokens at the end of a response that are no anchors.
      include_anchor_token: whether a state ends *with* its anchor token and not before it.
    """

    num_anchors: int
    min_spacing: int = 1
    exclude_first: int = 0
    exclude_last: int = 0
    include_anchor_token: bool = False

    def bounds(self, length: int | AnyArray) -> tuple[int, jax.Array]:
        """The first allowed position of a response of ``length`` tokens, and the end of the allowed positions."""
        length = jnp.asarray(length, jnp.int32)
        if self.include_anchor_token:
            return self.exclude_first, length - max(self.exclude_last, 1)
        return max(self.exclude_first, 1), length - self.exclude_last

    def allowed(self, length: int | AnyArray, size: int, sampled: Bool[AnyArray, " T"] | None) -> Bool[jax.Array, " T"]:
        """The positions that may be anchors, of a response padded to ``size`` tokens."""
        positions = jnp.arange(size)
        first, end = self.bounds(length)
        allowed = (positions >= first) & (positions < end)
        if sampled is None:
            return allowed
        sampled = jnp.asarray(sampled)
        if self.include_anchor_token:
            sampled &= jnp.concatenate([sampled[1:], jnp.ones_like(sampled[:1])])
        return allowed & sampled

    def fork(self, anchor: int) -> int:
        """The response tokens that the state of ``anchor`` holds."""
        return anchor + self.include_anchor_token


@checked_shapes
def select_anchors(
    scores: Float[AnyArray, " T"],
    length: int | Int[AnyArray, ""],
    rules: AnchorRules,
    sampled: Bool[AnyArray, " T"] | None = None,
) -> tuple[Int[jax.Array, " J"], Bool[jax.Array, " J"]]:
    """𝒦 = TopK_k score_k over the response, in increasing order of position. (FR3E, eq. 7.)

    The highest score is taken first and ties go to the earliest position. Each anchor bars the positions closer than
    ``rules.min_spacing``. NaN scores come last.

    Returns:
      ``anchors`` int32, J = ``rules.num_anchors``, filled with T where fewer are allowed; ``valid``, true for anchors.
    """
    size = scores.shape[0]
    positions = jnp.arange(size)
    finite = jnp.finfo(jnp.float32)  # infinite scores stay in the race: only barred positions are at −inf
    scores = jnp.nan_to_num(jnp.asarray(scores, jnp.float32), nan=finite.min, neginf=finite.min, posinf=finite.max)

    def take_best(allowed: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        best = jnp.argmax(jnp.where(allowed, scores, -jnp.inf))
        anchor = jnp.where(allowed.any(), best, size)
        return allowed & (jnp.abs(positions - best) >= rules.min_spacing), anchor

    _, anchors = jax.lax.scan(take_best, rules.allowed(length, size, sampled), length=rules.num_anchors)
    anchors = jnp.sort(anchors).astype(jnp.int32)
    return anchors, anchors < size


@checked_shapes
def uniform_anchors(
    length: int | Int[AnyArray, ""], rules: AnchorRules, *, T: int, sampled: Bool[AnyArray, " T"] | None = None
) -> tuple[Int[jax.Array, " J"], Bool[jax.Array, " J"]]:
    """Evenly spaced anchors: of the n allowed positions those of rank ⌊ j (n + 1) / (K + 1) ⌋, j = 1..K.

    With nothing excluded these are the positions ⌊ j · length / (K + 1) ⌋: K + 1 blocks of equal length, to a token.
    (VinePPO's fixed boundaries.) Tokens that tools wrote do not count. K falls below ``rules.num_anchors`` where the
    positions or the spacing do not allow more. Bounds and return values as for `select_anchors`; ``T`` is the padded
    length.
    """
    allowed = rules.allowed(length, T, sampled)
    allowed_count = jnp.sum(allowed, dtype=jnp.int32)
    spaced = jnp.maximum((allowed_count + 1) // rules.min_spacing - 1, 1)
    return _evenly_among(allowed, jnp.minimum(allowed_count, spaced), rules.num_anchors)


@checked_shapes
def boundary_anchors(
    boundaries: Shaped[AnyArray, " T"],
    length: int | Int[AnyArray, ""],
    rules: AnchorRules,
    sampled: Bool[AnyArray, " T"] | None = None,
) -> tuple[Int[jax.Array, " J"], Bool[jax.Array, " J"]]:
    """Anchors at given positions: the ends of reasoning steps, say. (VinePPO.)

    ``boundaries`` is true, or positive, there; 0, −∞ and NaN mark no boundary. Boundaries out of bounds, or closer than
    ``rules.min_spacing`` to the last one taken, are passed over. Of the n that are left, all are anchors if n ≤
    ``rules.num_anchors``, else those of rank ⌊ j (n + 1) / (K + 1) ⌋, j = 1..K: evenly among them. Bounds and return
    values as for `select_anchors`.
    """
    size = boundaries.shape[0]
    candidates = (jnp.asarray(boundaries) > 0) & rules.allowed(length, size, sampled)

    def take(next_free: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        position, candidate = now
        taken = candidate & (position >= next_free)
        return jnp.where(taken, position + rules.min_spacing, next_free), taken

    positions = jnp.arange(size)
    _, taken = jax.lax.scan(take, jnp.zeros((), positions.dtype), (positions, candidates))
    return _evenly_among(taken, jnp.sum(taken, dtype=jnp.int32), rules.num_anchors)


def _evenly_among(
    candidates: Bool[jax.Array, " T"], most: Int[jax.Array, ""], num_anchors: int
) -> tuple[Int[jax.Array, " J"], Bool[jax.Array, " J"]]:
    """Anchors of rank ⌊ j (n + 1) / (K + 1) ⌋ among the n candidates, j = 1..K; K is ``most``, or J if that is less."""
    ranks = jnp.cumsum(candidates, dtype=jnp.int32)
    count = jnp.minimum(most, num_anchors)
    order = jnp.arange(1, num_anchors + 1)
    target_rank = order * (ranks[-1] + 1) // (count + 1)
    anchors = jnp.argmax(candidates[None] & (ranks[None] == target_rank[:, None]), axis=-1)
    valid = order <= count
    return jnp.where(valid, anchors, candidates.shape[0]).astype(jnp.int32), valid


@checked_shapes
def block_index(
    anchors: Int[AnyArray, " J"], valid: Shaped[AnyArray, " J"], length: int | Int[AnyArray, ""], T: int
) -> Int[jax.Array, " T"]:
    """0-based index of the block B_1..B_{K+1} that each token lies in: #{ j : k_j ≤ t }; −1 from ``length`` on.

    An anchor opens its block (see the module's drawing). Where states include the anchor token, pass ``anchors + 1``.
    (FR3E, eq. 8-9.)
    """
    positions = jnp.arange(T)
    opened = (jnp.asarray(anchors)[:, None] <= positions[None, :]) & jnp.asarray(valid, bool)[:, None]
    return jnp.where(positions < length, jnp.sum(opened, axis=0, dtype=jnp.int32), -1)
