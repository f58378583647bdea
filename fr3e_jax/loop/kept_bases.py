"""Kept bases: successes of hard prompts are kept, and later rounds continue them from chosen depths.

A success of a prompt that is seldom solved is worth much. Only its token ids are kept: one prefill under the current
weights rebuilds the cache of its prefix. Several rollouts continue each depth, and only these continuations train.
(Go-Explore, Ecoffet et al. 2021, returns to archived states; Prefix Sampling, arXiv:2605.05112, and PrefixRL,
arXiv:2601.18795, continue own successes.) There are two rules for the depths:

- target: a few depths around that from which half of the rollouts succeed. Each visit moves it; as the policy
  improves, it moves back to the prompt. (AdaBack, Amani et al. 2025, arXiv:2506.18110, reveals an adaptive prefix of a
  given solution.)
- fixed: those of the first visit, evenly spaced, for good (PrefixRL).

With ``returns.failures``, a failure of an easy prompt is kept as well. It is treated as a success is, with "wrong" in
the place of "right": continued where half of the rollouts fail, until the prompt itself fails as often. (The passing
half of Prefix Sampling; at fixed depths, failure-prefix conditioning, arXiv:2601.20829.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fr3e_jax.configuration.schema import AdvantageConfig, ReturnConfig
from fr3e_jax.data.stream import PromptStream
from fr3e_jax.loop.expansion import (
    Anchored,
    Credited,
    Explored,
    PromptGroup,
    are_graded,
    are_right,
    graded_mean,
    graded_rewards,
    has_signal,
)
from fr3e_jax.objectives.advantages import ranged_rewards
from fr3e_jax.objectives.return_depths import crossing_depth, probed_depths
from fr3e_jax.programs.explore_programs import group_advantages
from fr3e_jax.rollouts.episode import EpisodeRecord, episode_content, episode_from
from fr3e_jax.rollouts.noise import RETURN, Noise
from fr3e_jax.rollouts.requests import Rollout
from fr3e_jax.session.texts import Texts

TARGET = 0.5  # success rate at the depth to return to; 0.25 was tried twice, without a gain
LEAST_SHARE = 0.25  # of prompts without a success: below it plain rollouts do
SHARE_DECAY = 0.9  # of the running shares, per round of samples
LEAST_SPACING = 1.0  # tokens
VISITS_PER_ROUND = 2  # of the same base, for each round of fresh prompts: more, and the answer is learnt by heart


@dataclass
class KeptBase:
    """A kept response and the depths to return to; a checkpoint holds these fields under their names."""

    position: int  # of the prompt in the stream
    parent: str  # id of its rollout record
    token_ids: list[int]  # of the response
    success_rate: float  # of its prompt's base rollouts when it was sampled
    right: bool  # a success of a hard prompt; False: a failure of an easy one
    depth: float  # tokens, the middle of the next visit's depths
    spacing: float  # tokens between them
    visits: int = 0
    recent_visits: int = 0  # since the last round of fresh prompts
    tool_written: list[bool] | None = None  # which tokens a tool wrote
    episode: EpisodeRecord | None = None  # in an environment


@dataclass
class KeptBases:
    """The kept bases of a run and the running shares that decide when to visit them; part of a checkpoint."""

    settings: ReturnConfig
    bases: list[KeptBase] = field(default_factory=list)  # oldest first
    wasted_share: float = 0.0  # running share of fresh prompts without signal that kept bases can give
    fresh_tokens: float = 0.0  # sampled from prompts, older ones with less weight
    returned_tokens: float = 0.0  # sampled from depths of kept bases, older ones with less weight
    solved: int = 0  # bases that left because their prompt is solved often enough

    def state_dict(self) -> dict[str, Any]:
        """JSON content for a checkpoint."""
        bases = [vars(base) | {"episode": episode_content(base.episode)} for base in self.bases]
        return {name: value for name, value in vars(self).items() if name != "settings"} | {"bases": bases}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the state that `state_dict` described."""
        bases = [KeptBase(**base | {"episode": episode_from(base["episode"])}) for base in state["bases"]]
        vars(self).update(state | {"bases": bases})

    def due(self) -> bool:
        """Return True if the next round visits kept bases rather than fresh prompts.

        It does while continuations have less than their share of the sampled tokens. This is the running share of
        prompts whose rollouts are all wrong (with ``returns.failures``, or all right), the share of tokens that fresh
        prompts waste, and at most ``returns.max_share``. There are no such rounds below `LEAST_SHARE`, and none
        while every base has had its `VISITS_PER_ROUND`.
        """
        if not self.settings.size or self.wasted_share < LEAST_SHARE:  # a resume may turn returns off
            return False
        share = min(self.settings.max_share, self.wasted_share)
        sampled = self.fresh_tokens + self.returned_tokens
        return bool(self._waiting()) and self.returned_tokens < share * sampled

    def _waiting(self) -> list[KeptBase]:
        return [base for base in self.bases if base.recent_visits < VISITS_PER_ROUND]

    def add(self, step: int, groups: Sequence[PromptGroup], sampling_rounds: float = 1.0) -> None:
        """Keep the shortest success of each hard prompt of a fresh round; beyond ``returns.size`` the oldest leave.

        With ``returns.failures``, keep the shortest failure of each easy one. A prompt of a kept base keeps that base.

        ``sampling_rounds``: mean number of rounds that sampled a prompt. The running share forgets with each of them: a
        run that samples its prompts several times has fewer steps of fresh prompts, and would return on an old share.
        """
        if not self.settings.size:
            return
        for base in self.bases:
            base.recent_visits = 0
        failures = self.settings.failures
        rights = [group.right[group.graded] for group in groups if group.graded.any()]
        share = float(np.mean([not right.any() or (failures and right.all()) for right in rights] or self.wasted_share))
        decay = SHARE_DECAY**sampling_rounds if self.fresh_tokens else 0.0
        self.wasted_share = decay * self.wasted_share + (1 - decay) * share
        self._spend(fresh=sum(len(rollout.token_ids) for group in groups for rollout in group.rollouts))
        kept_positions = {base.position for base in self.bases}
        for group in groups:
            if group.position in kept_positions:
                continue
            if group.success_rate <= self.settings.max_success_rate:
                self._add(step, group, True)
            elif failures and 1 - group.success_rate <= self.settings.max_success_rate:
                self._add(step, group, False)
        self.bases = self.bases[-self.settings.size :]

    def _add(self, step: int, group: PromptGroup, right: bool) -> None:
        """Keep a prompt's shortest success (or failure), if it has one with a depth between the prompt and the end."""
        rollouts = [
            int(n)
            for n in np.flatnonzero((group.right == right) & group.graded)
            if len(group.rollouts[n].token_ids) > 1
        ]
        if not rollouts:
            return
        shortest = min(rollouts, key=lambda n: len(group.rollouts[n].token_ids))
        rollout = group.rollouts[shortest]
        length, written = len(rollout.token_ids), rollout.tool_written
        self.bases.append(
            KeptBase(
                position=group.position,
                parent=f"{step}/{group.position}/{shortest}",
                token_ids=rollout.token_ids.tolist(),
                success_rate=group.success_rate,
                right=right,
                depth=length / 2,
                spacing=length / (self.settings.depths + 1),
                tool_written=None if written is None else written.tolist(),
                episode=rollout.episode,
            )
        )

    def visit(self, step: int, prompts: PromptStream, texts: Texts, noise: Noise) -> list[Anchored]:
        """Choose the kept bases of this round, those with the fewest visits first, and the depths to continue from."""
        waiting = self._waiting()
        visits = sum(base.visits for base in self.bases)
        order = noise.generator(RETURN, step, prompts.position, visits).permutation(len(waiting))
        chosen = sorted(order, key=lambda n: waiting[n].recent_visits)[: self.settings.visits]
        return [self._anchored(waiting[n], prompts, texts) for n in sorted(chosen)]

    def _anchored(self, base: KeptBase, prompts: PromptStream, texts: Texts) -> Anchored:
        problem = prompts.problem_at(base.position)
        ids = np.asarray(base.token_ids, np.int32)
        zeros = np.zeros(len(ids), np.float32)
        written = None if base.tool_written is None else np.asarray(base.tool_written, bool)
        rollout = Rollout(ids, zeros, zeros, zeros, finished=True, tool_written=written, episode=base.episode)
        prompt_ids = texts.prompt_ids(problem.prompt)
        outcome = "right" if base.right else "wrong"
        group = PromptGroup(
            base.position, problem, prompt_ids, [rollout], np.array([float(base.right)]), outcomes=[outcome]
        )
        group.trunks[0] = np.concatenate([prompt_ids, ids])
        depths = probed_depths(base.depth, base.spacing, self.settings.depths, len(ids))
        if written is not None:  # a continuation begins where the policy chooses, not within a tool's answer
            depths = np.unique([_next_sampled(written, depth) for depth in depths])
        forks = depths.tolist()
        # States of several visits have numbers, and so noise, of their own.
        first = base.visits * self.settings.depths + 1
        base.visits += 1
        base.recent_visits += 1
        states = list(range(first, first + len(forks)))
        return Anchored(group=group, base=0, anchors=forks, states=states, forks=forks, parent=base.parent)

    def learn(self, explored: Sequence[Explored]) -> None:
        """Let a base leave once its prompt itself reaches the target; move the others' depths towards it.

        A rollout counts towards the target if it ends as the base did. By the fixed rule, depths stay where they are.
        """
        self._spend(returned=sum(len(r.token_ids) for visited in explored for state in visited.rollouts for r in state))
        by_parent = {base.parent: base for base in self.bases}
        for visited in explored:
            base = by_parent.get(visited.parent)
            if base is None or not all(are_graded(state).any() for state in visited.outcomes):
                continue
            depths = np.array(visited.forks)
            values = np.array(
                [graded_mean(are_right(state) == base.right, are_graded(state)) for state in visited.outcomes]
            )
            if depths[0] == 0 and values[0] >= TARGET:
                self.bases.remove(base)
                self.solved += 1
            elif self.settings.depth_rule == "target":
                self._move(base, depths, values)

    def _move(self, base: KeptBase, depths: np.ndarray, values: np.ndarray) -> None:
        """Move a base to the depth at which its rollouts crossed the target.

        Halve the spacing of the next visit's depths if these bracket the crossing; otherwise double it.
        """
        length = len(base.token_ids)
        depth, bracketed = crossing_depth(depths, values, TARGET, base.spacing)
        if bracketed:
            base.spacing = max(LEAST_SPACING, base.spacing / 2)
        else:
            base.spacing = min(length / (self.settings.depths + 1), 2 * base.spacing)
        base.depth = float(np.clip(depth, 0, length - 1))

    def _spend(self, fresh: float = 0.0, returned: float = 0.0) -> None:
        self.fresh_tokens = SHARE_DECAY * self.fresh_tokens + fresh
        self.returned_tokens = SHARE_DECAY * self.returned_tokens + returned

    def metrics(self, explored: Sequence[Explored]) -> dict[str, float]:
        """Metrics: kept and solved bases, and of the visits: mean reward, length, relative depth, mixed states."""
        if not self.settings.size:
            return {}
        metrics = {"returns/kept": len(self.bases), "returns/solved": self.solved, "returns/visits": len(explored)}
        metrics |= {"returns/wasted_share": self.wasted_share}
        if explored:
            rewards = [state for visited in explored for state in graded_rewards(visited)]
            rollouts = [rollout for visited in explored for state in visited.rollouts for rollout in state]
            depths = [fork / len(visited.rollout.token_ids) for visited in explored for fork in visited.forks]
            metrics |= {
                **({"returns/reward": float(np.mean(graded))} if len(graded := np.concatenate(rewards)) else {}),
                "returns/length": float(np.mean([len(rollout.token_ids) for rollout in rollouts])),
                "returns/depth": float(np.mean(depths)),
                "returns/mixed_states": float(np.mean([has_signal(state) for state in rewards])),
            }
        return metrics


