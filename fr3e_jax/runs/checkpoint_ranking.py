"""The score by which a checkpoint ranks among the best, in the file that Orbax's manager reads it from."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fr3e_jax.runs.run_directory import write_json_atomic


def _file(folder: Path) -> Path:
    return folder / "metrics" / "metrics"


def ranked(metrics: Mapping[str, Any] | None, best_metric: str) -> dict[str, float] | None:
    """The score alone; None if ``metrics`` holds no finite one."""
    value = (metrics or {}).get(best_metric)
    if value is None or not math.isfinite(value):
        return None
    return {best_metric: float(value)}


def add_score(folder: Path, score: Mapping[str, float]) -> bool:
    """Write the score of a step that was saved without one; return False if it has one."""
    if _file(folder).exists():
        return False
    write_json_atomic(_file(folder), dict(score))
    return True


def drop_unreadable_scores(directory: Path) -> None:
    """Remove scores that are not JSON: the manager reads them all when it is made."""
    for folder in directory.iterdir() if directory.is_dir() else ():
        file = _file(folder)
        try:
            if file.exists():
                sum(map(float, json.loads(file.read_bytes()).values()))
        except (OSError, ValueError, TypeError, AttributeError):
            print(f"fr3e: {file} is damaged: step {folder.name} no longer counts among the best", file=sys.stderr)
            shutil.rmtree(file.parent, ignore_errors=True)
