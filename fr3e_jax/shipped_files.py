"""The recipes, dataset cards and warm starts that come with the package: ``configs/`` and ``warm_starts/``.

An installed package holds them in its folder ``shipped``. In a checkout they lie beside the package. It imports the
standard library only, and lies beside the rooms.
"""

from __future__ import annotations

from pathlib import Path

RECIPES = Path("configs")
_FOLDERS = ("configs", "warm_starts")


def root() -> Path | None:
    """The folder that holds ``configs`` and ``warm_starts``; None if the package was installed without them."""
    package = Path(__file__).resolve().parent
    if (package / "shipped" / RECIPES).is_dir():
        return package / "shipped"
    if (package.parent / "pyproject.toml").is_file() and (package.parent / RECIPES).is_dir():
        return package.parent
    return None


def existing(path: str | Path) -> Path:
    """The path itself if it exists or leads into no shipped folder; else the shipped file of that name, if any."""
    path = Path(path).expanduser()
    shipped = root()
    if path.exists() or path.is_absolute() or shipped is None or path.parts[:1] not in [(name,) for name in _FOLDERS]:
        return path
    return shipped / path if (shipped / path).exists() else path


def find_recipe(name: str | Path) -> Path:
    """A recipe, or a folder of recipes, by its path or by the name of a shipped one: ``demo``, ``methods/grpo``.

    A path that exists wins. A name is looked up in ``configs``, then in ``configs/methods``. What is not found comes
    back as it is.
    """
    path = existing(name)
    shipped = root()
    if path.exists() or path.is_absolute() or shipped is None:
        return path
    for folder in (RECIPES, RECIPES / "methods", RECIPES / "experiments"):
        for candidate in (shipped / folder / path, shipped / folder / f"{path}.yaml"):
            if candidate.is_file() or (candidate.is_dir() and any(candidate.glob("*.yaml"))):
                return candidate
    return path


def recipe_names() -> list[str]:
    """The names that `find_recipe` takes: those in ``configs``, then ``methods/...``, then experiments."""
    shipped = root()
    if shipped is None:
        return []
    configs = shipped / RECIPES
    plain = [path.stem for path in sorted(configs.glob("*.yaml"))]
    methods = [f"methods/{path.stem}" for path in sorted((configs / "methods").glob("*.yaml"))]
    return [*plain, *methods, *(f"experiments/{path.name}" for path in sorted((configs / "experiments").glob("*/")))]
