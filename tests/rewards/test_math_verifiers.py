"""The verifiers by name, each with its benchmark's own convention."""

import pytest

from fr3e_jax.answers import judge
from fr3e_jax.data.task import Problem
from fr3e_jax.rewards.named_verifiers import VERIFIERS, named_verifier
from fr3e_jax.verdict import Job


def grade(name, gold, response, extraction="boxed", finished=True, **extra):
    verdict = named_verifier(name, extraction)(Problem("test/0", "?", gold, extra), response, finished)
    if isinstance(verdict, Job):
        assert verdict.function == "fr3e_jax.answers:judge"
        hash(verdict.arguments)  # the pool remembers verdicts by their arguments
        verdict = judge(*verdict.arguments)
    return verdict.outcome


def test_every_name_makes_a_verifier():
    expected = "math gsm8k aime minerva olympiad gaokao college_math multiple_choice code exact judge none".split()
    assert sorted(VERIFIERS) == sorted(expected)
    for name in VERIFIERS:
        assert callable(named_verifier(name))
        assert callable(named_verifier(name, "answer_line"))


def test_extraction_reaches_the_verifier():
    problem = Problem("1", "?", "4")
    assert named_verifier("math", "answer_line")(problem, "Answer: 4", True).outcome == "right"
    assert named_verifier("math", "boxed")(problem, "Answer: 4", True).outcome == "no_answer"


def test_exact_compares_the_whole_response():
    assert named_verifier("exact")(Problem("1", "?", "4"), "4", True) == 1.0
    assert named_verifier("exact")(Problem("1", "?", "4"), r"\boxed{4}", True) == 0.0


def test_an_unknown_name_is_an_error_with_a_suggestion():
    with pytest.raises(ValueError, match="no verifier 'gms8k'; expected one of .*; did you mean 'gsm8k'"):
        named_verifier("gms8k")
    with pytest.raises(ValueError, match="no extraction 'last_number'; expected one of boxed"):
        named_verifier("math", "last_number")


def test_math_grades_the_boxed_answer():
    assert grade("math", r"\frac{\sqrt3}{2}", r"so $\boxed{\sqrt{0.75}}$") == "right"
    assert grade("math", "72", r"\boxed{71}") == "wrong"
    assert grade("math", "72", "The answer is 72") == "no_answer"
    assert grade("math", "72", "#### 72") == "no_answer"
    assert grade("math", "$72$", r"\boxed{72}") == "right"
    assert grade("math", "72", r"\boxed{9^{9^{9}}}") == "refused"


def test_a_box_in_a_response_that_was_cut_counts():
    assert grade("math", "72", r"\boxed{72} and furthermore", finished=False) == "right"
    assert grade("math", "72", r"\boxed{7", finished=False) == "no_answer"


def test_math_grades_the_answer_line_if_the_prompt_asked_for_it():
    assert grade("math", "72", "Hence.\nAnswer: $72$", "answer_line") == "right"
    assert grade("math", "72", r"\boxed{72}", "answer_line") == "no_answer"


def test_any_of_several_golds_is_right():
    assert grade("math", "1", r"\boxed{3}", golds=("1", "3")) == "right"
    assert grade("math", "1", r"\boxed{\sqrt9}", golds=("1", "3")) == "right"
    assert grade("math", "1", r"\boxed{2}", golds=("1", "3")) == "wrong"


@pytest.mark.parametrize("gold", ["1234", "1,234", "She has 1,234. #### 1,234", "#### 1234"])
@pytest.mark.parametrize(
    ("response", "outcome"),
    [
        ("so\n#### 1234", "right"),
        ("so\n#### $1,234.00", "right"),
        (r"\boxed{1234}", "right"),
        (r"\boxed{\$1{,}234}", "right"),
        (r"\boxed{1234 \text{ eggs}}", "right"),
        (r"\boxed{1235}" + "\n#### 1234", "wrong"),
        ("#### 1235", "wrong"),
        ("it is 1234", "no_answer"),
    ],
)
def test_gsm8k_grades_the_box_or_the_number_after_hashes(gold, response, outcome):
    assert grade("gsm8k", gold, response) == outcome


@pytest.mark.parametrize("gold", ["25", "025", "25.0", r"25^\circ", "25°"])
@pytest.mark.parametrize(
    ("answer", "outcome"),
    [("25", "right"), ("025", "right"), ("25.0", "right"), (r"25^\circ", "right"), ("250", "wrong"), ("25.5", "wrong")],
)
def test_aime_ignores_leading_zeros_and_degree_signs(gold, answer, outcome):
    assert grade("aime", gold, rf"\boxed{{{answer}}}") == outcome


