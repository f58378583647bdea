"""Token replacement: which tokens, and the effect on accuracy, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fr3e_jax.objectives.intervention import highest, intervention, read_group, replaceable


def test_the_effect_is_the_accuracy_lost():
    original = np.array([[1.0, 1.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    substituted = np.array([[0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    assert intervention(original, substituted).tolist() == [0.5, -0.25]
    with pytest.raises(ValueError, match="expected equal shapes"):
        intervention(original, substituted[:1])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("entropy:top20%", ("entropy:top", 0.2)),
        ("low-ppl", ("low-ppl", 0.2)),
        ("position:late:5%", ("position:late", 0.05)),
    ],
)
def test_a_group_is_read_with_its_share(text, found):
    assert read_group(text) == pytest.approx(found)


@pytest.mark.parametrize("text", ["entropy", "entropy:top0%", "entropy:top200%", "random:x", ""])
def test_a_group_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="expected one of entropy:top"):
        read_group(text)


def test_the_highest_are_at_least_one_and_the_first_of_equal_ones():
    assert highest(np.array([1.0, 3.0, 3.0, 2.0]), 0.25).tolist() == [False, True, False, False]
    assert highest(np.array([1.0, 3.0, 3.0, 2.0]), 0.01).sum() == 1


ENTROPIES = [np.array([0.9, 0.1, 0.2, 0.8, 0.3]), np.array([0.7, 0.6, 0.5, 0.4, 0.05])]
LOGPROBS = [np.array([-2.0, -2.0, -2.0, -2.0, -2.0]), np.array([-0.5] * 5)]
ALLOWED = [np.ones(5, bool), np.array([True, True, True, True, False])]


def places(group, share=0.2, allowed=ALLOWED, entropies=ENTROPIES, logprobs=LOGPROBS):
    return [row.tolist() for row in replaceable(group, share, entropies, logprobs, allowed)]


def test_groups_by_entropy_rank_the_allowed_tokens_of_all_responses_together():
    assert places("entropy:top") == [[0, 3], []]
    assert places("entropy:top", 1 / 3) == [[0, 3], [0]]
    assert places("entropy:bottom") == [[1, 2], []]
    assert places("random") == [[0, 1, 2, 3, 4], [0, 1, 2, 3]]


def test_groups_by_position_are_top_entropy_tokens_at_an_end():
    assert places("position:early") == [[0], []]
    assert places("position:late", 0.4) == [[3], []]


def test_groups_by_perplexity_are_top_entropy_tokens_of_the_likeliest_or_unlikeliest_responses():
    entropies = [ENTROPIES[0], ENTROPIES[1] + 0.25]  # the top fifth of 9 tokens is now one of each
    assert places("high-ppl", 0.5, entropies=entropies) == [[0], []]
    assert places("low-ppl", 0.5, entropies=entropies) == [[], [0]]


def test_empty_responses_and_nothing_allowed_have_no_places():
    nothing = [np.zeros(0)] * 2
    assert places("low-ppl", entropies=nothing, logprobs=nothing, allowed=[np.zeros(0, bool)] * 2) == [[], []]
    assert places("entropy:top", allowed=[np.zeros(5, bool)] * 2) == [[], []]
