"""The prompts that a page shows: a seeded choice of those of each step, with the kept successes that they return to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any

from fr3e_jax.runs.rollout_store import RolloutRecord
from fr3e_jax.studies.analysis.stored_run import StoredRun, drawn_steps
from fr3e_jax.studies.analysis.verdicts import answer_reader, gold_of
from fr3e_jax.studies.reports.embedding import embed
from fr3e_jax.studies.reports.list_items import prompt_item
from fr3e_jax.studies.reports.page_limits import PageLimits, in_turns, priority
from fr3e_jax.studies.reports.prompt_text import question_finder, shortened
from fr3e_jax.studies.reports.rollout_trees import STRATA, Training, prompt_summary, prompt_tree, stratum


@dataclass
class ShownPrompts:
    """The chosen prompts in the order of training, and what they share."""

    summaries: list[dict[str, Any]] = field(default_factory=list)
    chunks: list[str] = field(default_factory=list)
    """Embedded columns of each prompt."""
    trunks: dict[str, str] = field(default_factory=dict)
    """Embedded columns of each kept success that prompts return to, by its id."""
    visits: dict[str, list[tuple[int, int, int, int]]] = field(default_factory=dict)
    """(step, fork, right continuations, all of them) of each state of a kept success, by its id."""
    account: dict[str, Any] = field(default_factory=dict)
    """How the prompts were chosen."""

    @property
    def sentence(self) -> str:
        """The account in words."""
        read, shown = sum(self.account["prompts_read"].values()), self.account["prompts_shown"]
        stored, steps = self.account["steps_stored"], len(self.account["steps_read"])
        if not stored:
            return "The run has stored no rollouts: fr3e sft samples none, and runtime.store_rollouts=false keeps none."
        some = f"{steps} of {stored} steps, one of each stretch of the run"
        every = f"all {stored} steps" if stored > 1 else "the only step"
        of_steps = every if steps == stored else some
        if steps == stored and shown == read:
            return f"All {read:,} prompts of {of_steps} are here."
        return (
            f"{shown:,} of {read:,} prompts of {of_steps}: drawn at random (seed {self.account['seed']}) by turns of "
            "those with trouble, explored, returned to, mixed, all wrong and all right ones. Of a prompt with more "
            f"than {self.account['prompt_tokens']:,} tokens some rollouts have their numbers here, but no text."
        )


@dataclass(frozen=True)
class _Candidate:
    """The rollouts of a prompt in a step."""

    rank: int
    records: list[RolloutRecord]

    @cached_property
    def stratum(self) -> str:
        return stratum(self.records)

    @cached_property
    def size(self) -> int:
        """Bytes that its embedded columns take at least, by experience."""
        return 2 * sum(len(record.token_ids) for record in self.records) + 10 * len(self.records)

    def missing_parents(self) -> set[str]:
        """The kept successes of earlier steps that its rollouts continue."""
        return {r.parent for r in self.records if r.parent} - {record.id for record in self.records}


def shown_prompts(run: StoredRun, limits: PageLimits, used_ids: set[int]) -> ShownPrompts:
    """Choose the prompts.

    Each step has an equal share of the bytes, and what the steps after it left. The steps are read from the last to the
    first: so the kept successes that later steps return to are known when their own step is read.

    Args:
      run: its rollouts are read.
      limits: of what is read and shown.
      used_ids: gets the token ids of the chunks.
    """
    sizes = run.stored_bytes()
    steps = drawn_steps(sizes, limits.read_bytes, limits.seed)
    read, question = answer_reader(run.settings), question_finder(run.settings, run.codec)
    training = Training.of(run)
    shown, strata, left = ShownPrompts(), Counter[str](), 0.0
    wanted_trunks: set[str] = set()
    returned_to: set[str] = set()
    for step in reversed(steps):
        left += limits.prompt_bytes / len(steps)
        candidates: dict[int, _Candidate] = {}
        stratum_of: dict[int, str] = {}
        # The rollouts from kept bases come last in a step, after those of their own prompt if it is of this step.
        for position, group in groupby(run.rollouts(step), key=lambda record: record.prompt_position):
            records = list(group)
            for record in records:
                if record.id in wanted_trunks:
                    shown.trunks[record.id] = _embedded(
                        prompt_tree([record], limits.prompt_tokens, read, training=training), used_ids
                    )
                    left -= len(shown.trunks[record.id])
            _note_visits(shown.visits, records)
            returned_to |= _Candidate(0, records).missing_parents()
            if position in candidates:
                records = [*candidates[position].records, *records]
            elif position in stratum_of:
                continue  # the page has no place for this prompt
            candidate = _Candidate(priority(limits.seed, step, position), records)
            candidates[position], stratum_of[position] = candidate, candidate.stratum
            _bound(candidates, candidate.stratum, left)
        strata.update(stratum_of.values())
        waiting = sorted(candidates.values(), key=lambda candidate: (STRATA.index(candidate.stratum), candidate.rank))
        chosen = []
        for candidate in in_turns(waiting, lambda candidate: candidate.stratum):
            if candidate.size > left:
                continue
            tree = prompt_tree(candidate.records, limits.prompt_tokens, read, training=training)
            if len(encoded := embed(tree)) <= left:
                left -= len(encoded)
                used_ids.update(tree["token_ids"])
                wanted_trunks |= candidate.missing_parents()
                chosen.append((candidate.records, encoded))
        for records, encoded in sorted(chosen, key=lambda pair: pair[0][0].prompt_position, reverse=True):
            text = question(records[0].prompt)
            texts = {"question": shortened(text), "gold": shortened(gold_of(records[0]))}
            shown.summaries.append(prompt_item(prompt_summary(records)) | texts)
            shown.chunks.append(encoded)
    shown.summaries = [item | {"chunk": f"prompt-{n}"} for n, item in enumerate(reversed(shown.summaries))]
    shown.chunks.reverse()
    shown.visits = {parent: sorted(rows) for parent, rows in shown.visits.items() if parent in returned_to}
    shown.account = {
        "steps_stored": len(sizes),
        "steps_read": steps,
        "prompts_read": {name: strata[name] for name in STRATA},
        "prompts_shown": len(shown.summaries),
        "prompt_tokens": limits.prompt_tokens,
        "seed": limits.seed,
    }
    return shown


def _embedded(tree: dict[str, Any], used_ids: set[int]) -> str:
    used_ids.update(tree["token_ids"])
    return embed(tree)


def _note_visits(visits: dict[str, list[tuple[int, int, int, int]]], records: list[RolloutRecord]) -> None:
    """Add the states of the records to the visits of their parents."""
    states: dict[str, list[RolloutRecord]] = {}
    for record in records:
        if record.parent:
            states.setdefault(record.state_id, []).append(record)
    for rollouts in states.values():
        right = sum(record.outcome == "right" for record in rollouts)
        visits.setdefault(rollouts[0].parent or "", []).append(
            (rollouts[0].step, rollouts[0].fork, right, len(rollouts))
        )


def _bound(candidates: dict[int, _Candidate], stratum: str, left: float) -> None:
    """Drop the candidates of a stratum that come last and have no place: this bounds the memory of a large step."""
    ranked = sorted(
        (position for position in candidates if candidates[position].stratum == stratum),
        key=lambda position: candidates[position].rank,
    )
    size = sum(candidates[position].size for position in ranked)
    while len(ranked) > 1 and size > left:
        size -= candidates.pop(ranked.pop()).size
