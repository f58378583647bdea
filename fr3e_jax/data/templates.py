"""Named prompt templates, which turn a question into the text that the model continues.

A template also states the form in which it asks for the answer, so that the verifier looks there. The wordings are
copied exactly from the papers and repositories in ``source``.
"""

from __future__ import annotations

import datetime
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.named_values import named_values
from fr3e_jax.configuration.schema import DataConfig
from fr3e_jax.conversation import Conversation, map_question, tool_schemas
from fr3e_jax.data.jsonl import existing_file

BOXED = "Please reason step by step, and put your final answer within \\boxed{}."

MARK = re.compile(  # of a turn, in a chat template: <|user|>, <｜User｜>, [/INST], <<SYS>>, <start_of_turn>, </s>
    r"<\|[^<>|\s{}]+\|>|<｜[^<>{}]+?｜>|\[/?[A-Z][A-Z_]+\]|<</?[A-Z]+>>|</?[a-z]+(?:_[a-z]+)+>|</?s>"
)
_DATE_CODES = [f"%{flag}{letter}" for flag in ("-", "") for letter in "aAbBcdHIjmMpSuUVwWxXyYZFDTe"]
_RESERVED = (
    *("messages", "conversation", "tokenize", "add_generation_prompt", "continue_final_message", "strftime_now"),
    *("chat_template", "return_dict", "return_tensors", "padding", "truncation", "max_length"),
)
CHAT_SUFFIXES = (".jinja", ".jinja2", ".j2")  # of a file with a chat template of the user's
QUESTION = "\x02Question 7\x03"  # a text that no template has
RenderChat = Callable[..., str]


DATE = datetime.datetime(2024, 7, 26)
"""The date in prompts of chat templates that ask for today's: a prompt must not change at midnight."""


@dataclass(frozen=True)
class ChatOptions:
    """The part of a prompt that a chat template has from the settings.

    Attributes:
      system: the system message; "": none.
      options: keyword arguments of the template, such as ``enable_thinking``.
      source: a chat template (Jinja) in the place of the tokenizer's; "": there is none.
    """

    system: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""


PLAIN_CHAT = ChatOptions()


def dated(source: str) -> str:
    """A chat template's source, in which ``strftime_now``, if it is used, tells `DATE`."""
    if "strftime_now" not in source:
        return source
    filters = "".join(f"|replace('{code}', '{DATE.strftime(code)}')" for code in _DATE_CODES)
    return f"{{% macro strftime_now(format) %}}{{{{ format{filters} }}}}{{% endmacro %}}{source}"


def _tools(value: Any) -> list[dict[str, Any]]:
    """Schemas of functions, or those of a file in JSON or YAML; raises ConfigError for anything else."""
    setting = "data.template_options: tools"
    try:
        if isinstance(value, str) and not value.lstrip().startswith("["):
            value = yaml.safe_load(existing_file(value, setting).read_text(encoding="utf-8"))
        return tool_schemas(value)
    except FileNotFoundError as error:
        raise ConfigError(str(error)) from error
    except (ValueError, OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{setting} {error}".replace("\n", " ")) from error


def chat_options(data: DataConfig) -> ChatOptions:
    """The options of the settings; the variable ``tools`` is a list of schemas or a file of them.

    Raises:
      ConfigError: one is not ``NAME=VALUE``, or is an argument that the trainer gives.
    """
    expected = "a variable of the chat template, such as enable_thinking=false"
    values = named_values(data.template_options, "data.template_options", expected, _RESERVED)
    if "tools" in values:
        values["tools"] = _tools(values["tools"])
    return ChatOptions(data.system, values, _read(data.template) if data.template.endswith(CHAT_SUFFIXES) else "")


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
          question: any text; it is inserted literally. Or a `Conversation`: the template's text goes around the user's
            last message.
          render_chat: maps messages (``role``, ``content``) to the text before the model's answer, such as
            ``TextCodec.render_chat``; only templates with ``chat`` call it.

        Raises:
          ConfigError: the template needs ``render_chat`` and got None, or has no place for several messages.
          ValueError: the chat template leaves out a message.
        """
        asked = map_question(question, lambda text: f"{self.before}{text}{self.after}")
        if not self.chat:
            if isinstance(question, Conversation):
                raise ConfigError(
                    f"data.template={self.name} is for one text, and a question has {len(question.messages)} messages; "
                    "set data.template=chat"
                )
            return asked
        if render_chat is None:
            raise ConfigError(
                f"data.template={self.name} needs a tokenizer's chat template, but there is none; "
                "data.template=qwen_boxed needs none"
            )
        if not isinstance(asked, Conversation):
            return render_chat([{"role": "user", "content": asked}])
        prompt = render_chat(asked.messages, continues=asked.continues_an_answer, tools=asked.tools)
        check_tools(asked.tools, prompt)
        for message in asked.messages:
            if message["role"] not in ("assistant", "tool") and message["content"].strip() not in prompt:
                raise ValueError(
                    f"the tokenizer's chat template leaves out the message of the {message['role']}; mend it, or give "
                    "its text to the user's message"
                )
        return prompt


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


def check_tools(tools: Sequence[Mapping[str, Any]], prompt: str) -> None:
    """Raise ValueError if a prompt lacks a tool's name."""
    for schema in tools:
        name = str(schema["function"].get("name", ""))
        if name not in prompt:
            raise ValueError(
                f"the chat template leaves out the tool {name!r}; set data.template to one that offers tools"
            )


def _read(name: str) -> str:
    """The text of a template's file; raises ConfigError if there is none."""
    try:
        text = existing_file(name, "data.template").read_text(encoding="utf-8-sig")  # without the mark of some editors
    except FileNotFoundError as error:
        raise ConfigError(str(error)) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"data.template: {error}") from error
    if not text:  # the tokenizer's own would take its place
        raise ConfigError(f"data.template={name} is empty; expected a chat template")
    return text


def is_file(name: str) -> bool:
    """Whether ``data.template`` names a file."""
    return name.endswith((*CHAT_SUFFIXES, ".txt"))


def load_template(name: str) -> Template:
    """The template of this name, or of a file: a chat template in Jinja, or a text with ``{question}`` in it.

    Raises:
      ConfigError: there is no such template or file.
    """
    if name.endswith(CHAT_SUFFIXES):
        _read(name)
        return Template(name, "boxed", "a file of the user's", chat=True)
    if name.endswith(".txt"):
        before, mark, after = _read(name).partition("{question}")
        if not mark or "{question}" in after:
            raise ConfigError(f"data.template={name}: expected the text around {{question}}, which stands there once")
        return Template(name, "boxed_or_hashes", "a file of the user's", before, after)
    if name not in TEMPLATES:
        nearest = difflib.get_close_matches(name, TEMPLATES, n=1)
        advice = f"nearest: data.template={nearest[0]}" if nearest else f"expected one of {', '.join(TEMPLATES)}"
        raise ConfigError(
            f"data.template={name} is not a prompt template; {advice}, or a file of your own (.jinja or .txt)"
        )
    return TEMPLATES[name]
