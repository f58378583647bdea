"""The mathematics of grading has one door: other code imports ``fr3e_jax.answers`` and no module inside."""

import ast
from pathlib import Path

import pytest

from fr3e_jax import answers

ROOT = Path(__file__).resolve().parents[2]
DOOR = "fr3e_jax.answers"
INSIDE = ROOT / "fr3e_jax" / "answers"
TESTS_OF_THE_INSIDE = ROOT / "tests" / "rewards"


def around_the_door(source: str) -> list[str]:
    """Each import and each string of a file that names a module inside of the package."""
    named = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            named += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            named += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            named.append(node.value)
    modules = {path.stem for path in INSIDE.glob("*.py")}
    rests = [name.removeprefix(f"{DOOR}.") for name in named if name.startswith(f"{DOOR}.")]
    return [rest for rest in rests if rest.replace(":", ".").partition(".")[0] in modules]


def test_no_module_outside_of_the_package_imports_a_module_inside():
    files = [path for folder in ("fr3e_jax", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    outside = [path for path in files if INSIDE not in path.parents and TESTS_OF_THE_INSIDE not in path.parents]
    found = {str(path.relative_to(ROOT)): around for path in outside if (around := around_the_door(path.read_text()))}
    assert not found, f"import these from {DOOR}; if a name is missing there, add it to its __init__.py"


@pytest.mark.parametrize(
    "source",
    [
        "from fr3e_jax.answers import symbolic",
        "from fr3e_jax.answers.extraction import last_boxed",
        "def f():\n    import fr3e_jax.answers.compare as c",
        'JOB = "fr3e_jax.answers.symbolic:verdict"',
    ],
)
def test_the_checker_finds_ways_around_the_door(source):
    assert around_the_door(source)


@pytest.mark.parametrize("source", ["from fr3e_jax.answers import judge", 'JOB = "fr3e_jax.answers:judge"'])
def test_the_checker_accepts_the_door(source):
    assert not around_the_door(source)


def test_the_door_has_every_name_that_it_lists():
    assert all(hasattr(answers, name) for name in answers.__all__)
    assert answers.judge("1/2", "0.5").outcome == "right"
