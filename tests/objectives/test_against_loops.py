"""The objectives beside plain loops in float64: random numbers, masks, group sizes and padding on either side.

hypothesis draws a seed and how dense the masks are; shapes stay, so that nothing compiles anew.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from math import ceil, comb, exp, floor

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fr3e_jax.objectives.advantages import fr3e_advantages, group_advantages
from fr3e_jax.objectives.divergence import kl_k1, kl_k2, kl_k3
from fr3e_jax.objectives.losses import clipped_surrogate
from fr3e_jax.objectives.returns import clipped_value_losses, generalised_advantages
from fr3e_jax.objectives.selection import forking_tokens, kl_cov_losses, kl_cov_tokens, token_covariances
from fr3e_jax.objectives.shaping import (
    entropy_based_advantages,
    perplexity_weights,
    position_shaped_advantages,
    sample_reinforcement,
)
from fr3e_jax.objectives.weighting import entropy_guided_weights

G, M, T = 3, 5, 6  # groups, sequences of a group, tokens
N = G * M

compiled = cache(lambda function, **options: jax.jit(partial(function, **options)))
cases = given(seed=st.integers(0, 2**32 - 1), fill=st.sampled_from(["ragged", "left", "sparse", "full", "empty"]))
quick = settings(max_examples=15, derandomize=True)


class Case:
    """A batch of numbers; ``mask [N, T]`` of tokens, ``present [G, M]`` of sequences."""

    def __init__(self, seed: int, fill: str):
        self.random = np.random.default_rng(seed)
        lengths = self.random.integers(0, T + 1, N)
        right = np.arange(T) < lengths[:, None]
        self.mask = {
            "ragged": right,
            "left": right[:, ::-1],
            "sparse": self.random.random((N, T)) < 0.4,
            "full": np.ones((N, T), bool),
            "empty": np.zeros((N, T), bool),
        }[fill]
        self.present = self.mask.any(axis=1).reshape(G, M)
        self.rewards = self.random.integers(0, 2, (G, M)).astype(np.float32)

    def normal(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        return (self.random.normal(size=shape or (N, T)) * scale).astype(np.float32)

    def tokens(self) -> list[tuple[int, int]]:
        return [(i, t) for i in range(N) for t in range(T) if self.mask[i, t]]


def close(ours, theirs, mask=None, rtol=2e-4, atol=2e-5) -> None:
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    if mask is not None:
        ours, theirs = ours[mask], theirs[mask]
    np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=atol)


def by_group(case: Case, estimate: Callable[[list[float]], list[float]]) -> np.ndarray:
    """A group's estimate at the sequences that are there, 0 elsewhere."""
    found = np.zeros((G, M))
    for g in range(G):
        there = [m for m in range(M) if case.present[g, m]]
        for m, value in zip(there, estimate([float(case.rewards[g, m]) for m in there]), strict=True):
            found[g, m] = value
    return found


def z_scores(rewards: list[float], unbiased: bool) -> list[float]:
    if len(rewards) < 2:
        return [0.0] * len(rewards)
    mean = sum(rewards) / len(rewards)
    deviation = (sum((r - mean) ** 2 for r in rewards) / (len(rewards) - unbiased)) ** 0.5
    return [(r - mean) / (deviation + 1e-6) if deviation else 0.0 for r in rewards]


def left_out(rewards: list[float]) -> list[float]:
    n = len(rewards)
    return [r - (sum(rewards) - r) / (n - 1) if n > 1 else 0.0 for r in rewards]


def of_subsets(rewards: list[float], k: int) -> list[float]:
    n, wrong = len(rewards), sum(r < 1 for r in rewards)
    if n < k:
        return [0.0] * n
    mean = 1 - comb(wrong, k) / comb(n, k)
    sigma = (mean * (1 - mean)) ** 0.5
    if not sigma:
        return [0.0] * n
    right = (1 - mean) / sigma
    return [right if r >= 1 else (1 - mean - comb(wrong - 1, k - 1) / comb(n - 1, k - 1)) / sigma for r in rewards]


@cases
@quick
def test_group_estimators(seed, fill):
    case = Case(seed, fill)
    right = case.rewards == 1
    estimate = lambda name, **options: compiled(group_advantages, estimator=name, **options)(
        case.rewards, case.present, right=right
    )
    close(estimate("grpo"), by_group(case, lambda r: z_scores(r, False)))
    close(estimate("grpo", unbiased_std=True), by_group(case, lambda r: z_scores(r, True)))
    close(estimate("rloo"), by_group(case, left_out))
    close(estimate("mean"), by_group(case, lambda r: [x - sum(r) / len(r) for x in r]))
    close(estimate("maxrl"), by_group(case, lambda r: [x * len(r) / sum(r) - 1 if sum(r) > 0 else 0.0 for x in r]))
    for k in (1, 3, 4):
        close(estimate("pass_at_k", k=k), by_group(case, lambda r, k=k: of_subsets(r, k)), atol=1e-4)
    for name in ("grpo", "rloo", "mean"):
        close(np.asarray(estimate(name)).sum(axis=1), np.zeros(G))
    pairs = np.asarray(estimate("pass_at_k", k=3)).sum(axis=1)
    close(pairs, np.zeros(G), atol=1e-4)


