"""Rows cut into parts of equal size, one for each device of a mesh axis that splits positions.

Trunk and lanes are cut alike, each in stripes that the parts take in turn. Early tokens see fewer keys than late ones,
so halves in order would differ in work. (Brandon et al. 2023.) Two parts of a trunk of 8 and of lanes of 4 tokens, with
stripes of 1 (long trunks and lanes have longer ones):

    part of each position   0 1 0 1 0 1 0 1 | 0 1 0 1 | 0 1 0 1
    row 0 of part 0         q0 q2 q4 q6 a0 a2 b0 b2
    row 0 of part 1         q1 q3 q5 q7 a1 a3 b1 b3

Parts lie along the axis of rows: ``[B, P]`` becomes ``[A * B, P / A]``, all rows of part 0 first. So everything but
attention and the reading of predicting states treats parts as rows. A trunk or a lane that the parts do not divide is
padded at its end.

Dimension key: A parts, B rows, S trunk positions, N lanes, T positions of a lane, P = S + N·T positions of a row.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fr3e_jax.policy.attention import RowPart, RowView

_LARGEST_STRIPE = 1024
_STRIPES = 8  # of each part, where its positions allow so many


class RowSizes(NamedTuple):
    """Positions of a row before it is cut."""

    trunk: int  # S
    lanes: int  # N
    length: int  # T

    @classmethod
    def of(cls, view: RowView) -> RowSizes:
        return cls(view.trunk_segment.shape[1], *view.segment.shape[1:])

    @property
    def positions(self) -> int:
        """P."""
        return self.trunk + self.lanes * self.length


def part_size(length: int, parts: int) -> int:
    """Positions of each part of ``length`` positions."""
    return -(-length // parts)


def stripe(length: int, parts: int) -> int:
    """Positions of a stripe: a power of two that divides a part."""
    size = part_size(length, parts)
    most = min(_LARGEST_STRIPE, max(size // _STRIPES, 1))
    return math.gcd(size, 1 << most.bit_length() - 1)


def cut(x: jax.Array, parts: int, axis: int = -1, *, mode: str = "constant") -> jax.Array:
    """``x [B, ...]`` as ``[A * B, ...]``, its positions (``axis``) cut into parts.

    ``mode`` of padding, as in `jax.numpy.pad`: zeros, or ``edge`` for copies of the last position.
    """
    if parts == 1:
        return x
    axis %= x.ndim
    length = x.shape[axis]
    size, width = part_size(length, parts), stripe(length, parts)
    x = jnp.pad(x, [(0, parts * size - length if i == axis else 0) for i in range(x.ndim)], mode=mode)
    striped = x.reshape(*x.shape[:axis], size // width, parts, width, *x.shape[axis + 1 :])
    by_part = jnp.moveaxis(striped, axis + 1, 0)
    return by_part.reshape(parts * x.shape[0], *x.shape[1:axis], size, *x.shape[axis + 1 :])


def join(x: jax.Array, length: int, axis: int = -1) -> jax.Array:
    """The inverse of `cut`: of ``[A, B, ...]`` the array ``[B, ...]`` with ``length`` positions, without padding."""
    parts, axis = len(x), axis % x.ndim
    if parts == 1:
        return x[0]
    width = stripe(length, parts)
    striped = jnp.moveaxis(x.reshape(*x.shape[:axis], -1, width, *x.shape[axis + 1 :]), 0, axis)
    joined = striped.reshape(*x.shape[1:axis], -1, *x.shape[axis + 1 :])
    return jax.lax.slice_in_dim(joined, 0, length, axis=axis - 1)


def cut_row(trunk: jax.Array, lanes: jax.Array, parts: int, *, mode: str = "constant") -> jax.Array:
    """Values of trunk positions ``[B, ..., S]`` and of lanes ``[B, ..., N, T]`` as ``[A * B, ..., P / A]``."""
    lanes = cut(lanes, parts, mode=mode)
    return jnp.concatenate([cut(trunk, parts, mode=mode), lanes.reshape(*lanes.shape[:-2], -1)], axis=-1)


def join_row(x: jax.Array, sizes: RowSizes, axis: int = -1) -> jax.Array:
    """The inverse of `cut_row` for arrays ``[A, B, ...]`` whose positions are ``axis``: ``[B, ...]``, P positions."""
    axis %= x.ndim
    mine = part_size(sizes.trunk, len(x))
    trunk, lanes = jax.lax.slice_in_dim(x, 0, mine, axis=axis), jax.lax.slice_in_dim(x, mine, None, axis=axis)
    lanes = lanes.reshape(*x.shape[:axis], sizes.lanes, -1, *x.shape[axis + 1 :])
    lanes = join(lanes, sizes.length, axis + 1)
    lanes = lanes.reshape(*x.shape[1:axis], -1, *x.shape[axis + 1 :])
    return jnp.concatenate([join(trunk, sizes.trunk, axis), lanes], axis=axis - 1)


def row_part(view: RowView, parts: int) -> RowPart:
    """The view of the tokens of each part, and their places; a first axis A before those of a row.

    Padding of parts copies the last token of its trunk or lane, so that it sees at least one.
    """
    sizes = RowSizes.of(view)

    def by_part(x):
        return cut(x, parts, mode="edge").reshape(parts, -1, *x.shape[1:-1], part_size(x.shape[-1], parts))

    def places(length):
        return by_part(jnp.arange(length, dtype=jnp.int32).reshape(1, 1, -1))

    return RowPart(RowView(*map(by_part, view)), places(sizes.trunk), places(sizes.length))


def reach(length: int, parts: int, end: int) -> int:
    """The positions of a sequence up to the last of the first ``end`` positions of any part."""
    width = stripe(length, parts)
    return min(-(-end // width) * width * parts, length)


def places_in_parts(sizes: RowSizes, parts: int) -> np.ndarray:
    """For each position of a row its place in ``A`` parts one after another: int32 ``[P]``."""
    positions_of_part = part_size(sizes.trunk, parts) + sizes.lanes * part_size(sizes.length, parts)

    def places(length: int) -> np.ndarray:
        block, at = np.divmod(np.arange(length), stripe(length, parts))
        return block % parts * positions_of_part + block // parts * stripe(length, parts) + at

    lane = part_size(sizes.trunk, parts) + np.arange(sizes.lanes) * part_size(sizes.length, parts)
    lanes = lane[:, None] + places(sizes.length)
    return np.concatenate([places(sizes.trunk), lanes.reshape(-1)]).astype(np.int32)
