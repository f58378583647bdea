"""Entropy by position and by sign, against plain loops over stored rollouts."""

from collections import defaultdict

import numpy as np
import pytest
from analysed_runs import made_up_run, rollout

from fr3e_jax.studies.analysis.catalogue import findings


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
    (tenths,) = findings(run, only=["entropy_by_relative_position"])
    for name, wanted in (("all", (0, 1)), ("right", (1,)), ("wrong", (0,))):
        tokens = [row for row in sampled_tokens(run) if row[1] in wanted]
        expected = means((10 * place // length, entropy) for _, _, place, length, _, entropy in tokens)
        found = next(one for one in tenths.series if one.name == name)
        assert {i: y for i, y in enumerate(found.y) if y is not None} == pytest.approx(expected)


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
