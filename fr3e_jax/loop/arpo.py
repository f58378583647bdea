"""ARPO: sample some rollouts of a prompt, then continue the states in which a tool's answer raised the entropy.

Source: Dong et al. 2025 (arXiv:2507.19849), section 3.1. A continuation leaves the cached rollout right after the
answer, so no position is computed twice.

Forks are decided in rounds: for the first rollouts, then for the rollouts that branched from them, and so on. The
released code decides call by call, for all rollouts in step. Both accept the same answers. They differ only in which
forks are dropped once the prompt has all its rollouts. After a round without forks, the missing rollouts are sampled
from the prompt.

Every rollout trains as a whole, shared prefix included. This is the paper's soft advantage (section 3.2): the
advantages of all rollouts that share a token weight that token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fr3e_jax.policy.network import Params
from fr3e_jax.programs.branching_programs import branching_decisions
from fr3e_jax.rollouts.noise import TOOL
from fr3e_jax.rollouts.requests import Branch, CachedTrunk, Ended, Key, Rollout, Selector, TrunkRequest
from fr3e_jax.rollouts.tool_calls import answer_spans
from fr3e_jax.session.session import Session

ENTROPY_TOKENS = 20  # compared: at the response's start, and after an answer
_NOTHING = Rollout(np.zeros(0, np.int32), *(np.zeros(0, np.float32) for _ in range(3)), finished=False)


@dataclass(frozen=True)
class _Fork:
    """A state to continue: the first ``position`` response tokens of rollout ``parent``."""

    parent: int
    position: int


@dataclass
class _Tree:
    """The rollouts of one prompt so far, and the forks to continue."""

    request: TrunkRequest
    rollouts: list[Rollout] = field(default_factory=list)
    forks: list[_Fork] = field(default_factory=list)  # to continue in the next round
    trunks: dict[int, CachedTrunk] = field(default_factory=dict)  # of the rollouts that forks leave
    root: CachedTrunk | None = None  # the first rollout; its cache begins with the prompt's

    @property
    def missing(self) -> int:
        """The number of rollouts still to sample."""
        return len(self.request.branches) - len(self.rollouts)


@dataclass
class _Limb:
    """One request of a round: the rollouts ``leaves`` of a tree, each with the prefix that it continues."""

    tree: int
    leaves: list[int]
    prefixes: list[Rollout]


def sample_branching(
    session: Session,
    params: Params,
    requests: Sequence[TrunkRequest],
    select: Selector,
    ended: Ended,
) -> tuple[list[list[Rollout]], dict[Key, CachedTrunk]]:
    """Sample as `Sampler.sample` does, but let rollouts branch after tool answers; return whole responses.

    ``select`` is called at the end and must choose nothing, because the caches are gone.

    Raises:
      ValueError: ``select`` chose a rollout.
    """
    first = session.config.tools.initial_rollouts
    trees = [_Tree(request) for request in requests]
    limbs = [_Limb(i, list(range(first)), [_NOTHING] * first) for i in range(len(trees))]
    requests = [replace(request, branches=request.branches[:first]) for request in requests]
    while limbs:
        _Round(session, trees, limbs, ended).sample(params, requests)
        limbs, requests = _next_round(session, trees)
    for index, tree in enumerate(trees):
        if select(index, tree.rollouts, True):
            raise ValueError(f"request {index}: a rollout of a branching sample cannot be chosen as a trunk")
    return [tree.rollouts for tree in trees], {}


class _Round:
    """One call of the engine: it samples the limbs of a round."""

    def __init__(self, session: Session, trees: list[_Tree], limbs: list[_Limb], ended: Ended):
        self._session, self._trees, self._limbs, self._ended = session, trees, limbs, ended
        self._forks: dict[int, list[_Fork]] = {}  # by limb

    def sample(self, params: Params, requests: Sequence[TrunkRequest]) -> None:
        """Add the new rollouts to their trees, and their forks while the trees have room."""
        results, promoted = self._session.sampler.sample(params, requests, self._select, self._relay)
        for index, limb in enumerate(self._limbs):  # a tree's limbs come in the order of its rollouts' numbers
            tree = self._trees[limb.tree]
            tree.rollouts += self._whole(index, results[index])
            for branch, leaf in enumerate(limb.leaves):
                if (index, branch) in promoted:
                    tree.trunks[leaf] = promoted[index, branch]
            tree.root = tree.root or tree.trunks.get(0)
        for index, limb in enumerate(self._limbs):
            tree = self._trees[limb.tree]
            tree.forks += self._forks.get(index, [])[: tree.missing - len(tree.forks)]

    def _whole(self, index: int, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Whole responses: the prefixes of a limb, each followed by its continuation."""
        pairs = zip(self._limbs[index].prefixes, rollouts, strict=True)
        return [prefix.then(continuation) for prefix, continuation in pairs]

    def _relay(self, rollouts: Sequence[tuple[int, int, Rollout]]) -> None:
        """Pass ended rollouts on to the caller, as whole responses with their prompt and number."""
        responses = []
        for index, branch, continuation in rollouts:
            limb = self._limbs[index]
            responses.append((limb.tree, limb.leaves[branch], limb.prefixes[branch].then(continuation)))
        self._ended(responses)

    def _select(self, index: int, rollouts: list[Rollout], wait: bool) -> list[int]:
        """Branches whose caches are needed: those with a fork, and the first rollout for the prompt's cache."""
        limb = self._limbs[index]
        room = len(self._trees[limb.tree].request.branches) - max(limb.leaves) - 1
        if room < 1:
            return []
        forks = self._forks[index] = self._accepted(limb, self._whole(index, rollouts))
        parents = {fork.parent for fork in forks} | {0}
        return [branch for branch, leaf in enumerate(limb.leaves) if leaf in parents]

    def _accepted(self, limb: _Limb, rollouts: list[Rollout]) -> list[_Fork]:
        """The forks that the rule accepts, out of ``tools.beam`` − 1 tries after each answer."""
        tools, cap = self._session.config.tools, self._session.config.rollout.max_response_tokens
        places = [
            (rollout, _Fork(leaf, end))
            for rollout, prefix, leaf in zip(rollouts, limb.prefixes, limb.leaves, strict=True)
            for _, end in answer_spans(rollout.tool_written)
            if len(prefix.token_ids) < end < min(len(rollout.token_ids), cap)
        ]
        if not places:
            return []
        names = self._trees[limb.tree].request.branches[0].stream[:3]
        sources = [self._session.noise.generator(TOOL, *names, fork.parent, fork.position) for _, fork in places]
        decisions = branching_decisions(
            [rollout.entropies for rollout, _ in places],
            [rollout.sampled for rollout, _ in places],
            [fork.position for _, fork in places],
            np.stack([source.random(tools.beam - 1) for source in sources]),
            most_tokens=cap,
            tokens=ENTROPY_TOKENS,
            vocabulary=self._session.model.architecture.vocab_size,
            weight=tools.entropy_weight,
            probability=tools.branch_probability,
        )
        return [fork for (_, fork), row in zip(places, decisions, strict=True) for _ in range(int(row.sum()))]


