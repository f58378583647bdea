"""Questions shared by training and evaluation sets: equal words, most runs, or one run that is no common phrase."""

from __future__ import annotations

from fr3e_jax.data.overlap import RUN, overlaps, runs, words
from fr3e_jax.data.task import Problem

LONG = "A farmer has seven cows and nine goats, and every second day two of the goats run away into the dark forest."


def problems(name, *texts):
    return [Problem(id=f"{name}/{i}", prompt=text, gold="") for i, text in enumerate(texts)]


def compare(train, test):
    return overlaps({"train": problems("a", *train)}, {"test": problems("b", *test)})


def test_spelling_and_layout_do_not_hide_a_question():
    one = "Let $\\left(a_{k}\\right)$ be positive, and $\\dfrac{1}{2}$ of\nthe whole. Find \\text{it}, please!"
    other = "let $(a_k)$ be  positive and $\\frac12$ of the whole; find it please"
    assert words(one)[:8] == ("let", "a", "k", "be", "positive", "and", "frac", "1")
    assert words(one.replace("{1}{2}", "1 2")) == words(other.replace("12", "1 2"))


def test_equal_words_are_identical_most_runs_near_and_one_run_touching():
    near = LONG.replace("A farmer", "The shepherd")
    touching = " ".join(LONG.split()[:RUN]) + " then " + " ".join(f"word{i}" for i in range(40)) + " " + LONG[-20:]
    [found] = compare([LONG.upper(), "Something else entirely, of no great length."], [LONG, near, touching])
    assert found.identical == [("a/0", "b/0")]
    assert found.near == [("a/0", "b/1")] and found.touching == [("a/0", "b/2")]
    assert (found.train, found.evaluation, found.size) == ("train", "test", 3)
    assert found.share == 2 / 3


def test_short_questions_overlap_only_as_a_whole():
    assert compare(["How many cows are there in all?"], ["How many cows are there in all today?"]) == []
    [found] = compare(["How many cows are there in all?"], ["How many cows, are there, in all"])
    assert found.identical == [("a/0", "b/0")]


def test_formulas_with_few_words_keep_their_signs():
    assert compare(["12-(3+4)=", "Simplify: $3-x$"], ["12-3+4=", "Simplify: $3+x$"]) == []
    [found] = compare(["Simplify: $3-x$"], ["simplify  3 - x", "Simplify: $3-x$"])
    assert found.identical == [("a/0", "b/1")]


def test_phrase_of_many_questions_does_not_count():
    phrase = "where m and n are relatively prime positive integers whose sum you find as your answer"
    train = [f"Problem {i} about t{i} {phrase}" for i in range(11)]
    assert compare(train, [f"Another one {phrase}"]) == []
    [found] = compare(train[:10], [f"Another one {phrase}"])
    assert len(found.near) == 10
    [found] = compare([train[0]] * 20, [f"Another one {phrase}"])
    assert len(found.near) == 20, "one question that is repeated makes no phrase"


def test_drawings_have_no_runs_but_tell_questions_apart():
    code = "[asy] draw((0,0)--(1,0)--(1,1)--(0,1)--cycle); label(A, (0,0), S); dot((1,1)); size(100); pen(2) [/asy]"
    assert runs(f"What is it? {code}") == set()
    assert compare([f"How long is the side x? {code}"], [f"What is the area there? {code}"]) == []
    [found] = compare([f"How long is the side x? {code}"], [f"How long is the side x? {code}"])
    assert found.identical


def test_only_pairs_of_sets_that_overlap_are_listed():
    train = {"one": problems("one", LONG), "two": problems("two", "Nothing of the kind is asked here.")}
    test = {"x": problems("x", "Other."), "y": problems("y", LONG)}
    assert [(each.train, each.evaluation) for each in overlaps(train, test)] == [("one", "y")]
    assert overlaps(train, {}) == overlaps({}, test) == []
