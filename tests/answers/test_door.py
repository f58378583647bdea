"""The grammar has one door: other code imports ``fr3e_jax.answers`` and no module inside."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INSIDE = (ROOT / "fr3e_jax" / "answers", ROOT / "tests" / "answers")
MODULES = "|".join(path.stem for path in INSIDE[0].glob("[a-z]*.py"))
AROUND = re.compile(rf"fr3e_jax\.answers(?:\.| import .*\b)(?:{MODULES})\b(?!\()")


def test_no_module_outside_of_the_package_names_a_module_inside():
    files = [path for folder in ("fr3e_jax", "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    outside = [path for path in files if not any(folder in path.parents for folder in INSIDE)]
    around = [path.relative_to(ROOT) for path in outside if AROUND.search(path.read_text())]
    assert not around, "import these names from fr3e_jax.answers; a missing one belongs into its __init__.py"


@pytest.mark.parametrize(
    "source",
    [
        "from fr3e_jax.answers import symbolic",
        "from fr3e_jax.answers.equality import same",
        "def f():\n    import fr3e_jax.answers.equality as c",
        'JOB = "fr3e_jax.answers.symbolic:verdict"',
    ],
)
def test_the_checker_finds_ways_around_the_door(source):
    assert AROUND.search(source)


@pytest.mark.parametrize("source", ["from fr3e_jax.answers import judge", 'JOB = "fr3e_jax.answers:judge"'])
def test_the_checker_accepts_the_door(source):
    assert not AROUND.search(source)
