"""Templates have the papers' exact wording and an unchanged question, in the tokenizer's chat format if they use it."""

from __future__ import annotations

import pytest

from fr3e_jax.configuration import ConfigError
from fr3e_jax.data.templates import TEMPLATES, load_template

QUESTION = "What is {x} in $\\boxed{}$ %s?\n"


def render_chat(messages):
    return "".join(f"[{message['role']}: {message['content']}]" for message in messages) + "[assistant:"


def test_template_keeps_the_question_unchanged_and_names_its_source():
    for name, template in TEMPLATES.items():
        text = template.render(QUESTION, render_chat)
        assert text.count(QUESTION) == 1, name
        assert template.name == name and template.source
        assert template.extraction in ("boxed", "answer_line", "boxed_or_hashes")
        assert text.startswith("[user: ") == template.chat


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plain", "Q"),
        ("chat", "[user: Q][assistant:"),
        (
            "qwen_boxed",
            "<|im_start|>system\nPlease reason step by step, and put your final answer within \\boxed{}.<|im_end|>\n"
            "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            "qwen_chat_boxed",
            "[user: Q\nPlease reason step by step, and put your final answer within \\boxed{}.][assistant:",
        ),
        (
            "simplerl",
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nQ\n"
            "Please reason step by step, and put your final answer within \\boxed{}.<|im_end|>\n"
            "<|im_start|>assistant\n",
        ),
        ("verl_boxed", "[user: Q Let's think step by step and output the final answer within \\boxed{}.][assistant:"),
        (
            "dapo",
            "[user: Solve the following math problem step by step. The last line of your response should be of the "
            "form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\nQ\n\n"
            'Remember to put your answer on its own line after "Answer:".][assistant:',
        ),
        (
            "deepseek_math",
            "User: Q\nPlease reason step by step, and put your final answer within \\boxed{}.\n\nAssistant:",
        ),
    ],
)
def test_template_has_the_exact_wording_of_its_source(name, text):
    assert load_template(name).render("Q", render_chat) == text


def test_dapo_asks_for_an_answer_line_and_the_other_templates_for_a_box():
    asked = {name: template.extraction for name, template in TEMPLATES.items()}
    assert asked.pop("dapo") == "answer_line" and asked.pop("plain") == "boxed_or_hashes"
    assert set(asked.values()) == {"boxed"}


def test_unknown_template_is_refused_with_the_nearest_name():
    with pytest.raises(
        ConfigError, match="data.template=qwen-boxed is not a prompt template; nearest: data.template=qwen_bo"
    ):
        load_template("qwen-boxed")
    with pytest.raises(ConfigError, match="expected one of plain, chat, qwen_boxed"):
        load_template("xyz")


def test_chat_template_without_a_tokenizer_is_refused_with_an_alternative():
    with pytest.raises(ConfigError, match="data.template=chat needs a tokenizer's chat template, but there is none"):
        load_template("chat").render("Q")