def _next_sampled(written: np.ndarray, depth: int) -> int:
    """The first position from ``depth`` on whose token the policy chose; without one, the last such position before."""
    sampled = np.flatnonzero(~written)
    after = sampled[sampled >= depth]
    return int(after[0] if len(after) else sampled[-1])


def credit_visits(explored: Sequence[Explored], advantage: AdvantageConfig, *, taught: bool = False) -> list[Credited]:
    """The advantages of continuations: each depth is a group of its own, with GRPO's z-scores.

    ``taught``: as in `fr3e_jax.loop.explore.assign_advantages`.
    """
    if not explored:
        return []
    rewards = np.concatenate([np.stack(visited.rewards) for visited in explored])
    rewards = ranged_rewards(rewards, advantage.reward_range)
    mask = np.concatenate([[are_graded(state) for state in visited.outcomes] for visited in explored])
    advantages = group_advantages(rewards, mask, estimator="grpo", unbiased_std=advantage.unbiased_std)
    credited, row = [], 0
    for visited in explored:
        count = len(visited.states)
        credited.append(
            Credited(
                **vars(visited),
                advantages=list(advantages[row : row + count]),
                values=np.array([state.mean() if len(state) else 0.0 for state in graded_rewards(visited)]),
                alphas=np.ones(count),
                initial_value=visited.group.success_rate,
                trained=[taught or has_signal(state) for state in graded_rewards(visited)],
                block_credit=[],
            )
        )
        row += count
    return credited
