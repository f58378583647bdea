r"""Random answers: none crashes, hangs or executes anything; equal rewritings are right and changed values are wrong.

FR3E_CAMPAIGN_EXAMPLES is the number of inputs of each test (default 100). ``answer_corpus.jsonl`` has the inputs that
once failed; it always runs. Equality is symmetric and transitive between answers of one kind: numbers, expressions,
sets, tuples, intervals, vectors. It is neither, on purpose, where the gold answer decides: units and per cent (24
accepts 24 cm and 24 m), rounded decimals, equations and their values (x = 9 accepts 9), lists and tuples.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import resource
import signal
from fractions import Fraction
from pathlib import Path

import equivalence_cases
import generated_answers as made
import held_out_cases
import pytest
from guarded_evaluators import guard
from hypothesis import HealthCheck, Phase, assume, event, given, settings
from hypothesis import strategies as st

from fr3e_jax.answers import judge, quick_verdict
from fr3e_jax.rewards.extraction import extract

EXAMPLES = int(os.environ.get("FR3E_CAMPAIGN_EXAMPLES", "100"))
MOST_GROWTH = 4 * 2**20  # KiB of the process
CPU_SECONDS = 10.0  # of one verdict: the deadline that the pool sets
OUTCOMES = {"right", "wrong", "refused", "string_only"}
CALCULUS = re.compile(r"\\(?:int|lim|sum|prod)|∫|∑|∏")  # sympy may take long; the pool's deadline ends it
CORPUS = Path(__file__).with_name("answer_corpus.jsonl")

campaign = settings(
    max_examples=EXAMPLES,
    derandomize="FR3E_CAMPAIGN_SEED" not in os.environ,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
)


def _golds() -> list[str]:
    tables = (equivalence_cases.EQUAL, held_out_cases.EQUAL)
    texts = {text for table in tables for pairs in table.values() for pair in pairs for text in pair}
    return sorted(text for text in texts if not CALCULUS.search(text) and len(text) < 200)


GOLDS = _golds()


@pytest.fixture(autouse=True, scope="module")
def evaluators():
    """No text reaches an evaluator in any test of this file, and the process does not grow by much."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.MonkeyPatch.context() as monkeypatch:
        reached = guard(monkeypatch)
        yield
    assert not reached
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_GROWTH


def verdict(gold: str, answer: str) -> bool:
    """Whether the answer is right; an answer that takes the CPU too long, or an outcome without a name, fails."""

    def interrupt(*_):
        raise AssertionError(f"judge({gold!r}, {answer!r}) took {CPU_SECONDS} s of the CPU")

    before = signal.signal(signal.SIGPROF, interrupt)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        found = judge(gold, answer)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    assert found.outcome in OUTCOMES and found.reward == float(found.outcome == "right")
    quick = quick_verdict(gold, answer)
    assert quick is None or quick == found
    return found.reward == 1.0


def assert_symmetric(left: str, right: str, expected: bool) -> None:
    assert verdict(left, right) == expected, (left, right)
    assert verdict(right, left) == expected, (right, left)


@pytest.mark.parametrize("case", [json.loads(line) for line in CORPUS.read_text().splitlines()])
def test_the_corpus_of_answers_that_once_failed_is_graded(case):
    found = verdict(case["gold"], case["answer"])
    assert case["right"] is None or found == case["right"]


@pytest.mark.campaign
@campaign
@given(made.ANY_TEXT, made.ANY_TEXT | st.sampled_from(GOLDS))
def test_no_text_raises_or_hangs(answer, gold):
    assume(not CALCULUS.search(answer + gold))
    verdict(gold, answer)


@pytest.mark.campaign
@campaign
@given(st.sampled_from(GOLDS), made.GENERATORS)
def test_no_damaged_answer_raises_or_hangs(gold, rng):
    damaged = made.damaged(gold, rng)
    assume(not CALCULUS.search(damaged))
    verdict(gold, damaged)
    verdict(damaged, gold)


@pytest.mark.campaign
@campaign
@given(st.sampled_from(GOLDS), st.sampled_from(made.WRAPPINGS))
def test_a_gold_answer_in_a_wrapping_is_right(gold, wrapping):
    announced = "answer" in gold.lower() and not wrapping.strip().startswith("{}")  # words, not a formula
    assume(not ("{:" in gold or gold.endswith("\\") or announced))
    written = wrapping.format(gold)
    answer = extract(f"So it is {written}") if "boxed" in wrapping else written
    assert verdict(gold, answer), (gold, wrapping)


TREES = st.one_of(made.RATIONALS, made.IRRATIONALS, made.EXPRESSIONS)
NOTATIONS = st.sampled_from(made.NOTATIONS)


@pytest.mark.campaign
@campaign
@given(TREES, NOTATIONS, NOTATIONS, made.GENERATORS, st.sampled_from(made.WRAPPINGS))
def test_an_equal_expression_in_another_notation_is_right(tree, one, other, rng, wrapping):
    equal = made.rewritten(tree, rng)
    assume(made.defined(equal))
    event(f"{one} and {other}")
    assert_symmetric(made.printed(tree, one, rng), wrapping.format(made.printed(equal, other, rng)), True)


@pytest.mark.campaign
@campaign
@given(TREES, NOTATIONS, NOTATIONS, made.GENERATORS)
def test_an_expression_of_another_value_is_wrong(tree, one, other, rng):
    different = made.changed(made.rewritten(tree, rng), rng)
    assume(made.defined(different))
    assert_symmetric(made.printed(tree, one, rng), made.printed(different, other, rng), False)


