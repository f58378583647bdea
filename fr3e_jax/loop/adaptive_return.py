"""Adaptive return: own successes of hard prompts are kept, and later rounds continue them from the best depth.

A success of a prompt that is seldom solved is worth much. Its prefix is cached once under the current weights, and a
few depths of it are probed with several rollouts each. The next visit probes around the depth from which half of the
rollouts succeed. As the policy improves, this depth moves back to the prompt. Only the continuations train.
(Go-Explore, Ecoffet et al. 2021, returns to archived states; AdaBack, Amani et al. 2025, arXiv:2506.18110, reveals an
adaptive prefix of a given solution.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from fr3e_jax.configuration.schema import Config, ReturnConfig
from fr3e_jax.data.stream import PromptStream
from fr3e_jax.loop.expansion import Anchored, Credited, Explored, PromptGroup
from fr3e_jax.loop.prompts import PromptFeed
from fr3e_jax.objectives.advantages import ranged_rewards
from fr3e_jax.objectives.filters import is_degenerate
from fr3e_jax.objectives.return_depths import crossing_depth, probed_depths
from fr3e_jax.programs.explore_programs import group_advantages
from fr3e_jax.rollouts.episode import EpisodeRecord, episode_from
from fr3e_jax.rollouts.noise import ARCHIVE
from fr3e_jax.rollouts.requests import Rollout
from fr3e_jax.session.session import Session

SHARE_DECAY = 0.9  # of the running shares, per round
LEAST_SPACING = 1.0  # tokens


@dataclass
class KeptSuccess:
    """An own success and the depth to return to; a checkpoint holds these fields under their names."""

    position: int  # of the prompt in the stream
    parent: str  # id of its rollout record
    token_ids: list[int]  # of the response
    success_rate: float  # of its prompt's base rollouts when it was sampled
    depth: float  # tokens, the middle of the next visit's depths
    spacing: float  # tokens between them
    step: int  # of the last visit, or of its own sampling
    visits: int = 0  # within that step
    given: list[bool] | None = None  # which tokens a tool wrote
    episode: EpisodeRecord | None = None  # in an environment


@dataclass
class Returns:
    """The kept successes; part of a checkpoint."""

    kept: list[KeptSuccess] = field(default_factory=list)  # oldest first
    all_wrong_share: float = 0.0  # running share of fresh prompts whose rollouts are all wrong
    fresh_tokens: float = 0.0  # sampled from prompts, older ones with less weight
    returned_tokens: float = 0.0  # sampled from depths of kept successes, older ones with less weight
    solved: int = 0  # successes that left because their prompt is solved often enough

    def state_dict(self) -> dict[str, Any]:
        """JSON content for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Returns:
        """The successes that `state_dict` described."""
        kept = [KeptSuccess(**one | {"episode": episode_from(one.get("episode"))}) for one in state["kept"]]
        return cls(**state | {"kept": kept})

    def due(self, returns: ReturnConfig, step: int) -> bool:
        """Whether the next round returns to kept successes rather than to fresh prompts.

        It does while continuations have less than their share of the sampled tokens. This is the running share of
        prompts whose rollouts are all wrong, the share of tokens that fresh prompts waste, and at most
        ``returns.max_share``. Below ``returns.least_share`` there are no such rounds.
        """
        if self.all_wrong_share < returns.least_share:
            return False
        share = min(returns.max_share, self.all_wrong_share)
        sampled = self.fresh_tokens + self.returned_tokens
        return bool(self._waiting(returns, step)) and self.returned_tokens < share * sampled

    def _waiting(self, returns: ReturnConfig, step: int) -> list[KeptSuccess]:
        return [one for one in self.kept if one.step != step or one.visits < returns.visits_per_step]

    def add(self, returns: ReturnConfig, step: int, groups: Sequence[PromptGroup]) -> None:
        """Keep the shortest success of each hard prompt of a fresh round; beyond ``returns.size`` the oldest leave.

        A prompt that is among the kept ones already keeps its first success.
        """
        share = float(np.mean([not group.right.any() for group in groups]))
        first = not self.fresh_tokens
        self.all_wrong_share = share if first else SHARE_DECAY * self.all_wrong_share + (1 - SHARE_DECAY) * share
        self._spend(fresh=sum(len(rollout.token_ids) for group in groups for rollout in group.rollouts))
        known = {one.position for one in self.kept}
        for group in groups:
            right = np.flatnonzero(group.right)
            if not len(right) or group.success_rate > returns.max_success_rate or group.position in known:
                continue
            base = int(min(right, key=lambda n: len(group.rollouts[n].token_ids)))
            rollout = group.rollouts[base]
            if len(rollout.token_ids) < 2:
                continue  # no depth between the prompt and the end
            written = rollout.tool_written
            spacing = len(rollout.token_ids) / (returns.depths + 1)
            self.kept.append(
                KeptSuccess(
                    position=group.position,
                    parent=f"{step}/{group.position}/{base}",
                    token_ids=rollout.token_ids.tolist(),
                    success_rate=group.success_rate,
                    depth=len(rollout.token_ids) / 2,
                    spacing=spacing,
                    step=step,
                    given=None if written is None else written.tolist(),
                    episode=rollout.episode,
                )
            )
        self.kept = self.kept[-returns.size :]

    def visit(self, session: Session, step: int, stream: PromptStream | PromptFeed) -> list[Anchored]:
        """The kept successes of this round, with the depths to continue from; first those with the fewest visits."""
        returns = session.config.returns
        waiting = self._waiting(returns, step)
        for one in waiting:
            if one.step != step:
                one.step, one.visits = step, 0
        round_number = sum(one.visits for one in self.kept if one.step == step)
        order = session.noise.generator(ARCHIVE, step, stream.position, round_number).permutation(len(waiting))
        chosen = sorted(order, key=lambda n: waiting[n].visits)[: returns.visits]
        return [self._anchored(session, waiting[n], stream) for n in sorted(chosen)]

    def _anchored(self, session: Session, one: KeptSuccess, stream: PromptStream | PromptFeed) -> Anchored:
        problem = stream.problem_at(one.position)
        ids = np.asarray(one.token_ids, np.int32)
        nothing = np.zeros(len(ids), np.float32)
        written = None if one.given is None else np.asarray(one.given, bool)
        base = Rollout(ids, nothing, nothing, nothing, finished=True, tool_written=written, episode=one.episode)
        prompt_ids = session.texts.prompt_ids(problem.prompt)
        group = PromptGroup(one.position, problem, prompt_ids, [base], np.ones(1), outcomes=["right"])
        group.trunks[0] = np.concatenate([prompt_ids, ids])
        count = session.config.returns.depths
        depths = probed_depths(one.depth, one.spacing, count, len(ids))
        if written is not None:  # a continuation begins where the policy chooses, not within a tool's answer
            depths = np.unique([_next_own(written, depth) for depth in depths])
        depths = depths.tolist()
        first = one.visits * count + 1  # states of several visits in a step have numbers, and so noise, of their own
        one.visits += 1
        states = list(range(first, first + len(depths)))
        return Anchored(group=group, base=0, anchors=depths, states=states, forks=depths, parent=one.parent)

    def learn(self, returns: ReturnConfig, explored: Sequence[Explored]) -> None:
        """Move each visited success to the depth at which its rollouts crossed the target.

        The depths of the next visit are closer together if these enclosed the crossing, and else further apart. A
        success leaves once its prompt itself reaches the target.
        """
        self._spend(returned=sum(len(r.token_ids) for one in explored for state in one.rollouts for r in state))
        by_parent = {one.parent: one for one in self.kept}
        for visited in explored:
            one = by_parent.get(visited.parent)
            if one is None:
                continue
            depths = np.array(visited.forks)
            values = np.array([np.mean([outcome == "right" for outcome in state]) for state in visited.outcomes])
            if depths[0] == 0 and values[0] >= returns.target:
                self.kept.remove(one)
                self.solved += 1
                continue
            widest = len(one.token_ids) / (returns.depths + 1)
            depth, enclosed = crossing_depth(depths, values, returns.target, one.spacing)
            one.spacing = max(LEAST_SPACING, one.spacing / 2) if enclosed else min(widest, 2 * one.spacing)
            one.depth = float(np.clip(depth, 0, len(one.token_ids) - 1))

    def _spend(self, fresh: float = 0.0, returned: float = 0.0) -> None:
        self.fresh_tokens = SHARE_DECAY * self.fresh_tokens + fresh
        self.returned_tokens = SHARE_DECAY * self.returned_tokens + returned

    def metrics(self, explored: Sequence[Explored]) -> dict[str, float]:
        """Metrics: kept and solved successes, and of the visits: mean reward, length, relative depth, mixed states."""
        found = {"returns/kept": len(self.kept), "returns/solved": self.solved, "returns/visits": len(explored)}
        found |= {"returns/all_wrong_share": self.all_wrong_share}
        if explored:
            rewards = [state for one in explored for state in one.rewards]
            lengths = [len(rollout.token_ids) for one in explored for state in one.rollouts for rollout in state]
            depths = [fork / len(one.rollout.token_ids) for one in explored for fork in one.forks]
            found |= {
                "returns/reward": float(np.mean(np.concatenate(rewards))),
                "returns/length": float(np.mean(lengths)),
                "returns/depth": float(np.mean(depths)),
                "returns/mixed_states": float(np.mean([not is_degenerate(state) for state in rewards])),
            }
        return found


