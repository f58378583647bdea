"""Named prompt templates, which turn a question into the text that the model continues.

A template also states the form in which it asks for the answer, so that the verifier looks there. The wordings are
copied exactly from the papers and repositories in ``source``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fr3e_jax.configuration import ConfigError

BOXED = "Please reason step by step, and put your final answer within \\boxed{}."

RenderChat = Callable[[Sequence[dict[str, str]]], str]


@dataclass(frozen=True)
class Template:
    """The text around a question.

    Attributes:
      name: its name in ``data.template``.
      extraction: the form in which the answer is asked for, for ``fr3e_jax.rewards.named_verifiers.named_verifier``:
        ``boxed`` (in ``\\boxed{}``) or ``answer_line`` (last line ``Answer: X``). If it asks for no form,
        ``boxed_or_hashes`` (in a box, or after GSM8K's ``####``).
      source: paper or repository of the wording.
      before, after: literal text on both sides of the question.
      chat: the text becomes the user's message in the tokenizer's own chat template.
    """

    name: str
    extraction: str
    source: str
    before: str = ""
    after: str = ""
    chat: bool = False

    def render(self, question: str, render_chat: RenderChat | None = None) -> str:
        """The prompt.

        Args:
          question: any text; it is inserted literally.
          render_chat: maps messages (``role``, ``content``) to the text before the model's answer, such as
            ``TextCodec.render_chat``; only templates with ``chat`` call it.

        Raises:
          ConfigError: the template needs ``render_chat`` and got None.
        """
        text = f"{self.before}{question}{self.after}"
        if not self.chat:
            return text
        if render_chat is None:
            raise ConfigError(
                f"data.template={self.name} needs a tokenizer's chat template, but there is none; "
                "data.template=qwen_boxed needs none"
            )
        return render_chat([{"role": "user", "content": text}])


TEMPLATES: Mapping[str, Template] = {
    template.name: template
    for template in (
        Template("plain", "boxed_or_hashes", "the question as it is: procedural tasks, base models, code to complete"),
        Template("chat", "boxed", "the tokenizer's chat template, the question as the user's message", chat=True),
        Template(
            "qwen_boxed",
            "boxed",
            "QwenLM/Qwen2.5-Math, evaluation: qwen25-math-cot (the system message of Qwen2.5-Math's chat template)",
            before=f"<|im_start|>system\n{BOXED}<|im_end|>\n<|im_start|>user\n",
            after="<|im_end|>\n<|im_start|>assistant\n",
        ),
        Template(
            "qwen_chat_boxed",
            "boxed",
            "Reasoning with Exploration, section 4: suffix for Qwen2.5-Math-Base, in the tokenizer's chat template",
            after=f"\n{BOXED}",
            chat=True,
        ),
        Template(
            "simplerl",
            "boxed",
            "hkust-nlp/simpleRL-reason and QwenLM/Qwen2.5-Math, evaluation/utils.py: qwen-boxed",
            before="<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n",
            after=f"\n{BOXED}<|im_end|>\n<|im_start|>assistant\n",
        ),
        Template(
            "verl_boxed",
            "boxed",
            "verl's MATH preprocessing, DeepScaleR and One-Shot-RLVR: suffix, in the tokenizer's chat template",
            after=" Let's think step by step and output the final answer within \\boxed{}.",
            chat=True,
        ),
        Template(
            "dapo",
            "answer_line",
            "DAPO (arXiv:2503.14476), prompts of DAPO-Math-17k, in the tokenizer's chat template",
            before="Solve the following math problem step by step. The last line of your response should be of the "
            "form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n",
            after='\n\nRemember to put your answer on its own line after "Answer:".',
            chat=True,
        ),
        Template(
            "deepseek_math",
            "boxed",
            "deepseek-ai/DeepSeek-Math, zero-shot chain of thought, for models without a chat template",
            before="User: ",
            after=f"\n{BOXED}\n\nAssistant:",
        ),
    )
}


def load_template(name: str) -> Template:
    """The template of this name; raises ConfigError with the nearest name if there is no such template."""
    if name not in TEMPLATES:
        nearest = difflib.get_close_matches(name, TEMPLATES, n=1)
        advice = f"nearest: data.template={nearest[0]}" if nearest else f"expected one of {', '.join(TEMPLATES)}"
        raise ConfigError(f"data.template={name} is not a prompt template; {advice}")
    return TEMPLATES[name]
