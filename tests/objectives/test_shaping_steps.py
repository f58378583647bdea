"""The shaping steps: each is its published function on the batch's tokens, in the order of the list, and no other."""

from __future__ import annotations

import inspect
from functools import partial

import numpy as np
import pytest

from fr3e_jax.configuration.options import configured_call
from fr3e_jax.configuration.shaping_sections import SHAPING_STEPS, ShapingConfig
from fr3e_jax.objectives import shaping_steps
from fr3e_jax.objectives.shaping_steps import CURRENT_POLICY, Tokens, apply_steps
from fr3e_jax.objectives.weighting import entropy_guided_weights

N, T = 6, 9
CALLS = {name: configured_call(ShapingConfig(), name) for name in SHAPING_STEPS}
STEPS = {name: partial(step, **dict(keywords)) for name, (step, keywords) in CALLS.items()}
"""Each step with its default settings."""


@pytest.fixture
def tokens() -> Tokens:
    random = np.random.default_rng(4)
    normal = lambda: random.normal(size=(N, T)).astype(np.float32)
    lengths = np.array([9, 4, 1, 7, 9, 0])  # the last is padding
    return Tokens(
        advantages=np.repeat(normal()[:, :1], T, axis=1) + 0.1 * normal(),
        counted=np.arange(T) < lengths[:, None],
        weights=np.ones((N, T), np.float32),
        penalised=np.zeros((N, T), bool),
        old_logprobs=-np.abs(normal()),
        old_entropies=np.abs(normal()),
        logprobs=-np.abs(normal()),
        entropies=np.abs(normal()),
        sampler_logprobs=-np.abs(normal()),
        places=np.tile(np.arange(T, dtype=np.int32), (N, 1)),
        relative=(np.arange(T, dtype=np.float32) / np.maximum(lengths, 1)[:, None]).astype(np.float32),
        uniforms=random.random((N, T)).astype(np.float32),
        group=np.array([0, 0, 0, 1, 1, -1], np.int32),
        right=np.array([True, True, False, False, False, False]),  # signs of the advantages: - + - - +
        finished=np.array([True, True, False, True, True, False]),
        step=np.int32(5),
        epsilon_low=np.float32(0.2),
        epsilon_high=np.float32(0.3),
        log_vocabulary=np.float32(np.log(50)),
    )


@pytest.mark.parametrize("name", SHAPING_STEPS)
def test_the_function_of_a_section_has_its_name_and_requires_its_settings_as_keywords(name):
    step, keywords = CALLS[name]
    tokens, *parameters = inspect.signature(step).parameters.values()
    assert step.__name__ == name and tokens.name == "tokens"
    assert [parameter.name for parameter in parameters] == [key for key, _ in keywords]
    assert all(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters)


def test_every_step_has_a_section():
    public = {
        name
        for name, f in vars(shaping_steps).items()
        if inspect.isfunction(f) and f.__module__ == shaping_steps.__name__
    }
    assert {name for name in public if not name.startswith("_")} == set(SHAPING_STEPS) | {"apply_steps"}


@pytest.mark.parametrize("field", sorted(CURRENT_POLICY | {"old_entropies"}))
def test_a_step_reads_the_fields_that_its_section_names_and_no_other_that_costs_a_pass(tokens, field):
    """A field that no step names may be filled with zeros, which must not shape a mini-batch."""
    changed = tokens._replace(**{field: 3 * getattr(tokens, field)[::-1, ::-1]})
    for name, step in STEPS.items():
        settings = {"share": 0.3, "bounds": (-9.0, 5.0)} if name == "clip_cov" else {}
        settings |= {"share": 0.3} if name == "kl_cov" else {}
        before, after = step(tokens, **settings)[0], step(changed, **settings)[0]
        same = all(np.array_equal(a, b) for a, b in zip(before[:4], after[:4], strict=True))
        assert same == (field not in SHAPING_STEPS[name].reads), name


def test_perplexity_is_standardised_in_the_group(tokens):
    shaped, _ = STEPS["perplexity"](tokens, alpha=0.5)
    expected = tokens.advantages.copy()
    for group in (0, 1):
        rows = [i for i in range(N) if tokens.group[i] == group]
        x = np.array([-tokens.old_logprobs[i][tokens.counted[i]].mean() for i in rows])
        for i, w in zip(rows, (x - x.mean()) / x.std(), strict=True):
            expected[i] *= 1 - 0.5 * w
    np.testing.assert_allclose(shaped.advantages[:5], expected[:5], rtol=2e-5)


def test_a_group_of_one_is_left_as_it_is(tokens):
    alone = tokens._replace(group=np.arange(N, dtype=np.int32))
    for variant in ("paper", "released"):
        shaped, _ = STEPS["perplexity"](alone, alpha=-0.5, variant=variant)
        np.testing.assert_allclose(shaped.advantages, tokens.advantages, rtol=1e-6)


