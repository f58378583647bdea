"""Drawing tokens: frequencies, impossible tokens, filters, and noise that depends on its name alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fr3e_jax.objectives.entropy import branching_factor
from fr3e_jax.policy import sampling
from fr3e_jax.policy.sampling import (
    draw_tokens,
    invert_cumulative,
    stream_keys,
    uniform,
)

LARGEST_BELOW_ONE = np.nextafter(np.float32(1), np.float32(0))
KEY = np.array([3, 14], np.uint32)

draw = jax.jit(draw_tokens, static_argnames="filtered")
allowed_tokens = jax.jit(sampling.allowed_tokens)


def fit(counts, expected=None) -> float:
    """The p-value of a chi-square test."""
    from scipy.stats import chisquare  # loading it takes two seconds, which a session of other tests saves

    return chisquare(counts, expected).pvalue


def draw_at(logits, uniforms, *, temperature=1.0, top_p=1.0, top_k=0, filtered=True):
    """One row of logits at many uniform numbers."""
    rows = lambda x, kind: np.full(len(uniforms), x, kind)
    logits = np.tile(np.asarray(logits, np.float32), (len(uniforms), 1))
    settings = rows(temperature, np.float32), rows(top_p, np.float32), rows(top_k, np.int32)
    return draw(logits, np.asarray(uniforms, np.float32), *settings, filtered=filtered)


def grid(count):
    return (np.arange(count) + 0.5) / count


def filtered_distribution(logits, temperature, top_p, top_k):
    """Probabilities in float64 by sorting: the first k tokens, then of these until their mass reaches ``top_p``."""
    weights = np.exp(np.float64(logits) / temperature - np.max(logits) / temperature)
    order = np.argsort(-weights, kind="stable")[: top_k or None]
    mass, total, chosen = 0.0, weights[order].sum(), []
    for token in order:
        if top_p < 1 and chosen and mass >= top_p * total:
            break
        chosen.append(token)
        mass += weights[token]
    probabilities = np.zeros(len(weights))
    probabilities[chosen] = weights[chosen] / mass
    return probabilities


class TestFrequencies:
    @pytest.mark.parametrize("vocab_size", [5, 1000])
    def test_drawn_tokens_follow_their_probabilities(self, vocab_size):
        """Chi-square at a fixed seed; 1000 tokens take the two-level path."""
        logits = np.random.default_rng(0).standard_normal(vocab_size)
        count = 20_000
        uniforms = jax.jit(uniform)(np.tile(KEY, (count, 1)), np.arange(count))
        drawn = np.asarray(draw_at(logits, uniforms, filtered=False).token_ids)
        expected = np.exp(logits) / np.exp(logits).sum() * count
        assert fit(np.bincount(drawn, minlength=vocab_size), expected) > 0.01

    @pytest.mark.parametrize("vocab_size", [5, 256, 257, 1000])
    def test_evenly_spaced_numbers_give_each_token_its_share(self, vocab_size):
        """The inverse of a cumulative distribution: counts are exact to one number at either end of a token."""
        weights = np.random.default_rng(1).gamma(0.5, size=vocab_size).astype(np.float32)
        count = 4000
        drawn = jax.jit(invert_cumulative)(np.tile(weights, (count, 1)), np.float32(grid(count)))
        share = np.float64(weights) / np.float64(weights).sum() * count
        assert np.abs(np.bincount(drawn, minlength=vocab_size) - share).max() <= 1.1


@pytest.mark.parametrize("vocab_size", [7, 700])
def test_impossible_tokens_are_never_drawn(vocab_size):
    """First, last and whole blocks impossible, the rest of very unequal weight; numbers 0 and just below 1 included."""
    rng = np.random.default_rng(0)
    logits = 4 * rng.standard_normal(vocab_size)
    impossible = rng.random(vocab_size) < 0.3
    impossible[[0, 1, -1, -2]] = True
    impossible[128:256] = True
    logits[impossible] = -np.inf
    uniforms = np.concatenate([[0.0, 2**-24, LARGEST_BELOW_ONE], grid(1500)])
    for filtered in (False, True):
        result = draw_at(logits, uniforms, filtered=filtered)
        assert not impossible[np.asarray(result.token_ids)].any()
        assert np.isfinite(result.logprobs).all() and np.isfinite(result.entropies).all()
    possible = np.flatnonzero(~impossible)
    ends = draw_at(logits, uniforms[:3], filtered=False).token_ids
    assert ends[0] == possible[0] and ends[2] == possible[-1]


class TestFilters:
    SETTINGS = [
        (1.0, 1.0, 0),
        (0.7, 1.0, 0),
        (1.0, 1.0, 3),
        (1.0, 0.8, 0),
        (1.5, 0.6, 4),
        (0.5, 0.05, 0),
        (1.0, 1.0, 99),
    ]

    @pytest.mark.parametrize(("temperature", "top_p", "top_k"), SETTINGS)
    def test_draws_and_logprobs_are_those_of_the_filtered_distribution(self, temperature, top_p, top_k):
        logits = np.random.default_rng(2).standard_normal(12)
        result = draw_at(logits, grid(1000), temperature=temperature, top_p=top_p, top_k=top_k)
        expected = filtered_distribution(logits, temperature, top_p, top_k)
        drawn = np.asarray(result.token_ids)
        assert np.abs(np.bincount(drawn, minlength=12) - 1000 * expected).max() <= 1.1
        np.testing.assert_allclose(result.logprobs, np.log(expected[drawn]), rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize(
        ("top_p", "kept"),
        [
            (0.01, [2]),
            (0.5, [2]),
            (0.51, [0, 2]),
            (0.75, [0, 2]),
            (0.76, [0, 1, 2]),
            (0.9, [0, 1, 2, 3]),
            (1.0, range(5)),
        ],
    )
    def test_top_p_keeps_the_smallest_set_that_reaches_it(self, top_p, kept):
        """Probabilities 1/4, 1/8, 1/2, 1/16, 1/16: the set reaches p with its last token and not before."""
        logits = np.log([[4.0, 2.0, 8.0, 1.0, 1.0]]).astype(np.float32)
        allowed = allowed_tokens(jnp.asarray(logits), jnp.float32([top_p]), jnp.int32([0]))[0]
        assert np.flatnonzero(allowed).tolist() == list(kept)

    def test_ties_at_the_border_go_to_the_lowest_ids(self):
        logits = jnp.zeros((1, 8))
        assert np.flatnonzero(allowed_tokens(logits, jnp.float32([1.0]), jnp.int32([3]))[0]).tolist() == [0, 1, 2]
        assert np.flatnonzero(allowed_tokens(logits, jnp.float32([0.25]), jnp.int32([0]))[0]).tolist() == [0, 1]

    def test_nucleus_is_as_large_as_the_branching_factor(self):
        logits = jnp.asarray(3 * np.random.default_rng(3).standard_normal((40, 30)), jnp.float32)
        allowed = allowed_tokens(logits, jnp.full(40, 0.95, jnp.float32), jnp.zeros(40, jnp.int32))
        np.testing.assert_array_equal(allowed.sum(axis=-1), branching_factor(logits, 0.95))

    def test_top_k_of_one_is_greedy(self):
        logits = np.random.default_rng(4).standard_normal(12).round(0)  # with ties
        result = draw_at(logits, grid(50), top_k=1)
        np.testing.assert_array_equal(result.token_ids, draw_at(logits, grid(50), temperature=0.0).token_ids)
        np.testing.assert_array_equal(result.token_ids, np.argmax(logits))
        np.testing.assert_array_equal(result.logprobs, 0)


def test_temperature_zero_takes_the_best_token_and_reports_it_at_temperature_one():
    logits = np.array([0.5, 2.0, -1.0, 2.0])
    result = draw_at(logits, [0.0, 0.5, LARGEST_BELOW_ONE], temperature=0.0, filtered=False)
    np.testing.assert_array_equal(result.token_ids, 1)
    np.testing.assert_allclose(result.logprobs, 2.0 - np.log(np.exp(logits).sum()), rtol=1e-6)


def test_entropy_is_of_the_whole_vocabulary_at_temperature_one():
    logits = np.log(np.array([0.5, 0.25, 0.25]))
    for how in (dict(temperature=0.3), dict(top_k=1), dict(temperature=0.0), dict(top_p=0.4)):
        np.testing.assert_allclose(draw_at(logits, [0.2], **how).entropies, 1.5 * np.log(2), rtol=1e-6)
    with_impossible = np.append(logits, -np.inf)
    np.testing.assert_allclose(draw_at(with_impossible, [0.2]).entropies, 1.5 * np.log(2), rtol=1e-6)


@pytest.mark.parametrize("vocab_size", [12, 400])
def test_draw_of_a_row_does_not_depend_on_the_other_rows(vocab_size):
    """Greedy, hot, top-k, nucleus and plain rows draw the same together and alone, with or without filters."""
    rng = np.random.default_rng(5)
    count = 40
    logits = 2 * rng.standard_normal((count, vocab_size)).astype(np.float32)
    uniforms = rng.random(count).astype(np.float32)
    temperature = np.tile(np.array([0.0, 1.0, 0.6, 2.0, 1.0], np.float32), 8)
    top_p = np.tile(np.array([1.0, 1.0, 0.8, 1.0, 1.0], np.float32), 8)
    top_k = np.tile(np.array([0, 0, 0, 5, 0], np.int32), 8)
    together = draw(logits, uniforms, temperature, top_p, top_k, filtered=True)
    for kind in range(5):
        rows = np.arange(kind, count, 5)
        plain = top_p[kind] == 1 and top_k[kind] == 0
        for filtered in {True, not plain}:
            alone = draw(logits[rows], uniforms[rows], temperature[rows], top_p[rows], top_k[rows], filtered=filtered)
            np.testing.assert_array_equal(alone.token_ids, together.token_ids[rows])
            np.testing.assert_allclose(alone.logprobs, together.logprobs[rows], rtol=1e-6, atol=1e-6)


class TestNoise:
    def test_streams_of_different_names_have_different_keys(self):
        names = np.stack(np.meshgrid(*[np.arange(4)] * 3, indexing="ij"), axis=-1).reshape(-1, 3).astype(np.uint32)
        keys = np.asarray(jax.jit(stream_keys)(KEY, names))
        assert len(np.unique(keys, axis=0)) == 64  # order matters too: (0, 1, 2) is not (2, 1, 0)
        other_seed = np.asarray(jax.jit(stream_keys)(KEY + np.uint32(1), names))
        assert not (keys == other_seed).all(axis=-1).any()

    def test_stream_has_the_same_key_in_every_lane(self):
        names = np.random.default_rng(0).integers(0, 2**32, (2, 3, 4), np.uint32)
        keys = jax.jit(stream_keys)(KEY, names)
        assert keys.shape == (2, 3, 2)
        np.testing.assert_array_equal(jax.jit(stream_keys)(KEY, names[1, 2][None])[0], keys[1, 2])

    def test_number_depends_only_on_key_and_position(self):
        keys = np.asarray(jax.jit(stream_keys)(KEY, np.arange(30, dtype=np.uint32)[:, None]))
        positions = np.arange(30) % 7
        numbers = np.asarray(jax.jit(uniform)(keys, positions))
        shuffled = np.random.default_rng(0).permutation(30)
        np.testing.assert_array_equal(jax.jit(uniform)(keys[shuffled], positions[shuffled]), numbers[shuffled])
        np.testing.assert_array_equal(jax.jit(uniform)(keys[4:5], positions[4:5]), numbers[4:5])
        assert len(np.unique(numbers)) == 30

    def test_numbers_fill_the_half_open_unit_interval(self):
        numbers = np.asarray(jax.jit(uniform)(np.tile(KEY, (5000, 1)), np.arange(5000)))
        assert 0 <= numbers.min() < 0.001 and 0.999 < numbers.max() < 1
        assert fit(np.histogram(numbers, bins=20, range=(0, 1))[0]) > 0.01


def test_forced_token_is_taken_with_its_logprob_before_any_filter():
    """Greedy, filtered and plain rows: only rows with a forced token differ from a plain draw."""
    logits = jax.random.normal(jax.random.key(3), (6, 20))
    uniforms, temperature = jnp.linspace(0.05, 0.95, 6), jnp.array([1.0, 0.0, 0.7, 1.0, 0.0, 0.7])
    top_p, top_k, forced = jnp.full(6, 0.3), jnp.array([0, 0, 1, 0, 0, 1]), jnp.array([-1, -1, -1, 7, 7, 7])
    plain = draw(logits, uniforms, temperature, top_p, top_k, filtered=True)
    found = draw(logits, uniforms, temperature, top_p, top_k, forced, filtered=True)
    assert found.token_ids.tolist() == [*plain.token_ids[:3].tolist(), 7, 7, 7]
    np.testing.assert_array_equal(found.logprobs[:3], plain.logprobs[:3])
    scaled = np.asarray(logits)[3:] / np.array([[1.0], [1.0], [0.7]])
    np.testing.assert_allclose(found.logprobs[3:], scaled[:, 7] - np.log(np.exp(scaled).sum(1)), atol=1e-5)
    np.testing.assert_array_equal(found.entropies, plain.entropies)