def _next_round(session: Session, trees: list[_Tree]) -> tuple[list[_Limb], list[TrunkRequest]]:
    """The limbs and requests that continue the forks; a prompt without forks samples all its missing rollouts."""
    limbs, requests = [], []
    for index, tree in enumerate(trees):
        if not tree.missing:
            tree.trunks, tree.root = {}, None
            continue
        first_leaf = len(tree.rollouts)
        forks = sorted(tree.forks, key=lambda fork: (fork.parent, fork.position)) or [_Fork(0, 0)] * tree.missing
        session.sampler.toolbox.counts["branched"] += len(tree.forks)
        for parent in dict.fromkeys(fork.parent for fork in forks):
            siblings = [fork for fork in forks if fork.parent == parent]
            leaves = list(range(first_leaf, first_leaf + len(siblings)))
            prefixes = [tree.rollouts[parent].head(fork.position) for fork in siblings]
            branches = [_continued(tree.request.branches[n], p) for n, p in zip(leaves, prefixes, strict=True)]
            trunk = tree.trunks.get(parent, tree.root)
            cached = replace(trunk) if trunk is tree.root else trunk
            requests.append(TrunkRequest(cached, branches, tree.request.problem))
            limbs.append(_Limb(index, leaves, prefixes))
            first_leaf += len(siblings)
        tree.forks, tree.trunks = [], {}
    return limbs, requests


def _continued(branch: Branch, prefix: Rollout) -> Branch:
    """The branch, continued after ``prefix``: a later fork and fewer tokens to sample."""
    length = len(prefix.token_ids)
    return replace(branch, fork=branch.fork + length, max_tokens=branch.max_tokens - length, prefix=prefix)
