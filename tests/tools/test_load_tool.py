"""A setting names the tool; a name that is no tool is refused with what to change."""

from __future__ import annotations

import asyncio

import pytest

from fr3e_jax.configuration.schema import ToolsConfig
from fr3e_jax.rollouts.background_calls import start
from fr3e_jax.tools.answer import Answer
from fr3e_jax.tools.tool import Stateless, load_tool


def test_kind_none_loads_no_tool():
    assert load_tool(ToolsConfig()) is None


def test_python_tool_reads_fenced_blocks():
    tool = load_tool(ToolsConfig(kind="python"))
    assert tool.call_in("First:\n```python\nprint(1)\n```") == "print(1)"
    assert tool.call_in("print(1)\n```") is None and tool.call_in("```python\nprint(1)") is None
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
        ("pyhton", ValueError, "expected none, python, .*; did you mean 'python'"),
        ("nowhere.py:f", FileNotFoundError, "does not exist; give its path"),
        ("no.such.module:f", ValueError, "there is no module no; .*name a file instead"),
        ("json:nothing", ValueError, "'json:nothing', but json has no such name; expected a function of the text"),
    ],
)
def test_kind_that_is_not_a_tool_is_refused_with_what_to_change(kind, error, message):
    with pytest.raises(error, match=message):
        load_tool(ToolsConfig(kind=kind, begin="<", end=">"))


class Quit(BaseException):
    pass


class Mute(Exception):
    def __str__(self):
        raise ValueError


class ExitsAsText:
    def __str__(self):
        raise SystemExit(3)


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(), SystemExit(0), SystemExit("done"), KeyboardInterrupt(), GeneratorExit(), StopIteration(3), Quit(),
        asyncio.CancelledError(), BaseExceptionGroup("both", [SystemExit(1), KeyboardInterrupt()]), Mute(),
        ExitsAsText(),
    ],
)  # fmt: skip
def test_no_exception_of_a_tool_reaches_the_run(error):
    """It becomes the answer; in the main thread Ctrl-C would pass, so the call has a thread, as in a run."""

    def tool(call):
        if isinstance(error, ExitsAsText):
            return error
        raise error

    state = Stateless(lambda call: Answer(str(tool(call)), "answered"))
    answer = start(lambda: state.answer("x"), at_once=False).wait(20)
    assert answer.outcome == "error" and answer.text.strip()


def test_ctrl_c_passes_through_a_tool_that_is_called_in_place():
    def tool(call):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Stateless(tool).answer("x")
