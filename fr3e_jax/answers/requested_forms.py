"""Forms that a question asks for: factored, expanded, over one denominator, without roots below, simplified.

An answer that equals the gold one but has another form has not done the work. The gold answer sets the measure: a form
is asked for only where the gold answer has it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from fr3e_jax.answers.expression_tree import Node, symbols
from fr3e_jax.answers.written_forms import has_root_below, is_plain, size

_FACTOR = re.compile(
    r"(?<!scale )(?<!common )(?<!the )(?<!a )(?<!prime )(?<!by )(?<!integrating )\bfactor(?:i[sz]e)?\b(?! of\b)"
    r"|\bfactored form|\bas (?:a|the) product of\b",
    re.IGNORECASE,
)
_EXPAND = re.compile(r"\b(?:expand|distribute|multiply out)\b", re.IGNORECASE)
_RATIONALISE = re.compile(r"\brationali[sz]e|\brational denominator", re.IGNORECASE)
_SINGLE = re.compile(r"\bsingle (?:fraction|logarithm|term|power|rational expression|radical)", re.IGNORECASE)
_SIMPLIFY = re.compile(r"\bsimplify\b", re.IGNORECASE)
_MOST_FACTORS = 10**6


def lacks_form(question: str, gold: Node, answer: Node) -> bool:
    """Return whether a question asks for a form that the gold answer has and an equal answer lacks.

    A simplified answer may be somewhat longer than the gold one: ``_is_longer``.
    """
    return any(
        request.search(question) is not None and lacks(gold, answer)
        for request, lacks in _FORMS.items()
        if gold.head != "relation" and answer.head != "relation"
    )


def _is_less_factored(gold: Node, answer: Node) -> bool:
    factors = _factors(gold)
    if factors < 2 or not any(map(_is_open_sum, gold.walk())):
        return False
    return _factors(answer) < factors or (_has_open_denominator(answer) and not _has_open_denominator(gold))


def _is_less_expanded(gold: Node, answer: Node) -> bool:
    polynomial = bool(symbols(gold)) and not gold.has("function")
    return polynomial and _has_open_product(answer) and not _has_open_product(gold)


def _has_other_root(gold: Node, answer: Node) -> bool:
    return has_root_below(answer) and not has_root_below(gold)


def _is_several_terms(gold: Node, answer: Node) -> bool:
    return _bare(answer).head == "add" and _bare(gold).head != "add" and not is_plain(gold, True)


def _is_longer(gold: Node, answer: Node) -> bool:
    """Return whether an answer has more than twice the size of the gold one, and four numbers or names more."""
    return size(answer) > 2 * size(gold) + 4


_FORMS: dict[re.Pattern[str], Callable[[Node, Node], bool]] = {
    _FACTOR: _is_less_factored,
    _EXPAND: _is_less_expanded,
    _RATIONALISE: _has_other_root,
    _SINGLE: _is_several_terms,
    _SIMPLIFY: _is_longer,
}


def _bare(node: Node) -> Node:
    while node.head in ("negate", "measured"):
        node = node.args[0]
    return node


def _factors(node: Node) -> int:
    """The number of factors with variables in the numerator, each as often as its exponent says."""
    node = _bare(node)
    if not symbols(node):
        return 0
    if node.head == "multiply":
        return sum(map(_factors, node.args))
    if node.head == "divide":
        return _factors(node.args[0])
    if node.head == "power":
        exponent = node.args[1]
        return _factors(node.args[0]) * min(int(exponent.value), _MOST_FACTORS) if exponent.is_integer else 1
    return 1


def _is_open_sum(node: Node) -> bool:
    return node.head == "add" and bool(symbols(node))


def _has_open_denominator(node: Node) -> bool:
    return any(
        (quotient.head == "divide" and symbols(quotient.args[1]))
        or (quotient.head == "power" and quotient.args[1].head == "negate" and symbols(quotient.args[0]))
        for quotient in node.walk()
    )


def _has_open_product(node: Node) -> bool:
    """Return whether a sum with variables is multiplied by something or raised to a power of two or more."""
    for product in node.walk():
        if product.head == "multiply" and any(_is_open_sum(_bare(factor)) for factor in product.args):
            return True
        if product.head == "power" and _is_open_sum(_bare(product.args[0])) and product.args[1].head == "number":
            return True
    return False
