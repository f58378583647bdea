"""``fr3e gradient-noise``: repeats are independent rounds, and the printed ratios follow from the stored products."""

from __future__ import annotations

import csv
import json

import jax
import numpy as np
import pytest

from fr3e_jax.cli import main
from fr3e_jax.configuration import to_yaml
from fr3e_jax.objectives.signal_to_noise import inner_products
from fr3e_jax.studies.analysis.gradient_findings import Repeat, RepeatedGradients, gradient_findings
from fr3e_jax.studies.laboratory import gradient_noise as verb
from fr3e_jax.studies.laboratory.gradient_noise import variant_settings


@pytest.fixture
def recipe(tmp_path, tiny_run) -> str:
    path = tmp_path / "recipe.yaml"
    path.write_text(to_yaml(tiny_run.config()))
    return str(path)


def test_ratios_follow_from_the_stored_products_and_rank_the_variants(recipe, finished_run, tmp_path, capsys):
    variants = ["K=1 M=2", "explore.enabled=false"]
    arguments = ["--run", str(finished_run), "--repeats", "5", "--out", str(tmp_path)]
    oracle = ["--oracle", "--oracle-prompts", "8", "--oracle-rollouts", "4"]
    assert main(["gradient-noise", recipe, *arguments, *oracle, "--variants", *variants]) == 0
    printed = capsys.readouterr().out
    assert "SNR per 1,000 tokens" in printed and all(text in printed for text in variants)
    table = json.loads((tmp_path / "gradient_noise.json").read_text())
    rows = [dict(zip(table["columns"], cells, strict=True)) for cells in table["cells"]]
    assert {row["variant"] for row in rows} == set(variants)
    assert "oracle: 8 prompts with 4 rollouts each, in 8 parts" in table["note"]
    with open(tmp_path / "gradient_repeats.csv") as file:
        repeats = list(csv.DictReader(file))
    for row in rows:
        own = [r for r in repeats if r["variant"] == row["variant"]]
        assert len(own) == 5
        mean = lambda name, own=own: np.mean([float(r[name]) for r in own])
        signal = mean("mean inner product with the others")
        noise = mean("squared norm") - signal
        expected = signal / noise / (mean("sampled tokens") / 1000)
        assert row["SNR per 1,000 tokens"] == pytest.approx(expected, rel=1e-6)
        assert row["SNR per 1,000 tokens, low"] <= expected <= row["SNR per 1,000 tokens, high"]
        assert 0 < mean("training rollouts") <= mean("rollouts") and mean("trained positions") > 0
    plain = [r for r in repeats if r["variant"] == variants[1]]
    assert {int(r["rollouts"]) for r in plain} == {12} and {int(r["prompts"]) for r in plain} == {3}


def test_an_estimator_that_points_elsewhere_ranks_below_a_noisier_one_that_does_not():
    """Three coordinates, signals 9 and 1 with noise 2 in both: the first is the stronger, but at 90 degrees."""
    rng = np.random.default_rng(0)
    strong, weak = np.array([0.0, 3.0, 0.0]), np.array([1.0, 0.0, 0.0])
    parts = np.array([5.0, 0.0, 0.0]) + 0.1 * rng.standard_normal((4, 3))
    measured, repeat = [], Repeat(2000, 10, 20, 3, 2, 12, 8, 0.1)
    for name, mean in {"strong": strong, "weak": weak}.items():
        vectors = mean + np.sqrt(2 / 3) * rng.standard_normal((400, 3))
        crossed = inner_products(vectors, parts)
        measured.append(RepeatedGradients(name, [repeat] * 400, inner_products(vectors, vectors), crossed))
    for oracle, order in ((None, ["strong", "weak"]), (inner_products(parts, parts), ["weak", "strong"])):
        table, _ = gradient_findings(measured, oracle, "note")
        rows = {row["variant"]: row for row in table.rows()}
        assert list(rows) == order
        for name, ratio in {"strong": 9 / 2 / 2, "weak": 1 / 2 / 2}.items():
            assert rows[name]["SNR per 1,000 tokens"] == pytest.approx(ratio, rel=0.15)
    assert rows["weak"]["cosine with the oracle"] == pytest.approx(1, abs=0.05)
    assert rows["strong"]["cosine with the oracle"] == pytest.approx(0, abs=0.05)
    low, high = (rows["weak"][f"SNR to the oracle per 1,000 tokens, {end}"] for end in ("low", "high"))
    assert 0.15 < low < 0.25 < high < 0.35