@pytest.mark.parametrize("gold", ["1000", "-3", "x", r"\frac12"])
def test_an_aime_gold_that_is_no_small_integer_is_an_error(gold):
    with pytest.raises(ValueError, match="AIME answers are integers from 0 to 999"):
        grade("aime", gold, r"\boxed{5}")


@pytest.mark.parametrize(
    ("gold", "answer", "outcome"),
    [
        ("4.5e33", r"4.5 \times 10^{33}", "right"),
        ("4.5e33", r"4.5004 \times 10^{33} \text{ erg/s}", "right"),
        ("4.5e33", r"4.501 \times 10^{33}", "wrong"),
        ("9.6", r"9.6\text{ m}", "right"),
        ("9.6", "9.6009", "right"),
        ("9.6", "9.65", "wrong"),
        ("7", "7.05", "wrong"),
        ("-1./3", r"-\frac13", "right"),
        (r"\frac{m v^2}{2}", r"\frac12 m v^2", "right"),
        ("['9.6\\n']", "9.6", "right"),
    ],
)
def test_minerva_allows_rounded_decimals_a_relative_error(gold, answer, outcome):
    assert grade("minerva", gold, rf"\boxed{{{answer}}}") == outcome


def test_olympiad_takes_answers_in_any_order_and_the_row_s_tolerance():
    assert grade("olympiad", "$1,2,3$", r"\boxed{3,1,2}", multiple=True) == "right"
    assert grade("olympiad", "$1,2,3$", r"\boxed{1,2}", multiple=True) == "wrong"
    assert grade("olympiad", "$(1,2),(3,1)$", r"\boxed{(3,1)\text{ and }(1,2)}", multiple=True) == "right"
    assert grade("olympiad", r"$\frac{\pi}{4}$", r"\boxed{\pi/4 \text{ cm}}", unit="cm") == "right"
    assert grade("olympiad", "6.3", r"\boxed{6.35}", tolerance="1e-1") == "right"
    assert grade("olympiad", "6.3", r"\boxed{6.5}", tolerance="1e-1") == "wrong"
    assert grade("olympiad", "6.3", r"\boxed{6.35}") == "wrong"


def test_college_math_writes_two_answers_without_a_blank():
    assert grade("college_math", "110,880", r"\boxed{880, 110}") == "right"
    assert grade("college_math", "110,880", r"\boxed{110880}") == "right"
    assert grade("gaokao", "110,880", r"\boxed{880, 110}") == "wrong"


@pytest.mark.parametrize("name", ["gaokao", "college_math"])
def test_textbooks_take_a_value_or_its_approximation(name):
    assert grade(name, r"$k=\frac{\ln 2}{5} \approx 0.1386$", r"\boxed{k=\frac{\ln 2}{5}}") == "right"
    assert grade(name, r"$k=\frac{\ln 2}{5} \approx 0.1386$", r"\boxed{0.1386}") == "right"
    assert grade(name, r"$k=\frac{\ln 2}{5} \approx 0.1386$", r"\boxed{0.14}") == "wrong"
    assert grade(name, r"$\{x|-2\leq x < 1\}$", r"\boxed{[-2,1)}") == "right"
    assert grade(name, "$x=2, x=-5$", r"\boxed{-5, 2}") == "right"
    assert grade(name, "concave up on $(0,\\infty)$", r"\boxed{\text{concave up on }(0,\infty)}") == "right"


@pytest.mark.parametrize(
    ("gold", "answer", "outcome"),
    [
        ("B", "B", "right"),
        ("B", r"\text{(B)}", "right"),
        ("B", r"\textbf{B}", "right"),
        ("B", "B. 12", "right"),
        ("B", "A", "wrong"),
        ("B", "ABCD", "wrong"),
        ("B", "A, B", "wrong"),
        ("B", "12", "right"),
        ("B", r"\frac{24}{2}", "right"),
        ("B", "11", "wrong"),
        ("12", "B", "right"),
        ("(B)", "12", "right"),
    ],
)
def test_multiple_choice_takes_the_letter_or_the_text_of_a_choice(gold, answer, outcome):
    assert grade("multiple_choice", gold, rf"\boxed{{{answer}}}", choices=("11", "12", "13")) == outcome


def test_multiple_choice_without_texts_takes_the_letter():
    assert grade("multiple_choice", "B", r"\boxed{B}") == "right"
    assert grade("multiple_choice", "B", r"\boxed{12}") == "wrong"
    with pytest.raises(ValueError, match="expected a letter from A to J"):
        grade("multiple_choice", "twelve", r"\boxed{B}")


def test_a_problem_without_a_gold_answer_is_an_error():
    with pytest.raises(ValueError, match="problem test/0 has no gold answer"):
        grade("math", " ", r"\boxed{5}")
