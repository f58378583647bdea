"""The score by which a checkpoint ranks among the best, in the file that Orbax's manager reads it from."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def _file(place: Path) -> Path:
    return place / "metrics" / "metrics"


def ranked(metrics: Mapping[str, Any] | None, best_metric: str) -> dict[str, float] | None:
    """The score alone; None if ``metrics`` holds no finite one."""
    value = (metrics or {}).get(best_metric)
    if value is None or not math.isfinite(value):
        return None
    return {best_metric: float(value)}


def drop_unreadable_scores(directory: Path) -> None:
    """Remove scores that are not JSON: the manager reads them all when it is made."""
    for place in directory.iterdir() if directory.is_dir() else ():
        file = _file(place)
        try:
            if file.exists():
                sum(map(float, json.loads(file.read_bytes()).values()))
        except (OSError, ValueError, TypeError, AttributeError):
            print(f"fr3e: {file} is damaged: step {place.name} no longer counts among the best", file=sys.stderr)
            shutil.rmtree(file.parent, ignore_errors=True)
