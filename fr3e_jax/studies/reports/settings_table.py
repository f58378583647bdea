"""The settings of a run by where they come from: first those other than recipe and defaults."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from fr3e_jax.studies.analysis.run_groups import default_settings, shown


def settings_tables(settings: Mapping[str, Any], provenance: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Tables of texts: said on the command line, other than the default, origin, as the default (folded).

    Args:
      settings: by their dotted names.
      provenance: of the run; ``command`` is its command line.
    """
    usual = default_settings()
    try:
        words = shlex.split(str(provenance.get("command") or ""))
    except ValueError:  # a quote is not closed
        words = []
    said = {word.partition("=")[0].lstrip("-") for word in words if "=" in word} & settings.keys()
    others = {name for name in settings if name not in usual or settings[name] != usual[name]} - said
    rows = [(name, shown(settings[name]), shown(usual.get(name, ""))) for name in sorted(settings)]
    origin = [(name, shown(value)) for name, value in provenance.items()]
    head = ("setting", "value", "default")
    return [
        _table("Said on the command line", head, [row for row in rows if row[0] in said]),
        _table("From the recipe, other than the default", head, [row for row in rows if row[0] in others]),
        _table("Origin", ("", ""), origin),
        _table("As the default", head[:2], [row[:2] for row in rows if row[0] not in said | others], folded=True),
    ]


def _table(title: str, columns: tuple[str, ...], rows: list[Any], *, folded: bool = False) -> dict[str, Any]:
    return {"title": title, "columns": columns, "rows": rows, "folded": folded}
