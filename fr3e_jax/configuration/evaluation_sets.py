"""Settings of single evaluation sets: the entries of ``evaluation.sets``, read and checked.

An entry is ``SET name=value ...``, for example ``aime24 samples=256 pass_at=1,256 temperature=0.6``. SET is an entry of
``data.eval``. Settings that an entry does not name are those of the section ``evaluation``. With ``samples=0`` the
set is graded by its greedy answers alone, so the usual ``pass_at`` does not hold for it.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from typing import Any

from fr3e_jax.configuration.schema import Config, EvaluationConfig

_KINDS = {"prompts": int, "samples": int, "temperature": float, "top_p": float}
_EXPECTED = {
    "prompts": "a whole number above 0",
    "samples": "a whole number, 0 for the greedy answer alone",
    "pass_at": "whole numbers, as in pass_at=1,16",
    "temperature": "a number above 0",
    "top_p": "a number above 0, at most 1",
}
NAMES = [*_KINDS, "pass_at"]


def set_settings(config: Config) -> dict[str, EvaluationConfig]:
    """The evaluation settings of each set that ``evaluation.sets`` names.

    Raises:
      ValueError: an entry cannot be read, or its values are out of bounds; one line that quotes the entry.
    """
    by_set: dict[str, EvaluationConfig] = {}
    for entry in config.evaluation.sets:
        name, *assignments = entry.split() or [""]
        if name not in config.data.eval:
            nearest = difflib.get_close_matches(name, config.data.eval, n=1, cutoff=0.0)
            advice = f"nearest: {nearest[0]}" if nearest else "data.eval is empty"
            raise ValueError(f"evaluation.sets has {entry!r}, and data.eval has no set {name!r}; {advice}")
        if name in by_set:
            raise ValueError(f"evaluation.sets names the set {name!r} twice; expected one entry for each set")
        values: dict[str, Any] = dict(_assignment(entry, text) for text in assignments)
        if values.get("samples") == 0:
            values.setdefault("pass_at", [])
        settings = dataclasses.replace(config.evaluation, **values)
        if largest := max((k for k in settings.pass_at if k > settings.samples), default=0):
            raise ValueError(
                f"evaluation.sets has {entry!r}, which asks for pass@{largest} of {settings.samples} samples; "
                f"expected samples={largest} or more, or a smaller pass_at"
            )
        if unread := [] if settings.samples else [key for key in ("temperature", "top_p") if key in values]:
            raise ValueError(
                f"evaluation.sets has {entry!r}, which gives {unread[0]}, which the greedy answer does not read; "
                f"drop {unread[0]}, or set samples above 0"
            )
        by_set[name] = settings
    return by_set


def best_metric(config: Config) -> str:
    """The name of the metric that ranks checkpoints: of `set_metric`, or ``avg`` if sets differ in their samples."""
    plans = set_settings(config).values()
    return "avg" if any(e.samples != config.evaluation.samples for e in plans) else set_metric(config.evaluation)


def set_metric(settings: EvaluationConfig) -> str:
    """The name of the accuracy of one set: that of its samples, or of its greedy answers if it takes no samples."""
    return f"avg@{settings.samples}" if settings.samples else "greedy"


def _assignment(entry: str, text: str) -> tuple[str, int | float | list[int]]:
    name, _, value = text.partition("=")
    if name not in NAMES:
        raise ValueError(f"evaluation.sets has {text!r} in {entry!r}; expected one of {'=, '.join(NAMES)}=")
    try:
        if name == "pass_at":
            counts = [int(k) for k in value.split(",") if k]
            good, read = min(counts, default=1) >= 1, counts
        else:
            read = _KINDS[name](value)
            above_bound = read >= 0 if name == "samples" else read > 0
            good = math.isfinite(read) and above_bound and (name != "top_p" or read <= 1)
    except ValueError:
        good = False
    if not good:
        raise ValueError(f"evaluation.sets has {text!r} in {entry!r}; expected {_EXPECTED[name]}")
    return name, read
