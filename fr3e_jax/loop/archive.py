"""The archive: correct base rollouts of hard prompts, kept with their anchors and returned to in later steps.

This is the "first return" of Go-Explore, an option beyond the FR3E paper. Only token ids and anchors are kept: one
prefill under the current weights rebuilds the cache of a revisited base. The archive is open only while enough prompts
are All-Wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from fr3e_jax.configuration.schema import ExploreConfig
from fr3e_jax.data.stream import PromptStream
from fr3e_jax.loop.expansion import Anchored, PromptGroup, anchored_at
from fr3e_jax.loop.explore import anchor_rules
from fr3e_jax.loop.prompts import PromptFeed
from fr3e_jax.objectives.filters import archive_open, running_share
from fr3e_jax.rollouts.episode import EpisodeRecord, episode_from
from fr3e_jax.rollouts.noise import ARCHIVE
from fr3e_jax.rollouts.requests import Rollout
from fr3e_jax.session.session import Session
from fr3e_jax.verdict import Outcome

SHARE_DECAY = 0.9  # of the running All-Wrong share, per round


@dataclass
class ArchivedBase:
    """A kept base rollout; a checkpoint holds these fields under their names."""

    position: int  # the prompt's position in the stream
    parent: str  # id of the base's rollout record
    token_ids: list[int]  # of the response
    anchors: list[int]
    rewards: list[float]  # of its prompt's base rollouts when it was sampled, its own first
    explored: int  # the last step that sampled or revisited it
    given: list[bool] | None = None  # which tokens a tool wrote
    episode: EpisodeRecord | None = None  # in an environment
    outcomes: list[Outcome] = field(default_factory=list)  # of those rewards; empty: as `PromptGroup` has it


@dataclass
class Archive:
    """The archived bases and the running share of All-Wrong prompts; part of a checkpoint."""

    entries: list[ArchivedBase] = field(default_factory=list)  # oldest first
    all_wrong_share: float | None = None

    def state_dict(self) -> dict[str, Any]:
        """JSON content for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Archive:
        """The archive that `state_dict` described."""
        bases = [ArchivedBase(**entry | {"episode": episode_from(entry.get("episode"))}) for entry in state["entries"]]
        return cls(bases, state["all_wrong_share"])

    def observe(self, groups: list[PromptGroup]) -> None:
        """Update the running share of prompts whose base rollouts are all wrong."""
        share = float(np.mean([not group.right.any() for group in groups]))
        before = share if self.all_wrong_share is None else self.all_wrong_share
        self.all_wrong_share = float(running_share(before, share, SHARE_DECAY))

    def is_open(self, explore: ExploreConfig) -> bool:
        """Whether enough prompts are All-Wrong for bases to be revisited."""
        share = self.all_wrong_share
        return share is not None and bool(archive_open(share, explore.archive_threshold))

    def revisit(self, session: Session, step: int, stream: PromptStream | PromptFeed) -> list[Anchored]:
        """Draw archived bases at random, to be explored again in ``step``; none while the archive is closed."""
        # A base is revisited once per step: step, prompt and base name the noise, so a second visit would repeat it.
        waiting = [entry for entry in self.entries if entry.explored < step]
        if not waiting or not self.is_open(session.config.explore):
            return []
        count = min(session.config.explore.archive_revisits, len(waiting))
        # The stream's position distinguishes the rounds of one step.
        chosen = session.noise.generator(ARCHIVE, step, stream.position).choice(len(waiting), count, replace=False)
        anchored = []
        for i in sorted(chosen):
            waiting[i].explored = step
            anchored.append(self._anchored(session, waiting[i], stream))
        return anchored

    def _anchored(self, session: Session, entry: ArchivedBase, stream: PromptStream | PromptFeed) -> Anchored:
        problem = stream.problem_at(entry.position)
        prompt_ids = session.texts.prompt_ids(problem.prompt)
        ids = np.asarray(entry.token_ids, np.int32)
        nothing = np.zeros(len(ids), np.float32)
        tool_written = None if entry.given is None else np.asarray(entry.given, bool)
        base = Rollout(ids, nothing, nothing, nothing, finished=True, tool_written=tool_written, episode=entry.episode)
        rewards, outcomes = np.asarray(entry.rewards), list(entry.outcomes)
        group = PromptGroup(entry.position, problem, prompt_ids, [base], rewards, outcomes=outcomes)
        group.trunks[0] = np.concatenate([prompt_ids, ids])
        explore = session.config.explore
        fresh = explore.initial_state == "fresh"
        return anchored_at(group, 0, entry.anchors, anchor_rules(explore), fresh=fresh, parent=entry.parent)

    def add(self, explore: ExploreConfig, step: int, anchored: Sequence[Anchored]) -> None:
        """Add the correct bases of hard prompts; beyond ``explore.archive_size`` the oldest leave."""
        for one in anchored:
            group, base = one.group, one.base
            hard = group.success_rate <= explore.archive_max_success_rate
            if one.parent or not one.anchors or not hard or not group.right[base]:
                continue
            tool_written = one.rollout.tool_written
            own_first = [base, *(n for n in range(len(group.rewards)) if n != base)]
            self.entries.append(
                ArchivedBase(
                    position=group.position,
                    parent=f"{step}/{group.position}/{base}",
                    token_ids=one.rollout.token_ids.tolist(),
                    anchors=list(one.anchors),
                    rewards=[float(group.rewards[n]) for n in own_first],
                    explored=step,
                    given=None if tool_written is None else tool_written.tolist(),
                    episode=one.rollout.episode,
                    outcomes=[group.outcomes[n] for n in own_first],
                )
            )
        self.entries = self.entries[-explore.archive_size :]

    def metrics(self, explore: ExploreConfig) -> dict[str, float]:
        """Metrics: the archive's size, whether it is open, and the running All-Wrong share."""
        return {
            "archive/size": len(self.entries),
            "archive/open": self.is_open(explore),
            "archive/all_wrong_share": self.all_wrong_share or 0.0,
        }
