"""The stream of prompts: epochs differ, portions do not matter, and a restart continues exactly."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fr3e_jax.configuration.schema import DataConfig
from fr3e_jax.data.mixture import Mixture
from fr3e_jax.data.order_task import OrderTask
from fr3e_jax.data.shuffle import shuffled_indices
from fr3e_jax.data.stream import PromptStream
from fr3e_jax.data.task import Problem

PROBLEMS = [Problem(id=str(i), prompt="1" * (1 + i % 5), gold="") for i in range(23)]


def encode(text):
    """A token for each character, of which é is none."""
    if "é" in text:
        raise ValueError(f"character 'é' at position {text.index('é')}")
    return list(text)


def stream(problems=PROBLEMS, seed=0, longest=100):
    return PromptStream(problems, seed, encode, max_prompt_tokens=longest)


def ids(drawn):
    return [prompt.problem.id for prompt in drawn]


def test_every_epoch_is_another_permutation():
    drawn = ids(stream().take(23 * 6))
    epochs = [tuple(drawn[start : start + 23]) for start in range(0, len(drawn), 23)]
    in_order = [problem.id for problem in PROBLEMS]
    assert all(sorted(epoch) == sorted(in_order) for epoch in epochs)
    assert len(set(epochs)) == 6
    assert tuple(in_order) not in epochs


def test_different_seeds_share_no_epoch():
    first, second = (ids(stream(seed=seed).take(23 * 2)) for seed in (0, 1))
    assert first[:23] != second[:23]
    assert first[23:] != second[:23]
    assert ids(stream(seed=2**40).take(23)) != ids(stream(seed=2**40 + 1).take(23))


@pytest.mark.parametrize("longest", [100, 3])
def test_order_does_not_depend_on_how_many_are_taken(longest):
    whole = stream(longest=longest).take(60)
    parts = stream(longest=longest)
    assert [draw for count in (1, 0, 7, 30, 22) for draw in parts.take(count)] == whole


def test_long_prompts_are_skipped_and_counted_and_keep_their_positions():
    everything, short = stream().take(23 * 2), stream(longest=3)
    expected = [prompt for prompt in everything if len(prompt.token_ids) <= 3]
    assert short.take(len(expected)) == expected
    short.take(1)
    assert short.position - short.dropped_too_long == len(expected) + 1
    assert [prompt.position for prompt in everything] == list(range(46))


def test_stream_of_long_prompts_raises_with_the_setting_to_change():
    long = [replace(problem, prompt="1" * (8 + i)) for i, problem in enumerate(PROBLEMS)]
    with pytest.raises(ValueError, match=r"23 prompts in a row .*max_prompt_tokens=7; the shortest of them has 8 tok"):
        stream(long, longest=7).take(1)


def test_stream_of_no_problems_is_an_error():
    with pytest.raises(ValueError, match="cannot shuffle 0 problems; expected from 1 to 4294967295"):
        stream([])


def test_huge_procedural_set_is_shuffled_without_a_table():
    task = OrderTask(DataConfig(seed=5))
    late = stream(task.problems("train"))
    late.position = 2**31 - 2
    last, first_again = ids(late.take(3)[1:])
    assert last != first_again
    order = shuffled_indices(2**31, 0)
    assert len({order[i] for i in range(1000)}) == 1000
    assert max(order[i] for i in range(1000)) > 2**30


MIXTURE = Mixture(
    {
        "short": [Problem(id=f"s{i}", prompt="1" * (1 + i % 3), gold="") for i in range(11)],
        "mixed": [Problem(id=f"m{i}", prompt="1" * (1 + i % 7), gold="") for i in range(30)],
    },
    weights=[0.25, 0.75],
)
SOME_UNSPEAKABLE = [Problem(id=f"p{i}", prompt=f"{i}" + "é" * (i % 5 == 0), gold="") for i in range(30)]


def resumed(before, problems, longest):
    """A new stream in the state that a checkpoint holds."""
    after = stream(problems, longest=longest)
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    return after


@pytest.mark.parametrize("longest", [100, 3])
@pytest.mark.parametrize(
    "problems", [PROBLEMS, MIXTURE, SOME_UNSPEAKABLE], ids=["one set", "mixture", "some unspeakable"]
)
def test_restart_anywhere_neither_skips_nor_repeats(problems, longest):
    uninterrupted = stream(problems, longest=longest)
    expected = uninterrupted.take(90)
    for stop in (0, 1, 13, 17, 23, 44):
        before = stream(problems, longest=longest)
        drawn = before.take(stop)
        after = resumed(before, problems, longest)
        assert drawn + after.take(90 - stop) == expected
        assert after.state_dict() == uninterrupted.state_dict()
    assert [uninterrupted.problem_at(prompt.position) for prompt in expected] == [prompt.problem for prompt in expected]


def test_prompt_carries_its_token_ids():
    assert all(prompt.token_ids == list(prompt.problem.prompt) for prompt in stream().take(30))


def test_prompt_that_is_too_long_is_encoded_once_and_others_each_time_they_are_handed_out():
    encoded = []
    short = PromptStream(PROBLEMS, 0, encode=lambda text: encoded.append(text) or list(text), max_prompt_tokens=3)
    short.take(60)
    lengths = [len(text) for text in encoded]
    assert sum(length <= 3 for length in lengths) == 60 and short.position > 3 * len(PROBLEMS)
    assert sum(length > 3 for length in lengths) == sum(len(problem.prompt) > 3 for problem in PROBLEMS)


def test_prompts_that_cannot_be_encoded_are_dropped_counted_and_named_each_time():
    some = stream(SOME_UNSPEAKABLE)
    found, named = [], []
    while some.position < 60:
        found += some.take(4)
        named += some.complaints
    assert all("é" not in prompt.problem.prompt for prompt in found)
    assert some.position == len(found) + len(named) and some.dropped_unspeakable == len(named)
    assert some.metrics() == {"data/dropped_too_long": 0, "data/dropped_unspeakable": len(named)}
    assert sum("is dropped: problem 'p5': character 'é' at position 1" in line for line in named) == 2


def test_data_without_a_prompt_that_can_be_encoded_are_an_error():
    problems = [Problem(id=f"p{i}", prompt="é=", gold="") for i in range(6)]
    with pytest.raises(
        ValueError, match="6 prompts in a row cannot be encoded; the first of them is problem 'p.': character 'é' at"
    ):
        stream(problems).take(3)
