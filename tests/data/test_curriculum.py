"""Prompts by success: the first pass, shares of pools, rest, and a restart that draws what would have been drawn."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from fr3e_jax.configuration.curriculum_section import CurriculumConfig
from fr3e_jax.data import curriculum
from fr3e_jax.data.curriculum import CurriculumStream
from fr3e_jax.data.stream import PromptStream
from fr3e_jax.data.task import Problem

PROBLEMS = [Problem(id=str(i), prompt="1" * (1 + i % 5), gold="") for i in range(20)]


def stream(problems=PROBLEMS, longest=100, **settings) -> CurriculumStream:
    return CurriculumStream(problems, 0, list, longest, CurriculumConfig(**settings))


def play(prompts: CurriculumStream, rounds: int, size: int, rate_of) -> list[str]:
    """The ids that so many rounds draw, each observed with ``rate_of(id)``."""
    ids = []
    for _ in range(rounds):
        drawn = prompts.take(size)
        for prompt in drawn:
            rate = rate_of(prompt.problem.id)
            prompts.observe(prompt.position, rate, rate == 1)
        ids += [prompt.problem.id for prompt in drawn]
    return ids


def by_third(name: str) -> float:
    return (0.0, 0.5, 1.0)[int(name) % 3]  # 7 hard, 7 mixed, 6 easy


def test_the_first_pass_is_that_of_the_plain_stream_and_positions_find_their_problems():
    plain, prompts = PromptStream(PROBLEMS, 0, list, 100), stream(retire_after=1)
    drawn = prompts.take(20)
    assert drawn == plain.take(20)
    play(prompts, 5, 7, by_third)
    assert [prompts.problem_at(prompt.position) for prompt in drawn] == [prompt.problem for prompt in drawn]


def test_pools_have_their_shares_and_each_takes_its_problems_in_turn():
    prompts = stream(bounds=[0.1, 0.9], shares=[1, 3, 1])
    play(prompts, 4, 5, by_third)
    assert [prompts.metrics()[f"curriculum/pool_{n}"] for n in range(3)] == [7, 7, 6]
    later = play(prompts, 70, 5, by_third)
    counts = Counter(by_third(name) for name in later)
    assert counts == {0.0: 70, 0.5: 210, 1.0: 70}
    each = Counter(later)
    assert {each[name] for name in each if by_third(name) == 0.5} == {30}, "in turn"


def test_an_empty_pool_leaves_its_share_and_a_round_has_no_problem_twice_while_there_are_others():
    prompts = stream(bounds=[0.1, 0.9], shares=[1, 8, 1])
    play(prompts, 4, 5, lambda name: 0.5 if name == "3" else 0.0)
    for _ in range(10):
        drawn = play(prompts, 1, 10, lambda name: 0.5 if name == "3" else 0.0)
        assert len(set(drawn)) == 10 and "3" in drawn
    assert len(set(play(prompts, 1, 30, by_third))) == 20, "more than there are"


def test_what_is_solved_in_a_row_rests_for_epochs_and_all_are_asked_when_all_rest():
    solved = {"3", "4"}
    prompts = stream(retire_after=2, retire_epochs=2)
    play(prompts, 8, 5, lambda name: float(name in solved))
    assert prompts.metrics()["curriculum/retired"] == 2
    assert not solved & set(play(prompts, 8, 5, lambda name: float(name in solved))), "two epochs, of 20 prompts each"
    assert solved <= set(play(prompts, 12, 5, lambda name: float(name in solved)))
    everything = stream(retire_after=1, retire_epochs=9)
    play(everything, 4, 5, lambda name: 1.0)
    assert everything.metrics()["curriculum/retired"] == 20 and len(everything.take(5)) == 5


def test_a_success_in_between_a_failure_and_a_lost_verdict_count_as_they_are():
    prompts = stream(PROBLEMS[:1], bounds=[0.5], shares=[1, 1], retire_after=2)
    for rate in (1.0, 0.5, 1.0, None):
        (prompt,) = prompts.take(1)
        prompts.observe(prompt.position, rate, rate == 1)
    assert prompts.streaks.tolist() == [1] and prompts.metrics()["curriculum/retired"] == 0
    assert prompts.rates.tolist() == [1.0], "no verdict says nothing"


def test_a_problem_without_a_verdict_is_asked_again_in_its_turn():
    prompts = stream(bounds=[0.1, 0.9], shares=[1, 1, 1])
    play(prompts, 4, 5, lambda name: None if name == "3" else by_third(name))
    assert prompts.metrics()["curriculum/unknown"] == 1 and prompts.metrics()["curriculum/pool_0"] == 6
    later = Counter(play(prompts, 42, 5, lambda name: None if name == "3" else by_third(name)))
    assert {later[name] for name in later if by_third(name) == 0} == {10}, "in turn with the hardest"


@pytest.mark.parametrize("at", [3, 20, 33])
def test_a_restart_draws_what_would_have_been_drawn(at):
    settings = {"bounds": [0.1, 0.9], "shares": [2, 3, 1], "retire_after": 2, "longest": 4}
    whole, first, second = stream(**settings), stream(**settings), stream(**settings)
    wanted = play(whole, at + 40, 3, by_third)
    found = play(first, at, 3, by_third)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert found + play(second, 40, 3, by_third) == wanted
    assert second.metrics() == whole.metrics() and second.dropped_too_long == 4, "each is dropped once"
    with pytest.raises(ValueError, match="has 2 pools, and 3 in the run to resume"):
        stream(bounds=[0.5], shares=[1, 1]).load_state_dict(first.state_dict())
    plain = PromptStream(PROBLEMS, 0, list, 100)
    for one, other in ((plain, first), (first, plain)):  # positions would name other problems
        with pytest.raises(ValueError, match="drew its prompts in another way"):
            one.load_state_dict(other.state_dict())


def test_too_many_problems_and_no_usable_prompt_are_lines(monkeypatch):
    with pytest.raises(ValueError, match="raise data.max_prompt_tokens"):
        stream(longest=0, retire_after=1).take(1)
    monkeypatch.setattr(curriculum, "MOST_PROBLEMS", 19)
    with pytest.raises(ValueError, match=r"19 problems at most, and there are 20; set data.train_problems=19"):
        stream(retire_after=1)