@pytest.mark.campaign
@campaign
@given(TREES, made.GENERATORS)
def test_equality_is_transitive_among_rewritings(tree, rng):
    trees = [tree, *(made.rewritten(tree, rng) for _ in range(2))]
    assume(all(map(made.defined, trees)))
    texts = [made.printed(member, rng.choice(made.NOTATIONS), rng) for member in trees]
    for left, right in itertools.product(texts, repeat=2):
        assert verdict(left, right), (left, right)


SMALL = st.lists(st.fractions(-9, 9, max_denominator=4), min_size=2, max_size=4, unique=True)


def _written(value: Fraction, rng) -> str:
    sign, size = ("-" if value < 0 else ""), abs(value)
    if size.denominator == 1:
        return f"{sign}{size.numerator}"
    ways = [rf"{sign}\frac{{{size.numerator}}}{{{size.denominator}}}", f"{sign}{size.numerator}/{size.denominator}"]
    if size > 1:
        whole, rest = divmod(size, 1)
        ways.append(rf"{sign}{whole}\frac{{{rest.numerator}}}{{{rest.denominator}}}")
    return rng.choice([*ways, str(float(value))] if size.denominator in (2, 4) else ways)


def _texts(values, rng) -> list[str]:
    return [_written(value, rng) for value in values]


def _set(values, rng) -> str:
    texts = _texts(rng.sample(values, len(values)), rng)
    ways = [r"\{" + ", ".join(texts) + r"\}", ", ".join(texts), r" \text{ or } ".join(f"x={text}" for text in texts)]
    return rng.choice([*ways, r"x \in \left\{" + ",".join(texts) + r"\right\}"])


def _vector(values, rng) -> str:
    texts = _texts(values, rng)
    ways = [r"\begin{pmatrix}" + r"\\".join(texts) + r"\end{pmatrix}"]
    ways += ["(" + ", ".join(texts) + ")", r"\left\langle " + ",".join(texts) + r"\right\rangle"]
    if len(texts) <= 3:
        ways.append("+".join(rf"({text})\mathbf{{{name}}}" for text, name in zip(texts, "ijk", strict=False)))
        ways.append("+".join(rf"({text})\hat{{{name}}}" for text, name in zip(texts, "ijk", strict=False)))
    return rng.choice(ways)


def _interval(values, rng, closed: tuple[bool, bool]) -> str:
    lower, upper = _texts(sorted(values)[:2], rng)
    interval = f"{'[' if closed[0] else '('}{lower}, {upper}{']' if closed[1] else ')'}"
    below, above = (r"\le" if end else "<" for end in closed)
    chain = f"{lower} {below} x {above} {upper}"
    return rng.choice([interval, chain, rf"x \in {interval}", rf"\left{interval[:-1]}\right{interval[-1]}"])


@pytest.mark.campaign
@campaign
@given(SMALL, made.GENERATORS)
def test_sets_are_equal_in_any_order_and_differ_by_an_element(values, rng):
    assert_symmetric(_set(values, rng), _set(values, rng), True)
    assert_symmetric(_set(values, rng), _set([*values[1:], values[0] + 20], rng), False)
    assert_symmetric(_set(values, rng), _set([*values, Fraction(30)], rng), False)


@pytest.mark.campaign
@campaign
@given(SMALL, made.GENERATORS)
def test_vectors_are_equal_in_any_notation_and_differ_by_order(values, rng):
    assert_symmetric(_vector(values, rng), _vector(values, rng), True)
    assert_symmetric(_vector(values, rng), _vector(values[::-1], rng), False)
    assert_symmetric(_vector(values, rng), _vector([*values[1:], values[0] + 20], rng), False)


@pytest.mark.campaign
@campaign
@given(SMALL, st.tuples(st.booleans(), st.booleans()), made.GENERATORS)
def test_intervals_are_equal_in_any_notation_and_differ_by_an_end(values, closed, rng):
    text = _interval(values, rng, closed)
    assert_symmetric(text, _interval(values, rng, closed), True)
    assert_symmetric(text, _interval(values, rng, (not closed[0], closed[1])), False)
    assert_symmetric(text, _interval([min(values), max(values) + 20], rng, closed), False)


@pytest.mark.campaign
@campaign
@given(st.integers(1000, 10**9), st.integers(1, 3), made.GENERATORS)
def test_a_number_with_thousands_commas_is_one_number(number, gap, rng):
    grouped = f"{number:,}"
    spellings = [grouped, str(number), grouped.replace(",", "{,}"), grouped.replace(",", r"\,"), rf"\${grouped}"]
    words = ["", r"\text{ m}", " meters", r"\text{ people}"]
    gold, answer = (rng.choice(spellings) + rng.choice(words) for _ in range(2))
    assume("$" not in gold + answer or (gold[-1].isdigit() and answer[-1].isdigit()))
    assume(not ("people" in gold + answer and "m" in gold.replace("people", "") + answer.replace("people", "")))
    assert_symmetric(gold, answer, True)
    for wrong in (grouped.replace(",", "."), grouped.replace(",", ", "), f"({grouped})", grouped.partition(",")[0]):
        if "." not in wrong or wrong.count(".") == 1:
            assert not verdict(grouped, wrong) or wrong == f"({grouped})" and ",0" in grouped, (grouped, wrong)
    assert not verdict(grouped, f"{number + gap:,}")
