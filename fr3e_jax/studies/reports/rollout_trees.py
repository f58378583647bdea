"""The tree of a prompt: its rollouts as columns, and what a list of prompts shows of it.

A base rollout is a branch of the prompt. A state rollout leaves its parent after ``fork`` tokens. The parent may be a
success of an earlier step that was kept. The columns keep the stored numbers; log-probs and entropies are rounded to
``DECIMALS`` and kept as whole numbers.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from fr3e_jax.runs.rollout_store import RolloutRecord
from fr3e_jax.studies.analysis.stored_run import StoredRun
from fr3e_jax.studies.analysis.verdicts import AnswerReader, answer_of, reason
from fr3e_jax.studies.reports.prompt_text import turns_of
from fr3e_jax.verdict import FAULTS, UNGRADED

ANSWER_CHARACTERS = 200
DECIMALS = {"logprobs": 3, "entropies": 2}
_LARGEST = 1e12  # a size that is shown; a damaged file may have larger ones
"""Of each column of numbers of tokens: more digits are noise to a reader, and most bytes of a page."""
TRAINED = {
    "yes": "yes",
    "blocks": "yes, by blocks",
    "no": "no",
    "equal": "no, the rewards of its group are equal",
    "unselected": "no, it was not selected",
    "eval": "no, an evaluation",
}
"""The phrases that say if a rollout trains."""
STRATA = ("trouble", "explored", "returned", "mixed", "all_wrong", "all_right", "ungraded")
"""Kinds of prompts, the rarest first; a prompt belongs to the first that fits."""
_COLUMNS = (
    "id kind base state branch parent fork reward outcome finished kept advantage value alpha anchors answers step"
)


class Training(NamedTuple):
    """Settings of a run that say whether a rollout trains; those of evaluations do not."""

    block_credit: bool = False  # ``explore.block_credit``
    train_states: bool = True  # ``explore.train_states``
    selected: bool = False  # by ``fr3e rft``, whose responses have no advantages
    has_advantages: bool = True  # `StoredRun.has_advantages`

    @classmethod
    def of(cls, run: StoredRun) -> Training:
        """The settings of a stored run."""
        credit, states = run.settings.get("explore.block_credit"), run.settings.get("explore.train_states", True)
        return cls(bool(credit), bool(states), run.provenance.get("verb") == "rft", run.has_advantages)

    def of_rollout(self, record: RolloutRecord) -> str:
        """A name of `TRAINED`. The advantages of blocks are not stored."""
        if record.kind == "eval":
            return "eval"
        if self.selected:
            return "yes" if record.kept else "unselected"
        if record.advantage is not None:
            return "yes"
        if record.kind == "state" and not self.train_states:
            return "no"
        if not record.kept:
            return "equal"
        return "blocks" if record.kind == "base" and record.anchors and self.block_credit else "no"


def prompt_tree(
    records: Sequence[RolloutRecord],
    max_tokens: int,
    read: AnswerReader,
    leaders: Container[str | None] | None = None,
    *,
    training: Training | None = None,
) -> dict[str, Any]:
    """The columns of a prompt's rollouts, its parents (``families``, the most changing first) and its largest entropy.

    Args:
      records: at least one, all of the same prompt.
      read: finds the answer in a response.
      max_tokens: tokens to keep. Beyond them a rollout has its ``length`` and other numbers, but no tokens.
      leaders: ids whose tokens are kept first; None: of the rollouts that others branch from.
      training: says which rollouts train; None: of evaluations.
    """
    training = training or Training()
    if leaders is None:
        leaders = {record.parent for record in records if record.parent}
    with_tokens = tokens_to_keep(records, max_tokens, leaders)
    shown = [record if keep else None for record, keep in zip(records, with_tokens, strict=True)]
    extracted = [answer_of(record, read) for record in records]
    values = fork_values(records)
    changes = [_change(record, values) for record in records]
    most = dict.fromkeys((record.parent for record in records if record.parent), 0.0)
    for record, change in zip(records, changes, strict=True):
        if record.parent:
            most[record.parent] = max(most[record.parent], abs(change or 0.0))
    return {
        "prompt": turns_of(records[0].prompt),
        "families": sorted(most, key=lambda parent: -most[parent]),
        "scale": _largest_entropy(shown),
        **{name: [getattr(record, name) for record in records] for name in _COLUMNS.split()},
        **({} if training.has_advantages else {"advantage": [None] * len(records)}),
        "extracted": [answer and answer[:ANSWER_CHARACTERS] for answer in extracted],
        "reason": [reason(record, answer) for record, answer in zip(records, extracted, strict=True)],
        "delta": changes,
        "trained": [training.of_rollout(record) for record in records],
        "length": [len(record.token_ids) for record in records],
        "tokens": [len(record.token_ids) if record else 0 for record in shown],
        "token_ids": [token for record in shown if record for token in record.token_ids],
        "logprobs": _rounded("logprobs", shown),
        "entropies": _rounded("entropies", shown),
    }


def _rounded(name: str, records: Iterable[RolloutRecord | None]) -> list[int | None]:
    values = np.asarray([*chain.from_iterable(getattr(record, name) for record in records if record)], np.float64)
    finite = np.isfinite(values)
    bounded = np.where(finite, np.clip(values, -_LARGEST, _LARGEST), 0)
    scaled = np.rint(bounded * 10 ** DECIMALS[name]).astype(np.int64).tolist()
    return scaled if finite.all() else [n if ok else None for n, ok in zip(scaled, finite.tolist(), strict=True)]


def tokens_to_keep(
    records: Sequence[RolloutRecord], max_tokens: int, leaders: Container[str | None] = ()
) -> list[bool]:
    """A mask of the rollouts that keep their tokens, at least one.

    The leaders come first, then by turns one of each state, outcome and kind.
    """
    if sum(len(record.token_ids) for record in records) <= max_tokens:
        return [True] * len(records)
    turn: dict[Any, int] = {}
    order = []
    for n, record in enumerate(records):
        if record.id in leaders:
            order.append((0, n))
            continue
        group = (record.step, record.parent, record.state, record.kind, record.outcome, record.finished)
        turn[group] = turn.get(group, 0) + 1
        order.append((turn[group], n))
    keep, left = [False] * len(records), max_tokens
    for turn_number, (_, n) in enumerate(sorted(order)):
        length = len(records[n].token_ids)
        if turn_number == 0 or length <= left:
            keep[n] = True
            left -= length
    return keep


def stratum(records: Sequence[RolloutRecord]) -> str:
    """The kind of a prompt, one of ``STRATA``; "returned": only continuations of a kept success."""
    bases = [record for record in records if record.kind == "base"]
    right = [record.outcome == "right" for record in bases]
    if any(record.outcome in FAULTS for record in records):
        return "trouble"
    if any(record.kind == "state" for record in records):
        return "explored" if bases else "returned"
    if all(record.outcome is None for record in bases):
        return "ungraded"
    return "all_right" if all(right) else "mixed" if any(right) else "all_wrong"


def fork_values(records: Sequence[RolloutRecord]) -> dict[str, dict[int, float]]:
    """V of each parent's states by their forks in ascending order; the mean of those with equal forks.

    V(S_0) of the parent itself is at fork 0. A parent of another step has none: its value was that of an earlier
    policy.
    """
    by_id = {record.id: record for record in records}
    states: dict[str, dict[int, dict[str, float]]] = {}
    for record in records:
        if record.kind == "state" and record.parent and record.value is not None:
            forks = states.setdefault(record.parent, {})
            base = by_id.get(record.parent)
            if base is not None and base.value is not None:
                forks.setdefault(0, {}).setdefault(f"{record.parent}/0", base.value)  # unless S_0 is sampled afresh
            forks.setdefault(record.fork, {})[record.state_id] = record.value
    return {
        parent: {fork: sum(values.values()) / len(values) for fork, values in sorted(forks.items())}
        for parent, forks in states.items()
    }


def _change(record: RolloutRecord, values: Mapping[str, Mapping[int, float]]) -> float | None:
    """V of the state that a rollout leaves, less V at the fork before; None without one of them."""
    before = [value for fork, value in values.get(record.parent or "", {}).items() if fork < record.fork]
    return None if record.value is None or not before else record.value - before[-1]


def _largest_entropy(records: Iterable[RolloutRecord | None]) -> float:
    """The entropy that has the full colour: a small one has at least half a nat for it."""
    entropies = np.asarray([*chain.from_iterable(record.entropies for record in records if record)], np.float64)
    return round(float(np.max(entropies, where=np.isfinite(entropies), initial=0.5)), 2)


def prompt_summary(records: Sequence[RolloutRecord]) -> dict[str, Any]:
    """Counts of a prompt, for its entry in a list.

    ``answers`` counts the base rollouts; of a prompt without them, the continuations of its kept success. ``right`` and
    ``verdicts`` count those of them that are right, and that a verifier has judged. ``delta`` is the largest change
    |V(S_j) − V(S_j−1)| between neighbouring states, and ``flips`` is the number of neighbours with values on different
    sides of 1/2: points at which the probable outcome turned.
    """
    first = records[0]
    answers = [record for record in records if record.kind == "base"] or records
    answers = [record for record in answers if record.outcome not in UNGRADED] or answers
    deltas, flips = [0.0], 0
    for forks in fork_values(records).values():
        values = [*forks.values()]
        deltas += [abs(b - a) for a, b in zip(values, values[1:], strict=False)]
        flips += sum((a - 0.5) * (b - 0.5) < 0 for a, b in zip(values, values[1:], strict=False))
    lengths = [record.fork + len(record.token_ids) for record in records]
    return {
        "step": first.step,
        "position": first.prompt_position,
        "problem": first.problem_id,
        "stratum": stratum(records),
        "rollouts": len(records),
        "answers": len(answers),
        "right": sum(record.outcome == "right" for record in answers),
        "verdicts": sum(record.outcome not in (None, *FAULTS) for record in answers),
        "outcomes": sorted({record.outcome for record in records if record.outcome}),
        "rewards": [min(rewards), max(rewards)]
        if (rewards := [r.reward for r in records if r.reward == r.reward])
        else None,
        "states": len({record.state_id for record in records if record.kind == "state"}),
        "delta": round(max(deltas), 6),
        "flips": flips,
        "trouble": sum(record.outcome in FAULTS for record in records),
        "cut": sum(not record.finished for record in records),
        "lengths": [min(lengths), max(lengths)],
    }
