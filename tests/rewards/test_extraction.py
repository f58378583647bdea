"""Which part of a response is its answer, in every form that a prompt asks for."""

import pytest

from fr3e_jax.rewards.extraction import extract, last_boxed, readable_gold

TURN_ENDS = (
    "<|im_end|> <|endoftext|> <|eot_id|> <|eom_id|> <|end|> <|end_of_text|> <|end_of_turn|> <|return|> <|user|> </s> "
    "<eos> <|start_header_id|> <end_of_turn> <start_of_turn> <｜end▁of▁sentence｜> <｜User｜>"
).split()
ANSWER_LINES = (
    *(
        "Answer : {}",
        "- Answer: {}",
        "* Answer: {}",
        "### Answer: {}",
        "> Answer: {}",
        "Final Answer: {}",
        "Answer： {}",
    ),
    *("**Final answer: {}**", "__Answer:__ {}", "- **Answer:** {}", "ANSWER: {}"),
)


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"so $\boxed{42}$.", "42"),
        (r"\boxed{1}, no: \boxed{\frac{2}{3}}", r"\frac{2}{3}"),
        (r"\boxed{ 42 }", "42"),
        (r"\boxed {42}", "42"),
        (r"\fbox{42}", "42"),
        (r"\boxed 42", "42"),
        (r"\boxed x", "x"),
        (r"\\boxed{42}", "42"),
        (r"\boxed{\boxed{42}}", "42"),
        (r"\boxed{x=\boxed{42}}", "42"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{\left\{x\right.}", r"\left\{x\right."),
        (r"\boxed{42} and then \boxed{43", "42"),
        (r"\boxed{\text{a}b}", r"\text{a}b"),
        (r"a } stray { brace \boxed{42}", "42"),
        ("\\boxed{42}<|im_end|>\n<|im_start|>user\n\\boxed{7}", "42"),
        ("\\boxed{42}<|endoftext|>\\boxed{7}", "42"),
        (r"\boxed{3}\boxed{4}", "3, 4"),
        (r"\boxed{3} or \boxed{4}", "3, 4"),
        (r"$\boxed{3}$, $\boxed{4}$ and $\boxed{5}$", "3, 4, 5"),
        (r"\boxed{4}. On reflection, \boxed{5}.", "5"),
        (r"Part one: \boxed{3}, and part two: \boxed{4}", "4"),
        (r"\boxed{4}, \boxed{4}", "4"),
        ("the answer is 42", None),
        ("#### 42", None),
        (r"\boxed{}", None),
        (r"\boxed{  }", None),
        (r"\boxed", None),
        (r"\boxed{42", None),
        ("", None),
        *((rf"\boxed{{42}}{mark}\boxed{{7}}", "42") for mark in TURN_ENDS),
        *((rf"\boxed{{42}}{rest}", "42") for rest in (r" \boxed{}", r". \boxed{$$}", r" so \boxed{\,}", r"\fbox{ }")),
        (r"\boxed{3}, \boxed{4} and \boxed{}", "3, 4"),
        (r"\boxed{\ }", None),
        (r"$a<b>c$ <end> \boxed{42}", "42"),
    ],
)
def test_boxed_gives_the_last_closed_box(response, answer):
    assert extract(response, "boxed") == answer


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("Thus.\nAnswer: 42", "42"),
        ("Answer: 41\nWait.\nAnswer: 42\n", "42"),
        ("**Answer:** $42$", "$42$"),
        ("answer: 42", "42"),
        (r"Answer: $\boxed{42}$", "42"),
        ("The Answer: 42", None),
        (r"\boxed{42}", None),
        ("Answer:", None),
        *((line.format("42"), "42") for line in ANSWER_LINES),
        ("Answer: 42\nAnswer:", "42"),
        ("Answer: -42", "-42"),
        ("Answering: 42", None),
        ("My answer: 42", None),
    ],
)
def test_answer_line_gives_the_text_of_the_last_such_line(response, answer):
    assert extract(response, "answer_line") == answer


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("so\n#### 42", "42"),
        ("#### 41\n#### 42\nmore", "42"),
        ("\\boxed{43}\n#### 42", "43"),
        ("####", None),
        ("42", None),
    ],
)
def test_boxed_or_hashes_prefers_the_box(response, answer):
    assert extract(response, "boxed_or_hashes") == answer


def test_an_unknown_extraction_is_named_in_the_error():
    with pytest.raises(ValueError, match="extraction is 'last_number'; expected one of"):
        extract("4", "last_number")


def test_a_megabyte_is_read_in_one_pass():
    """Quadratic reading of any of these would take hours."""
    assert last_boxed(r"\boxed{" * 100_000) is None
    assert last_boxed(r"\boxed{" + "{" * 200_000 + "4" + "}" * 200_000 + "}") == "{" * 200_000 + "4" + "}" * 200_000
    assert last_boxed(r"\boxed{1} " * 100_000 + r"\boxed{4}") == "4"
    assert last_boxed(r"\boxed{1}, " * 100_000 + r"\boxed{4}").endswith("1, 4")
    assert last_boxed(r"\fbox{" + r"\boxed{" * 50_000 + "4" + "}" * 50_000) == "4"
    assert last_boxed("\\" * 1_000_000 + r"boxed{4}") == "4"
    assert extract("Answer: " * 200_000, "answer_line") is not None
    assert extract(" " * 1_000_000 + "\n" * 100_000, "answer_line") is None
    assert extract("#" * 1_000_000, "boxed_or_hashes") is None
    assert extract("<|im_" * 200_000 + r"\boxed{4}", "boxed") == "4"


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("42", "42"),
        ("$42$", "42"),
        (r"\boxed{42}", "42"),
        ("['9.6\\n']", "9.6"),
        ("['1', '2']", "1, 2"),
        (r"\( x+1 \)", "x+1"),
        ("$1$ and $2$", "$1$ and $2$"),
        (r"\$5", r"\$5"),
        ("[1,2]", "[1,2]"),
        ("['a', __import__('os')]", "['a', __import__('os')]"),
        ("", None),
        ("  ", None),
        ("$$", None),
    ],
)
def test_readable_gold_opens_the_wrapping_of_datasets(text, gold):
    assert readable_gold(text) == gold
