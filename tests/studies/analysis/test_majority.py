"""Final answers and their majority, against counting by hand."""

from itertools import combinations

import numpy as np
import pytest
from analysed_runs import made_up_run, rollout

from fr3e_jax.studies.analysis.catalogue import findings
from fr3e_jax.studies.analysis.majority import majority_curve, majority_verdict

ANSWERS = ["7", "7", "3", None, "4", "3"]


def majority(answers, right):
    """The verdict by plain counting."""
    named = [answer for answer in answers if answer is not None]
    most = max((named.count(answer) for answer in named), default=0)
    leaders = {answer for answer in named if named.count(answer) == most}
    return np.mean([np.mean([r for a, r in zip(answers, right, strict=True) if a == x]) for x in leaders] or [0.0])


@pytest.mark.parametrize(
    ("votes", "right_votes", "verdict"),
    [
        ([2, 1], [2, 0], 1.0),
        ([2, 2], [0, 2], 0.5),
        ([0, 0], [0, 0], 0.0),
        ([3, 2], [0, 2], 0.0),
        ([4, 1], [1, 1], 0.25),
    ],
)
def test_a_vote_has_the_verdict_of_its_leaders(votes, right_votes, verdict):
    assert majority_verdict(np.array(votes), np.array(right_votes)) == verdict


def test_majority_between_one_and_all_samples_nears_the_mean_over_all_subsets():
    right = [answer == "7" for answer in ANSWERS]
    exact = [
        np.mean([majority([ANSWERS[i] for i in c], [right[i] for i in c]) for c in combinations(range(6), k)])
        for k in (1, 3, 6)
    ]
    found = majority_curve(ANSWERS, right, [1, 3, 6], np.random.default_rng(0))
    assert found[[0, 2]] == pytest.approx([exact[0], exact[2]])  # 1/3 and 1/2
    assert abs(found[1] - exact[1]) < 3 * 0.5 / 200**0.5  # 200 subsets
    assert majority_curve([None, None], [False, False], [1, 2], np.random.default_rng(0)).tolist() == [0.0, 0.0]


def test_curves_of_a_run_are_means_over_its_problems(tmp_path):
    rows = [("055", [0, 1, 1]), ("000", [0, 0, 0])]
    samples = [
        rollout(0, p, b, right, [20, 2, 1], kind="eval", response=f"3-3>{digit}")
        for p, (digits, rights) in enumerate(rows)
        for b, (digit, right) in enumerate(zip("0" + digits, [1, *rights], strict=True))
    ]
    run = made_up_run(tmp_path / "run", samples=samples)
    (majority,) = findings(run, only=["maj_at_k"])
    assert majority.series[0].y[0] == pytest.approx(1 / 3) and majority.series[0].y[2] == pytest.approx(0.5)
    silent = [
        rollout(0, 0, b, right, [20, 1], kind="eval", response=f"3-3>{right}", outcome=outcome)
        for b, (right, outcome) in enumerate([(1, "right"), (1, "right"), *[(0, "no_answer")] * 3])
    ]
    (majority,) = findings(made_up_run(tmp_path / "silent", samples=silent), only=["maj_at_k"])
    assert majority.series[0].y[-1] == 1, "responses in which the verifier found no answer have no vote"
