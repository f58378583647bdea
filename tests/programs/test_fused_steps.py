"""The fused attention of decode steps against XLA's products, in pieces and in the decoder.

The kernel runs as jax operations, or on a card if there is one (`make test-gpu`).
"""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernels_here import KERNELS
from network_programs import decoder_on

from fr3e_jax.policy.attention import PLAIN, KeyValue, Scoring
from fr3e_jax.policy.decode_attention import OwnCache, RingSpan, step_attention
from fr3e_jax.policy.decode_kernel import trunk_block
from fr3e_jax.programs import decode_steps, size_buckets
from fr3e_jax.programs.fused_steps import fused_steps
from fr3e_jax.programs.mesh import make_mesh
from fr3e_jax.programs.shapes import Shapes
from fr3e_jax.rollouts.requests import Branch, Sampling, TrunkRequest

D = 16  # the least that a matrix unit of a GPU takes
SLOTS = max(jax.device_count(), 4)


@pytest.fixture(params=KERNELS)
def kernels(request):
    return request.param


def draw(seed, *, lanes, heads, group, trunk, ring, recent=2, window=0, dtype=jnp.float32):
    """A step of lanes of all kinds: query, cache, trunk, fork. Idle lanes are those that do not write."""
    rng = np.random.default_rng(seed)
    normal = lambda *shape: rng.standard_normal(shape).astype(dtype)
    count = SLOTS * lanes
    own = lambda size: KeyValue(normal(count, heads, D, size), normal(count, heads, size, D))
    first, columns = rng.integers(ring, size=count), rng.integers(ring + 1, size=count)
    columns[:3], first[2] = [0, ring, 1], ring - 1  # nothing, all around, the last column alone
    writes = np.arange(count) != 3
    columns *= writes
    fork = rng.integers(trunk + 1, size=(SLOTS, lanes))
    fork[0, 0], fork[1] = trunk, 0
    seen = (np.arange(ring)[None] - first[:, None]) % ring < columns[:, None]
    cache = OwnCache(
        ring=(own(ring),),
        ring_seen=(seen,),
        ring_span=(RingSpan(np.int32(first), np.int32(columns)),),
        recent=(own(recent),),
        recent_seen=(np.repeat(np.arange(recent)[None] < 1 + seed % recent, count, axis=0),),
        trunk_start=(np.int32(np.maximum(fork - window, 0)) if window else None,),
        column=np.int32(0),
        writes=writes,
    )
    caches = KeyValue(normal(SLOTS, heads, D, trunk), normal(SLOTS, heads, trunk, D))
    return 2 * normal(SLOTS, lanes, heads, group, D), cache, caches, np.int32(fork)


def assert_equal_to_the_products(kernels, sizes, *, tensor=1, scoring=PLAIN, tolerance=2e-6, **options):
    inputs = query, cache, trunk, fork = draw(len(str(sizes)), **sizes, **options)
    fused = fused_steps(make_mesh(1, -1, tensor), largest_block=16, kernels=kernels)
    wide = lambda x: x.astype(jnp.float32) if x.dtype == query.dtype else x

    @jax.jit
    def both(*inputs):
        return fused(*inputs, scoring), step_attention(*jax.tree.map(wide, inputs), scoring)

    ours, expected = both(*inputs)
    assert ours.dtype == query.dtype and np.isfinite(ours).all()
    active = np.asarray(cache.writes).reshape(fork.shape)
    assert not active.all() and active.any()
    np.testing.assert_allclose(
        np.float32(ours)[active], expected[active], rtol=0, atol=tolerance * np.abs(expected).max()
    )


# Blocks hold 16 positions: sizes of less than one, of whole ones, and with a last one that is cut short.
@pytest.mark.parametrize(
    "sizes",
    [
        dict(lanes=1, heads=2, group=1, trunk=7, ring=1),
        dict(lanes=4, heads=2, group=3, trunk=40, ring=32),
        dict(lanes=3, heads=2, group=9, trunk=32, ring=24),
    ],
    ids=["one column", "several blocks", "cut blocks"],
)
def test_fused_step_equals_that_of_xla(kernels, sizes):
    assert_equal_to_the_products(kernels, sizes)


def test_fused_step_over_a_window_with_a_softcap_equals_that_of_xla(kernels):
    sizes = dict(lanes=2, heads=2, group=2, trunk=40, ring=32)
    assert_equal_to_the_products(kernels, sizes, window=9, scoring=Scoring(0.3, softcap=1.5, window=9))


