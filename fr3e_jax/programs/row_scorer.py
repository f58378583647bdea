"""The network and its head over trunk-and-branch rows: scores of their tokens, for the policy and for a teacher.

Dimension key: B rows, N lanes of a row, T positions of a lane, F groups of rows, one for each shard, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from fr3e_jax.objectives.entropy import branching_factor, token_entropy, token_logprobs
from fr3e_jax.policy.head import Counted, Head, by_shard, count_tokens, head_logits, token_scores
from fr3e_jax.policy.lora import joined
from fr3e_jax.policy.network import DEFAULT_OPTIONS, ForwardOptions, bind
from fr3e_jax.policy.router_sums import RouterSums
from fr3e_jax.policy.row_parts import cut, join
from fr3e_jax.policy.rows import Rows, predictors, row_pass
from fr3e_jax.programs.frozen_teacher import FrozenTeacher
from fr3e_jax.programs.replicas import REPLICA, longest_of_all
from fr3e_jax.programs.shardings import mesh_layout


@dataclass(frozen=True)
class RowScorer:
    """The network and its head over trunk-and-branch rows: the static part of every training pass.

    ``params`` are the network's parameters, or base and adapters (`fr3e_jax.policy.lora.Adapted`).
    """

    graphdef: nnx.GraphDef
    chunk: int = 1024  # tokens of each shard whose logits exist at once
    shards: int = 1  # groups of rows or of their parts, one for each shard of the mesh: tokens are sorted within one
    options: ForwardOptions = DEFAULT_OPTIONS
    axis: str | None = None  # of replicas, over which the pass is mapped
    columns: int | None = None  # tokens of the vocabulary that are scored, the first ones; None: all
    replays: bool = True  # routes that rows have are taken

    def tokens(
        self, params, rows: Rows, mask: jax.Array, *, routers: bool = False
    ) -> tuple[Head, jax.Array, Counted, RouterSums | None]:
        """Head, hidden states of `row_states`, and the tokens of ``mask [B, N, T]``, to which the head is applied.

        With ``routers`` also what these decided on the tokens, if the network has any.
        """
        layout, params = self.options.layout, joined(params)
        if not self.replays:
            rows = rows._replace(trunk_routes=None, branch_routes=None)
        states, sums = row_pass(self.graphdef, params, rows, self.options, mask if routers else None)
        sources = predictors(rows, layout.parts).reshape(mask.shape)
        mask, sources = (x.reshape(x.shape[0], -1) for x in self.by_part((mask, sources)))
        counted = count_tokens(mask, sources, states.shape[1], shards=self.shards, chunk=self.chunk)
        counted = counted._replace(count=longest_of_all(counted.count, self.axis))
        head = bind(self.graphdef, params).output_weight()
        return head._replace(weight=layout.head(head.weight, 0 if head.tied else 1)), states, counted, sums

    def of_replica(self, mesh: Mesh) -> RowScorer:
        """The same for the rows of one replica, in a pass that is mapped over the replicas of ``mesh``."""
        layout = mesh_layout(mesh, self.options.attention, each_replica=True)
        shards = self.shards // mesh.shape[REPLICA]
        return replace(self, shards=shards, options=replace(self.options, layout=layout), axis=REPLICA)

    def of_teacher(self, teacher: FrozenTeacher, mesh: Mesh) -> RowScorer:
        """The same for the teacher's network, on the same rows, whose routes are the policy's."""
        layout = mesh_layout(mesh, teacher.options.attention, each_replica=self.axis is not None)
        options = replace(teacher.options, layout=layout)
        return replace(self, graphdef=teacher.graphdef, options=options, columns=teacher.columns, replays=False)

    def logits(self, params, rows: Rows, mask: jax.Array) -> tuple[jax.Array, Callable]:
        """Arrays of a pass that is not differentiated, and a function of them that makes the logits of a chunk.

        The function takes the arrays and ``Counted.source [F, chunk]``.
        """
        head, states, counted, _ = self.tokens(params, rows, mask)
        tied, softcap, take = head.tied, head.softcap, self.options.layout.states.take

        def chunk_logits(arrays, source):
            weight, hidden = arrays
            return head_logits(Head(weight, tied, softcap), take(hidden, source))[..., : self.columns]

        return (head.weight, by_shard(states, counted.order.shape[0])), chunk_logits

    def by_part(self, values: Any) -> Any:
        """Arrays ``[B, N, T]`` of the branch tokens, cut as rows are: ``[A * B, N, T / A]``, padded with 0."""
        layout = self.options.layout
        return jax.tree.map(lambda x: layout.by_shard(cut(x, layout.parts)), values)

    def whole(self, values: Any, length: int) -> Any:
        """The inverse of `by_part` for lanes of ``length`` positions."""
        parts = self.options.layout.parts
        return jax.tree.map(lambda x: join(x.reshape(parts, -1, *x.shape[1:]), length), values)

    def score(self, params, rows: Rows, temperature: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Log-probs (at ``temperature``) and entropies (nats, at temperature 1) of the branch tokens, ``[B, N, T]``.

        0 on padding.
        """

        def scores(logits, ids):
            return logprobs_and_entropies(logits[..., : self.columns], ids, temperature)

        return self._token_scores(params, rows, scores)

    def branching(self, params, rows: Rows) -> jax.Array:
        """Rollout branching factors (temperature 1, mass 0.95) of the states that the branch tokens were drawn from.

        Float ``[B, N, T]``; 0 on padding. (Deng et al. 2025, section 2.2.)
        """

        def scores(logits, ids):
            factors = branching_factor(logits).astype(jnp.float32)
            return factors, factors

        return self._token_scores(params, rows, scores)[0]

    def _token_scores(self, params, rows: Rows, scores: Callable) -> tuple[jax.Array, ...]:
        head, states, counted, _ = self.tokens(params, rows, rows.segment > 0)
        ids, transfer = self.by_part(rows.branch_ids), self.options.layout.states
        scores_ = token_scores(head, states, counted, ids, scores, chunk=self.chunk, states=transfer)
        return self.whole(scores_, rows.branch_ids.shape[-1])


def logprobs_and_entropies(
    logits: jax.Array, token_ids: jax.Array, temperature: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Log-probs of tokens at ``temperature``, and entropies at temperature 1 (nats), of logits ``[..., V]``."""
    return token_logprobs(logits / temperature, token_ids), token_entropy(logits)
