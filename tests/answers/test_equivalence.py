"""Every pair of the three tables, in the main process and by the judge that a worker runs."""

import edge_cases
import equivalence_cases
import held_out_cases
import pytest

from fr3e_jax.answers import judge, quick_verdict
from fr3e_jax.verdict import Verdict

RIGHT = Verdict(1.0, "right")
TABLES = (equivalence_cases, held_out_cases, edge_cases)


@pytest.mark.parametrize(
    ("table", "category"), [(table, category) for table in TABLES for category in table.EQUAL | table.DIFFERENT]
)
def test_answers_get_their_verdicts_from_the_judge_and_the_main_process(table, category):
    """Only speed depends on the process that decides."""
    equal, different = table.EQUAL.get(category, ()), table.DIFFERENT.get(category, ())
    assert not [pair for pair in equal if judge(*pair) != RIGHT]
    assert not [pair for pair in equal if quick_verdict(*pair) not in (None, RIGHT)]
    verdicts = [(pair, judge(*pair)) for pair in different]
    assert not [(pair, v) for pair, v in verdicts if v.reward or v.outcome not in ("wrong", "refused", "string_only")]
    assert not [pair for pair in different if (verdict := quick_verdict(*pair)) and verdict.reward]


@pytest.mark.parametrize("category", equivalence_cases.EQUAL)
def test_golds_with_other_blanks_and_styles_are_right(category):
    for gold in dict(equivalence_cases.EQUAL[category]):
        rewritten = gold.replace(r"\frac", r"\dfrac").replace(",", " , " if "," in gold and " " in gold else ",")
        for text in (f"${rewritten}$", f"  {rewritten} ", f"{gold}.", rf"{{{gold}}}" if "=" not in gold else gold):
            assert judge(gold, text).reward == 1.0, text


@pytest.mark.parametrize(
    ("gold", "answer", "outcome"),
    [
        ("4", "5", "wrong"),
        ("4", "9^{9^{9}}", "refused"),
        ("4", "7" * 1_000_000, "refused"),
        ("4", "(" * 500 + "4" + ")" * 500, "refused"),
        ("4", "\u202e4", "refused"),
        ("4", "4\x00", "refused"),
        ("4", r"\oddity{4}", "string_only"),
        (r"\oddity{4}", r"\oddity{4}", "right"),
        ("4", "4=5", "wrong"),
    ],
)
def test_each_kind_of_answer_has_its_outcome(gold, answer, outcome):
    assert judge(gold, answer).outcome == outcome


def test_an_answer_beyond_the_limits_is_right_if_it_is_the_gold_answer_literally():
    long = "+".join(f"x_{{{i}}}" for i in range(2000))
    assert quick_verdict(long, f" {long} ").outcome == "right"
    assert quick_verdict(long, long + "+1").outcome == "refused"


def test_the_canaries_of_the_judge_get_their_rewards():
    rewards = {reward for _, reward in judge.canaries}
    assert rewards == {0.0, 1.0}
    for arguments, reward in judge.canaries:
        assert judge(*arguments).reward == reward


def test_one_of_several_golds_suffices():
    assert judge(("7", r"\sqrt{3}"), r"\frac{3}{\sqrt3}").outcome == "right"
    assert judge(("7", "8"), r"\frac{3}{\sqrt3}").outcome == "wrong"


def test_tolerance_applies_to_decimals_only():
    assert judge("9.6", "9.65", 0.0, 0.01).outcome == "right"
    assert judge("9.6", "9.75", 0.0, 0.01).outcome == "wrong"
    assert judge("4.5e33", r"4.53\times10^{33}", 0.0, 0.01).outcome == "right"
    assert judge("300", "301", 0.0, 0.01).outcome == "wrong"
    assert judge(r"\frac{1}{3}", "0.333", 0.0, 0.01).outcome == "wrong"
    assert judge("3.1", "3.15", 0.1, 0.0).outcome == "right"
    assert judge("9.6", r"\frac{m v^2}{2}", 0.0, 0.01).outcome == "wrong"  # a formula is close to no number
    assert judge("3.1, 4.2", "4.25, 3.05", 0.1, 0.0).outcome == "right"
    assert judge("3.1", r"3.1\text{ or }9", 0.1, 0.0).outcome == "wrong"
