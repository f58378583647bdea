"""Trunk-and-branch rows: how a batch of shared-prefix sequences passes the network once per token.

A row is one trunk and some lanes; a lane holds one or more branches end to end, told apart by ``segment``:

    trunk      q0 q1 q2 r0 r1 r2 r3 .        (. = padding)
    lane 0     a0 a1 a2 b0 b1 .  .  .        segment 1 1 1 2 2 0 0 0
    lane 1     c0 c1 c2 c3 c4 c5 c6 .        segment 3 3 3 3 3 3 3 0
    fork       a, b: 4   c: 3                trunk tokens that the branch's tokens see
    offset     0 1 2 0 1 ...                 position in the branch; absolute position = fork + offset

A branch's first token is predicted from the trunk's hidden state at ``fork - 1``, each later one from its predecessor.

Dimension key: B rows, S trunk positions, N lanes, T positions of a lane, E width, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from fr3e_jax.policy.attention import KeyValue
from fr3e_jax.policy.network import Params, bind


class Rows(NamedTuple):
    """Token ids and geometry of trunk-and-branch rows; see the drawing above."""

    trunk_ids: jax.Array  # int [B, S]
    branch_ids: jax.Array  # int [B, N, T]
    segment: jax.Array  # int [B, N, T], 0 = padding
    fork: jax.Array  # int [B, N, T], at least 1 on real tokens
    offset: jax.Array  # int [B, N, T]


class Trunks(NamedTuple):
    """What the network keeps of a batch of trunks."""

    layers: tuple[KeyValue, ...]  # key [B, K, D, S], value [B, K, S, D] of each layer
    hidden: jax.Array  # [B, S, E] after the final norm: from it the next token's logits


def run_trunks(graphdef: nnx.GraphDef, params: Params, trunk_ids: jax.Array) -> Trunks:
    """Causal pass over ``trunk_ids [B, S]``, padded on the right (padding is never seen: forks end before it)."""
    batch, length = trunk_ids.shape
    positions = jnp.broadcast_to(jnp.arange(length), (batch, 1, length))
    causal = jnp.broadcast_to(jnp.tril(jnp.ones((length, length), bool)), (batch, 1, length, length))
    hidden, owns = bind(graphdef, params)(trunk_ids[:, None], positions, causal)
    return Trunks(tuple(KeyValue(own.key[:, 0], own.value[:, 0]) for own in owns), hidden[:, 0])


def predicting_states(graphdef: nnx.GraphDef, params: Params, rows: Rows) -> jax.Array:
    """For every branch token the hidden state ``[B, N, T, E]`` it is predicted from; each token passes once."""
    trunks = run_trunks(graphdef, params, rows.trunk_ids)
    same = rows.segment[:, :, :, None] == rows.segment[:, :, None, :]
    length = rows.branch_ids.shape[-1]
    own_mask = same & jnp.tril(jnp.ones((1, 1, length, length), bool))
    hidden, _ = bind(graphdef, params)(
        rows.branch_ids, rows.fork + rows.offset, own_mask, trunk=trunks.layers, fork=rows.fork
    )
    # hidden    h(a0) h(a1) h(a2) h(b0) ...         predicts the token to its right, in its own branch
    # previous    0   h(a0) h(a1) h(a2) h(b0) ...   shifted by one
    # result    t[3]  h(a0) h(a1)  t[3] h(b0) ...   a branch's first token comes from the trunk at fork - 1
    previous = jnp.pad(hidden[:, :, :-1], ((0, 0), (0, 0), (1, 0), (0, 0)))
    at_fork = jnp.maximum(rows.fork - 1, 0).reshape(rows.fork.shape[0], -1, 1)
    from_trunk = jnp.take_along_axis(trunks.hidden, at_fork, axis=1).reshape(hidden.shape)
    return jnp.where((rows.offset == 0)[..., None], from_trunk, previous)


def score_states(
    graphdef: nnx.GraphDef,
    params: Params,
    states: jax.Array,
    token_ids: jax.Array,
    temperature: jax.Array,
    *,
    chunk: int,
    token_scores,
) -> tuple[jax.Array, jax.Array]:
    """Per-token scores from hidden states, ``chunk`` tokens at a time, so that ``[tokens, V]`` logits never exist.

    ``states [..., E]``, ``token_ids [...]``; ``token_scores(logits [chunk, V], token_ids [chunk], temperature)``
    returns two ``[chunk]`` arrays (log-prob at that temperature and entropy). The backward pass recomputes the chunk.
    """
    flat, ids = states.reshape(-1, states.shape[-1]), token_ids.reshape(-1)
    count = flat.shape[0]
    chunk = min(chunk, count)
    padding = -count % chunk
    flat = jnp.pad(flat, ((0, padding), (0, 0))).reshape(-1, chunk, flat.shape[-1])
    ids = jnp.pad(ids, (0, padding)).reshape(-1, chunk)

    @jax.checkpoint
    def one(piece):
        return token_scores(bind(graphdef, params).logits(piece[0]), piece[1], temperature)

    first, second = jax.lax.map(one, (flat, ids))
    return first.reshape(-1)[:count].reshape(token_ids.shape), second.reshape(-1)[:count].reshape(token_ids.shape)
