"""Pages name only what exists: relative links, the index of ``docs/``, pages and files named elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fr3e_jax.configuration import load_config
from fr3e_jax.configuration.schema import DataConfig
from fr3e_jax.data.task import load_task

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "benchmarks" / "README.md"]
PAGES += sorted(DOCS.rglob("*.md"))
DATED = {ROOT / "CHANGELOG.md", *(DOCS / "developers").glob("*notebook.md"), DOCS / "developers" / "decisions.md"}
FOLDERS = ("fr3e_jax", "tests", "configs", "launch", "benchmarks", "docs", ".ci")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
DOCUMENT = re.compile(r"\bdocs/[\w/]+\.md\b")
FILE = re.compile(rf"`((?:{'|'.join(re.escape(name) for name in FOLDERS)})/[\w./]*)`")


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _heading_ids(page: Path) -> set[str]:
    """The fragments that a reader's browser finds on ``page``, formed as GitHub forms them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    """The relative links of ``page`` that lead to no file, or to no heading of that file."""
    broken = []
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, fragment = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (fragment and fragment not in _heading_ids(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_of_a_page_lead_to_something(page):
    assert broken_links(page) == []


def test_links_to_missing_files_and_missing_headings_are_found(tmp_path):
    (tmp_path / "other.md").write_text("# One, two\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Here\n[a](other.md) [b](other.md#one-two) [c](#here) [d](https://host/x)\n"
        "[e](gone.md) [f](other.md#three) [g](#there)\n```\n[in code](gone.md)\n```\n"
    )
    assert broken_links(page) == ["gone.md", "other.md#three", "#there"]


def test_the_index_links_every_page_of_docs():
    index = DOCS / "README.md"
    linked = {(DOCS / link).resolve() for link in LINK.findall(index.read_text(encoding="utf-8"))}
    assert linked >= set(DOCS.rglob("*.md")) - {index}


def test_pages_of_docs_that_files_name_exist():
    """Comments, messages and recipes name pages by their path from the root."""
    suffixes = {".py", ".md", ".yaml", ".sh", ".tmpl", ".txt", ".toml", ".cff"}
    folders = [path for name in FOLDERS for path in (ROOT / name).rglob("*") if path.suffix in suffixes]
    files = [path for path in [*ROOT.iterdir(), *folders] if path.is_file() and path.suffix in suffixes | {""}]
    named = {(_name(file), page) for file in files for page in DOCUMENT.findall(file.read_text(encoding="utf-8"))}
    assert len(named) > 20
    assert sorted((file, page) for file, page in named if not (ROOT / page).exists()) == []


@pytest.mark.parametrize("page", [page for page in PAGES if page not in DATED], ids=_name)
def test_files_that_a_page_names_in_backquotes_exist(page):
    """Dated pages are exempt: they keep the names of their day."""
    named = FILE.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    assert [path for path in named if not (ROOT / path).exists()] == []


def _blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_the_task_of_getting_started_loads_and_grades(tmp_path):
    source = next(block for block in _blocks(DOCS / "users" / "getting_started.md", "python") if "Doubling" in block)
    (tmp_path / "doubling.py").write_text(source)
    task = load_task(DataConfig(task=f"{tmp_path}/doubling.py:Doubling"))
    problem = task.problems("test")[0]
    assert [task.verifier()(problem, answer, True) for answer in ("1800", "1801")] == [1.0, 0.0]
    assert task.demonstration(3, 1.0).response == "6"


@pytest.mark.parametrize("page", [ROOT / "README.md", DOCS / "users" / "getting_started.md"], ids=_name)
def test_the_recipe_of_a_page_is_accepted(page, tmp_path):
    (recipe,) = _blocks(page, "yaml")
    included = re.sub(r"^include: (?:configs/)?", f"include: {ROOT}/configs/", recipe, flags=re.MULTILINE)
    (tmp_path / "mine.yaml").write_text(included)
    assert load_config(tmp_path / "mine.yaml").name in recipe
