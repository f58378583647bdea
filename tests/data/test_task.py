"""The task that a run names is built in, in a file or in a module; any other name is a clear error."""

from __future__ import annotations

import inspect
import re
import textwrap

import pytest

from fr3e_jax.configuration.schema import DataConfig
from fr3e_jax.data import task as task_module
from fr3e_jax.data.task import Problem, held_out_split, load_task


def load(name):
    return load_task(DataConfig(task=name))


def test_default_task_is_order():
    assert load_task(DataConfig()).name == "order"


def test_task_example_of_the_docstring_runs_from_a_file(tmp_path):
    example = inspect.getdoc(task_module).split("::", 1)[1]
    path = tmp_path / "doubling.py"
    path.write_text(textwrap.dedent(example))
    task = load(f"{path}:Doubling")
    problem = task.problems("test")[3]
    assert (problem.prompt, problem.gold) == ("903*2=", "1806")
    assert task.demonstration(1601, 1.0).response == "2"
    assert task.verifier()(problem, "1806", True) == 1.0


class Splits:
    """A task with these problems."""

    name, dropped = "splits", {}  # noqa: RUF012

    def __init__(self, **problems):
        self.given = {split: [Problem(f"{split}/{p}", p, p) for p in prompts] for split, prompts in problems.items()}

    def problems(self, split):
        return self.given[split]


def test_development_problems_are_the_tasks_own():
    task = Splits(train="abc", development="de", test="fg")
    assert [p.prompt for p in held_out_split(task, "development")] == ["d", "e"]
    assert [p.prompt for p in held_out_split(task, "test")] == ["f", "g"]


@pytest.mark.parametrize(
    ("problems", "reason"),
    [
        ({"test": "fg"}, "KeyError: 'development'"),
        ({"test": "fg", "development": ""}, "there are none"),
        ({"test": "fg", "development": "xf"}, "'development/f' is a test problem"),
    ],
)
def test_a_task_without_development_problems_is_refused(problems, reason):
    with pytest.raises(ValueError, match=re.escape(f"no development problems of its own ({reason})")):
        held_out_split(Splits(**problems), "development")


def test_task_of_an_installed_module_is_loaded(tmp_path, monkeypatch):
    package = tmp_path / "somebodys_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "tasks.py").write_text(
        "from fr3e_jax.data.order_task import OrderTask\nclass Mine(OrderTask): name = 'mine'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert load("somebodys_package.tasks:Mine").name == "mine"
    with pytest.raises(ValueError, match="there is no module somebodys_package.missing; install it"):
        load("somebodys_package.missing:Mine")


def test_import_error_inside_a_users_module_passes_through(tmp_path, monkeypatch):
    (tmp_path / "needs_more.py").write_text("import not_installed_anywhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        load("needs_more:Mine")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ordr", r"^data\.task is 'ordr'; expected order, .*, FILE\.py:NAME or .*; did you mean 'order'\?$"),
        ("tasks.py", r"FILE\.py:NAME or package\.module:NAME$"),
        ("tasks.py:", r"FILE\.py:NAME or package\.module:NAME$"),
        ("no_such_module_here:Task", r"there is no module no_such_module_here; .*FILE\.py:NAME"),
        (
            "fr3e_jax.data.order_task:Missing",
            r"fr3e_jax\.data\.order_task has no such name; expected a class or function",
        ),
        ("fr3e_jax.data.procedural:HELD_OUT_SEED", r"has 0 there, which cannot be called"),
        ("fr3e_jax.data.task:DataConfig", r"returned a DataConfig without name, dropped, problems"),
    ],
)
def test_name_that_is_not_a_task_is_refused(name, message):
    with pytest.raises(ValueError, match=message):
        load(name)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"names the file .*absent\.py, but .* does not exist"):
        load(f"{tmp_path}/absent.py:Task")


def test_object_that_is_not_a_task_is_refused_with_the_missing_attributes(tmp_path):
    path = tmp_path / "half.py"
    path.write_text("class Half:\n    name = 'half'\n    dropped = {}\n    def __init__(self, config): ...\n")
    with pytest.raises(ValueError, match="returned a Half without problems, demonstration, verifier; expected"):
        load(f"{path}:Half")


def test_problem_with_extra_fields_is_hashable():
    problem = Problem(id="a", prompt="p", gold="g", extra={"tests": ["assert f(1)"]})
    assert {problem, problem} == {problem}
    assert problem != Problem(id="a", prompt="p", gold="g")
