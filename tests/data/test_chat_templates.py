"""A chat template that would train on other prompts than the questions is refused in one line before a run starts."""

from __future__ import annotations

import pytest

from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.schema import DataConfig
from fr3e_jax.conversation import Conversation
from fr3e_jax.data.template_check import check_template
from fr3e_jax.data.templates import ChatOptions, chat_options, load_template
from tests.data.test_foreign_text import codec

ROLES = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
PARTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}"
    "{% endif %}{% endfor %}<|im_end|>\n{% endfor %}" + PROMPT
)
INST = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
)


def check(template, name="chat", **options):
    each = codec(template=template)
    each.chat = ChatOptions(**options)
    check_template(load_template(name), each)
    return load_template(name).render("1+1=", each.render_chat)


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        (ROLES + PROMPT, "<|im_start|>user\n1+1=<|im_end|>\n<|im_start|>assistant\n"),
        (PARTS, "<|im_start|>user\n1+1=<|im_end|>\n<|im_start|>assistant\n"),
        (INST, "[INST] 1+1= [/INST]"),
        (INST.replace("m.content }} [", "m.content | trim }} ["), "[INST] 1+1= [/INST]"),
        ("{{ messages[-1].content }}" + PROMPT, "1+1=<|im_start|>assistant\n"),
        ("{{ messages[0].content }}", "1+1="),
        (
            "{% if not x %}" + ROLES + PROMPT + "{% endif %}",
            "<|im_start|>user\n1+1=<|im_end|>\n<|im_start|>assistant\n",
        ),
        ("{{ raise_exception('one message') if messages | length > 1 }}Q: {{ messages[0].content }}", "Q: 1+1="),
    ],
)
def test_a_template_that_asks_the_question_passes(template, prompt):
    assert check(template) == prompt


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        ("{% for m in messages %}{{ m.role }}{% endfor %}" + PROMPT, "leaves out the question"),
        ("Question:" + PROMPT, "leaves out the question"),
        ("{{ messages[0].text }}" + PROMPT, "leaves out the question"),
        ("{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}", "leaves out the question"),
        ("{{ messages[0].content[:3] }}" + PROMPT, "leaves out the question"),
        ("{{ messages[0].content | upper }}" + PROMPT, "leaves out the question"),
        (ROLES, "stops before '<|im_start|>assistant'"),
        (ROLES.replace("<|im_start|>", "### "), "stops before '### assistant'"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ messages[0].content.x.y }}", "UndefinedError"),
        ("{{ messages[0]['content'] | int / 0 }}", "ZeroDivisionError"),
        ("{{ messages[5].content.x }}", "UndefinedError"),
        ("{% for", "TemplateSyntaxError"),
        ("{{ raise_exception('no user here') }}", "no user here"),
    ],
)
def test_a_template_that_does_not_is_refused_in_one_line(template, complaint):
    with pytest.raises((ConfigError, ValueError)) as error:
        check(template)
    assert complaint in str(error.value) and "\n" not in str(error.value)
    assert "data.template" in str(error.value)


DATED = "{{ strftime_now('%d %B %Y') }} " + ROLES + PROMPT


def test_the_date_of_a_template_is_never_today():
    assert check(DATED).startswith("26 July 2024 ")
    dates = [f"%{letter}" for letter in "aAbBcdHjmMpSUwWxXyYZ"]
    for form in dates:
        template = f"{{{{ strftime_now('{form}') }}}}{ROLES}{PROMPT}"
        assert check(template) == check(template)


def test_options_and_a_system_message_reach_the_template():
    template = ROLES + PROMPT + "{% if enable_thinking is false %}<think></think>{% endif %}{{ date_string }}"
    assert check(template, options={"enable_thinking": False, "date_string": "x"}).endswith("<think></think>x")
    assert check(ROLES + PROMPT, system="Be brief.").startswith("<|im_start|>system\nBe brief.<|im_end|>")
    with pytest.raises(ConfigError, match="data.template=plain has no system message; .* data.system"):
        check(ROLES + PROMPT, name="plain", system="Be brief.")
    with pytest.raises(ConfigError, match="data.template=plain has no variables such as a; set data.template=chat"):
        check(ROLES + PROMPT, name="plain", options={"a": 1})
    with pytest.raises(ConfigError, match="has no variable enable_thinkin; nearest: enable_thinking$"):
        check(template, options={"enable_thinkin": False})
    with pytest.raises(ConfigError, match="has no variable reasoning; leave it out$"):
        check(ROLES + PROMPT, options={"reasoning": "low"})
    with pytest.raises(ConfigError, match="leaves out data.system"):
        check("{{ messages[-1].content }}" + PROMPT, system="Be brief.")


@pytest.mark.parametrize(
    ("text", "value"),
    [("a=false", {"a": False}), ("a=3", {"a": 3}), ("a=x y", {"a": "x y"}), ("a=[1]", {"a": [1]}), ("a=", {"a": ""})],
)
def test_options_are_written_as_settings(text, value):
    assert chat_options(DataConfig(template_options=[text])).options == value


@pytest.mark.parametrize("text", ["a", "=3", "messages=[]", "add_generation_prompt=false", "tokenize=true", "a b=3"])
def test_options_that_are_none_are_refused(text):
    with pytest.raises(ConfigError, match="data.template_options"):
        chat_options(DataConfig(template_options=[text]))


ANSWERED = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}" + PROMPT
PLAIN = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
)
ENDED = INST.replace("{{ m.content }}{% endif %}", "{{ m.content }}<eos>{% endif %}")