def test_an_oracle_without_a_signal_is_left_out_and_said():
    repeat = Repeat(1000, 10, 20, 3, 2, 12, 8, 0.1)
    one = RepeatedGradients("one", [repeat] * 4, np.eye(4) + 1, np.ones((4, 2)))
    table, *_ = gradient_findings([one], np.array([[1.0, -0.5], [-0.5, 1.0]]), "note")
    assert "it has no direction: give more --oracle-prompts" in table.note
    (row,) = table.rows()
    assert "cosine with the oracle" not in row and row["SNR per 1,000 tokens"] == pytest.approx(1)
    assert (row["prompts that train"], row["rollouts that train"]) == pytest.approx((2 / 3, 2 / 3))


def test_each_repeat_is_a_round_of_fresh_prompts_with_noise_of_its_own(tiny_run, monkeypatch):
    seen, run_round = [], verb.run_round

    def watched(session, state, policy, stages, batch):
        run_round(session, state, policy, stages, batch)
        seen.append((state.step, [group.position for group in batch.groups]))

    monkeypatch.setattr(verb, "run_round", watched)
    config = tiny_run.config(explore__enabled=False)
    repeats, vectors = verb._repeated(verb.Variant("one", config), None, 4)
    assert [step for step, *_ in seen] == [1, 2, 3, 4]
    assert [position for _, positions in seen for position in positions] == list(range(12))
    assert len(repeats) == len(vectors) == 4 and len({bytes(vector) for vector in vectors}) == 4
    oracle = verb.oracle_config(config, verb.Oracle(8, 6))
    verb._repeated(verb.Variant("oracle", oracle), None, 1, of_oracle=True)
    assert seen[-1][0] > 1_000_000 and len(seen[-1][1]) == 1
    assert oracle.advantage.base_estimator == "mean" and oracle.rollout.rollouts_per_prompt == 6


def test_a_gradient_beyond_the_limit_becomes_a_linear_sketch(monkeypatch):
    rng = np.random.default_rng(0)
    left, right = ({"a": rng.standard_normal((5, 8)), "b": rng.standard_normal(30)} for _ in range(2))
    whole = verb.as_vector(left)
    assert whole.dtype == np.float32 and len(whole) == 70
    monkeypatch.setattr(verb, "SKETCH", 50)
    both = verb.as_vector(jax.tree.map(np.add, left, right))
    assert len(both) == 50
    np.testing.assert_allclose(both, verb.as_vector(left) + verb.as_vector(right), atol=1e-5)


def test_a_variant_is_overrides_on_the_recipe_or_another_recipe():
    assert variant_settings("K=1 M=32", "a.yaml", ["seed=1"]) == (
        "a.yaml",
        ["seed=1", "explore.num_anchors=1", "explore.rollouts_per_state=32"],
    )
    assert variant_settings("b.yaml seed=2", "a.yaml", ["seed=1"]) == ("b.yaml", ["seed=1", "seed=2"])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--repeats", "3"], "--repeats 3: expected at least 4"),
        (["--variants", "a.yaml b.yaml"], "found recipes a.yaml and b.yaml; expected one at most"),
        (["--variants", "seed='1"], "No closing quotation"),
        (["--variants", "seed=1", "data.seed=3"], "differ in section data; expected the same"),
        (["--variants", "returns.size=3"], "expected returns.size=0"),
        (["--oracle", "--oracle-prompts", "12"], "expected prompts in a multiple of 8"),
        (["advantage.base_estimator=gae", "explore.enabled=false"], "found a critic"),
    ],
)
def test_mistakes_are_one_line(recipe, capsys, arguments, expected):
    overrides = [one for one in arguments if "=" in one and "--variants" not in arguments]
    rest = [one for one in arguments if one not in overrides]
    assert main(["gradient-noise", recipe, *overrides, *rest]) == 2
    message = capsys.readouterr().err
    assert expected in message and len(message.strip().splitlines()) == 1
