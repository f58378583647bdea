"""Anchors: the chosen positions, their order, and responses with too few positions."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fr3e_jax.objectives.anchors import (
    AnchorRules,
    block_index,
    boundary_anchors,
    select_anchors,
    uniform_anchors,
)

SCORES = np.array([9.0, 1.0, 5.0, 4.0, 5.0, 0.5, 8.0, 7.0])
T = len(SCORES)


def chosen(result, size=T) -> list[int]:
    """The valid anchors, after checking that the invalid ones come last and are filled."""
    anchors, valid = (np.asarray(x) for x in result)
    count = int(valid.sum())
    assert valid.tolist() == [True] * count + [False] * (len(valid) - count)
    assert (anchors[count:] == size).all()
    return anchors[:count].tolist()


def greedy_by_hand(scores, length, num_anchors, min_spacing, exclude_first, exclude_last) -> list[int]:
    """The rule in plain Python: best score first, earliest on ties, positions too close are passed over."""
    allowed = range(max(exclude_first, 1), length - exclude_last)
    taken: list[int] = []
    for position in sorted(allowed, key=lambda p: (-scores[p], p)):
        if len(taken) < num_anchors and all(abs(position - other) >= min_spacing for other in taken):
            taken.append(position)
    return sorted(taken)


class TestSelectAnchors:
    def test_highest_scores_in_increasing_order_of_position(self):
        assert chosen(select_anchors(SCORES, T, AnchorRules(3))) == [2, 6, 7]

    def test_more_anchors_than_positions_exist(self):
        assert chosen(select_anchors(SCORES, T, AnchorRules(20))) == [1, 2, 3, 4, 5, 6, 7]

    def test_infinite_and_nan_scores_do_not_open_barred_positions(self):
        scores = np.array([np.inf, -np.inf, np.nan, -np.inf, 1.0, -np.inf, np.inf, np.inf])
        assert chosen(select_anchors(scores, 6, AnchorRules(2))) == [1, 4]
        assert chosen(select_anchors(scores, 7, AnchorRules(1))) == [6]

    def test_including_the_anchor_token_frees_the_first_and_bars_the_last(self):
        options = {"num_anchors": 8, "include_anchor_token": True}
        assert chosen(select_anchors(SCORES, 4, AnchorRules(**options))) == [0, 1, 2]
        assert chosen(select_anchors(SCORES, 1, AnchorRules(**options))) == []
        assert chosen(select_anchors(SCORES, 6, AnchorRules(exclude_first=1, exclude_last=2, **options))) == [1, 2, 3]

    @pytest.mark.parametrize("min_spacing", [1, 2, 3])
    @pytest.mark.parametrize(("exclude_first", "exclude_last"), [(0, 0), (1, 1), (3, 2), (6, 6)])
    def test_agrees_with_the_rule_in_plain_python(self, min_spacing, exclude_first, exclude_last):
        rng = np.random.default_rng(0)
        lengths = np.arange(T + 1)
        scores = rng.integers(0, 4, size=(T + 1, T)).astype(np.float32)  # few levels: many ties
        options = dict(min_spacing=min_spacing, exclude_first=exclude_first, exclude_last=exclude_last)
        batch = jax.vmap(lambda s, n: select_anchors(s, n, AnchorRules(3, **options)))(scores, lengths)
        for row, length in enumerate(lengths):
            found = chosen(jax.tree.map(lambda x, row=row: x[row], batch))
            assert found == greedy_by_hand(scores[row], length, 3, min_spacing, exclude_first, exclude_last)


class TestUniformAnchors:
    @pytest.mark.parametrize(
        ("length", "num_anchors", "expected"),
        [(8, 3, [2, 4, 6]), (8, 1, [4]), (7, 3, [1, 3, 5]), (3, 4, [1, 2]), (1, 2, []), (0, 2, []), (2, 1, [1])],
    )
    def test_blocks_of_equal_length(self, length, num_anchors, expected):
        assert chosen(uniform_anchors(length, AnchorRules(num_anchors), T=T)) == expected

    def test_bounds_and_spacing_hold_for_every_length(self):
        for length, first, last, spacing, include in itertools.product(
            range(T + 1), (0, 2), (0, 3), (1, 2, 4), (False, True)
        ):
            options = dict(min_spacing=spacing, exclude_first=first, exclude_last=last, include_anchor_token=include)
            found = chosen(uniform_anchors(length, AnchorRules(4, **options), T=T))
            low = first if include else max(first, 1)
            high = length - (max(last, 1) if include else last)
            assert all(low <= p < high for p in found)
            assert all(b - a >= spacing for a, b in itertools.pairwise(found))
            assert bool(found) == (high > low)


class TestBlockIndex:
    def test_an_anchor_opens_its_block(self):
        anchors, valid = jnp.array([2, 5]), jnp.array([True, True])
        np.testing.assert_array_equal(block_index(anchors, valid, 7, 8), [0, 0, 1, 1, 1, 2, 2, -1])

    def test_missing_anchors_open_nothing(self):
        np.testing.assert_array_equal(block_index(jnp.array([1, 4]), jnp.array([True, False]), 4, 4), [0, 1, 1, 1])
        np.testing.assert_array_equal(block_index(jnp.array([3, 3]), jnp.array([False, False]), 3, 3), [0, 0, 0])

    def test_blocks_partition_the_response_into_one_more_than_the_anchors(self):
        anchors, valid = select_anchors(SCORES, 6, AnchorRules(3))
        blocks = np.asarray(block_index(anchors, valid, 6, T))
        assert sorted(set(blocks[:6].tolist())) == [0, 1, 2, 3]
        assert (np.diff(blocks[:6]) >= 0).all() and (blocks[6:] == -1).all()


class TestBoundaryAnchors:
    """Every second position of 12 could begin a step: 2, 4, 6, 8, 10."""

    BOUNDARIES = np.array([1, 0] * 6)

    def anchors_of(self, length, boundaries=BOUNDARIES, **bounds) -> list[int]:
        return chosen(boundary_anchors(boundaries, length, AnchorRules(**{"num_anchors": 5} | bounds)), len(boundaries))

    def test_all_of_them_where_they_are_few(self):
        assert self.anchors_of(12) == [2, 4, 6, 8, 10]
        assert self.anchors_of(7) == [2, 4, 6]

    def test_evenly_among_them_where_they_are_more(self):
        assert self.anchors_of(12, num_anchors=1) == [6]
        assert self.anchors_of(12, num_anchors=2) == [4, 8]

    @pytest.mark.parametrize("count", [1, 3, 7])
    def test_those_of_every_position_are_the_uniform_anchors(self, count):
        ours = jax.jit(lambda length: boundary_anchors(np.ones(40), length, AnchorRules(count)))
        evenly = jax.jit(lambda length: uniform_anchors(length, AnchorRules(count), T=40))
        for length in range(40):
            assert chosen(ours(length), 40) == chosen(evenly(length), 40), length

    def test_bounds_and_spacing(self):
        assert self.anchors_of(12, exclude_first=3, exclude_last=2) == [4, 6, 8]
        assert self.anchors_of(12, min_spacing=3) == [2, 6, 10]

    def test_including_the_token_bars_the_end_and_frees_the_start(self):
        assert self.anchors_of(3, np.ones(3), include_anchor_token=True) == [0, 1]
        assert self.anchors_of(3, np.ones(3)) == [1, 2]

    @pytest.mark.parametrize(("boundaries", "length"), [(np.zeros(6), 6), (np.ones(6), 1), (np.ones(6), 0)])
    def test_none_is_none(self, boundaries, length):
        assert self.anchors_of(length, boundaries) == []


class TestTokensThatToolsWrote:
    """24 tokens in steps of four that end with '>'; a tool wrote the inside of the first three steps."""

    STEPS = np.array([t > 0 and t % 4 == 0 for t in range(24)])
    SAMPLED = np.array([not (t < 12 and t % 4) for t in range(24)])
    SELECTIONS = {
        "boundary": lambda rules, sampled: boundary_anchors(np.ones(24, bool), 24, rules, sampled),
        "uniform": lambda rules, sampled: uniform_anchors(24, rules, T=24, sampled=sampled),
        "best": lambda rules, sampled: select_anchors(np.arange(24.0) % 7, 24, rules, sampled),
    }

    @pytest.mark.parametrize("barred", [-np.inf, np.nan, 0.0])
    def test_a_position_without_a_positive_entry_is_no_border(self, barred):
        borders = np.where(self.SAMPLED, self.STEPS, barred)
        assert chosen(boundary_anchors(borders, 24, AnchorRules(4)), 24) == [4, 8, 12, 16]

    def test_borders_are_spread_over_those_that_the_policy_sampled(self):
        found = boundary_anchors(np.ones(24, bool), 24, AnchorRules(2), self.SAMPLED)
        assert chosen(found, 24) == [14, 19]  # the fifth and the tenth of 4, 8, 12, 13, ..., 23

    def test_blocks_have_equally_many_sampled_tokens(self):
        assert chosen(uniform_anchors(24, AnchorRules(2), T=24, sampled=self.SAMPLED), 24) == [14, 19]

    @pytest.mark.parametrize("include", [False, True])
    @pytest.mark.parametrize("spacing", [1, 3])
    @pytest.mark.parametrize("count", [1, 4, 30])
    @pytest.mark.parametrize("selection", SELECTIONS)
    def test_anchors_and_the_tokens_after_their_states_are_the_policys(self, selection, count, spacing, include):
        """K anchors, or all that fit where the response has fewer; T = 24 is less than the largest K."""
        rules = AnchorRules(count, min_spacing=spacing, include_anchor_token=include)
        found = chosen(self.SELECTIONS[selection](rules, self.SAMPLED), 24)
        allowed = [p for p in range(24) if self.SAMPLED[p] and rules.fork(p) < 24 and self.SAMPLED[rules.fork(p)]]
        allowed = allowed if include else allowed[1:]
        assert set(found) <= set(allowed) and all(b - a >= spacing for a, b in itertools.pairwise(found))
        assert 1 <= len(found) <= count and (spacing > 1 or len(found) == min(count, len(allowed)))

    @pytest.mark.parametrize("selection", SELECTIONS)
    def test_a_response_that_tools_wrote_has_no_anchor(self, selection):
        assert chosen(self.SELECTIONS[selection](AnchorRules(4), np.zeros(24, bool)), 24) == []

    @pytest.mark.parametrize("selection", SELECTIONS)
    def test_where_the_policy_sampled_everything_the_mask_changes_nothing(self, selection):
        rules, choose = AnchorRules(3, min_spacing=2), self.SELECTIONS[selection]
        assert chosen(choose(rules, np.ones(24, bool)), 24) == chosen(choose(rules, None), 24)
