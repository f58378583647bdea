"""Base rollouts that train beside the branches of their states pass the network once: on their trunk, and after it."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest
from packed_trunks import training_trunk

from fr3e_jax.configuration import load_config
from fr3e_jax.learning.experience import TrainingTrunk
from fr3e_jax.learning.micro_batch_shapes import expected_mini_batches
from fr3e_jax.learning.mini_batches import MiniBatch, fill, placed, read_spans
from fr3e_jax.learning.packing import pack
from fr3e_jax.learning.trained_trunks import tokens_on_trunk, trains_trunks
from fr3e_jax.planning.step_time import Assumptions, step_amounts


def with_base(seed: int, prompt: int, response: int, branches: list[tuple[int, int]], routes=None) -> TrainingTrunk:
    """Prompt and response as a trunk with ``branches``, and the response as the last of them."""
    trunk = training_trunk(seed, prompt + response, [*branches, (prompt, response)], routes)
    base = trunk.branches[-1]
    routes = None if routes is None else trunk.routes[prompt:]
    trunk.branches[-1] = replace(base, token_ids=trunk.token_ids[prompt:], on_trunk=True, routes=routes)
    return trunk


@pytest.fixture
def trunks() -> list[TrainingTrunk]:
    """Two states in a base; a state at its last token; a prompt with two responses; a base without another branch."""
    return [
        with_base(1, 5, 30, [(12, 20), (12, 7), (25, 9)]),
        with_base(2, 3, 6, [(8, 4), (4, 1)]),
        training_trunk(3, 7, [(7, 11), (7, 2)]),
        with_base(4, 4, 9, []),
    ]


@pytest.mark.parametrize(
    ("forks", "lengths", "own", "expected"),
    [
        ([5, 9, 7], [6, 2, 3], [True, False, False], [4, 0, 0]),
        ([9, 5], [2, 6], [False, True], [0, 4]),
        ([11, 5], [1, 6], [False, True], [0, 5]),  # the last token of a base is never needed as a trunk
        ([5, 5], [3, 6], [False, True], [0, 0]),
        ([3, 5], [3, 6], [False, True], [0, 0]),
        ([5], [6], [True], [0]),
        ([5, 9], [6, 2], [False, False], [0, 0]),
    ],
)
def test_a_base_lies_on_its_trunk_up_to_the_last_fork(forks, lengths, own, expected):
    assert tokens_on_trunk(forks, lengths, own) == expected


@pytest.mark.parametrize("tokens", [60, 1000])
def test_each_token_of_a_base_is_placed_once_on_the_trunk_or_after_its_last_fork(trunks, tokens):
    plain = pack(trunks, tokens=tokens, pad_id=0)
    micros = pack(trunks, tokens=tokens, pad_id=0, trained_trunks=True)
    found = {}
    for micro in micros:
        rows = micro.batch.rows
        for p in micro.spans:
            branch = trunks[p.trunk].branches[p.branch]
            for number, where in zip(
                range(p.tokens.start, p.tokens.stop), zip(*p.where[1:], strict=True), strict=False
            ):
                at = (p.row, *where)
                assert found.setdefault((p.trunk, p.branch, number), at) == at
                assert rows.branch_ids[at] == branch.token_ids[number] and rows.segment[at] > 0
                assert micro.batch.advantages[at] == branch.advantages[number]
                lane, position = where
                if lane >= rows.lanes:  # the trunk has the same token at this place
                    assert rows.trunk_ids[p.row, (lane - rows.lanes) * p.capacity + position] == rows.branch_ids[at]
                else:
                    assert rows.fork[at] + rows.offset[at] == branch.fork + number
        assert micro.batch.loss_mask.sum() == micro.loss_tokens == (rows.segment > 0).sum()
    everything = [
        (i, b, n) for i, t in enumerate(trunks) for b, one in enumerate(t.branches) for n in range(len(one.token_ids))
    ]
    assert sorted(found) == everything
    spared = (25 - 5) + (8 - 3)
    trunk_again = sum(m.positions for m in plain) - sum(m.positions for m in micros) - spared
    assert trunk_again == 0 if tokens == 1000 else trunk_again < spared


def test_values_of_tokens_on_trunks_come_back_from_the_rows(trunks):
    options = dict(tokens=60, pad_id=0, trained_trunks=True)
    packed = MiniBatch(list(range(len(trunks))), trunks, pack(trunks, **options))
    of_branch = lambda i, b, branch: np.arange(len(branch.token_ids)) + 100.0 * i + 40.0 * b
    values = [[of_branch(i, b, one) for b, one in enumerate(trunk.branches)] for i, trunk in enumerate(trunks)]
    found = [[np.zeros(0)] * len(trunk.branches) for trunk in trunks]
    read_spans(packed, list(placed(packed, values)), found)
    jax.tree.map(np.testing.assert_array_equal, found, values)
    masks = [[np.arange(len(one.token_ids)) % 2 == 0 for one in trunk.branches] for trunk in trunks]
    fill([packed], "loss_mask", masks)
    assert sum(m.loss_tokens for m in packed.micros) == sum(mask.sum() for row in masks for mask in row)


def test_reading_leaves_the_arrays_that_it_replaces_as_they_were(trunks):
    packed = MiniBatch([0], trunks[:1], pack(trunks[:1], tokens=1000, pad_id=0, trained_trunks=True))
    sampled = [branch.sampler_logprobs for branch in trunks[0].branches]
    before = [one.copy() for one in sampled]
    read_spans(packed, [np.ones_like(m.batch.advantages) for m in packed.micros], [list(sampled)])
    jax.tree.map(np.testing.assert_array_equal, sampled, before)


def test_recorded_routes_of_a_base_lie_on_its_trunk():
    trunk = with_base(1, 5, 30, [(12, 20), (25, 9)], routes=4)
    (micro,) = pack([trunk], tokens=1000, pad_id=0, trained_trunks=True)
    (tail,) = [p for p in micro.spans if p.branch == 2 and p.first]
    lanes = np.moveaxis(micro.batch.rows.branch_routes, 1, -1).reshape(-1, 4)
    np.testing.assert_array_equal(lanes[tail.start : tail.start + tail.length], trunk.routes[25:])
    np.testing.assert_array_equal(micro.batch.rows.trunk_routes[0, :, :25].T, trunk.routes[:25])


def test_plans_and_shapes_chosen_before_a_run_count_such_bases_once():
    config = load_config("treerl", ["training.mini_batch_rollouts=64"], training=False)
    assert trains_trunks(config.explore) and not trains_trunks(load_config("fr3e_gsm8k", [], training=False).explore)
    for forks, lengths in expected_mini_batches(config, 1, 64, "fresh"):
        assert all(row[-1] == max(row) and min(own) >= 1 for row, own in zip(forks, lengths, strict=True))
    response, prompt = 60, config.data.max_prompt_tokens
    anchors = [20, 40]
    config.explore.num_anchors = len(anchors)
    amounts = step_amounts(config, Assumptions(response), 1)
    explored = sum(config.explore.rollouts_per_state * (response - anchor) for anchor in anchors)
    trunks = -(-config.training.mini_batch_rollouts // (config.explore.rollouts_per_state * len(anchors) + 1))
    assert amounts.loss_tokens == amounts.updates * trunks * (explored + response)
    assert amounts.trained_positions == amounts.updates * trunks * (prompt + response + explored)
