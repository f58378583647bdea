"""Pages name only what exists: relative links, the index of ``docs/``, pages and files named elsewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from fr3e_jax.configuration import load_config
from fr3e_jax.configuration.schema import DataConfig
from fr3e_jax.configuration.settings import settings
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


@pytest.mark.parametrize("name", ["glossary.md", "metrics.md", "bibliography.md"])
def test_settings_that_a_page_of_words_names_exist(name):
    known = settings()
    sections = {path.partition(".")[0] for path in known}
    named = re.findall(r"`(([a-z]+)\.[a-z_.]+)(?:=[\w.]+)?`", (DOCS / "users" / name).read_text(encoding="utf-8"))
    assert [path for path, section in named if section in sections and path not in known] == []


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


BIBLIOGRAPHY = DOCS / "users" / "bibliography.md"
PAPERS = {
    "RwE": ("Cheng et al. 2025", "Reasoning with Exploration"),
    "EGSW": ("Vanlioglu", "Entropy-Guided Sequence Weighting"),
    "STUDY": ("Deng et al. 2025", "From Trial-and-Error to Improvement"),
}
"""Short names of papers, which say nothing to a reader -> texts of which one must stand beside the first use."""
CITATION = re.compile(r"\b[A-Z][\w-]+(?: et al\.| and [A-Z][a-z]+) (?:19|20)\d\d")
ARXIV = re.compile(r"(?i)arxiv[: ]+(\d{4}\.\d{4,5})")
CITING = [
    *(path for name in ("fr3e_jax", "configs") for path in (ROOT / name).rglob("*") if path.suffix in (".py", ".yaml")),
    *(page for page in PAGES if page.name != "CHANGELOG.md"),
]


def _one_line(text: str) -> str:
    """The text of a file without line breaks and comment marks, so that a citation stands in one line."""
    return re.sub(r"\s*\n[#\s]*", " ", text)


def unexplained_names(text: str) -> list[str]:
    """The short names of `PAPERS` in ``text`` whose first use has no author, title or link to the bibliography near."""
    text, found = _one_line(text), []
    for name, explanations in PAPERS.items():
        if first := re.search(rf"\b{name}\b", text):
            near = text[max(0, first.start() - 120) : first.end() + 120].lower()
            if not any(one.lower() in near for one in (*explanations, BIBLIOGRAPHY.name)):
                found.append(name)
    return found


def test_short_names_of_papers_do_not_stand_alone():
    found = {_name(path): unexplained_names(path.read_text(encoding="utf-8")) for path in CITING}
    assert {path: names for path, names in found.items() if names} == {}


def test_a_short_name_that_stands_alone_is_found():
    alone = "An advantage. (RwE, eq. 5.)\n" + "Much text. " * 20 + "\nReasoning with Exploration"
    assert unexplained_names(alone) == ["RwE"]
    assert unexplained_names("# Method: EGSW\n# Source: Vanlioglu 2025, eq. 6; [STUDY](bibliography.md)") == []


def test_every_citation_is_in_the_bibliography():
    """Authors with "et al." or two names, by author and year; and every number of arXiv."""
    known = BIBLIOGRAPHY.read_text(encoding="utf-8")
    authors, numbers = set(CITATION.findall(known)), set(ARXIV.findall(known))
    assert len(authors) > 30 and len(numbers) > 30
    cited = {_name(path): _one_line(path.read_text(encoding="utf-8")) for path in CITING}
    missing = [
        (path, one)
        for path, text in cited.items()
        for one in sorted({*CITATION.findall(text)} - authors | {*ARXIV.findall(text)} - numbers)
    ]
    assert missing == []


def test_every_source_of_the_bibliography_is_cited():
    text = " ".join(_one_line(path.read_text(encoding="utf-8")) for path in CITING if path != BIBLIOGRAPHY)
    rows = re.findall(r"^\| ([A-Z][^|]*?(?:19|20)\d\d)", BIBLIOGRAPHY.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) > 50
    by_year = {"Schulman et al. 2017": "Schulman et al. 2016, eq. 16, and 2017"}
    assert [row for row in rows if by_year.get(row, row) not in text] == []


def test_the_tables_of_methods_and_metrics_are_current():
    spec = importlib.util.spec_from_file_location("renew_tables", DOCS / "renew_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for page in module.TABLES:
        assert page.read_text(encoding="utf-8") == module.renewed(page), "run python docs/renew_tables.py"
