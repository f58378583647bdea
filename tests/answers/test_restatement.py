"""Answers that repeat the question, or lack the form that it asks for, are wrong although they equal the gold one."""

import pytest
import restatement_cases as cases

from fr3e_jax.answers import judge, quick_verdict
from fr3e_jax.answers.question_formulas import question_formulas
from fr3e_jax.answers.reader import read
from fr3e_jax.answers.restatement import earned, restates
from fr3e_jax.answers.written_forms import written_form
from fr3e_jax.problem import Problem
from fr3e_jax.rewards.grader import Grader
from fr3e_jax.rewards.named_verifiers import named_verifier
from fr3e_jax.verdict import Verdict

EQUAL = Verdict(1.0, "right")


def graded(question, gold, answer):
    """The verdict of a worker on an answer that equals the gold one."""
    assert judge(gold, answer) == EQUAL, "the case is about an answer that is equal"
    return judge(gold, answer, question=question)


OUTCOMES = {"restated": cases.RESTATED, "other_form": cases.OTHER_FORM, "right": cases.RIGHT}


@pytest.mark.parametrize(
    ("outcome", "question", "gold", "answer"), [(name, *case) for name, listed in OUTCOMES.items() for case in listed]
)
def test_an_equal_answer_is_right_if_it_was_worked_out_and_so_is_the_gold_one(outcome, question, gold, answer):
    if "approx" not in gold:
        assert graded(question, gold, answer) == Verdict(float(outcome == "right"), outcome)
    assert earned(EQUAL, question, (gold,), gold) == EQUAL
    assert not restates(question, (gold,), gold)


@pytest.mark.parametrize("answer", [r"\cos(-2.01)", "-0.425"])
def test_of_a_value_and_its_approximation_only_that_counts_which_the_question_has_not(answer):
    question, gold = cases.ROUNDED
    with Grader(named_verifier("college_math")) as grader:
        verdict = grader.submit(Problem("1", question, gold), rf"\boxed{{{answer}}}", True).result()
    assert verdict.outcome == ("right" if answer == "-0.425" else "restated")


@pytest.mark.parametrize(
    ("question", "gold", "answer"), [("What is $2^{10}$?", "1024", "2^{10}"), ("Find $6/8$.", "0.75", "6/8")]
)
def test_the_main_process_sees_a_restatement_by_itself(question, gold, answer):
    assert quick_verdict(gold, answer) == EQUAL
    assert named_verifier("math")(Problem("1", question, gold), rf"\boxed{{{answer}}}", True).outcome == "restated"


def test_gold_answers_that_are_not_in_the_grammar_do_not_switch_the_check_off():
    question, gold = cases.EVALUATE
    assert judge((gold, r"\oddity{4}"), "(2+i)^6", question=question).outcome == "restated"
    assert judge((gold, r"\oddity{4}"), r"\oddity{4}", question=question).outcome == "right"


def test_a_wrong_answer_stays_wrong_whatever_it_repeats():
    question, gold = cases.EVALUATE
    assert judge(gold, "(2+i)^5", question=question + " Not $(2+i)^5$.").outcome == "wrong"


def test_a_choice_may_be_given_by_its_text():
    problem = Problem("1", "Which is $9$?\n(A) $3+7$\n(B) $3^2$", "B", {"choices": ("$3+7$", "$3^2$")})
    assert named_verifier("multiple_choice")(problem, r"\boxed{3^2}", True).outcome == "right"


@pytest.mark.parametrize(
    ("question", "formula"),
    [
        (r"Let $f(x)=x^2+1$.", "x^2+1"),
        (r"Find \(a+b\) now", "a+b"),
        (r"Find \[a+b.\]", "a+b"),
        (r"Find $$a+b$$", "a+b"),
        ("What is 3 + 4*5?", "3+4*5"),
        ("Compute 12+34=", "12+34"),
        (r"It costs \$5. Evaluate $2^7$.", "2^7"),
        (r"Let $x \text{ be the value } y+3 \quad \text{for all } y<7a$.", "y+3"),
    ],
)
def test_the_formulas_of_a_question_are_found(question, formula):
    assert written_form(read(formula)) in question_formulas(question).written


@pytest.mark.parametrize("question", ["How many apples are there?", "A car drives 3 hours.", "$$$"])
def test_prose_has_no_formula_that_an_answer_could_repeat(question):
    assert not question_formulas(question).folded


HOSTILE = {
    "brackets that never close": r"\[" * 9000 + "(" * 900,
    "text that never ends": r"$\text{" * 3000,
    "a long quotient": "$" + "/".join("1" * 500) + "$",
    "a long sum": "$" + "+".join(["x"] * 500) + "$",
    "factorials": "$1" + "!" * 1100 + "$",
    "sums in sums": "$" + r"\sum_{i=1}^{2}" * 30 + "i$",
    "many formulas": "$x+1$ " * 3000,
    "one word": "x+" * 10_000,
    "a million characters": "factor simplify expand 1+1 " * 40_000,
}


@pytest.mark.parametrize("question", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("other", HOSTILE.values(), ids=HOSTILE)
def test_hostile_questions_and_answers_get_a_verdict(question, other):
    answer = other.strip("$")[:1900]
    assert earned(EQUAL, question, ("1",), answer).outcome in ("right", "restated", "other_form")