@pytest.mark.parametrize("window, active", [((5, 6), True), ((0, 0), True), ((0, 5), False), ((6, 0), False)])
def test_windows_hold_their_first_step_and_not_their_last(tokens, window, active):
    shaped, _ = STEPS["position"](tokens, window=window)
    changed = not np.array_equal(shaped.advantages[tokens.counted], tokens.advantages[tokens.counted])
    assert changed == active


def test_position_counts_from_the_beginning_of_the_response(tokens):
    """A branch's tokens have their places in the whole response, not in the branch."""
    later = tokens._replace(relative=0.5 + tokens.relative / 2)
    shaped, _ = STEPS["position"](later, window=(0, 0))
    bonus = 0.1 / (1 + np.exp(-15 * (later.relative - 0.5)))
    expected = tokens.advantages + np.sign(tokens.advantages) * bonus
    np.testing.assert_allclose(shaped.advantages[tokens.counted], expected[tokens.counted], rtol=1e-5)


def test_selections_keep_the_denominator_and_the_overlong_mask_does_not(tokens):
    forked, metrics = STEPS["forking_tokens"](tokens, share=0.2)
    assert np.array_equal(forked.counted, tokens.counted)
    assert (np.asarray(forked.weights) > 0)[tokens.counted].sum() == np.ceil(0.2 * tokens.counted.sum())
    assert metrics["threshold"] == tokens.old_entropies[(np.asarray(forked.weights) > 0) & tokens.counted].min()
    cut, metrics = STEPS["overlong_mask"](tokens)
    assert not cut.counted[2].any() and cut.counted.sum() == tokens.counted.sum() - 1
    assert metrics["masked"] == pytest.approx(1 / 5)


def test_clip_cov_passes_over_tokens_that_are_clipped_already(tokens):
    wide = {"bounds": (-1e9, 1e9), "share": 1.0}
    masked = np.asarray(STEPS["clip_cov"](tokens, **wide)[0].weights) == 0
    ratio, a = np.exp(tokens.logprobs - tokens.old_logprobs), tokens.advantages
    clipped = ((a > 0) & (ratio > 1.3)) | ((a < 0) & (ratio < 0.8))
    assert clipped[tokens.counted].any() and np.array_equal(masked, tokens.counted & ~clipped)


def test_steps_are_applied_in_the_order_of_the_list(tokens):
    entropy = (shaping_steps.entropy_advantage, {"alpha": 1000.0, "kappa": 2.0})  # half of |A| is added everywhere
    negative = (shaping_steps.sample_reinforcement, {"positive": 0.0, "negative": 1.0})
    first, metrics = apply_steps(tokens, (negative, entropy))
    second, _ = apply_steps(tokens, (entropy, negative))
    assert set(metrics) == {"entropy_advantage/ratio", "sample_reinforcement/positive_share"}
    a, mask, right = tokens.advantages, tokens.counted, tokens.right[:, None]
    shaped = np.where(right, 0, a + np.abs(a) / 2)[mask]
    np.testing.assert_allclose(first.advantages[mask], shaped, atol=1e-6)
    np.testing.assert_allclose(second.advantages[mask], shaped, atol=1e-6)
    penalised = (shaping_steps.kl_cov, {"share": 0.1, "coefficient": 1.0})
    third, _ = apply_steps(tokens, (negative, penalised))
    fourth, _ = apply_steps(tokens, (penalised, negative))
    assert np.asarray(third.penalised).sum() == np.asarray(fourth.penalised).sum() == 3
    assert not np.array_equal(third.penalised, fourth.penalised), "covariances of different advantages"


def test_sequences_are_weighted_by_entropies_of_which_1_is_the_most(tokens):
    weighted, _ = STEPS["sequence_weighting"](tokens, alpha=2.0)
    expected = entropy_guided_weights(
        tokens.advantages,
        tokens.entropies / tokens.log_vocabulary,
        tokens.counted,
        alpha=2.0,
        temperature=1.0,
        level="step",
    )
    np.testing.assert_allclose(weighted.weights, expected, rtol=1e-6)
    _, metrics = STEPS["sequence_weighting"](tokens, alpha=2.0, level="trajectory")
    assert metrics["scale"] != 1 and np.isfinite(metrics["scale"])


def test_no_token_at_all(tokens):
    nothing = tokens._replace(counted=np.zeros((N, T), bool))
    for name, step in STEPS.items():
        shaped, metrics = step(nothing)
        assert all(np.isfinite(value) for value in metrics.values()), name
        assert np.isfinite(shaped.advantages).all() and np.isfinite(shaped.weights).all(), name
