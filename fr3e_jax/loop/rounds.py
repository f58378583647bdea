"""Rounds: First Return and Explore, or Return, under one set of weights. A step runs rounds until its batch is full."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from fr3e_jax.cluster import agreement
from fr3e_jax.configuration.error_conversion import as_config_error
from fr3e_jax.learning.experience import TrainingTrunk, count_rollouts
from fr3e_jax.loop.adaptive_return import Returns, credit_returns
from fr3e_jax.loop.archive import Archive
from fr3e_jax.loop.expansion import Anchored, Credited, PromptGroup
from fr3e_jax.loop.explore import assign_advantages, explored_trunks, place_anchors, roll_out_states
from fr3e_jax.loop.first_return import base_trunks, first_return
from fr3e_jax.loop.prompts import PromptFeed
from fr3e_jax.loop.round_size import Yield, certain_rounds
from fr3e_jax.policy.network import Params
from fr3e_jax.runs.ledger import TokenLedger
from fr3e_jax.session.session import Session


def compare_nothing(stage: str, describe: Callable[..., dict[str, Any]], *of: Any) -> None:
    """Agree with no other process: there is one alone."""


class Stages(Protocol):
    """What rounds tell a display."""

    def stage(self, name: str) -> None:
        """The stage that begins."""

    def note(self, text: str) -> None:
        """A line."""


class Round(NamedTuple):
    """The outcome of one round of prompts, or of several in one stream; the trunks are the part that trains."""

    groups: list[PromptGroup]
    credited: list[Credited]
    trunks: list[TrainingTrunk]
    returned: list[Credited]  # continuations of kept successes
    silent: int  # its last rounds that gave nothing to train on, in a row


@dataclass(frozen=True)
class Rounds:
    """The parts of a run that its rounds read and change.

    ``compare(stage, describe, *of)`` stops the run unless all processes have the same ``describe(*of)``.
    """

    session: Session
    prompts: PromptFeed
    archive: Archive
    returns: Returns
    yields: Yield
    ledger: TokenLedger
    console: Stages
    compare: Callable[..., None] = compare_nothing

    def run(self, params: Params, step: int, missing: int = 0) -> Round:
        """First Return, then Explore, for a round of prompts; or, if due, a round that returns to kept successes.

        Rounds of prompts that the batch needs for certain are sampled as one stream: a long response then keeps one
        lane, and the others go on to the next prompts. The prompts and their tokens are those of one round after
        another.

        Args:
          params: the weights in the layout of rollouts.
          step: keys the noise.
          missing: rollouts that the batch lacks.
        """
        session, config, explore = self.session, self.session.config, self.session.config.explore
        if config.returns.size and self.returns.due(config.returns, step):
            return self._return(params, step)
        self.console.stage("first return")
        with self.ledger.stage("first_return"):
            with as_config_error():
                count, together = self._size(missing)
                prompts = self.prompts.next(count)
            for line in self.prompts.complaints:
                self.console.note(line)
            self.compare("prompts", agreement.of_prompts, prompts)
            groups = first_return(session, params, step, prompts)  # sampled, graded, degenerate prompts rejected
            session.grader.check((o for group in groups for o in group.outcomes), "of a round of prompts")
            self.compare("first return", agreement.of_groups, groups)
            kept = [group for group in groups if group.kept]
            trunks = base_trunks(config, step, kept) if explore.train_base or not explore.enabled else []
        credited: list[Credited] = []
        if explore.enabled:
            self.console.stage("explore")
            with self.ledger.stage("explore"):
                anchored = place_anchors(session, step, kept) + self._revisit_archive(step, groups)
                self.compare("anchors", agreement.of_states, anchored)
                explored = roll_out_states(session, params, step, anchored)  # sampled and graded
                credited = assign_advantages(config, explored)
                self.compare("explore", agreement.of_values, credited)
                if explore.archive_size:
                    self.archive.add(explore, step, credited)
                trunks += explored_trunks(config, step, credited)
        if together > 1:
            silent = self._observe_each(groups, trunks)
        else:
            silent = int(not trunks)
            self.yields.observe(len(groups), count_rollouts(trunks))
        if config.returns.size:
            self.returns.add(config.returns, step, groups)
        for group in groups:
            group.trunks.clear()  # no later stage reads the caches of these weights
        self.ledger.count_decoding(session.sampler.engine.take_counts())
        return Round(groups, credited, trunks, [], silent)

    def _size(self, missing: int) -> tuple[int, int]:
        """Prompts to sample now, and how many rounds they are."""
        config = self.session.config
        rollout, by_yield = config.rollout, config.rollout.round_size == "yield"
        most, of_a_prompt = rollout.prompts_per_round, rollout.rollouts_per_prompt
        # Explore and ARPO keep caches until the round ends; adaptive return decides anew after each round.
        if not (config.explore.enabled or config.tools.branching or config.returns.size):
            together = certain_rounds(missing, most, of_a_prompt, last=not by_yield)
            if together > 1:
                return together * most, together
        return (self.yields.prompts_for(missing, most, of_a_prompt) if by_yield else most), 1

    def _observe_each(self, groups: list[PromptGroup], trunks: list[TrainingTrunk]) -> int:
        """Count the rounds of one stream as if each had been sampled alone; return how many of the last were silent."""
        size, kept, silent = self.session.config.rollout.prompts_per_round, iter(trunks), 0
        for start in range(0, len(groups), size):
            own = groups[start : start + size]
            gave = count_rollouts([next(kept) for group in own if group.kept])
            self.yields.observe(len(own), gave)
            silent = 0 if gave else silent + 1
        return silent

    def _return(self, params: Params, step: int) -> Round:
        """Continue kept successes from their depths."""
        session, settings = self.session, self.session.config.returns
        self.console.stage("return")
        with self.ledger.stage("return"):
            anchored = self.returns.visit(session, step, self.prompts)
            self.compare("returns", agreement.of_states, anchored)
            explored = roll_out_states(session, params, step, anchored, settings.rollouts)
            session.grader.check((o for one in explored for row in one.outcomes for o in row), "of a round of returns")
            self.returns.learn(settings, explored)
            credited = credit_returns(session.config, explored)
            self.compare("return", agreement.of_values, credited)
            trunks = explored_trunks(session.config, step, credited)
        self.ledger.count_decoding(session.sampler.engine.take_counts())
        return Round([], [], trunks, credited, int(not trunks))

    def _revisit_archive(self, step: int, groups: list[PromptGroup]) -> list[Anchored]:
        """Archived bases to explore again; none without an archive."""
        if not self.session.config.explore.archive_size:
            return []
        self.archive.observe(groups)
        return self.archive.revisit(self.session, step, self.prompts)
