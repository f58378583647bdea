"""The loader of a user's code: one module per file, and clear errors."""

from __future__ import annotations

import pickle
import sys

import pytest

from fr3e_jax.configuration.schema import DataConfig, ToolsConfig
from fr3e_jax.data.task import load_task
from fr3e_jax.tools.tool import load_tool
from fr3e_jax.user_code import parse_reference

TASK_AND_TOOL = """
from dataclasses import dataclass
from neighbour_of_mine import DIGITS

@dataclass(frozen=True)
class Mine:
    config: object
    name = "mine"
    dropped = {}
    def problems(self, split): return DIGITS
    def demonstration(self, index, step_fraction): ...
    def verifier(self): ...

def look(call):
    return str(Mine(call))
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "neighbour_of_mine.py").write_text("DIGITS = [1, 2]\n")
    path = tmp_path / "mine.py"
    path.write_text(TASK_AND_TOOL)
    return path


def test_task_and_tool_of_one_file_share_its_module_and_import_its_neighbours(file):
    task = load_task(DataConfig(task=f"{file}:Mine"))
    tool = load_tool(ToolsConfig(kind=f"{file}:look", begin="<", end=">"))
    assert task.problems("train") == [1, 2]
    assert tool.open(None, 0).answer("3").text == "Mine(config='3')"
    assert parse_reference(f"{file}:look", "tools.kind").load("a function").__globals__["Mine"] is type(task)


def test_object_of_a_users_class_is_pickled_by_the_name_of_its_module(file):
    task = load_task(DataConfig(task=f"{file}:Mine"))
    assert type(pickle.loads(pickle.dumps(parse_reference(f"{file}:Mine", "s").load("a class")("x")))) is type(task)


def test_file_that_fails_is_executed_again_at_the_next_load(tmp_path):
    path = tmp_path / "late.py"
    path.write_text("1 / 0\n")
    reference = parse_reference(f"{path}:f", "data.task")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            reference.load("a function")


@pytest.mark.parametrize("text", ["mine", "mine.py:", ":verify", "mine.py:not a name", "a.b:c.d"])
def test_text_of_another_form_is_refused_with_the_forms_and_the_other_values(text):
    expected = "^s is .*; expected none, FILE.py:NAME or package.module:NAME$"
    with pytest.raises(ValueError, match=expected):
        parse_reference(text, "s", built_in=["none"])