@pytest.mark.parametrize(
    ("template", "name", "special", "stops", "warning"),
    [
        (ANSWERED, "chat", ["<|im_end|>"], ([], []), 'set rollout.stop_tokens=["<|im_end|>"]'),
        (ANSWERED, "chat", [], ([], []), 'set rollout.stop_texts=["<|im_end|>"]'),
        (ANSWERED, "chat", ["<|im_end|>"], (["<|im_end|>"], []), ""),
        (ANSWERED, "chat", ["<|im_end|>"], (["257"], []), ""),
        (ANSWERED, "chat", [], ([], ["<|im_end|>\n"]), ""),
        (ANSWERED, "chat", ["<|im_start|>", "<|im_end|>"], (["<|im_start|>"], []), 'stop_tokens=["<|im_end|>"]'),
        (ANSWERED.replace("<|im_end|>", "<eos>"), "chat", [], ([], []), ""),
        (ENDED, "chat", [], ([], []), ""),
        (PLAIN, "chat", [], ([], []), 'set rollout.stop_texts=["A:"]'),
        (PLAIN, "chat", [], ([], ["\nA:"]), ""),
        (None, "qwen_boxed", ["<|im_end|>"], ([], []), 'set rollout.stop_tokens=["<|im_end|>"]'),
        (None, "simplerl", ["<|im_end|>"], (["<|im_end|>"], []), ""),
        (None, "qwen_boxed", [], ([], []), ""),
        (None, "plain", ["<|im_end|>"], ([], []), ""),
    ],
)
def test_a_turn_whose_end_stops_no_response_costs_a_warning(caplog, template, name, special, stops, warning):
    each = codec(special, template=template)
    each.stop_at(*stops)
    check_template(load_template(name), each)
    assert [warning in line for line in caplog.messages] == [True] * bool(warning)


@pytest.mark.parametrize(
    ("tokens", "texts", "complaint"),
    [
        (["<|im_ed|>"], [], "no token of the tokenizer, nor an id below 258; nearest: '<|im_end|>'"),
        (["999"], [], "rollout.stop_tokens has '999'"),
        (["two words"], [], "rollout.stop_texts ends responses with any text"),
        ([], [""], "rollout.stop_texts has an empty text"),
        ([], ["\ud800"], "rollout.stop_texts: character"),
    ],
)
def test_stops_that_cannot_be_are_refused_by_name(tokens, texts, complaint):
    with pytest.raises(ValueError) as refused:
        codec(["<|im_end|>"]).stop_at(tokens, texts)
    assert complaint in str(refused.value)


def test_the_first_stop_token_of_the_settings_comes_first():
    each = codec(["<|im_end|>"])
    each.stop_at(["<|im_end|>", "<eos>"], ["\n\nQ:"])
    assert (each.stop_ids, each.stops_in_files, each.stop_texts, each.pad_id) == ((257, 256), (256,), ("\n\nQ:",), 256)


TURNS = ("user", "1+1="), ("assistant", "2"), ("user", "2+2=")
NO_SYSTEM = "{{ raise_exception('System role not supported') if messages[0].role == 'system' }}" + ROLES + PROMPT


def rendered(template, *turns, name="chat", system=""):
    each = codec(template=template)
    each.chat = ChatOptions(system=system)
    question = Conversation([{"role": role, "content": text} for role, text in turns])
    return load_template(name).render(question, each.render_chat)


def chatml(*turns):
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns) + "<|im_start|>assistant\n"


@pytest.mark.parametrize("template", [ROLES + PROMPT, PARTS], ids=["texts", "parts"])
def test_conversations_are_rendered_by_the_chat_template(template):
    assert rendered(template, *TURNS) == chatml(*TURNS)
    assert rendered(template, ("system", "Add."), *TURNS) == chatml(("system", "Add."), *TURNS)
    assert rendered(template, *TURNS, system="Be brief.") == chatml(("system", "Be brief."), *TURNS)
    # A system message of the question stands in the place of that of the settings.
    assert rendered(template, ("system", "Add."), *TURNS, system="Be brief.") == chatml(("system", "Add."), *TURNS)
    boxed = load_template("qwen_chat_boxed").after
    assert rendered(template, *TURNS, name="qwen_chat_boxed") == chatml(*TURNS[:2], ("user", f"2+2={boxed}"))
    begun = chatml(TURNS[0]) + "Let me think.\n<think>\n"
    assert rendered(template, TURNS[0], ("assistant", "Let me think.\n<think>\n")) == begun


@pytest.mark.parametrize(
    ("template", "turns", "name", "complaint"),
    [
        (ROLES + PROMPT, TURNS, "plain", "data.template=plain is for one text, .* 3 messages; set data.template=chat"),
        (ROLES + PROMPT, TURNS, "qwen_boxed", "data.template=qwen_boxed is for one text"),
        (NO_SYSTEM, (("system", "Add."), *TURNS), "chat", "does not take these messages .*System role not supported"),
        (INST, (("system", "Add."), *TURNS), "chat", None),  # the text of the system message is there
        ("{{ messages[-1].content }}" + PROMPT, TURNS, "chat", "leaves out the message of the user"),
        (
            ROLES.replace("in messages", "in messages if m.role != 'developer'"),
            (("developer", "Add."), *TURNS),
            "chat",
            "leaves out the message of the developer",
        ),
        (
            ROLES.replace("in messages", "in messages if m.role != 'assistant'") + PROMPT,
            TURNS[:2],
            "chat",
            "does not take these messages",
        ),
    ],
)
def test_a_template_that_drops_or_refuses_a_message_is_named(template, turns, name, complaint):
    if complaint is None:
        assert rendered(template, *turns, name=name).count("Add.") == 1
        return
    with pytest.raises(ValueError, match=complaint) as error:
        rendered(template, *turns, name=name)
    assert "\n" not in str(error.value)