@cases
@quick
def test_fr3e(seed, fill):
    """Groups are the states of one trajectory each; V(S_0) is drawn."""
    case = Case(seed, fill)
    mask = case.mask.reshape(G, M, T)  # T rollouts of each of M states
    rewards = case.random.integers(0, 2, mask.shape).astype(np.float32)
    start = case.random.random(G).astype(np.float32)
    advantages, values, alphas = compiled(fr3e_advantages)(rewards, mask, start, mask.any(axis=-1))
    advantages, values, alphas = jax.device_get((advantages, values, alphas))
    for g in range(G):
        previous = float(start[g])
        for j in range(M):
            earned = rewards[g, j][mask[g, j]].astype(float)
            if not earned.size:
                assert alphas[g, j] == 1 and not np.any(advantages[g, j])
                continue
            alpha = exp(-(earned.mean() - previous))
            previous = earned.mean()
            close(values[g, j], previous)
            close(alphas[g, j], alpha)
            close(advantages[g, j][mask[g, j]], alpha * (earned - previous))


@cases
@quick
def test_shapings(seed, fill):
    case = Case(seed, fill)
    advantages, entropies = case.normal(), np.abs(case.normal())
    bonus, ratio = compiled(entropy_based_advantages, alpha=0.3, kappa=2.5)(advantages, entropies, case.mask)
    form = dict(gamma=0.2, direction=-1.0, steepness=15.0, centre=0.5, variant="paper")
    positions = compiled(position_shaped_advantages, **form)(advantages, case.mask)
    right = entropies > 0.5
    signed = compiled(sample_reinforcement, positive=0.2, negative=0.7)(advantages, right)
    bonus, ratio, positions, signed = jax.device_get((bonus, ratio, positions, signed))
    for i, t in case.tokens():
        a, h = float(advantages[i, t]), float(entropies[i, t])
        extra = min(0.3 * h, abs(a) / 2.5)
        close([bonus[i, t], ratio[i, t]], [a + extra, extra / abs(a)])
        place = case.mask[i, :t].sum() / case.mask[i].sum()
        close(positions[i, t], a + np.sign(a) * 0.2 / (1 + exp(15.0 * (place - 0.5))))
        close(signed[i, t], a * (0.2 if right[i, t] else 0.7))
    assert not np.any(bonus[~case.mask]) and not np.any(positions[~case.mask])


@cases
@quick
def test_perplexity(seed, fill):
    case = Case(seed, fill)
    x = np.abs(case.normal(G, M)) + np.float32(0.1)
    forms = [compiled(perplexity_weights, variant=variant) for variant in ("paper", "released")]
    plain, released = jax.device_get([weigh(x, case.present) for weigh in forms])
    for g in range(G):
        values = x[g][case.present[g]].astype(float)
        if not values.size:
            assert not np.any(plain[g]) and not np.any(released[g])
            continue
        low, high = np.quantile(values, [0.25, 0.75])
        inside = values[(values >= low - 1.5 * (high - low) - 1e-9) & (values <= high + 1.5 * (high - low) + 1e-9)]
        for found, used in ((plain, values), (released, inside)):
            spread = used.std()
            expected = (values - used.mean()) / spread if spread > 1e-6 else np.zeros(len(values))
            close(found[g][case.present[g]], expected, rtol=2e-3, atol=2e-3)


@cases
@quick
def test_entropy_guided_weights(seed, fill):
    case = Case(seed, fill)
    advantages, entropies = case.normal(), np.abs(case.normal())
    forms = [
        compiled(entropy_guided_weights, alpha=0.5, temperature=1.3, level=level) for level in ("step", "trajectory")
    ]
    step, whole = jax.device_get([weigh(advantages, entropies, case.mask) for weigh in forms])
    there = [i for i in range(N) if case.mask[i].any()]
    score = {i: (advantages[i][case.mask[i]].mean() + 0.5 * entropies[i][case.mask[i]].sum()) / 1.3 for i in there}
    total = sum(np.exp(score[i] - max(score.values())) for i in there)
    for i, t in case.tokens():
        peers = [j for j in range(N) if case.mask[j, t]]
        scores = {j: exp((float(advantages[j, t]) + 0.5 * float(entropies[j, t])) / 1.3) for j in peers}
        close(step[i, t], scores[i] / sum(scores.values()))
        close(whole[i, t], np.exp(score[i] - max(score.values())) / total, rtol=1e-3)
    assert not np.any(step[~case.mask]) and not np.any(whole[~case.mask])


