"""Running success rates of problems, and the rollouts that prompts get by them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from encoded_prompts import prepare

from fr3e_jax.configuration.schema import RolloutConfig
from fr3e_jax.loop.first_return import base_requests
from fr3e_jax.loop.success_rates import SuccessRates


def group(name: str, right: int, total: int) -> SimpleNamespace:
    problem, graded = SimpleNamespace(id=name), np.ones(total, bool)
    return SimpleNamespace(problem=problem, right=np.arange(total) < right, graded=graded, rollouts=[None] * total)


def test_older_rollouts_have_less_weight_and_what_was_never_solved_may_still_be():
    rates = SuccessRates()
    assert rates.rate("a") is None
    rates.observe([group("a", 0, 16), group("b", 16, 16)])
    assert (rates.rate("a"), rates.rate("b")) == (1 / 18, 17 / 18)
    rates.observe([group("a", 4, 8)])
    assert rates.rate("a") == 5 / 18 and rates.counts["a"] == [4.0, 16.0]


def test_prompts_without_an_estimate_get_the_usual_number_and_the_others_share_theirs(session):
    problems, rates = session.task.problems("train"), SuccessRates()
    prompts = prepare(session.texts, [(n, problems[n]) for n in range(4)])
    rates.observe([group(prompts[0].problem.id, 16, 16), group(prompts[2].problem.id, 2, 16)])
    counts = rates.rollouts(prompts, RolloutConfig(rollouts_per_prompt=16, allocation="knapsack"))
    assert counts[1] == counts[3] == 16 and counts[0] + counts[2] == 32 and 2 <= counts[0] < 5
    assert rates.rollouts(prompts, RolloutConfig(rollouts_per_prompt=16)) == [16] * 4
    assert SuccessRates().rollouts(prompts, RolloutConfig(rollouts_per_prompt=3, allocation="knapsack")) == [3] * 4
    assert rates.rollouts([], RolloutConfig(allocation="knapsack")) == []
    requests = base_requests(session, 1, prompts, counts)
    assert [len(request.branches) for request in requests] == counts
    assert [branch.stream[-1] for branch in requests[2].branches] == list(range(counts[2]))


def test_the_first_problems_come_again(session, tiny_run):
    stream = tiny_run.changed(session, data__train_problems=3).prompt_stream()
    ids = [prompt.problem.id for prompt in stream.take(6)]
    assert sorted(ids[:3]) == sorted(ids[3:]) == ["train/0", "train/1", "train/2"]
