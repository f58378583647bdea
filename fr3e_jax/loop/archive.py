"""The archive: correct base rollouts of hard prompts, kept with their anchors and returned to in later steps.

The "first return" of Go-Explore, an option beyond the FR3E paper. Token ids and anchors alone are kept: the cache of a
revisited base is rebuilt by one prefill under the current weights. Open only while most prompts are All-Wrong.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from fr3e_jax.data.stream import PromptStream
from fr3e_jax.learning.experience import Expansion, PromptGroup
from fr3e_jax.loop.prompts import PromptFeed
from fr3e_jax.loop.session import ARCHIVE, Session
from fr3e_jax.objectives.filters import archive_open, running_share
from fr3e_jax.rewards.verifier import SUCCESS
from fr3e_jax.rollouts.requests import Rollout

SHARE_DECAY = 0.9  # of the running All-Wrong share, per round


@dataclass
class ArchivedBase:
    position: int  # of the prompt in the stream
    parent: str  # id of the base's rollout record
    token_ids: list[int]  # of the response
    anchors: list[int]
    rewards: list[float]  # of its prompt's base rollouts when it was sampled, its own first
    explored: int  # step that did so last
    given: list[bool] | None = None  # which tokens a tool wrote


@dataclass
class Archive:
    entries: list[ArchivedBase] = field(default_factory=list)  # oldest first
    all_wrong_share: float | None = None

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Archive:
        return cls([ArchivedBase(**entry) for entry in state["entries"]], state["all_wrong_share"])

    def observe(self, groups: list[PromptGroup]) -> None:
        """Update the running share of prompts whose base rollouts are all wrong."""
        share = float(np.mean([np.all(group.rewards < SUCCESS) for group in groups]))
        before = share if self.all_wrong_share is None else self.all_wrong_share
        self.all_wrong_share = float(running_share(before, share, SHARE_DECAY))

    def is_open(self, session: Session) -> bool:
        share = self.all_wrong_share
        return share is not None and bool(archive_open(share, session.config.explore.archive_threshold))

    def revisit(self, session: Session, step: int, stream: PromptStream | PromptFeed) -> list[Expansion]:
        """Some archived bases, drawn at random, as expansions to roll out again; none while the archive is closed."""
        # Once a step: noise is named by step, prompt and base, so a second time would give the same rollouts again.
        waiting = [entry for entry in self.entries if entry.explored < step]
        if not waiting or not self.is_open(session):
            return []
        count = min(session.config.explore.archive_revisits, len(waiting))
        # The stream's position tells the rounds of one step apart.
        chosen = session.generator(ARCHIVE, step, stream.position).choice(len(waiting), count, replace=False)
        expansions = []
        for i in sorted(chosen):
            waiting[i].explored = step
            expansions.append(self._expansion(session, waiting[i], stream))
        return expansions

    def _expansion(self, session: Session, entry: ArchivedBase, stream: PromptStream | PromptFeed) -> Expansion:
        problem = stream.problem_at(entry.position)
        prompt_ids = session.prompt_ids(problem.prompt)
        ids = np.asarray(entry.token_ids, np.int32)
        nothing = np.zeros(len(ids), np.float32)
        given = None if entry.given is None else np.asarray(entry.given, bool)
        base = Rollout(ids, nothing, nothing, nothing, finished=True, given=given)
        group = PromptGroup(entry.position, problem, prompt_ids, [base], np.asarray(entry.rewards))
        group.trunks[0] = np.concatenate([prompt_ids, ids])
        forks = [anchor + session.config.explore.include_anchor_token for anchor in entry.anchors]
        states = list(range(1, len(forks) + 1))
        if session.config.explore.initial_state == "fresh":
            states, forks = [0, *states], [0, *forks]
        return Expansion(group, 0, entry.anchors, states, forks, parent=entry.parent)

    def add(self, session: Session, step: int, expansions: list[Expansion]) -> None:
        """Keep the correct bases of hard prompts, the oldest leaving first."""
        explore = session.config.explore
        for expansion in expansions:
            group, base = expansion.group, expansion.base
            hard = group.success_rate <= explore.archive_max_success_rate
            if expansion.parent or not expansion.anchors or not hard or group.rewards[base] < SUCCESS:
                continue
            given = group.rollouts[base].given
            own_first = [group.rewards[base], *np.delete(group.rewards, base)]
            self.entries.append(
                ArchivedBase(
                    position=group.position,
                    parent=f"{step}/{group.position}/{base}",
                    token_ids=group.rollouts[base].token_ids.tolist(),
                    anchors=list(expansion.anchors),
                    rewards=[float(reward) for reward in own_first],
                    explored=step,
                    given=None if given is None else given.tolist(),
                )
            )
        self.entries = self.entries[-explore.archive_size :]

    def metrics(self, session: Session) -> dict[str, float]:
        return {
            "archive/size": len(self.entries),
            "archive/open": self.is_open(session),
            "archive/all_wrong_share": self.all_wrong_share or 0.0,
        }
