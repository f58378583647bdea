"""Fixtures of the campaign."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from run_process import RunProcess


@pytest.fixture
def run_process(tmp_path, tiny_run) -> Iterator[Callable[..., RunProcess]]:
    """Makes a ``RunProcess`` in ``tmp_path`` or another folder; no process is left when the test ends."""
    made: list[RunProcess] = []

    def make(folder: Path = tmp_path, **settings: Any) -> RunProcess:
        made.append(RunProcess(folder, tiny_run, **settings))
        return made[-1]

    yield make
    for run in made:
        run.close()
