"""Build the site of the documentation: `make docs` writes build/site/index.html.

The pages of docs/ and what they link outside of it are laid into build/docs as they lie in the repository, so that each
link is right there and here. The reference is made from docstrings, which are read and never imported. The order of the
pages is that of docs/README.md.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE, SITE, SETTINGS = ROOT / "build" / "docs", ROOT / "build" / "site", ROOT / "build" / "mkdocs.yml"
FOLDERS = {"docs": (".md", ".png", ".svg"), "configs": (".yaml",), "notebooks": (".ipynb",)}
"""Folders of pages and of what they link, with the kinds of files that are taken."""
BESIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff", "LICENSE", "benchmarks/README.md")
"""Single files of the same kind."""
PACKAGE = "fr3e_jax"

REFERENCE = {
    "From Python": ["fr3e_jax", "api.trainer", "api.policy", "api.stored", "loop.callbacks", "configuration.load"],
    "Tasks, rewards, tools and environments": [
        "problem",
        "data.task",
        "data.python_task",
        "rewards.verifier",
        "verdict",
        "rewards.user",
        "rewards.plain",
        "tools.tool",
        "tools.environment",
    ],
    "Objectives": ["objectives", "objectives.*"],
    "Settings": [
        "configuration.schema",
        "configuration.shaping_sections",
        "configuration.lora_section",
        "configuration.experts_section",
        "configuration.environment_section",
        "configuration.task_sections",
        "configuration.options",
    ],
    "Runs on disk": [
        "runs.run_directory",
        "runs.metrics",
        "runs.declared_metrics",
        "runs.metric_meanings",
        "runs.rollout_store",
        "runs.ledger",
    ],
    "Analysis": ["studies.analysis", "studies.analysis.*"],
    "Methods": ["methods", "methods.*"],
}
"""Title -> modules below the package; ``*`` stands for all of a folder."""

_OPTIONS = {"fr3e_jax": "      members: false\n"}  # its names are imported when they are used: their modules have them
_LINK = re.compile(r"^- \[([^\]]+)\]\(([^)\s]+)\)")


def modules(names: list[str]) -> list[str]:
    """Full names of the modules that an entry of `REFERENCE` lists.

    Raises:
      FileNotFoundError: a module does not exist.
    """
    found = []
    for name in names:
        if name.endswith(".*"):
            folder = ROOT / PACKAGE / name.removesuffix(".*").replace(".", "/")
            found += [f"{PACKAGE}.{name[:-1]}{path.stem}" for path in sorted(folder.glob("[a-z]*.py"))]
        else:
            found.append(name if name == PACKAGE else f"{PACKAGE}.{name}")
    for name in found:
        path = ROOT / name.replace(".", "/")
        if not path.with_suffix(".py").exists() and not (path / "__init__.py").exists():
            raise FileNotFoundError(f"REFERENCE of docs/build_site.py names {name}, which does not exist; remove it")
    return found


def order() -> list[dict[str, list[dict[str, str]]]]:
    """The pages by the sections of docs/README.md, as MkDocs wants its navigation."""
    sections: list[dict[str, list[dict[str, str]]]] = []
    for line in (ROOT / "docs" / "README.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            sections.append({line.removeprefix("## "): []})
        elif found := _LINK.match(line):
            path = (ROOT / "docs" / found[2]).resolve().relative_to(ROOT).as_posix()
            next(iter(sections[-1].values())).append({found[1]: path})
    return sections


def lay_out() -> list[dict[str, str | list[dict[str, str]]]]:
    """Fill build/docs; return the navigation."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    linked = [file for name, kinds in FOLDERS.items() for file in (ROOT / name).rglob("*") if file.suffix in kinds]
    for file in [*linked, *(ROOT / name for name in BESIDE)]:
        place = SOURCE / file.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)
    shutil.copy(ROOT / "docs" / "site.css", SOURCE)
    reference: list[dict[str, list[dict[str, str]]]] = []
    for title, names in REFERENCE.items():
        pages = []
        for module in modules(names):
            path = SOURCE / "reference" / f"{module}.md"
            path.parent.mkdir(parents=True, exist_ok=True)
            options = f"    options:\n{_OPTIONS[module]}" if module in _OPTIONS else ""
            path.write_text(f"::: {module}\n{options}", encoding="utf-8")
            pages.append({module.removeprefix(f"{PACKAGE}."): f"reference/{path.name}"})
        reference.append({title: pages})
    outside = [{"Changes": "CHANGELOG.md"}]
    return [{"Home": "README.md"}, {"All pages": "docs/README.md"}, *order(), {"Reference": reference}, *outside]


def main() -> int:
    navigation = lay_out()
    settings = {
        "INHERIT": str(ROOT / "docs" / "mkdocs.yml"),
        "docs_dir": str(SOURCE),
        "site_dir": str(SITE),
        "nav": navigation,
        "plugins": {"search": {}, "mkdocstrings": {"handlers": {"python": {"paths": [str(ROOT)]}}}},
    }
    SETTINGS.write_text(json.dumps(settings, indent=2), encoding="utf-8")  # JSON is YAML
    # --quiet would silence the warnings, and only a warning that is told ends a strict build.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(SETTINGS)]
    build = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    print("".join(line for line in build.stdout.splitlines(keepends=True) if not line.startswith("INFO")), end="")
    if build.returncode == 0:
        print(f"built {len(list(SITE.rglob('*.html')))} pages: {SITE.relative_to(ROOT)}/index.html")
    return build.returncode


if __name__ == "__main__":
    raise SystemExit(main())
