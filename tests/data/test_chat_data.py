"""Chat data as people bring them, through a template that thinks and calls tools: each input gives its exact prompt."""

from __future__ import annotations

import csv
import gzip
import json

import pyarrow
import pyarrow.parquet
import pytest

from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.schema import DataConfig
from fr3e_jax.data.datasets import DatasetsTask
from fr3e_jax.data.python_task import read_problems
from fr3e_jax.data.template_check import check_template
from fr3e_jax.data.templates import chat_options, load_template
from tests.data.test_foreign_text import codec

# The features of Qwen3's: no opening of a thought in the prompt, an empty thought before a last answer, thoughts of
# earlier turns left out, calls of tools, options.
THINKING = """
{%- if tools or messages[0].role == 'system' %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}
{%- for tool in tools or [] %}
{{ tool | tojson }}{% endfor %}<|im_end|>
{% endif %}
{%- for m in messages %}
  {%- if m.role == 'assistant' %}
    {%- set thought = m.reasoning_content or (m.content.split('</think>')[0].split('<think>')[-1].strip()
        if '</think>' in m.content else '') %}
    {%- set said = m.content.split('</think>')[-1].lstrip() %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if loop.last or (thought and messages[loop.index].role == 'tool') %}
      {{- '<think>\\n' + thought + '\\n</think>\\n\\n' }}
    {%- endif %}
    {{- said }}
    {%- for call in m.tool_calls or [] %}
      {{- '<tool_call>' + call.function.name + ' ' + call.function.arguments | tojson + '</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
  {%- elif m.role != 'system' %}
    {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- '<|im_start|>assistant\\n' }}
  {%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}"""
BEGIN = "<|im_start|>assistant\n"


def turn(role, text):
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


ASKED, ASKS = turn("user", "17+25?"), {"role": "user", "content": "17+25?"}
SYSTEM, SAYS = turn("system", "Be brief."), {"role": "system", "content": "Be brief."}
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
ADDS = {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": '{"a": 17, "b": 25}'}}]}
ADDED = turn("assistant", '<tool_call>add {"a": 17, "b": 25}</tool_call>') + turn("tool", "42")
THOUGHT = {"role": "assistant", "content": "<think>\nMust greet.\n</think>\n\nHello"}
HI = {"role": "user", "content": "Hi"}
OFFERED = f"<|im_start|>system\n{json.dumps(ADD)}<|im_end|>\n"

ROWS = {
    "text": ({"question": "17+25?", "answer": "42"}, ASKED + BEGIN),
    "unicode": ({"question": "17+25\u2028是多少？🙂", "answer": "42"}, turn("user", "17+25\u2028是多少？🙂") + BEGIN),
    "whole number": ({"prompt": "17+25?", "gold": 42}, ASKED + BEGIN),
    "list of answers": ({"prompt": [ASKS], "gold": ["42", "42.0"]}, ASKED + BEGIN),
    "system message": ({"messages": [SAYS, ASKS], "answer": "42"}, SYSTEM + ASKED + BEGIN),
    "column of system messages": ({"system": "Be brief.", "question": "17+25?", "answer": 42}, SYSTEM + ASKED + BEGIN),
    "parts": ({"messages": [{**ASKS, "content": [{"type": "text", "text": "17+25?"}]}], "answer": 42}, ASKED + BEGIN),
    "verl": ({"prompt": [ASKS], "reward_model": {"style": "rule", "ground_truth": "42"}}, ASKED + BEGIN),
    "hendrycks": ({"problem": "17+25?", "solution": "So \\boxed{42}."}, ASKED + BEGIN),
    "ShareGPT": (
        {"conversations": [{"from": "system", "value": "Be brief."}, {"from": "human", "value": "17+25?"}], "gold": 42},
        SYSTEM + ASKED + BEGIN,
    ),
    "ShareGPT with its answer": (
        {"conversations": [{"from": "human", "value": "17+25?"}, {"from": "gpt", "value": "It is 42."}], "answer": 42},
        ASKED + BEGIN,
    ),
    "thoughts of an earlier turn": (
        {"messages": [HI, THOUGHT, ASKS], "answer": 42},
        turn("user", "Hi") + turn("assistant", "Hello") + ASKED + BEGIN,
    ),
    "a begun thought": (
        {"messages": [ASKS, {"role": "assistant", "content": "<think>\nI add"}], "answer": 42},
        f"{ASKED}{BEGIN}<think>\nI add",
    ),
    "calls of tools": (
        {"messages": [ASKS, ADDS, {"role": "tool", "content": "42"}, HI], "answer": 42},
        ASKED + ADDED + turn("user", "Hi") + BEGIN,
    ),
    "a thought before a call": (
        {"messages": [ASKS, {**ADDS, "reasoning_content": "I call."}, {"role": "tool", "content": "42"}], "answer": 42},
        ASKED + ADDED.replace("<tool_call>", "<think>\nI call.\n</think>\n\n<tool_call>") + BEGIN,
    ),
    "a column of tools": ({"messages": [ASKS], "tools": [ADD], "answer": 42}, OFFERED + ASKED + BEGIN),
    "tools as JSON": ({"question": "17+25?", "tools": json.dumps([ADD]), "answer": 42}, OFFERED + ASKED + BEGIN),
}  # fmt: skip


def prompt(problem, each, template="chat"):
    return load_template(template).render(problem.prompt, each.render_chat)


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "parquet", "csv", "rows"])
@pytest.mark.parametrize("name", ROWS)
def test_a_row_becomes_its_prompt_from_files_and_from_python(tmp_path, name, kind):
    row, expected = ROWS[name]
    path, each = tmp_path / f"rows.{kind}", codec(template=THINKING)
    if kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), path)
    elif kind == "csv":
        if any(isinstance(value, dict) for value in row.values()) or isinstance(row.get("gold"), list):
            pytest.skip("a cell has no such value")
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, row)
            writer.writeheader()
            writer.writerow({key: json.dumps(v) if isinstance(v, list) else v for key, v in row.items()})
    else:
        content = json.dumps(row).encode()
        path.write_bytes(gzip.compress(content) if kind == "jsonl.gz" else content)
    if kind == "rows":
        (problem,) = read_problems([row], "problems", needs_gold=False)
    else:
        (problem,) = DatasetsTask(DataConfig(task="datasets", train=[str(path)], template="chat")).problems("train")
        assert problem.gold == "42"
    check_template(load_template("chat"), each)
    assert prompt(problem, each) == expected


