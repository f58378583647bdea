"""Rounds under one set of weights: First Return and Explore, or a visit to kept bases.

A step runs rounds until its batch is full.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from fr3e_jax.configuration.error_conversion import as_config_error
from fr3e_jax.learning.experience import TrainingTrunk, count_rollouts
from fr3e_jax.loop import agreement
from fr3e_jax.loop.expansion import Credited, PromptGroup
from fr3e_jax.loop.explore import assign_advantages, explored_trunks, place_anchors, roll_out_states
from fr3e_jax.loop.first_return import base_trunks, first_return
from fr3e_jax.loop.kept_bases import KeptBases, credit_visits
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
    returned: list[Credited]  # continuations of kept bases
    silent: int  # its last rounds that gave nothing to train on, in a row


@dataclass(frozen=True)
class Rounds:
    """The parts of a run that its rounds read and change.

    ``compare(stage, describe, *of)`` stops the run unless all processes have the same ``describe(*of)``.
    """

    session: Session
    prompts: PromptFeed
    kept_bases: KeptBases
    yields: Yield
    ledger: TokenLedger
    console: Stages
    compare: Callable[..., None] = compare_nothing

    def run(self, params: Params, step: int, missing: int = 0) -> Round:
        """Visit kept bases if they are due; else First Return, then Explore, for a round of prompts.

        Args:
          params: the weights in the layout of rollouts.
          step: keys the noise.
          missing: rollouts that the batch lacks.
        """
        if self.kept_bases.due(step):
            done = self._visit_kept_bases(params, step)
        else:
            done = self._return_and_explore(params, step, missing)
        self.ledger.count_decoding(self.session.sampler.engine.take_counts())
        return done

    def _return_and_explore(self, params: Params, step: int, missing: int) -> Round:
        """First Return for the next prompts, and Explore from the bases that it chose.

        Rounds of prompts that the batch needs for certain are sampled as one stream: a long response then keeps one
        lane, and the others go on to the next prompts. The prompts and their tokens are those of one round after
        another.
        """
        session, config, explore = self.session, self.session.config, self.session.config.explore
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
                anchored = place_anchors(session, step, kept)
                self.compare("anchors", agreement.of_states, anchored)
                explored = roll_out_states(session, params, step, anchored)  # sampled and graded
                credited = assign_advantages(config, explored)
                self.compare("explore", agreement.of_values, credited)
                trunks += explored_trunks(config, step, credited)
        if together > 1:
            silent = self._observe_each(groups, trunks)
        else:
            silent = int(not trunks)
            self.yields.observe(len(groups), count_rollouts(trunks))
        self.kept_bases.add(step, groups, credited)
        for group in groups:
            group.trunks.clear()  # no later stage reads the caches of these weights
        return Round(groups, credited, trunks, [], silent)

    def _visit_kept_bases(self, params: Params, step: int) -> Round:
        """Continue kept bases from their depths."""
        session, config = self.session, self.session.config
        self.console.stage("return")
        with self.ledger.stage("return"):
            anchored = self.kept_bases.visit(step, self.prompts, session.texts, session.noise)
            self.compare("returns", agreement.of_states, anchored)
            explored = roll_out_states(session, params, step, anchored, config.returns.rollouts)
            session.grader.check((o for one in explored for row in one.outcomes for o in row), "of a round of returns")
            self.kept_bases.learn(explored)
            credited = credit_visits(explored, config.advantage)
            self.compare("return", agreement.of_values, credited)
            trunks = explored_trunks(config, step, credited)
        return Round([], [], trunks, credited, int(not trunks))

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
