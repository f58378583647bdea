"""Fused attention of rows against `row_attention`, values and gradients.

The kernels run as jax operations, or on a card if there is one (`make test-gpu`).
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernels_here import KERNELS, ON_A_CARD
from random_rows import random_rows

from fr3e_jax.policy.attention import PLAIN, KeyValue, RowView, Scoring, row_attention
from fr3e_jax.policy.fused_attention import Blocks, block_sizes, fused_row_attention

SMALL = dict(tpu=Blocks(256, 128, 128, 256), gpu=Blocks(64, 32, 32, 64))


@pytest.fixture(params=KERNELS)
def fused(request):
    """`fused_row_attention` with the kernels of a platform, in blocks smaller than rows."""
    return partial(fused_row_attention, interpret=not ON_A_CARD, platform=request.param, largest=SMALL[request.param])


def draw(view, heads, group, head_dim, dtype, seed=0):
    """Query, keys and values, and a cotangent; also which tokens are real, bool ``[B, 1, P, 1, 1, 1]``."""
    rng = np.random.default_rng(seed)
    real = np.concatenate([view.trunk_segment, view.segment.reshape(len(view.segment), -1)], axis=1) > 0
    batch, length = real.shape
    normal = lambda *shape: rng.standard_normal(shape).astype(dtype)
    query = np.asarray(2, dtype) * normal(batch, 1, length, heads, group, head_dim)
    own = KeyValue(normal(batch, 1, heads, head_dim, length), normal(batch, 1, heads, length, head_dim))
    return query, own, normal(*query.shape), real[:, None, :, None, None, None]


@partial(jax.jit, static_argnums=0)
def run(attend, view, query, own, cotangent):
    """Result and gradients in float32."""
    out, pull = jax.vjp(lambda query, own: attend(query, own, view), query, own)
    return jax.tree.map(lambda x: x.astype(jnp.float32), (out, *pull(cotangent.astype(out.dtype))))


def assert_equal_to_the_reference(fused, view, window, sizes, dtype=jnp.float32, tolerance=2e-6, scoring=PLAIN):
    query, own, cotangent, real = draw(view, *sizes, dtype)
    ours = run(
        partial(fused, window=window, scoring=scoring), view, query, own, cotangent
    )  # padding sends a cotangent, too
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(ours))
    exact = jax.tree.map(np.float32, (query, own, np.where(real, cotangent, np.zeros((), dtype))))
    expected = run(partial(row_attention, window=window, scoring=scoring), view, *exact)
    np.testing.assert_array_equal(np.where(real, 0, ours[0]), 0)
    expected = (np.where(real, expected[0], 0), *expected[1:])
    for left, right in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(left, right, rtol=0, atol=tolerance * np.abs(right).max())


# Positions of a row that fill blocks or not; lanes whose branches end in them, cross one border, or two.
@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        (dict(rows=3, trunk=200, lanes=1, length=184, window=1), (2, 1, 64)),
        (dict(rows=2, trunk=120, lanes=5, length=60, window=3), (1, 3, 128)),
        (dict(rows=2, trunk=300, lanes=4, length=120, window=2), (2, 2, 16)),
    ],
    ids=["one lane", "branches over three lanes", "branches over two lanes"],
)
def test_fused_attention_equals_that_of_xla(fused, shape, sizes):
    view = random_rows(np.random.default_rng(len(str(shape))), **shape)
    assert_equal_to_the_reference(fused, view, shape["window"], sizes)


@pytest.mark.parametrize("limit", [3, 150])
def test_fused_attention_over_a_window_with_a_softcap_equals_that_of_xla(fused, limit):
    """Windows within a block, and over blocks and lanes."""
    view = random_rows(np.random.default_rng(3), rows=2, trunk=200, lanes=3, length=80, window=2)
    segment = view.segment.reshape(2, -1)
    changes = np.pad(segment[:, 1:] != segment[:, :-1], ((0, 0), (1, 0)))
    place = np.arange(segment.shape[1])[None]
    offset = (place - np.maximum.accumulate(np.where(changes, place, 0), axis=1)).reshape(view.segment.shape)
    scoring = Scoring(0.3, softcap=1.5, window=limit)
    sizes = (1, 2, 16)
    assert_equal_to_the_reference(fused, view.within(limit, offset), 2, sizes, scoring=scoring, tolerance=4e-6)


def test_bfloat16_attention_is_within_four_roundings_of_the_float32_one(fused):
    """Of the largest value: weights, slopes of scores and results are rounded to 8 bits once each."""
    view = random_rows(np.random.default_rng(1), rows=2, trunk=130, lanes=3, length=80, window=2)
    assert_equal_to_the_reference(fused, view, 2, (1, 2, 64), jnp.bfloat16, tolerance=4 * 2**-8)


def test_scores_far_apart_neither_overflow_nor_vanish(fused):
    view = random_rows(np.random.default_rng(2), rows=2, trunk=200, lanes=2, length=100, window=1)
    query, own, cotangent, real = draw(view, 1, 2, 16, jnp.float32)
    for ends in ((30, 1), (1, 30)):  # scores of some hundreds, the largest first or last; exp(89) is infinite
        wide = own._replace(key=own.key * np.linspace(*ends, 400, dtype=np.float32).reshape(1, 1, 1, 1, -1))
        ours = run(fused, view, query, wide, cotangent)
        expected = run(row_attention, view, query, wide, np.where(real, cotangent, 0))
        np.testing.assert_allclose(ours[0], np.where(real, expected[0], 0), rtol=1e-4, atol=1e-4)
        for left, right in zip(jax.tree.leaves(ours[1:]), jax.tree.leaves(expected[1:]), strict=True):
            np.testing.assert_allclose(left, right, rtol=0, atol=1e-4 * np.abs(right).max())


def test_blocks_that_nothing_sees_are_not_read(fused):
    """Two trunks and a branch of the second: neither the branch nor the second trunk reads the first one's block."""
    trunk_segment = np.repeat(np.array([[1, 2]], np.int32), 128, axis=1)
    whole = np.ones((1, 1, 128), np.int32)
    view = RowView(trunk_segment, whole, 128 * whole, 128 * whole)
    query, own, cotangent, _ = draw(view, 1, 1, 16, jnp.float32)
    broken = jax.tree.map(np.copy, own)
    broken.key[..., :128], broken.value[..., :128, :] = np.nan, np.nan
    out, d_query, d_own = run(partial(fused, largest=Blocks(128, 128, 128, 128)), view, query, broken, cotangent)
    assert np.isnan(out[:, :, :128]).all()
    assert all(np.isfinite(x[:, :, 128:]).all() for x in (out, d_query))
    assert np.isfinite(d_own.key[..., 128:]).all() and np.isfinite(d_own.value[..., 128:, :]).all()


@pytest.mark.parametrize(
    ("queries", "keys", "padded", "blocks"),
    [
        (33, 33, (128, 128), (128, 128, 128, 128)),
        (300, 300, (384, 384), (384, 384, 384, 384)),
        (520, 520, (1024, 1024), (1024, 512, 512, 1024)),
        (33792, 33792, (33792, 33792), (1024, 512, 512, 1536)),
        (17408, 17408, (17408, 17408), (1024, 512, 512, 1024)),
        (4224, 33792, (4608, 33792), (768, 512, 512, 1536)),  # an eighth of a row
    ],
)
def test_blocks_divide_the_positions(queries, keys, padded, blocks):
    assert block_sizes(queries, keys) == (padded, blocks)
