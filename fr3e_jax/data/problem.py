"""One prompt with its answer: the unit that tasks give out, the policy answers, and verifiers grade."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Problem:
    """One prompt to answer; ``id`` is unique within its task, ``extra`` holds whatever else the verifier needs."""

    id: str
    prompt: str
    gold: str
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)
