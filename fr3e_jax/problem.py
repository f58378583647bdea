"""One prompt with its gold answer: tasks provide it, the policy answers it, and verifiers grade the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Problem:
    """One prompt to answer. ``id`` is unique within its task; ``extra`` holds whatever else the verifier needs."""

    id: str
    prompt: str
    gold: str
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)
