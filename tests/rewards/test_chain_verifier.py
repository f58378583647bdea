"""The operations of *Chain* against an oracle on lists of numbers, and its verifier against hostile responses."""

from __future__ import annotations

import random

import pytest

from fr3e_jax.data.task import Problem
from fr3e_jax.rewards.chain_verifier import AMBIGUOUS, PLAIN, ChainVerifier, readings, steps_of

PROMPT, GOLD = "314202+01*00=>", "5324"
RIGHT = "02+4253>01*4235>00=5324"


def oracle(operation, a):
    """The list after an operation in the reading that counts, written with loops over places."""
    places = len(a)
    match operation:
        case "+":
            return [(x + 1) % 10 for x in a]
        case "-":
            return [a[(i - 1) % places] for i in range(places)]
        case "*":
            return [*a[: places - 2], a[places - 1], a[places - 2]]
        case "/":
            return [9 - x if 2 * (i + 1) <= places else x for i, x in enumerate(a)]
        case "(":
            return [a[2 * places - 4 - i] if i >= places - 3 else a[i] for i in range(places)]
        case ")":
            return [(a[0] + a[-1]) % 10, *a[1:]]
        case "=":
            return [a[places - 1 - i] for i in range(places)]
        case "%":
            return [9 - x for x in a]
        case ".":
            return [a[{0: places - 1, places - 1: 0}.get(i, i)] for i in range(places)]


def text(numbers):
    return "".join(map(str, numbers))


def graded(response, prompt=PROMPT, gold=GOLD, rule="strict", finished=True):
    return ChainVerifier(rule)(Problem(id="x", prompt=prompt, gold=gold), response, finished)


def random_problem(rng, flip=None):
    """A prompt, its last list and a response by the oracle; the line ``flip`` has the reading that does not count."""
    numbers = [rng.randrange(10) for _ in range(rng.randrange(4, 9))]
    length, lines, prompt = rng.randrange(1, 31), [], text(numbers)
    right = list(numbers)
    for place in range(length):
        operation = rng.choice([*AMBIGUOUS, *PLAIN])
        step = f"{length - 1 - place:02d}{operation}"
        prompt += step
        right = oracle(operation, right)
        other = readings(operation, text(numbers))[-1]
        numbers = [int(x) for x in other] if place == flip else oracle(operation, numbers)
        lines.append(step + text(numbers))
    return prompt + ">", text(right), lines


@pytest.mark.parametrize("seed", range(20))
def test_the_oracles_chain_is_right_and_one_changed_digit_is_not(seed):
    rng = random.Random(seed)
    for _ in range(30):
        prompt, gold, lines = random_problem(rng)
        response = ">".join(lines)
        assert graded(response, prompt, gold) == graded(response, prompt, gold, "answer") == 1
        place = rng.choice([i for i, character in enumerate(response) if character.isdigit()])
        changed = response[:place] + str((int(response[place]) + rng.randrange(1, 10)) % 10) + response[place + 1 :]
        assert graded(changed, prompt, gold) == 0, (response, changed)


@pytest.mark.parametrize("seed", range(20))
def test_a_line_in_the_other_reading_is_wrong_whatever_follows_from_it(seed):
    rng = random.Random(seed)
    for _ in range(30):
        state = rng.getstate()
        _, _, right = random_problem(rng)
        rng.setstate(state)
        flip = random.Random(seed).randrange(len(right))
        prompt, gold, lines = random_problem(rng, flip)
        assert graded(">".join(lines), prompt, gold) == (lines == right)


@pytest.mark.parametrize("operation", AMBIGUOUS)
@pytest.mark.parametrize("places", [4, 5, 8])
def test_both_readings_are_other_lists_for_most_digits_and_keep_the_length(operation, places):
    rng = random.Random(places)
    lists = [text(rng.randrange(10) for _ in range(places)) for _ in range(300)]
    found = [readings(operation, digits) for digits in lists]
    assert sum(right != other for right, other in found) > 0.9 * len(lists)
    assert all(len(list_) == places for pair in found for list_ in pair)


def test_no_reading_of_an_operation_is_a_reading_of_another():
    rng = random.Random(0)
    lists = [text(rng.randrange(10) for _ in range(6)) for _ in range(50)]
    every = [tuple(r) for op in (*AMBIGUOUS, *PLAIN) for r in zip(*(readings(op, d) for d in lists), strict=True)]
    assert len(set(every)) == len(every) == 2 * len(AMBIGUOUS) + len(PLAIN)


def test_a_prompt_has_its_digits_and_steps():
    assert steps_of(PROMPT) == ("3142", ["02+", "01*", "00="])
    assert steps_of("31415901.00%>") == ("314159", ["01.", "00%"])


@pytest.mark.parametrize("rule", ["answer", "strict"])
def test_both_rules_accept_the_chain_and_want_the_stop_token(rule):
    assert graded(RIGHT, rule=rule) == 1
    assert graded(RIGHT, rule=rule, finished=False) == 0


@pytest.mark.parametrize("rule", ["answer", "strict"])
@pytest.mark.parametrize(
    "response",
    [
        "",
        ">>",
        GOLD,
        "00=5324",
        "01*4235>00=5324",
        "02+4253>00=5324",
        RIGHT + ">",
        ">" + RIGHT,
        RIGHT + ">00=5324",
        RIGHT + " ",
        RIGHT + "0",
        RIGHT.replace("00=", "01="),
        RIGHT.replace("00=", "00%"),
        RIGHT.replace("00=", ""),
        RIGHT.replace("5324", "05324"),
        RIGHT.replace("5324", "٥324"),
        RIGHT.replace(">", "\n"),
    ],
)
def test_both_rules_reject_wrong_last_lines_and_wrong_numbers_of_lines(rule, response):
    assert graded(response, rule=rule) == 0


@pytest.mark.parametrize(
    "response",
    [
        ">>00=5324",
        "02+>01*>00=5324",
        "02+2031>01*4235>00=5324",  # the other reading, then back
        "02+4253>01*2453>00=5324",
        "02+4253>02*4235>00=5324",
        "02+4253>01+4235>00=5324",
        "02+4253>01*4235 >00=5324",
        "02+0004253>01*4235>00=5324",
        "01*4253>02+4235>00=5324",
    ],
)
def test_only_the_strict_rule_looks_at_the_steps(response):
    assert graded(response, rule="answer") == 1
    assert graded(response) == 0
