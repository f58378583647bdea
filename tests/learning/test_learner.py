"""The learner: a reference and a critic only if the method has them, in memory of their own."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from fr3e_jax.learning.learner import abstract_learner, fresh_learner, restored_learner
from fr3e_jax.runs.checkpoint_content import flatten_arrays


@pytest.fixture(scope="module")
def programs(session):
    return session.model.train_programs(session.config)


@pytest.fixture(scope="module")
def critic(session, tiny_run):
    ppo = tiny_run.changed(session, explore__enabled=False, advantage__base_estimator="gae")
    return ppo.model.critic_programs(ppo.config)


def kinds(arrays) -> dict:
    return {name: (leaf.shape, leaf.dtype, leaf.sharding) for name, leaf in flatten_arrays(arrays).items()}


@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize("with_critic", [False, True])
def test_a_checkpoint_holds_the_parts_that_the_method_has(session, programs, critic, reference, with_critic):
    held = critic if with_critic else None
    learner = fresh_learner(programs, session.model.fresh_params(session.config), held, reference=reference)
    found = learner.arrays()
    others = [name for name, there in (("reference", reference), ("critic", with_critic)) if there]
    assert list(found) == ["params", "optimizer", *others]
    assert kinds(found) == kinds(abstract_learner(programs, held, reference=reference))
    again = restored_learner(programs, held, found, updates=7)
    assert again.updates == 7 and kinds(again.arrays()) == kinds(found)


def test_the_reference_is_sharded_like_the_policy_and_outlives_its_update(session, programs):
    learner = fresh_learner(programs, session.model.fresh_params(session.config), None, reference=True)
    assert kinds(learner.reference) == kinds(learner.params)
    before = jax.device_get(learner.params["embedding"])
    ones = jax.tree.map(lambda leaf: leaf * 0 + 1, learner.params)
    learner.params, learner.optimizer_state, _ = programs.apply(learner.params, learner.optimizer_state, ones)
    assert np.abs(np.asarray(learner.params["embedding"]) - before).max() > 1e-4
    np.testing.assert_array_equal(learner.reference["embedding"], before)
    moments = [leaf for leaf in jax.tree.leaves(learner.optimizer_state) if leaf.ndim]
    assert any(np.asarray(leaf).any() for leaf in moments)
    learner.reset_reference()
    learner.restart_optimizer()
    np.testing.assert_array_equal(learner.reference["embedding"], learner.params["embedding"])
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(learner.optimizer_state))
