"""Perplexity, defects and length of responses."""

import numpy as np
import pytest
from analysed_runs import made_up_run, rollout

from fr3e_jax.studies.analysis.catalogue import findings
from fr3e_jax.studies.analysis.response_quality import log_perplexity
from fr3e_jax.studies.analysis.responses import responses_of


def test_perplexity_is_of_the_whole_response_without_tool_answers():
    base = rollout(1, 0, 0, True, [3, 4, 1], logprobs=[-1.0, -2.0, -3.0])
    branch = rollout(
        1,
        0,
        0,
        False,
        [5, 6, 1],
        kind="state",
        id="b",
        parent="1/0/0",
        fork=1,
        logprobs=[-4.0, -50.0, -1.0],
        answers=[[1, 2]],
    )
    assert log_perplexity(responses_of([base, branch])).tolist() == [2.0, 2.0]


def test_perplexity_shares_are_those_of_a_histogram(tmp_path):
    logs = np.random.default_rng(2).random(40)
    rollouts = [rollout(1, 0, i, i % 2, [1], logprobs=[-x]) for i, x in enumerate(logs)]
    (figure,) = findings(made_up_run(tmp_path / "run", rollouts=rollouts), only=["perplexity_by_outcome"])
    stored = logs.astype(np.float32).astype(np.float64)
    edges = np.linspace(*np.percentile(stored, [0.5, 99.5]), 31)
    for name, odd in (("right", 1), ("wrong", 0)):
        own = np.clip(stored[odd::2], edges[0], edges[-1])
        assert next(one.y for one in figure.series if one.name == name) == pytest.approx(
            np.histogram(own, edges)[0] / 20
        )
    assert f"median of right {np.exp(np.median(stored[1::2])):.4g}" in figure.note


def test_shares_of_defects_are_counted_step_by_step(tmp_path):
    good, repeated = [2, 3, 4, 5, 6, 1], [2, 3] * 6
    rollouts = [
        rollout(1, 0, 0, True, good),
        rollout(1, 0, 1, False, repeated, finished=False),
        rollout(2, 0, 0, False, good, outcome="no_answer"),
    ]
    (figure,) = findings(made_up_run(tmp_path / "run", rollouts=rollouts), only=["low_quality_responses"])
    lines = {one.name.split(" (")[0]: list(one.y) for one in figure.series}
    assert lines["repetition"] == [0.5, 0.0] and lines["cut at the length cap"] == [0.5, 0.0]
    assert lines["no answer"] == [0.0, 1.0]


def test_lengths_are_means_and_quartiles_of_right_and_of_wrong_responses(tmp_path):
    rollouts = [
        rollout(1, 0, 0, True, [3, 1]),
        rollout(1, 0, 1, True, [3, 4, 5, 1]),
        rollout(1, 0, 2, False, [3]),
    ]
    (length,) = findings(made_up_run(tmp_path / "run", rollouts=rollouts), only=["length_by_outcome"])
    assert {one.name: one.y[0] for one in length.series} == {"right": 3.0, "wrong": 1.0}
    assert (length.series[0].low[0], length.series[0].high[0]) == (2.5, 3.5)