def test_an_answer_at_the_end_of_a_conversation_is_its_solution(tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROWS["ShareGPT with its answer"][0]))
    task = DatasetsTask(DataConfig(task="datasets", train=[str(tmp_path / "rows.jsonl")]))
    assert task.demonstration(0, 0).response.startswith("It is 42.")


@pytest.mark.parametrize(
    ("columns", "row", "complaint"),
    [
        (["question=text", "answer=meta.gold"], {"text": "17+25?", "meta": {"gold": 42}}, None),
        (["question=turns[0]"], {"turns": ["17+25?"], "answer": 42}, None),
        (["system=role"], {"question": "17+25?", "role": "Be brief.", "answer": 42}, None),
        (
            [],
            {"instruction": "17+25?", "output": "42"},
            r"expected the question in one of question.*data.columns=\[quest",
        ),
        (["answer=gold"], {"question": "17+25?", "answer": 42}, r"and no value at data.columns=\[answer=gold\]"),
        (["answr=gold"], {"question": "17+25?", "answer": 42}, "data.columns has 'answr=gold'; nearest: answer"),
        (["answer"], {"question": "17+25?", "answer": 42}, "data.columns has 'answer': '' is not a path"),
    ],
)
def test_columns_of_other_names_are_named(tmp_path, columns, row, complaint):
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    config = DataConfig(task="datasets", train=[str(tmp_path / "rows.jsonl")], columns=columns)
    if complaint:
        with pytest.raises(ConfigError, match=complaint):
            DatasetsTask(config)
        return
    (problem,) = DatasetsTask(config).problems("train")
    assert problem.gold == "42" and problem.prompt.endswith("17+25?")
    assert ("Be brief." in problem.prompt) == ("role" in row)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("own.jinja", THINKING, ASKED + BEGIN),
        ("own.j2", "Q: {{ messages[-1].content }}\nA:", "Q: 17+25?\nA:"),
        ("own.txt", "Q: {question}\nA:", "Q: 17+25?\nA:"),
        ("own.txt", "Q:", "expected the text around {question}, which stands there once"),
        ("own.txt", "{question}{question}", "expected the text around {question}, which stands there once"),
        ("own.jinja", "Q:", "leaves out the question"),
        ("absent.jinja", None, "^data.template is '.*absent.jinja', which does not exist; give the path of a file$"),
        ("marked.txt", "\ufeffQ: {question}\nA:", "Q: 17+25?\nA:"),
        ("marked.jinja", "\ufeffQ: {{ messages[-1].content }}\nA:", "Q: 17+25?\nA:"),
        ("broken.jinja", "{% for", "the chat template of data.template does not take these messages"),
        ("empty.jinja", "", "empty.jinja is empty; expected a chat template"),
    ],
)
def test_a_template_may_be_a_file(tmp_path, name, content, expected):
    if content is not None:
        (tmp_path / name).write_text(content, encoding="utf-8")
    data = DataConfig(template=str(tmp_path / name))

    def rendered():
        each, template = codec(), load_template(data.template)
        each.chat = chat_options(data)
        check_template(template, each)
        return template.render("17+25?", each.render_chat)

    if "17" in expected:
        assert rendered() == expected
    else:
        with pytest.raises(ValueError, match=expected):
            rendered()


@pytest.mark.parametrize("written", ["tools=tools.json", f"tools={json.dumps([ADD])}", "tools=tools.yaml"])
def test_tools_of_the_settings_are_schemas_or_a_file(tmp_path, monkeypatch, written):
    monkeypatch.chdir(tmp_path)
    for name in ("tools.json", "tools.yaml"):
        (tmp_path / name).write_text(json.dumps([ADD["function"]]))  # JSON is YAML
    each = codec(template=THINKING)
    each.chat = chat_options(DataConfig(template_options=[written, "enable_thinking=false"]))
    check_template(load_template("chat"), each)
    prompt = load_template("chat").render("17+25?", each.render_chat)
    assert prompt == f"{OFFERED}{ASKED}{BEGIN}<think>\n\n</think>\n\n"


def test_tools_that_cannot_be_offered_are_refused():
    with pytest.raises(ConfigError, match="^data.template_options: tools is 'absent.json', which does not exist"):
        chat_options(DataConfig(template_options=["tools=absent.json"]))
    with pytest.raises(ConfigError, match=r"tools has the tools \[1\]; expected a list of schemas"):
        chat_options(DataConfig(template_options=["tools=[1]"]))
    each = codec(template="{% for m in messages %}{{ m.content }}{% endfor %}")
    each.chat = chat_options(DataConfig(template_options=[f"tools={json.dumps([ADD])}"]))
    with pytest.raises(ValueError, match="the chat template leaves out the tool 'add'"):
        check_template(load_template("chat"), each)
