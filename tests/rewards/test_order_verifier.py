"""Reductions against Python's own arithmetic, exhaustively for small sizes, and the two verifiers of *Order*."""

from __future__ import annotations

import itertools

import pytest

from fr3e_jax.data.task import Problem
from fr3e_jax.rewards.order_verifier import OrderVerifier, evaluate, is_valid, reduce_at, valid_reductions


def expressions(modulus, num_operands):
    for operators in itertools.product("+-*", repeat=num_operands - 1):
        for digits in itertools.product(range(modulus), repeat=num_operands):
            yield "".join(f"{a}{b}" for a, b in zip(digits, (*operators, ""), strict=True))


def python_value(expression, modulus):
    return str(eval(expression) % modulus)


def graded(rule, prompt, response, finished=True, modulus=10):
    problem = Problem(id="x", prompt=prompt, gold=python_value(prompt[:-1], modulus))
    return OrderVerifier(rule, modulus)(problem, response, finished)


@pytest.mark.parametrize(("modulus", "num_operands"), [(10, 3), (7, 3), (4, 4), (3, 5)])
def test_evaluate_gives_the_value_of_python_arithmetic(modulus, num_operands):
    for expression in expressions(modulus, num_operands):
        assert evaluate(expression, modulus) == python_value(expression, modulus), expression


@pytest.mark.parametrize(("modulus", "num_operands"), [(10, 3), (3, 4), (3, 5)])
def test_a_reduction_is_valid_exactly_if_it_keeps_the_value_for_all_digits(modulus, num_operands):
    keeps = {}
    for expression in expressions(modulus, num_operands):
        value = python_value(expression, modulus)
        for position in range(1, len(expression), 2):
            same = python_value(reduce_at(expression, position, modulus), modulus) == value
            key = (expression[1::2], position)
            keeps[key] = keeps.get(key, True) and same
    for (operators, position), same in keeps.items():
        pattern = "0" + "".join(f"{operator}0" for operator in operators)
        assert is_valid(pattern, position) == same, (operators, position)


@pytest.mark.parametrize(("modulus", "num_operands"), [(10, 3), (3, 4), (2, 5)])
def test_every_chain_of_valid_reductions_ends_in_the_right_digit(modulus, num_operands):
    for expression in expressions(modulus, num_operands):
        lines = {expression}
        for _ in range(num_operands - 1):
            following = [valid_reductions(line, modulus) for line in lines]
            assert all(following), f"{expression} reaches a line without a valid reduction"
            lines = set.union(*following)
        assert lines == {python_value(expression, modulus)}, expression


@pytest.mark.parametrize(
    ("line", "following"),
    [
        ("3+4*2-5", {"3+8-5"}),
        ("3+8-5", {"1-5", "3+3"}),
        ("9-2+1", {"7+1"}),
        ("9-2-1", {"7-1"}),
        ("2*3*4", {"6*4", "2*2"}),
        ("1-5", {"6"}),
        ("6", set()),
    ],
)
def test_valid_reductions_are_those_found_by_hand(line, following):
    assert valid_reductions(line, 10) == following


@pytest.mark.parametrize("rule", ["answer", "strict"])
def test_both_rules_accept_a_valid_chain_and_want_the_stop_token(rule):
    assert graded(rule, "3+4*2-5>", "3+8-5>1-5>6") == 1
    assert graded(rule, "3+4*2-5>", "3+8-5>3+3>6") == 1
    assert graded(rule, "3+4*2-5>", "3+8-5>1-5>6", finished=False) == 0


@pytest.mark.parametrize("rule", ["answer", "strict"])
@pytest.mark.parametrize(
    "response",
    [
        "",
        "6",
        "3+8-5>6",
        "3+8-5>1-5>6>",
        "3+8-5>1-5>6>6",
        "3+8-5>1-5>7",
        "3+8-5>1-5>06",
        "3+8-5>1-5>6 ",
        "1-5>6",
    ],
)
def test_both_rules_reject_wrong_digits_and_wrong_numbers_of_lines(rule, response):
    assert graded(rule, "3+4*2-5>", response) == 0


@pytest.mark.parametrize("response", ["7*2-5>7*7>6", "9>9>6", "3+8-5>2-5>6", "3+8-5>1-5x>6", ">>6"])
def test_only_the_strict_rule_looks_at_the_steps(response):
    assert graded("answer", "3+4*2-5>", response) == 1
    assert graded("strict", "3+4*2-5>", response) == 0


def test_the_strict_rule_reads_the_full_response_not_a_continuation():
    assert graded("strict", "3+4*2-5>", "1-5>6") == 0
    assert graded("strict", "3+4*2-5>", "3+8-5>" + "1-5>6") == 1
    assert graded("strict", "3+4*2-5>", "9-1-2>8-2>6") == 0, "the first line must follow from the prompt"
