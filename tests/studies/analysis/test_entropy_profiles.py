"""Entropy by position, by sign and by token, against plain loops over stored rollouts."""

from collections import defaultdict

import numpy as np
import pytest
from analysed_runs import made_up_run, rollout

from fr3e_jax.studies.analysis.catalogue import findings
from fr3e_jax.studies.analysis.entropy_profiles import fastest_falling


@pytest.fixture
def run(tmp_path):
    rng = np.random.default_rng(0)
    rollouts = []
    for step in (1, 2, 3):
        for base in range(6):
            length = int(rng.integers(3, 15))
            tokens = [*rng.integers(2, 9, length - 1).tolist(), 1]
            rollouts.append(rollout(step, 0, base, base % 2, tokens, entropies=(rng.random(length) / step).tolist()))
        own = rng.random(4).tolist()
        rollouts.append(
            rollout(
                step, 0, 0, 1, [9, 9, 9, 1], kind="state", id=f"{step}/b", parent=f"{step}/0/0", fork=2, entropies=own
            )
        )
    return made_up_run(tmp_path / "run", rollouts=rollouts)


def sampled_tokens(run):
    """(step, right, place, length, token, entropy) of each sampled token, from the stored records."""
    for step in run.steps():
        for record in run.rollouts(step):
            length = record.fork + len(record.token_ids)
            for i, (token, entropy) in enumerate(zip(record.token_ids, record.entropies, strict=True)):
                yield step, record.outcome == "right", record.fork + i, length, token, np.float32(entropy)


def means(pairs):
    groups = defaultdict(list)
    for key, value in pairs:
        groups[key].append(float(value))
    return {key: np.mean(values) for key, values in groups.items()}


def test_profiles_are_means_over_sampled_tokens(run):
    tenths, places = findings(run, only=["entropy_by_relative_position", "entropy_by_position"])
    for name, wanted in (("all", (0, 1)), ("right", (1,)), ("wrong", (0,))):
        tokens = [row for row in sampled_tokens(run) if row[1] in wanted]
        expected = means((10 * place // length, entropy) for _, _, place, length, _, entropy in tokens)
        found = next(one for one in tenths.series if one.name == name)
        assert {i: y for i, y in enumerate(found.y) if y is not None} == pytest.approx(expected)
        expected = means((place, entropy) for _, _, place, _, _, entropy in tokens)
        found = next(one for one in places.series if one.name == name)
        assert {x: y for x, y in zip(found.x, found.y, strict=True) if y is not None} == pytest.approx(expected)


def test_entropy_by_sign_follows_the_tokens_that_one_sign_alone_has(run):
    (figure,) = findings(run, only=["entropy_by_sign"])
    lines = {one.name: dict(zip(one.x, one.y, strict=True)) for one in figure.series}
    rows = list(sampled_tokens(run))
    of_sign = {sign: {(s, t) for s, right, _, _, t, _ in rows if right == sign} for sign in (True, False)}
    for sign, name in ((True, "positive"), (False, "negative")):
        own = [row for row in rows if row[1] == sign]
        assert lines[f"{name} samples"] == pytest.approx(means((row[0], row[5]) for row in own))
        alone = [row for row in own if (row[0], row[4]) not in of_sign[not sign]]
        expected = means((row[0], row[5]) for row in alone)
        assert lines.get(f"tokens in {name} samples only", {}) == pytest.approx(expected)


def test_the_fastest_falling_tokens_are_placed_by_the_samples_they_occur_in(tmp_path):
    # Token 5 (negative samples only) falls by 2, token 6 (positive only) by 1, token 7 (both) by 0.5, 1 stays.
    rollouts = [
        rollout(step, 0, base, right, [token, token, 7, 1], entropies=[high, high, both, 0.1])
        for step, falls in ((1, (3.0, 2.0, 1.0)), (2, (1.0, 1.0, 0.5)))
        for base in range(6)
        for right, token, high, both in [(base % 2, (5, 6)[base % 2], falls[base % 2], falls[2])]
    ]
    (figure,) = findings(made_up_run(tmp_path / "run", rollouts=rollouts), only=["fastest_entropy_drop"])
    fastest, compared = figure.series
    assert list(fastest.y) == [1.0, 0.0, 0.0]  # one of the four
    assert list(compared.y) == [0.25, 0.25, 0.5]


def test_the_fastest_share_is_rounded_up_and_in_order():
    drops = np.array([0.1, 0.5, 0.5, 0.2])
    assert fastest_falling(np.arange(4), drops, 0.3).tolist() == [1, 2]
