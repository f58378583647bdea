"""The steps after which the reference is reset to the policy."""

from __future__ import annotations

from fr3e_jax.configuration.schema import KlConfig
from fr3e_jax.learning.reference import ReferenceResets


def resets(kl: KlConfig, rewards: list[float | None]) -> list[int]:
    state = ReferenceResets()
    return [step for step, reward in enumerate(rewards, 1) if state.due(kl, step, reward)]


def test_the_reference_is_reset_every_n_steps():
    assert resets(KlConfig(coefficient=0.1, reset_every=3), [0.0] * 10) == [3, 6, 9]


def test_on_a_plateau_of_the_reward():
    rewards = [0.1, 0.2, 0.2, 0.1, 0.3, 0.3, 0.2, 0.1, 0.1, 0.0, 0.0]
    # Best 0.2 at step 2, 0.3 at step 5: three steps without a higher one at step 8, where the count starts anew.
    assert resets(KlConfig(coefficient=0.1, reset_on_plateau=3), rewards) == [8]
    assert resets(KlConfig(coefficient=0.1, reset_on_plateau=2), rewards) == [4, 7, 10]


def test_a_step_without_rollouts_does_not_count_for_the_plateau():
    kl = KlConfig(coefficient=0.1, reset_on_plateau=2)
    assert resets(kl, [0.2, None, 0.2, None, None, 0.1, 0.3]) == [6]
    assert resets(KlConfig(coefficient=0.1, reset_every=2), [None] * 4) == [2, 4]


def test_nothing_is_reset_without_a_reference_or_a_setting():
    assert resets(KlConfig(reset_every=1, reset_on_plateau=1), [0.0] * 4) == []
    assert resets(KlConfig(coefficient=0.1), [0.0] * 4) == []
