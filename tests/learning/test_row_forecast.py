"""Shapes chosen before the run: few, the same every time, and every branch lies in one of them."""

from __future__ import annotations

import copy
import itertools

import pytest

from fr3e_jax.configuration import load_config
from fr3e_jax.learning.long_rows import Budget
from fr3e_jax.learning.row_forecast import expected_mini_batches, planned_menu, restored_menu
from fr3e_jax.learning.row_menu import RowMenu
from fr3e_jax.learning.row_plan import plan_rows
from fr3e_jax.learning.setup import LearningSetup
from fr3e_jax.rollouts.expected_lengths import expected_lengths
from fr3e_jax.rollouts.noise import Noise

RECIPES = {
    "short": ("demo", []),
    "long": ("fr3e_qwen2.5_7b", ["training.mini_batch_rollouts=256", "rollout.max_response_tokens=4096"]),
    "grpo": ("grpo_pp_qwen2.5_7b", ["training.mini_batch_rollouts=512"]),
}
KEY_COST = {"short": 3e-3, "long": 2e-5, "grpo": 2e-5}
SHARDS = {"short": 1, "long": 4, "grpo": 16}


def setup_of(name: str, *overrides: str) -> LearningSetup:
    recipe, more = RECIPES[name]
    config = load_config(recipe, [*more, *overrides], training=False)
    return LearningSetup(config, Noise(0), 0, 100, KEY_COST[name], 1e6)


def planned(name: str, menu: RowMenu, forks, lengths):
    config = setup_of(name).config
    sizes = {"tokens": config.training.micro_batch_tokens, "shards": SHARDS[name], "key_cost": KEY_COST[name]}
    longest = config.rollout.max_response_tokens
    return plan_rows(forks, lengths, fixed=None, longest=longest, position_cost=1e6, menu=menu, **sizes)


def other_batches(name: str, count: int):
    """Mini-batches other than those that the shapes were chosen for."""
    return itertools.islice(expected_mini_batches(setup_of(name).config, 6 + count), 6, None)


@pytest.mark.parametrize("most", [1, 3])
@pytest.mark.parametrize("name", RECIPES)
def test_mini_batches_of_expected_lengths_use_the_planned_shapes_alone(name, most):
    menu = planned_menu(setup_of(name, f"training.row_shapes={most}"), SHARDS[name])
    assert 1 <= len(menu.shapes) <= most and menu.closed
    assert planned_menu(setup_of(name, f"training.row_shapes={most}"), SHARDS[name]) == menu
    before = copy.deepcopy(menu)
    for forks, lengths in other_batches(name, 3):
        plan = planned(name, menu, forks, lengths)
        placed = sorted((t, b) for rows, _ in plan for row in rows for t, b, _ in row.branches)
        assert placed == [(t, b) for t, own in enumerate(forks) for b in range(len(own))]
        for rows, shape in plan:
            assert len(rows) <= shape.rows and shape.rows % SHARDS[name] == 0
            for row in rows:
                assert row.filled <= shape.trunk_size
                assert row.lanes <= shape.lanes
                assert max(row.ends) <= shape.capacity * (shape.lanes if row.crossing else 1)
    assert menu == before, "no shape was added"


@pytest.mark.parametrize(("recipe", "most"), [("fr3e_qwen2.5_7b", 8), ("grpo_pp_qwen2.5_7b", 1)])
def test_few_planned_shapes_of_7b_cost_no_more_than_many_grown_ones(monkeypatch, recipe, most):
    for table, value in ((RECIPES, (recipe, [])), (SHARDS, 16), (KEY_COST, 2.6e-5)):
        monkeypatch.setitem(table, recipe, value)
    menu, grown = planned_menu(setup_of(recipe), 16), RowMenu()
    budget, batches = (
        Budget(setup_of(recipe).config.training.micro_batch_tokens, 16, 2.6e-5),
        list(other_batches(recipe, 6)),
    )
    costs, shapes = [], {}
    for own in (menu, grown):
        plan = [micro for batch in batches for micro in planned(recipe, own, *batch)]
        shapes[own.closed] = {shape for _, shape in plan}
        costs.append(sum(budget.cost(shape) for _, shape in plan))
    assert costs[0] < 1.02 * costs[1]
    assert len(shapes[True]) <= 3 and len(shapes[False]) > most


def test_a_branch_that_no_planned_row_holds_adds_one():
    menu = planned_menu(setup_of("long", "training.row_shapes=1"), 4)
    forks, lengths = [[5000] * 3, [20_000]], [[4096, 17, 1], [3]]  # the prompt of the second is longer than expected
    plan = planned("long", menu, forks, lengths)
    assert sorted((t, b) for rows, _ in plan for row in rows for t, b, _ in row.branches) == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
    ]
    assert len(menu.shapes) == 2
    assert planned("long", menu, forks, lengths) == plan


def test_a_closed_menu_of_fewer_shards_is_planned_anew():
    """A checkpoint of a smaller mesh: shapes of one row would be none on each of four shards."""
    setup = setup_of("short", "training.row_shapes=1")
    small = planned_menu(setup, 1).to_json()
    assert restored_menu(setup, 1, small).to_json() == small
    odd = [[1, *shape[1:]] for shape in small]
    assert restored_menu(setup, 4, odd).to_json() == planned_menu(setup, 4).to_json() != odd
    assert restored_menu(setup_of("short"), 4, odd).to_json() == odd, "an open one takes any number of rows"


def test_without_the_setting_shapes_follow_the_batches():
    assert planned_menu(setup_of("grpo", "training.row_shapes=0"), 16) == RowMenu()


@pytest.mark.parametrize(("mean", "cap"), [(1, 1), (2, 8), (2048, 16384), (0, 20), (72, 77), (77, 77), (100, 77)])
def test_expected_lengths_have_the_mean_and_keep_the_cap(mean, cap):
    lengths = expected_lengths(mean, cap)
    assert 1 <= lengths.min() and lengths.max() <= cap
    assert (lengths[1:] >= lengths[:-1]).all()
    wanted = min(mean or max(cap // 2, 1), cap)
    assert abs(lengths.mean() - wanted) <= max(0.15 * wanted, 1)
