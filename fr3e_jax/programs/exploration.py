"""Anchors and advantages for many rollouts at once: the objectives, compiled over padded batches.

NumPy in, NumPy out. Batches are padded to powers of two, so that few shapes are compiled.

Dimension key: P prompts, R base rollouts, J states S_0..S_K, M branches per state, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from fr3e_jax import objectives
from fr3e_jax.programs.size_buckets import power_of_two

_LEAST_ROWS = 16


def _anchors(sources, lengths, *, selection, num_anchors, size, **bounds):
    if selection == "delimiter":
        select = partial(objectives.boundary_anchors, num_anchors=num_anchors, **bounds)
        return jax.vmap(lambda boundaries, n: select(boundaries, n))(sources, lengths)
    if selection == "uniform":
        select = partial(objectives.uniform_anchors, num_anchors=num_anchors, T=size, **bounds)
        return jax.vmap(lambda n: select(n))(lengths)

    def one(source, n):
        names = {"entropy": "entropies", "logprob": "logprobs", "gradient": "magnitudes", "random": "uniforms"}
        scores = objectives.anchor_scores(selection, length=n, **{names[selection]: source})
        return objectives.select_anchors(scores, n, num_anchors=num_anchors, **bounds)

    return jax.vmap(one)(sources, lengths)


_select_anchors = jax.jit(
    _anchors,
    static_argnames=(
        "selection",
        "num_anchors",
        "size",
        "min_spacing",
        "exclude_first",
        "exclude_last",
        "include_anchor_token",
    ),
)


def find_anchors(
    sources: Sequence[np.ndarray],
    *,
    selection: str,
    num_anchors: int,
    min_spacing: int = 1,
    exclude_first: int = 0,
    exclude_last: int = 0,
    include_anchor_token: bool = False,
) -> list[np.ndarray]:
    """Anchor positions of each response, rising; at most ``num_anchors`` each.

    Args:
      sources: per response the ``[T]`` array that ``selection`` reads: entropies, log-probs, update magnitudes, random
        numbers, or 1 at each step border and else 0. For ``uniform`` only its length counts.
      selection: entropy, logprob, gradient, random, delimiter or uniform.
      num_anchors, min_spacing, exclude_first, exclude_last, include_anchor_token: see
        `fr3e_jax.objectives.select_anchors`.
    """
    if not sources:
        return []
    lengths = np.array([len(s) for s in sources], np.int32)
    rows, size = power_of_two(len(sources), _LEAST_ROWS), power_of_two(int(lengths.max()), 16)
    padded = np.zeros((rows, size), np.float32)
    for row, source in zip(padded, sources, strict=False):
        row[: len(source)] = source
    anchors, valid = jax.device_get(
        _select_anchors(
            padded,
            np.pad(lengths, (0, rows - len(sources))),
            selection=selection,
            num_anchors=num_anchors,
            size=size,
            min_spacing=min_spacing,
            exclude_first=exclude_first,
            exclude_last=exclude_last,
            include_anchor_token=include_anchor_token,
        )
    )
    return [a[v] for a, v in zip(anchors[: len(sources)], valid, strict=False)]


_group_advantages = jax.jit(objectives.group_advantages, static_argnames=("estimator", "unbiased_std", "k"))


def group_advantages(rewards: np.ndarray, *, estimator: str, unbiased_std: bool = False, k: int = 4) -> np.ndarray:
    """Advantages ``[P, R]`` of full groups of rewards ``[P, R]``; see `fr3e_jax.objectives.group_advantages`."""
    padded = _pad_rows(rewards.astype(np.float32), power_of_two(len(rewards), _LEAST_ROWS))
    found = _group_advantages(padded, np.ones(padded.shape, bool), estimator=estimator, unbiased_std=unbiased_std, k=k)
    return np.asarray(found)[: len(rewards)]


@partial(jax.jit, static_argnames=("estimator", "unbiased_std", "modulation", "initial", "fresh"))
def _trajectories(
    rewards, mask, base_value, final_reward, root_value, *, estimator, unbiased_std, modulation, initial, fresh
):
    valid = mask.any(axis=-1)
    start = objectives.state_values(rewards, mask)[:, 0] if fresh else base_value
    if estimator == "tree":
        values = objectives.state_values(rewards, mask).at[:, 0].set(start)
        advantages, credit = objectives.tree_advantages(rewards, mask, final_reward, root_value)
        return advantages, values, jnp.ones_like(values), credit
    if not fresh:
        initial = "one"  # without a trained S_0 there is no alpha_0 to put into a sharpened sum
    later = (rewards[:, 1:], mask[:, 1:], start, valid[:, 1:])
    advantages, values, _ = objectives.fr3e_advantages(
        *later, estimator=estimator, modulation=modulation, initial=initial, unbiased_std=unbiased_std
    )
    alphas = objectives.trajectory_modulation(values, start, valid[:, 1:], variant=modulation, initial=initial)
    first = objectives.group_advantages(rewards[:, 0], mask[:, 0], estimator=estimator, unbiased_std=unbiased_std)
    advantages = jnp.concatenate([(alphas[:, :1] * first)[:, None], advantages], axis=1)
    credit = objectives.block_credit(values, start, final_reward, valid[:, 1:])
    return advantages, jnp.concatenate([start[:, None], values], axis=1), alphas, credit


def trajectory_advantages(
    rewards: np.ndarray,
    mask: np.ndarray,
    base_value: np.ndarray,
    final_reward: np.ndarray,
    root_value: np.ndarray | None = None,
    *,
    estimator: str,
    unbiased_std: bool,
    modulation: str,
    initial: str,
    fresh: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Advantages, values, modulation and block credit of expanded base rollouts, before any group is filtered.

    Args:
      rewards, mask: ``[R, J, M]``; J counts S_0, whose row is empty unless ``fresh``; M is the largest group.
      base_value: ``[R]``, mean of the prompt's base rewards: V(S_0) unless ``fresh``.
      final_reward: ``[R]``, reward of the base rollout itself.
      root_value: ``[R]``, mean reward of all leaves of the prompt. Only ``estimator="tree"`` reads it, which modulates
        nothing and credits blocks with their step values (`objectives.tree_advantages`).
      estimator, unbiased_std: see `objectives.group_advantages`; or ``"tree"``.
      modulation, initial: see `objectives.trajectory_modulation`.
      fresh: V(S_0) is the mean of fresh rollouts from S_0, which train too.

    Returns:
      advantages ``[R, J, M]``; values, alphas ``[R, J]``; block credit ``[R, J]`` (as many blocks as states).
    """
    rows = power_of_two(len(rewards), _LEAST_ROWS)
    root_value = np.zeros(len(rewards)) if root_value is None else root_value
    floats = [x.astype(np.float32) for x in (rewards, base_value, final_reward, root_value)]
    rewards, *of_bases = (_pad_rows(x, rows) for x in floats)
    results = _trajectories(
        rewards,
        _pad_rows(mask, rows),
        *of_bases,
        estimator=estimator,
        unbiased_std=unbiased_std,
        modulation=modulation,
        initial=initial,
        fresh=fresh,
    )
    return tuple(np.asarray(x)[: len(mask)] for x in results)


def _pad_rows(x: np.ndarray, rows: int) -> np.ndarray:
    return np.pad(x, [(0, rows - len(x))] + [(0, 0)] * (x.ndim - 1))