@cases
@quick
def test_selections(seed, fill):
    case = Case(seed, fill)
    logprobs, advantages, entropies = -np.abs(case.normal()), case.normal(), np.abs(case.normal())
    tokens = case.tokens()
    covariances = np.asarray(compiled(token_covariances)(logprobs, advantages, case.mask))
    if not tokens:
        assert not np.any(compiled(forking_tokens, share=0.3)(entropies, case.mask))
        assert not np.any(compiled(kl_cov_tokens, share=0.3)(covariances, case.mask))
        return
    selections = (forking_tokens, entropies), (kl_cov_tokens, covariances)
    mean_p, mean_a = (np.mean([x[token] for token in tokens]) for x in (logprobs, advantages))
    for token in tokens:
        close(covariances[token], (logprobs[token] - mean_p) * (advantages[token] - mean_a), rtol=1e-3, atol=1e-4)
    best = lambda scores, count: set(sorted(tokens, key=lambda token: -scores[token])[:count])
    chosen = lambda array: {(int(i), int(t)) for i, t in np.argwhere(np.asarray(array))}
    for share in (0.3, 1.0, 1e-6):
        forking, penalised = (compiled(choose, share=share)(scores, case.mask) for choose, scores in selections)
        assert chosen(forking) == best(entropies, max(ceil(share * len(tokens) - 1e-4), 1))
        assert chosen(penalised) == best(covariances, max(floor(np.float32(share) * len(tokens)), 1))


@pytest.mark.parametrize("gamma, lam", [(1.0, 1.0), (0.97, 0.9)])
@cases
@quick
def test_generalised_advantages(seed, fill, gamma, lam):
    case = Case(seed, fill)
    rewards, values = (np.where(case.mask, case.normal(), padding) for padding in (np.nan, np.inf))
    advantages, returns = compiled(generalised_advantages, gamma=gamma, lam=lam)(rewards, values, case.mask)
    advantages, returns = jax.device_get((advantages, returns))
    for i in range(N):
        inside = np.flatnonzero(case.mask[i])
        after = following = 0.0
        for t in inside[::-1]:
            after = rewards[i, t] + gamma * following - values[i, t] + gamma * lam * after
            following = float(values[i, t])
            close([advantages[i, t], returns[i, t]], [after, after + following], rtol=1e-3, atol=1e-4)
    assert not np.any(advantages[~case.mask]) and not np.any(returns[~case.mask])


def surrogate(new, old, a, low=0.2, high=0.3, dual=3.0) -> float:
    ratio = exp(new - old)
    loss = max(-ratio * a, -min(max(ratio, 1 - low), 1 + high) * a)
    return min(loss, -dual * a) if a < 0 else loss


def covariance_penalty(new, old, a) -> float:
    return -exp(new - old) * a + 0.7 * abs(new - old)


def value_loss(value, old, target) -> float:
    near = min(max(value, old - 0.4), old + 0.4)
    return 0.5 * max((value - target) ** 2, (near - target) ** 2)


LOSSES = {
    "surrogate": (
        surrogate,
        lambda new, old, a, mask: clipped_surrogate(
            new, old, a, mask, epsilon_low=0.2, epsilon_high=0.3, dual_clip=3.0
        )[0],
    ),
    "kl_cov": (
        covariance_penalty,
        lambda new, old, a, mask: kl_cov_losses(new, old, a, mask, mask, coefficient=0.7),
    ),
    "value": (value_loss, lambda *arrays: clipped_value_losses(*arrays, clip=0.4)),
    "k1": (lambda p, q, _: p - q, lambda p, q, _, mask: mask * kl_k1(p, q)),
    "k2": (lambda p, q, _: (p - q) ** 2 / 2, lambda p, q, _, mask: mask * kl_k2(p, q)),
    "k3": (
        lambda p, q, _: exp(q - p) - (q - p) - 1,
        lambda p, q, _, mask: mask * kl_k3(p, q),
    ),
}


def losses_and_slopes(new, old, third, mask, loss):
    return loss(new, old, third, mask), jax.grad(lambda x: loss(x, old, third, mask).sum())(new)


@pytest.mark.parametrize("name", LOSSES)
@cases
@quick
def test_losses_and_their_slopes(seed, fill, name):
    """Slopes by central differences of the loop, away from its kinks."""
    case, (loop, ours) = Case(seed, fill), LOSSES[name]
    old, third = case.normal(), case.normal()
    new = old + case.normal(scale=0.4)
    losses, slopes = jax.device_get(compiled(losses_and_slopes, loss=ours)(new, old, third, case.mask))
    for token in case.tokens():
        at, others = float(new[token]), (float(old[token]), float(third[token]))
        close(losses[token], loop(at, *others), rtol=1e-3, atol=1e-4)
        left, right = ((loop(at + s * 1e-4, *others) - loop(at, *others)) / (s * 1e-4) for s in (-1, 1))
        if abs(left - right) < 1e-2:
            close(slopes[token], (left + right) / 2, rtol=1e-2, atol=1e-2)
    assert not np.any(losses[~case.mask]) and not np.any(slopes[~case.mask])
