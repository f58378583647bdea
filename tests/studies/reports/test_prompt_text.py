"""The turns of a prompt and the question in it, for the chat templates of released models."""

import pytest

from fr3e_jax.studies.reports.prompt_text import question_finder, turns_of

BOTH = [("system", "Be brief."), ("user", "2+2?")]


@pytest.mark.parametrize(
    ("text", "turns"),
    [
        ("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n", BOTH),
        (
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user"
            "<|end_header_id|>\n\n2+2?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
            BOTH,
        ),
        ("<bos><start_of_turn>user\n2+2?<end_of_turn>\n<start_of_turn>model\n", BOTH[1:]),
        ("<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\n2+2? [/INST]", BOTH),
        ("<s>[INST] 2+2? [/INST]", BOTH[1:]),
        ("<|system|>\nBe brief.<|end|>\n<|user|>\n2+2?<|end|>\n<|assistant|>\n", BOTH),
        ("<|system|>\nBe brief.</s>\n<|user|>\n2+2?</s>\n<|assistant|>\n", BOTH),
        ("<｜begin▁of▁sentence｜><｜User｜>2+2?<｜Assistant｜>", BOTH[1:]),
        (
            "<|start_of_role|>system<|end_of_role|>Be brief.<|end_of_text|>\n<|start_of_role|>user<|end_of_role|>2+2?"
            "<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
            BOTH,
        ),
        ("<|im_start|>system<|im_sep|>Be brief.<|im_end|><|im_start|>user<|im_sep|>2+2?<|im_end|>", BOTH),
        ("<|start|>system<|message|>Be brief.<|end|><|start|>user<|message|>2+2?<|end|><|start|>assistant", BOTH),
        (
            "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n5<|im_end|>\n<|im_start|>user\nSure?<|im_end|>",
            [("user", "2+2?"), ("assistant", "5"), ("user", "Sure?")],
        ),
        ("3+4*2-5>", [("", "3+4*2-5>")]),
        ("a < b and <b>x</b> </s>", [("", "a < b and <b>x</b> </s>")]),
        ("", [("", "")]),
    ],
)
def test_turns_have_the_roles_of_the_template(text, turns):
    assert turns_of(text) == turns


@pytest.mark.parametrize(
    ("template", "prompt", "question"),
    [
        ("plain", "3+4>", "3+4>"),
        ("plain", "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n", "2+2?"),
        (
            "deepseek_math",
            "User: 2+2?\nPlease reason step by step, and put your final answer within \\boxed{}.\n\nAssistant:",
            "2+2?",
        ),
        ("chat", "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n", "2+2?"),  # the tokenizer is gone
        ("gone", "2+2?", "2+2?"),
    ],
)
def test_the_question_of_a_prompt_is_found_without_its_template(template, prompt, question):
    assert question_finder({"data.template": template}, None)(prompt) == question
