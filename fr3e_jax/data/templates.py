"""Named prompt templates: how a question becomes the text that the model continues.

A template also says in which form it asks for the answer, so that the verifier looks for it there. Wordings are those
of the papers and repositories named in ``source``, to the letter.
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
    """Text around a question.

    Attributes:
      name: as in ``data.template``.
      extraction: where the answer is asked for: ``boxed`` (in ``\\boxed{}``), ``answer_line`` (last line
        ``Answer: X``) or, where nothing is asked for, ``boxed_or_hashes`` (also after GSM8K's ``####``); passed on to
        ``fr3e_jax.rewards.named_verifiers.named_verifier``.
      source: paper or repository of the wording.
      before, after: literal text on both sides of the question.
      chat: the result is the user's message of the tokenizer's own chat template.
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
          question: any text; nothing in it is interpreted.
          render_chat: messages (``role``, ``content``) to the text up to where the model's answer begins, such as
            ``TextCodec.render_chat``; only templates with ``chat`` call it.

        Raises:
          ConfigError: the template needs ``render_chat`` and there is none.
        """
        text = f"{self.before}{question}{self.after}"
        if not self.chat:
            return text
        if render_chat is None:
            raise ConfigError(
                f"data.template={self.name} is rendered by a tokenizer's chat template, and none was given; "
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
    """The template of this name; raises ConfigError with the nearest name if there is none."""
    if name not in TEMPLATES:
        nearest = difflib.get_close_matches(name, TEMPLATES, n=1)
        advice = f"nearest: data.template={nearest[0]}" if nearest else f"expected one of {', '.join(TEMPLATES)}"
        raise ConfigError(f"data.template={name} is no prompt template; {advice}")
    return TEMPLATES[name]