def test_bfloat16_step_is_within_two_roundings_of_the_float32_one(kernels):
    """Of the largest value: weights and results are rounded to 8 bits once each."""
    sizes = dict(lanes=2, heads=2, group=2, trunk=40, ring=32)
    assert_equal_to_the_products(kernels, sizes, dtype=jnp.bfloat16, tolerance=2 * 2**-8)


@pytest.mark.skipif(jax.device_count() < 2, reason="needs several devices: make test-8")
@pytest.mark.parametrize("tensor", [2, 4])
def test_fused_step_with_heads_on_several_devices_equals_that_of_xla(kernels, tensor):
    """The heads of two devices; or more devices than heads, where the products stay."""
    assert_equal_to_the_products(kernels, dict(lanes=2, heads=2, group=2, trunk=40, ring=32), tensor=tensor)


@pytest.mark.parametrize(
    ("largest", "rows", "block"),
    [(2048, 256, 2048), (2048, 264, 1024), (2048, 700, 640), (2048, 10**5, 128), (16, 8, 16)],
)
def test_blocks_of_trunks_are_smaller_for_many_rows(largest, rows, block):
    assert trunk_block(largest, rows) == block


def test_blocks_that_no_lane_sees_are_not_read(kernels):
    """Of a trunk beyond all forks, and of a ring outside of what its lane has filled."""
    query, cache, trunk, fork = draw(0, lanes=2, heads=1, group=2, trunk=48, ring=64)
    fork, span = np.minimum(fork, 16), RingSpan(np.full(2 * SLOTS, 60, np.int32), np.full(2 * SLOTS, 8, np.int32))
    cache = cache._replace(ring_span=(span,), writes=np.ones(2 * SLOTS, bool))

    def broken(kv, part):
        key, value = kv.key.copy(), kv.value.copy()
        key[..., part], value[:, :, part] = np.nan, np.nan
        return KeyValue(key, value)

    holes = cache._replace(ring=(broken(cache.ring[0], slice(16, 48)),))
    step = jax.jit(fused_steps(make_mesh(), largest_block=16, kernels=kernels))
    np.testing.assert_array_equal(
        step(query, holes, broken(trunk, slice(16, None)), fork), step(query, cache, trunk, fork)
    )


@jax.jit
def own_cache(start, column, active):
    """Of rings with 32 columns, whose window of 4 holds the column."""
    state = SimpleNamespace(
        active=active, generated=(column - start) % 32, start=start, column=column, settings=SimpleNamespace(fork=start)
    )
    empty = lambda columns: (KeyValue(jnp.zeros((1, 1, 1, columns)), jnp.zeros((1, 1, columns, 1))),)
    return decode_steps._own_cache((0, 9), state, empty(32), column // 4 * 4, SimpleNamespace(layers=empty(4)))


def test_spans_of_rings_hold_the_columns_that_lanes_see():
    start = np.arange(32)[None].astype(np.int32)  # a lane for each column that it may have begun at
    active = start % 5 > 0
    for column in np.arange(0, 32, 3, dtype=np.int32):
        cache = own_cache(start, column, active)
        for span, seen in zip(cache.ring_span, cache.ring_seen, strict=True):
            held = (np.arange(32)[None] - span.first[:, None]) % 32 < span.count[:, None]
            np.testing.assert_array_equal(held, seen & active.T)


def sampled(network, attention):
    """Rollouts of branches that end at different times, so that lanes begin at any column, and fill their rings."""
    decoder = decoder_on(network, Shapes(2, 2, 4), attention=attention)
    how = lambda n: Sampling(stop_ids=(), temperature=float(n > 0))
    requests = [
        TrunkRequest(np.arange(fork) % 20, [Branch(fork - n % 2, (fork, n), 8 + 4 * n, how(n)) for n in range(3)])
        for fork in (3, 11)
    ]
    rollouts, _ = decoder.engine.sample(decoder.params, requests)
    return [rollout for row in rollouts for rollout in row]


def test_decoding_in_a_fused_kernel_draws_the_same_tokens(tiny_network, monkeypatch):
    """Greedy and random ones, of layers with and without a window."""
    monkeypatch.setattr(size_buckets, "_FIRST_RING", 16)
    windowed = dict(model_type="gemma2", windows=(5, 0), attention_softcap=2.0, final_softcap=3.0)
    network = tiny_network(num_layers=3, head_dim=D, query_scalar=12.0, **windowed)
    for ours, theirs in zip(sampled(network, "pallas"), sampled(network, "xla"), strict=True):
        np.testing.assert_array_equal(ours.token_ids, theirs.token_ids)
        np.testing.assert_allclose(ours.logprobs, theirs.logprobs, rtol=1e-5, atol=1e-5)
