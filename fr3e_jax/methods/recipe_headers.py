"""The catalogue of methods, read from the headers of the recipes in configs/ and configs/methods/.

A recipe is a lab note: its first lines are comments in a fixed form, one field a line:

    # Method: KL-Cov                                  the name in `fr3e methods`
    # Group: Samples and tokens                       one of `GROUPS`
    # Source: Cui et al. 2025, eq. 13                 paper, and equation or section
    # Function: objectives.selection.kl_cov_losses    the mathematics, below fr3e_jax
    # Test: tests/objectives/test_selection.py::NAME  the test that holds it to the source
    # Table 2: KL regularization: ...                 optional: row of the exploration study's Table 2
    # Summary: The loss is unclipped, and the         a long text goes on
    #   tokens of the highest covariance pay ...      in lines with three spaces
    # Expected: shaping/kl_cov/masked is the share    the observation that shows that it works
    # Deviation: none                                 from the source
    # Hardware: 2 CPU cores, about a minute           optional: machine and duration
    # Command: fr3e train configs/methods/kl_cov.yaml
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fr3e_jax.shipped_files import root

GROUPS = (
    "FR3E and its options",
    "Step values from the same branching",
    "Baselines",
    "Entropy, perplexity, position",
    "Samples and tokens",
    "Divergence",
    "A teacher",
    "Data from the policy itself",
    "Tools",
    "Published sizes and public data",
)
_CONTINUED = "#   "


class HeaderError(ValueError):
    """A recipe whose header lacks a field or has an unknown one, or no recipes at all."""


@dataclass(frozen=True)
class Method:
    """A method of the literature as a recipe of this project has it; fields as in the recipe's header."""

    recipe: str  # below the repository's root: configs/methods/kl_cov.yaml
    name: str
    group: str
    source: str
    function: str
    test: str
    summary: str
    expected: str
    deviation: str  # empty where the header says none
    command: str
    table_2: str = ""
    hardware: str = ""


def find_configs() -> Path:
    """The directory configs/ that comes with the package, else that of the working directory.

    Raises:
      HeaderError: neither exists.
    """
    places = [folder / "configs" for folder in (root(), Path.cwd()) if folder]
    for folder in places:
        if (folder / "methods").is_dir():
            return folder
    raise HeaderError(
        f"found no recipes in {' or '.join(map(str, places))}; expected the directory configs/, which comes with the "
        "package; install it again, or run this command in a checkout of the repository"
    )


def read_methods(configs: Path | None = None) -> list[Method]:
    """All methods, by group and recipe.

    Raises:
      HeaderError: for the first recipe whose header lacks a field, has an unknown one, or an unknown group.
    """
    configs = configs or find_configs()
    paths = [*sorted(configs.glob("*.yaml")), *sorted((configs / "methods").glob("*.yaml"))]
    headed = [path for path in paths if path.read_text(encoding="utf-8").startswith("# Method: ")]  # not a user's own
    methods = [read_method(path, path.relative_to(configs.parent).as_posix()) for path in headed]
    return sorted(methods, key=lambda method: GROUPS.index(method.group))


def read_method(path: Path, recipe: str) -> Method:
    """The method in the header of one recipe; ``recipe`` is its name in the catalogue.

    Raises:
      HeaderError: a field is missing or unknown, or the group is.
    """
    fields: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith(_CONTINUED):
            name, _, text = line.removeprefix("# ").partition(": ")
            name = "name" if name == "Method" else name.lower().replace(" ", "_")
            fields[name] = "" if (name, text) == ("deviation", "none") else text
        else:
            fields[name] += f" {line.removeprefix(_CONTINUED)}"
    try:
        method = Method(recipe=recipe, **fields)
    except TypeError as error:
        raise HeaderError(f"{path}: {error}") from error
    if method.group not in GROUPS:
        raise HeaderError(f"{path}: found the group {method.group!r}; expected one of {'; '.join(GROUPS)}")
    return method
