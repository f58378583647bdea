"""Settings of single evaluation sets: the entries of ``evaluation.sets``, read and checked.

An entry is ``SET name=value ...``, for example ``aime24 samples=256 pass_at=1,256 temperature=0.6``. SET is an entry of
``data.eval``. Settings that an entry does not name are those of the section ``evaluation``. With ``samples=0`` the
set is graded by its greedy answers alone, so the usual ``pass_at`` does not hold for it.
"""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any

from fr3e_jax.configuration.schema import EvaluationConfig
from fr3e_jax.configuration.settings import settings

NAMES = ("prompts", "samples", "temperature", "top_p", "pass_at")


def set_settings(evaluation: EvaluationConfig, names: list[str]) -> dict[str, EvaluationConfig]:
    """The evaluation settings of each set that ``evaluation.sets`` names, of the ``names`` in ``data.eval``.

    Raises:
      ValueError: an entry cannot be read, or its values are out of bounds; one line that quotes the entry.
    """
    by_set: dict[str, EvaluationConfig] = {}
    for entry in evaluation.sets:
        name, *assignments = entry.split() or [""]
        if name not in names:
            nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
            advice = f"nearest: {nearest[0]}" if nearest else "data.eval is empty"
            raise ValueError(f"evaluation.sets has {entry!r}, and data.eval has no set {name!r}; {advice}")
        if name in by_set:
            raise ValueError(f"evaluation.sets names the set {name!r} twice; expected one entry for each set")
        values: dict[str, Any] = dict(_assignment(entry, text) for text in assignments)
        if values.get("samples") == 0:
            values.setdefault("pass_at", [])
        changed = dataclasses.replace(evaluation, **values)
        if largest := max((k for k in changed.pass_at if k > changed.samples), default=0):
            raise ValueError(
                f"evaluation.sets has {entry!r}, which asks for pass@{largest} of {changed.samples} samples; "
                f"expected samples={largest} or more, or a smaller pass_at"
            )
        if unread := [] if changed.samples else [key for key in ("temperature", "top_p") if key in values]:
            raise ValueError(
                f"evaluation.sets has {entry!r}, which gives {unread[0]}, which the greedy answer does not read; "
                f"drop {unread[0]}, or set samples above 0"
            )
        by_set[name] = changed
    return by_set


def best_metric(evaluation: EvaluationConfig, names: list[str]) -> str:
    """The name of the metric that ranks checkpoints: of `set_metric`, or ``avg`` if sets differ in their samples."""
    plans = set_settings(evaluation, names).values()
    return "avg" if any(e.samples != evaluation.samples for e in plans) else set_metric(evaluation)


def set_metric(evaluation: EvaluationConfig) -> str:
    """The name of the accuracy of one set: that of its samples, or of its greedy answers if it takes no samples."""
    return f"avg@{evaluation.samples}" if evaluation.samples else "greedy"


def _assignment(entry: str, text: str) -> tuple[str, int | float | list[int]]:
    name, _, value = text.partition("=")
    if name not in NAMES:
        raise ValueError(f"evaluation.sets has {text!r} in {entry!r}; expected one of {'=, '.join(NAMES)}=")
    setting = settings()[f"evaluation.{name}"]
    try:
        if setting.kind in (int, float):
            content = setting.kind(value)
            is_valid = setting.allows(content)
        else:
            content = [int(k) for k in value.split(",") if k]
            is_valid = all(map(setting.allows, content))
    except ValueError:
        is_valid = False
    if not is_valid:
        raise ValueError(f"evaluation.sets has {text!r} in {entry!r}; expected {name}: {setting.describe_kind()}")
    return name, content
