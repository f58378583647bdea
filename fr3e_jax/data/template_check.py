"""The check of a prompt template against the tokenizer's chat template, before a run."""

from __future__ import annotations

import difflib
import json
import logging
import re

from fr3e_jax.configuration import ConfigError
from fr3e_jax.data.templates import MARK, QUESTION, Template, check_tools
from fr3e_jax.data.tokenizer import TextCodec

logger = logging.getLogger(__name__)

ANSWER = "\x02Answer 7\x03"  # a text that no template has


def check_template(template: Template, codec: TextCodec) -> None:
    """Check that prompts will have the question and end where the answer begins.

    Raises:
      ConfigError, ValueError: the chat template leaves out the question or the system message, fails, has no
        variable of the options, or stops before the turn of the model; or ``template`` has no place for a system
        message.
    """
    advice = "mend the tokenizer's chat_template, or set data.template to one that needs none, such as qwen_boxed"
    if not template.chat:
        if codec.chat.system:
            raise ConfigError(
                f"data.template={template.name} has no system message; set data.template=chat, or empty data.system"
            )
        if codec.chat.options:
            raise ConfigError(
                f"data.template={template.name} has no variables such as {next(iter(codec.chat.options))}; set "
                "data.template=chat, or data.template_options=[]"
            )
        mark = MARK.search(template.after)
        if mark and mark[0] in codec.tokenizer.get_vocab():  # it ends the question, and so would end an answer
            _warn_of_unstopped_turn(template.name, mark[0], codec)
        return
    prompt = template.render(QUESTION, codec.render_chat)
    for text, name in ((QUESTION, "the question"), (codec.chat.system.strip(), "data.system")):
        if text not in prompt:
            raise ConfigError(
                f"data.template={template.name}: the tokenizer's chat template leaves out {name}; {advice}"
            )
    check_tools(codec.chat.options.get("tools", ()), prompt)
    words = set(re.findall(r"\w+", codec.chat_template))
    if unread := [name for name in codec.chat.options if name not in words]:
        near = difflib.get_close_matches(unread[0], words, n=1)
        raise ConfigError(
            f"data.template_options: the chat template has no variable {unread[0]}; "
            + (f"nearest: {near[0]}" if near else "leave it out")
        )
    try:
        question = f"{template.before}{QUESTION}{template.after}"
        roles = {"user": question, "assistant": ANSWER}
        conversation = codec.render_chat([{"role": role, "content": text} for role, text in roles.items()])
    except ValueError:
        return  # it takes one message only
    before, answered, after = conversation.partition(ANSWER)
    missing = before.removeprefix(prompt.rstrip()).strip() if before.startswith(prompt.rstrip()) else ""
    if answered and missing and not codec.prompts_the_model():  # else the model writes that, such as its thoughts
        raise ConfigError(
            f"data.template={template.name}: the prompt of the tokenizer's chat template stops before {missing!r}, "
            f"where the model's turn begins; let it write that if add_generation_prompt is true, or {advice}"
        )
    if answered:
        _warn_of_unstopped_turn(template.name, after.strip(), codec)


def _warn_of_unstopped_turn(template: str, after: str, codec: TextCodec) -> None:
    """Log a warning if nothing in ``after``, with which a conversation goes on after an answer, stops a response."""
    spelled = [codec.decode([stop], special_tokens=True) for stop in codec.stop_ids]
    mark = MARK.search(after)
    end, last = (mark[0], mark.start()) if mark else (after.split("\n")[0], len(after))
    if after and not any(
        0 <= after.find(stop.strip()) <= last for stop in (*spelled, *codec.stop_texts) if stop.strip()
    ):
        name = "stop_tokens" if end in codec.tokenizer.get_vocab() else "stop_texts"
        logger.warning(
            "data.template=%s ends an answer with %r, which stops no response: what the model writes after it trains, "
            "too; set rollout.%s=[%s]",
            template,
            end,
            name,
            json.dumps(end, ensure_ascii=False),
        )
