"""Tables for trackers: sampled trees of a step, and held-out problems of an evaluation."""

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
    listed = list(records)
    trained = dict.fromkeys(record.prompt_position for record in listed if record.kept)
    chosen = list(trained or dict.fromkeys(record.prompt_position for record in listed))[:prompts]
    responses = {record.id: record.token_ids for record in listed}
    rows = []
    for position in chosen:
        for record in (record for record in listed if record.prompt_position == position):
            prefix = list(responses.get(record.parent or "", ()))[: record.fork]
            texts = [decode(list(record.prompt_ids)), record.kind, record.id, decode(prefix), decode(record.token_ids)]
            numbers = [record.reward, record.outcome, record.advantage, record.value, record.alpha, record.fork]
            rows.append([*texts, *numbers, " ".join(map(str, record.anchors))])
    return COLUMNS, rows


HELD_OUT_COLUMNS = ("problem", "prompt", "greedy answer", "greedy reward", "mean reward of samples", "right samples")


def held_out_table(
    records: Iterable[RolloutRecord], decode: Callable[[Sequence[int]], str], problems: int = 100
) -> tuple[tuple[str, ...], list[list[Any]]]:
    """Columns and rows of the first held-out problems of an evaluation, a row each."""
    by_problem: dict[int, list[RolloutRecord]] = {}
    for record in records:
        by_problem.setdefault(record.prompt_position, []).append(record)
    rows = []
    for members in list(by_problem.values())[:problems]:
        greedy, samples = members[0], members[1:]
        mean = sum(sample.reward for sample in samples) / len(samples) if samples else None
        right = sum(sample.outcome == "right" for sample in samples)
        texts = [greedy.problem_id, decode(greedy.prompt_ids), decode(greedy.token_ids)]
        rows.append([*texts, greedy.reward, mean, f"{right} of {len(samples)}"])
    return HELD_OUT_COLUMNS, rows
