"""Mixtures have exact shares in the long run and close shares at any moment; every set has its own whole epochs."""

from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fr3e_jax.data.mixture import Mixture, part_of, whole_numbers
from fr3e_jax.data.task import Problem


def part(name, count):
    return [Problem(id=f"{name}/{i}", prompt=f"{name}{i}", gold="") for i in range(count)]


def draw(mixture, count, seed=0):
    order = mixture.order(seed)
    return [mixture[order[position]].id for position in range(count)]


def of(name, drawn):
    return [each for each in drawn if each.startswith(f"{name}/")]


PARTS = {"a": part("a", 7), "b": part("b", 3), "c": part("c", 5)}


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(0, 10**12))
def test_shares_are_exact_after_a_round_and_close_at_any_position(weights, start):
    """Draws of a part are numbered without a gap even at large positions, so none is skipped or repeated."""
    total = sum(weights)
    start -= start % total
    counts = Counter({i: start // total * weight for i, weight in enumerate(weights)})
    for position in range(start, start + min(total, 60)):
        part, number = part_of(position, weights)
        assert number == counts[part]
        counts[part] += 1
        for i, weight in enumerate(weights):
            off = abs(Fraction((position + 1) * weight, total) - counts[i])
            assert off <= Fraction(1, 2) + Fraction(len(weights) * weight, 2 * total)
    if total <= 60:
        assert all(counts[i] == (start // total + 1) * weight for i, weight in enumerate(weights))


def test_draws_of_weights_three_to_one_by_hand():
    assert [part_of(position, (3, 1)) for position in range(8)] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (0, 2),
        (0, 3),
        (0, 4),
        (1, 1),
        (0, 5),
    ]


def test_pass_without_weights_is_one_pass_over_every_set():
    drawn = draw(Mixture(PARTS), 15 * 3)
    everything = sorted(problem.id for each in PARTS.values() for problem in each)
    passes = [drawn[start : start + 15] for start in range(0, 45, 15)]
    assert all(sorted(each) == everything for each in passes)
    assert len(set(map(tuple, passes))) == 3


def test_weights_are_shares_of_draws_and_each_set_has_its_own_epochs():
    drawn = draw(Mixture(PARTS, [0.1, 0.3, 0.6]), 210)
    assert Counter(each[0] for each in drawn) == {"a": 21, "b": 63, "c": 126}
    for name, size in (("a", 7), ("b", 3), ("c", 5)):
        own = of(name, drawn)
        epochs = [tuple(own[start : start + size]) for start in range(0, len(own) - size + 1, size)]
        assert all(len(set(epoch)) == size for epoch in epochs)
        assert len(set(epochs)) > 2


def test_set_keeps_its_inner_order_when_others_are_added_or_reweighted():
    alone, beside = draw(Mixture({"a": PARTS["a"]}), 21), draw(Mixture(PARTS, [1, 5, 1]), 200)
    assert of("a", beside)[:21] == alone
    assert of("a", draw(Mixture(PARTS), 60, seed=1))[:21] != alone
    renamed = Mixture({"z": PARTS["a"], "b": PARTS["b"]})
    assert of("a", draw(renamed, 40))[:21] != alone


def test_sets_of_equal_size_are_shuffled_differently():
    drawn = draw(Mixture({"a": part("a", 20), "b": part("b", 20)}), 40)
    assert [each[2:] for each in of("a", drawn)] != [each[2:] for each in of("b", drawn)]


def test_mixture_as_a_sequence_concatenates_its_parts():
    mixture = Mixture(PARTS)
    ids = [problem.id for problem in itertools.chain(*PARTS.values())]
    assert [problem.id for problem in mixture] == ids and len(mixture) == 15
    assert [problem.id for problem in mixture[5:9]] == ids[5:9] and mixture[-1].id == "c/4"
    with pytest.raises(IndexError):
        mixture[15]


@pytest.mark.parametrize(
    ("weights", "numbers"),
    [([0.1, 0.3], (1, 3)), ([7473, 8523], (2491, 2841)), ([1e-3, 1], (1, 1000)), ([2, 2.0], (1, 1))],
)
def test_decimal_weights_become_exact_whole_numbers(weights, numbers):
    assert whole_numbers(weights) == numbers


def test_wrong_weights_and_empty_parts_are_refused():
    with pytest.raises(ValueError, match="got 2 weights for 3 parts; expected one for each, or none"):
        Mixture(PARTS, [1, 2])
    with pytest.raises(ValueError, match=r"expected numbers above 0"):
        Mixture(PARTS, [1, 0, 2])
    with pytest.raises(ValueError, match=r"parts that are not empty, got {'a': 7, 'd': 0}"):
        Mixture({"a": PARTS["a"], "d": []})
