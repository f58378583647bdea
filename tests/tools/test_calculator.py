"""The calculator computes exactly, refuses text that is not arithmetic, and never works for long."""

from __future__ import annotations

import pytest

from fr3e_jax.tools.calculator import calculate


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("48/2", "24"),
        ("3*(2+4)", "18"),
        ("1/8", "0.125"),
        ("2/3", "0.6666666667"),
        ("0.1+0.2", "0.3"),
        ("$1,200*.5", "600"),
        (" -7 % 3 ", "2"),
        ("7//2", "3"),
        ("2**10", "1024"),
        ("2**-1", "0.5"),
        ("10**25+1", "1" + "0" * 24 + "1"),
    ],
)
def test_expression_has_its_exact_value(expression, value):
    assert calculate(expression)[:2] == (value, "answered")


@pytest.mark.parametrize(
    "expression",
    [
        *("", "3*", "1/0", "0**-1", "x", "abs(1)", "'a'*3", "True+1", "1<2", "[1]", "2j", "4**0.5", "1e400", "1e400/1"),
        *("9**9**9", "7**100000", "10**150*10**150", "1+" * 150 + "1", "(" * 190, "__import__('os')"),
    ],
)
def test_text_that_cannot_be_computed_is_an_error(expression):
    assert calculate(expression)[:2] == ("error", "error")
