"""A table of sampled trees for trackers: a few prompts of a step with their base rollouts and what branched off."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fr3e_jax.runs.rollout_store import RolloutRecord

COLUMNS = (
    "prompt",
    "kind",
    "rollout",
    "prefix",
    "text",
    "reward",
    "outcome",
    "advantage",
    "value",
    "alpha",
    "fork",
    "anchors",
)
PROMPTS = 4


def tree_table(
    records: Iterable[RolloutRecord], decode: Callable[[Sequence[int]], str], prompts: int = PROMPTS
) -> tuple[tuple[str, ...], list[list[Any]]]:
    """Columns and rows of the first ``prompts`` prompts that train; of the first ones if none does.

    Each row is a rollout. ``prefix`` is the part of its parent's response before the fork, ``text`` its own tokens.
    """
    held = list(records)
    trained = dict.fromkeys(record.prompt_position for record in held if record.kept)
    chosen = list(trained or dict.fromkeys(record.prompt_position for record in held))[:prompts]
    responses = {record.id: record.token_ids for record in held}
    rows = []
    for position in chosen:
        for record in (record for record in held if record.prompt_position == position):
            prefix = list(responses.get(record.parent or "", ()))[: record.fork]
            texts = [decode(list(record.prompt_ids)), record.kind, record.id, decode(prefix), decode(record.token_ids)]
            numbers = [record.reward, record.outcome, record.advantage, record.value, record.alpha, record.fork]
            rows.append([*texts, *numbers, " ".join(map(str, record.anchors))])
    return COLUMNS, rows
