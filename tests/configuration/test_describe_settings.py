"""The list of settings shows all that a user can set."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from fr3e_jax.configuration import help_text, short_help
from fr3e_jax.configuration.describe import FIRST
from fr3e_jax.configuration.settings import as_yaml, sections, settings


def entries(text: str) -> dict[str, str]:
    """The text of each setting on one line, by its path."""
    found, path = {}, ""
    for line in text.splitlines():
        if line.startswith("  ") and not line.startswith("   "):
            path = line.split()[0]
            found[path] = line
        elif line.startswith("   "):
            found[path] += line
    return {path: " ".join(line.split()) for path, line in found.items()}


@pytest.mark.parametrize("width", [120, 160])
def test_every_setting_is_listed_with_type_default_and_meaning(width):
    listed = entries(help_text(width))
    for path, setting in settings().items():
        for part in (setting.describe_kind(), setting.meaning, as_yaml(setting.default)):
            assert part in listed[path], f"{path}: {part!r} is missing in {listed[path]!r}"


def test_one_section_or_one_setting_can_be_listed_alone():
    assert set(entries(help_text(within="explore"))) == {path for path in settings() if path.startswith("explore.")} | {
        "setting"
    }
    assert set(entries(help_text(within="seed"))) == {"setting", "seed"}


def test_the_short_help_has_ten_settings_and_the_sections():
    lines = short_help(120).splitlines()
    assert len(FIRST) == 10 and set(FIRST) <= set(settings())
    assert all(any(line.startswith(f"  {name} ") for line in lines) for name in (*FIRST, "explore", "shaping"))
    assert max(map(len, lines)) <= 120


def test_columns_are_aligned_and_lines_fit():
    lines = help_text(120).splitlines()
    start = lines[0].index("meaning")
    rows = [line for line in lines if line.startswith("  ")]
    assert all(line[start - 1] == " " and line[start] != " " for line in rows)
    assert max(map(len, lines)) <= 120


def test_sections_appear_once_with_their_purpose():
    lines = help_text(400).splitlines()
    for path, section in sections().items():
        source = f" ({section.implementation.source})" if hasattr(section, "implementation") else ""
        assert lines.count(f"{path}: {section.__doc__.splitlines()[0]}{source}") == 1


def test_the_section_of_a_method_names_its_source():
    assert "shaping.clip_cov: Clip-Cov: a random share" in help_text()
    assert "(Cui et al. 2025, eq. 10-12; Deng et al. 2025, Table 2)" in " ".join(help_text().split())


def removed_settings(source: str) -> list[str]:
    """Names such as ``rft__prompts``, of a keyword or in a mapping, that are no setting (any more), and no weights."""
    nodes = list(ast.walk(ast.parse(source)))
    names = [node.arg for node in nodes if isinstance(node, ast.keyword)]
    names += [getattr(key, "value", None) for node in nodes if isinstance(node, ast.Dict) for key in node.keys]
    paths = [name.replace("__", ".") for name in names if isinstance(name, str) and "__" in name]
    paths = [path for path in paths if path.split(".")[0] in sections() and not path.endswith((".weight", ".bias"))]
    return [path for path in paths if path not in settings()]


def test_no_test_sets_a_setting_that_is_gone():
    """A slow test fails by it, too, but the fast ones are what one runs before a commit."""
    assert removed_settings("config(rft__gone=1, **{'rft__prompts': 2, 'data__left': 3})") == ["rft.gone", "data.left"]
    sources = sorted(Path(__file__).parents[1].rglob("*.py"))
    assert len(sources) > 100
    assert {str(path): names for path in sources if (names := removed_settings(path.read_text("utf-8")))} == {}
