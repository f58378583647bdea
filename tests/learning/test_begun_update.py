"""An update that goes on after a stop has the rows, the scores and the critic's place that it was stopped with."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from packed_trunks import training_trunk

from fr3e_jax.learning import update
from fr3e_jax.learning.critic import CriticBatch
from fr3e_jax.learning.mini_batches import MiniBatch, Packing
from fr3e_jax.learning.row_menu import RowMenu
from fr3e_jax.learning.scoring import Scores
from fr3e_jax.rollouts.noise import Noise

STEP = 1


@pytest.fixture(scope="module")
def setup() -> SimpleNamespace:
    config = SimpleNamespace(
        training=SimpleNamespace(mini_batch_rollouts=8, micro_batch_tokens=600),
        rollout=SimpleNamespace(max_response_tokens=64),
        loss=SimpleNamespace(aggregation="token_mean"),
        explore=SimpleNamespace(enabled=False),
    )
    return SimpleNamespace(config=config, noise=Noise(3), pad_id=0, key_cost=0.001, position_cost=1e9)


def learner_with(menu: RowMenu) -> SimpleNamespace:
    return SimpleNamespace(programs=SimpleNamespace(shards=1, own_rows=None), menu=menu)


@pytest.fixture(scope="module")
def batch():
    """Each of its four mini-batches adds a shape to the menu that an earlier one would take."""
    rng = np.random.default_rng(43)
    lengths = lambda: [(int(rng.integers(1, 40)), int(rng.integers(1, 65))) for _ in range(4)]
    return [training_trunk(430 + n, 40, lengths()) for n in range(8)]


def rows_of(mini_batch: MiniBatch) -> list[tuple]:
    return [(micro.batch.rows.segment.shape, micro.spans) for micro in mini_batch.micros]


def test_mini_batches_after_a_stop_have_the_rows_they_had(setup, batch):
    """All were packed before the stop, so the run's menu holds shapes that an earlier mini-batch could not choose."""
    first, stopped = learner_with(RowMenu()), 1
    whole = Packing(setup, first, STEP, 0, batch)
    wanted = [rows_of(one) for one in whole]
    per_token = [[np.zeros(len(branch.token_ids), np.float32) for branch in trunk.branches] for trunk in batch]
    scored = update.Scored(batch, Scores(per_token, None, 0), per_token, CriticBatch(batch, per_token, per_token))
    going = update._Going(whole, scored, {"found": 1.0}, part=stopped, critic_is_ahead=True, trained=True)

    later = learner_with(RowMenu.from_json(first.menu.to_json()))
    found = update._going_on(setup, later, STEP, batch, update._begun(going))
    assert found.packed.menus() == whole.menus(), "a second stop has the menus of all mini-batches again"
    assert rows_of(next(iter(found.packed))) == wanted[stopped]
    assert found.packed.menus() == whole.menus(), "also with some of them packed again"
    assert [rows_of(one) for one in found.packed] == wanted[stopped:]
    assert found.critic_is_ahead and found.trained and not found.scored_here
    now = Packing(setup, learner_with(RowMenu.from_json(first.menu.to_json())), STEP, 0, batch, first=stopped)
    assert [rows_of(one) for one in now] != wanted[stopped:], "this batch must tell"