def _next_own(written: np.ndarray, depth: int) -> int:
    """The first place from ``depth`` on whose token the policy chose; without one, the last place before."""
    own = np.flatnonzero(~written)
    after = own[own >= depth]
    return int(after[0] if len(after) else own[-1])


def credit_returns(config: Config, explored: Sequence[Explored]) -> list[Credited]:
    """The advantages of continuations: each state is a group of its own, with the estimator of states."""
    sizes = [len(state) for one in explored for state in one.rewards]
    if not sizes:
        return []
    rewards = np.concatenate([np.stack(one.rewards) for one in explored])
    right = np.array([[outcome == "right" for outcome in state] for one in explored for state in one.outcomes])
    a = config.advantage
    read = ranged_rewards(rewards, a.reward_range)
    advantages = group_advantages(
        read, estimator=config.returns.estimator, unbiased_std=a.unbiased_std, k=a.pass_at_k, right=right
    )
    credited, row = [], 0
    for one in explored:
        own = advantages[row : row + len(one.states)]
        row += len(one.states)
        credited.append(
            Credited(
                **vars(one),
                advantages=list(own),
                values=np.array([state.mean() for state in one.rewards]),
                alphas=np.ones(len(one.states)),
                initial_value=one.group.success_rate,
                trained=[not is_degenerate(state) for state in one.rewards],
                block_credit=[],
            )
        )
    return credited
