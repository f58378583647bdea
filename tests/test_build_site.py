"""The site of the documentation: which pages it has, in which order. `make docs` builds it and checks its links."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import yaml

import fr3e_jax

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def build_site(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("build_site", ROOT / "docs" / "build_site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "SOURCE", tmp_path / "docs")
    return module


def pages(navigation) -> list[str]:
    """The paths of a navigation, in its order."""
    if isinstance(navigation, str):
        return [navigation]
    children = navigation.values() if isinstance(navigation, dict) else navigation
    return [path for child in children for path in pages(child)]


def test_every_page_is_in_the_navigation_once(build_site):
    shown = pages(build_site.lay_out())
    laid_out = {path.relative_to(build_site.SOURCE).as_posix() for path in build_site.SOURCE.rglob("*.md")}
    assert len(shown) == len(set(shown)) and set(shown) == laid_out
    assert {"docs/users/metrics.md", "docs/developers/architecture.md", "reference/fr3e_jax.objectives.losses.md"} <= {
        *shown
    }


def test_the_order_of_the_pages_is_that_of_the_index(build_site):
    users, developers = build_site.order()
    assert next(iter(users)) == "For users" and next(iter(developers)) == "For developers"
    assert users["For users"][0] == {"Getting started": "docs/users/getting_started.md"}


def test_what_a_page_links_lies_beside_it(build_site):
    build_site.lay_out()
    for name in ("configs/demo_fr3e.yaml", "notebooks/1_demo.ipynb", "docs/images/report_tree.png", "LICENSE"):
        assert (build_site.SOURCE / name).exists(), name
    assert not list(build_site.SOURCE.rglob("*.py"))


def test_every_name_of_the_package_is_in_the_reference(build_site):
    """The module in which the name is documented, or for names of a folder's ``__init__`` one of its modules."""
    shown = {name for names in build_site.REFERENCE.values() for name in build_site.modules(names)}
    missing = {
        name: place
        for name, place in fr3e_jax._PLACES.items()
        if place not in shown and not any(module.startswith(place + ".") for module in shown)
    }
    assert missing == {}


def test_the_reference_has_every_module_of_the_mathematics(build_site):
    shown = build_site.modules(build_site.REFERENCE["Objectives"])
    assert {f"fr3e_jax.objectives.{path.stem}" for path in (ROOT / "fr3e_jax" / "objectives").glob("[a-z]*.py")} < {
        *shown
    }
    with pytest.raises(FileNotFoundError, match="no_such, which does not exist"):
        build_site.modules(["no_such"])


def test_the_build_is_strict():
    settings = (ROOT / "docs" / "mkdocs.yml").read_text().replace("!!python/object/apply:pymdownx.slugs.slugify", "")
    assert yaml.safe_load(settings)["strict"] is True
    assert "--strict" in (ROOT / "docs" / "build_site.py").read_text()
