"""A setting names the tool; a name that is no tool is refused with what to change."""

from __future__ import annotations

import pytest

from fr3e_jax.configuration.schema import ToolsConfig
from fr3e_jax.tools.tool import load_tool


def test_kind_none_loads_no_tool():
    assert load_tool(ToolsConfig()) is None


def test_calculator_reads_gsm8k_annotations():
    tool = load_tool(ToolsConfig(kind="calculator"))
    assert tool.call_in("so <<48/2=") == "48/2"
    assert (tool.before, tool.open(None, 0).answer("48/2").text, tool.after) == ("", "24", ">>")
    assert tool.call_in("48/2=") is None and tool.call_in("<<48/2") is None


def test_python_tool_reads_fenced_blocks():
    tool = load_tool(ToolsConfig(kind="python"))
    assert tool.call_in("First:\n```python\nprint(1)\n```") == "print(1)"
    assert tool.open(None, 0).answer("print(1)").text == "1"


def test_users_function_answers_and_its_exception_is_an_answer(tmp_path):
    (tmp_path / "mine.py").write_text("def look(call):\n    return {'a': 1}[call]\n")
    tool = load_tool(ToolsConfig(kind=f"{tmp_path}/mine.py:look", begin="<t>", end="</t>", result="[{output}]"))
    state = tool.open(None, 0)
    assert state.answer("a")[:2] == ("1", "answered") and state.answer("b")[:2] == ("KeyError: 'b'", "error")
    assert (tool.before, tool.after, tool.deadline) == ("[", "]", 6.0)


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("pyhton", ValueError, "expected none, calculator, python, .*; did you mean 'python'"),
        ("nowhere.py:f", FileNotFoundError, "does not exist; give its path"),
        ("no.such.module:f", ValueError, "there is no module no; .*name a file instead"),
        ("json:nothing", ValueError, "'json:nothing', but json has no such name; expected a function of the text"),
    ],
)
def test_kind_that_is_not_a_tool_is_refused_with_what_to_change(kind, error, message):
    with pytest.raises(error, match=message):
        load_tool(ToolsConfig(kind=kind, begin="<", end=">"))
