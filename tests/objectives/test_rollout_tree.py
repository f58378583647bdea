"""Advantages of the exploration tree: by hand, and against a tree of Python objects walked from its leaves."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fr3e_jax.objectives.rollout_tree import tree_advantages

J, M = 4, 3


class Node:
    def __init__(self, parent=None, reward=None):
        self.parent, self.children, self.reward = parent, [], reward
        if parent is not None:
            parent.children.append(self)

    def leaves(self) -> list[float]:
        return [self.reward] if not self.children else [r for child in self.children for r in child.leaves()]

    def advantage(self, root_value: float) -> float:
        mean = lambda node: root_value if node.parent is None else float(np.mean(node.leaves()))
        own = mean(self)
        return ((own - root_value) + (own - mean(self.parent))) / math.sqrt(len(self.leaves()))


def walked(rewards, mask, final, root_value):
    """Advantages of the rollouts and of the blocks that exist."""
    stem = [Node()]
    rollouts = np.zeros(mask.shape)
    states = [0, *[j for j in range(1, len(mask)) if mask[j].any()]]
    placed = []
    for number, j in enumerate(states):
        if number:
            stem.append(Node(stem[-1]))
        placed += [(j, m, Node(stem[-1], rewards[j, m])) for m in np.flatnonzero(mask[j])]
    stem.append(Node(stem[-1], final))
    for j, m, node in placed:
        rollouts[j, m] = node.advantage(root_value)
    return rollouts, [node.advantage(root_value) for node in stem[1:]]


def test_by_hand():
    """K = 2, M = 2, the base is right: leaves below B_1: 5, B_2: 3, B_3: 1; V = 3/5, 2/3, 1; the prompt's mean 1/2."""
    rewards, mask = np.array([[0, 0], [1, 0], [1, 0]]), np.array([[0, 0], [1, 1], [1, 1]], bool)
    advantages, blocks = tree_advantages(rewards, mask, 1.0, 0.5)
    np.testing.assert_allclose(advantages, [[0, 0], [0.5 + 0.4, -0.5 - 0.6], [0.5 + 1 / 3, -0.5 - 2 / 3]], atol=1e-6)
    wanted = [(0.1 + 0.1) / 5**0.5, (1 / 6 + 2 / 3 - 0.6) / 3**0.5, 0.5 + 1 / 3]
    np.testing.assert_allclose(blocks, wanted, atol=1e-6)


compiled = jax.jit(tree_advantages)


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1))
def test_equal_the_tree_walked_from_its_leaves(seed):
    rng = np.random.default_rng(seed)
    rewards, mask = rng.random((2, J, M)).round(1), rng.random((2, J, M)) < 0.6
    mask[:, rng.integers(J)] = False  # a state that does not exist, the fresh S_0 among them
    final, root = rng.integers(0, 2, 2).astype(float), rng.random(2)
    advantages, blocks = compiled(np.where(mask, rewards, np.nan), mask, final, root)
    for r in range(2):
        wanted, stem = walked(rewards[r], mask[r], final[r], root[r])
        np.testing.assert_allclose(advantages[r], wanted, atol=1e-5)
        np.testing.assert_allclose(blocks[r], stem + [0.0] * (J - len(stem)), atol=1e-5)


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.9])
def test_a_tree_of_equal_rewards_has_advantage_exactly_0(reward):
    advantages, blocks = tree_advantages(np.full((J, M), reward), np.ones((J, M), bool), reward, reward)
    assert not np.any(advantages) and not np.any(blocks)


def test_a_base_without_states_is_one_block():
    advantages, blocks = tree_advantages(np.zeros((J, M)), np.zeros((J, M), bool), 1.0, 0.25)
    assert not np.any(advantages)
    np.testing.assert_allclose(blocks, [1.5, 0, 0, 0])
