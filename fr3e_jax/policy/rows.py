"""Trunk-and-branch rows: sequences that share prefixes, packed so that each token passes the network once.

A row holds one or more trunks end to end, and branches of any of them end to end, over lanes of equal size:

    trunk      q0 q1 q2 r0 r1 r2 r3 s0 s1 .  trunk_segment 1 1 1 1 1 1 1 2 2 0   (. = padding)
    lane 0     a0 a1 a2 b0 b1                segment       1 1 1 2 2
    lane 1     b2 c0 c1 c2 d0                segment       2 3 3 3 4
    lane 2     d1 d2 .  .  .                 segment       4 4 0 0 0
    start      a, b, c: 0   d: 7             position at which the branch's trunk begins
    fork       a, b: 4   c: 3   d: 2         trunk tokens that the branch's tokens see
    offset     0 1 2 0 1 / 2 0 1 2 0 / 1 2   position in the branch; absolute position = fork + offset

A token is compared with the trunk and with the last W lanes, its own included. So a branch of up to (W - 1)·T + 1
tokens may begin anywhere, and only the end of the last lane stays empty. With W = 1 no branch crosses lanes.

A branch's first token is predicted from the trunk's hidden state at ``start + fork - 1``, each later one from the
hidden state of its predecessor.

A trunk's own tokens may train, too: those of a base rollout. They pass the network as the trunk, and A further lanes
have the inputs of their loss. Position s of these lanes, counted through all of them, is the trunk's position s:

    trunk's lane 0   .  .  .  .  r0    segment   0 0 0 0 3
    trunk's lane 1   r1 r2 r3 .  .               3 3 3 0 0

Dimension key: B rows, S trunk positions, N lanes, T positions of a lane, W lanes seen, A lanes of trunk tokens that
train (0, or A·T ≥ S), P = S + N·T positions of a whole row, K key/value heads, D head size, E width, Q routes of a
token (`fr3e_jax.policy.network`).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from fr3e_jax.policy.attention import KeyValue, RowView
from fr3e_jax.policy.network import DEFAULT_LAYOUT, DEFAULT_OPTIONS, ForwardOptions, MeshLayout, Params, bind
from fr3e_jax.policy.router_sums import RouterSums
from fr3e_jax.policy.row_parts import RowSizes, cut_row, places_in_parts


class Rows(NamedTuple):
    """Token ids and geometry of trunk-and-branch rows; see the drawings above."""

    trunk_ids: jax.Array  # int [B, S]
    trunk_segment: jax.Array  # int [B, S], 0 = padding
    trunk_offset: jax.Array  # int [B, S], position in the trunk
    branch_ids: jax.Array  # int [B, N + A, T]
    segment: jax.Array  # int [B, N + A, T], 0 = padding
    start: jax.Array  # int [B, N + A, T]
    fork: jax.Array  # int [B, N + A, T], at least 1 on real tokens
    offset: jax.Array  # int [B, N + A, T]
    window: jax.Array | None = None  # bool [B, W]: only its shape counts, known at compile time; None: W = 1
    trunk_routes: jax.Array | None = None  # int [B, Q, S], recorded experts, which tokens pass again; None: chosen anew
    branch_routes: jax.Array | None = None  # int [B, Q, N + A, T]
    trained_trunk: jax.Array | None = None  # bool [B, A]: only its shape counts; None: A = 0

    @property
    def lanes(self) -> int:
        """N, the lanes that pass the network."""
        return self.segment.shape[1] - (0 if self.trained_trunk is None else self.trained_trunk.shape[1])


class Trunks(NamedTuple):
    """The cache of a batch of trunks, and the states from which their branches' first tokens are drawn."""

    layers: tuple[KeyValue, ...]  # key [B, K, D, S], value [B, K, S, D] of each layer
    hidden: jax.Array  # [B, S, E] after the final norm
    routes: jax.Array | None = None  # int [B, S, Q], the experts of each position, where a caller records them


def run_trunks(
    graphdef: nnx.GraphDef, params: Params, trunk_ids: jax.Array, layout: MeshLayout = DEFAULT_LAYOUT
) -> Trunks:
    """Causal pass over ``trunk_ids [B, S]``, padded on the right (padding is never seen: forks end before it)."""
    hidden, layers, routes = bind(graphdef, params).causal(trunk_ids, layout)
    return Trunks(layers, hidden, routes)


def row_states(
    graphdef: nnx.GraphDef, params: Params, rows: Rows, options: ForwardOptions = DEFAULT_OPTIONS
) -> jax.Array:
    """Hidden states of the trunk's tokens, then of the lanes' tokens; each token passes once.

    ``[B, P, E]``; ``[A * B, P / A, E]`` in the order of `fr3e_jax.policy.row_parts` where the layout cuts rows.
    """
    return row_pass(graphdef, params, rows, options)[0]


def row_pass(
    graphdef: nnx.GraphDef,
    params: Params,
    rows: Rows,
    options: ForwardOptions = DEFAULT_OPTIONS,
    counted: jax.Array | None = None,
) -> tuple[jax.Array, RouterSums | None]:
    """`row_states`, and what routers decided on the tokens ``counted`` (bool ``[B, N + A, T]``) in its layers.

    There are no sums without ``counted`` or without experts.
    """
    layout = options.layout

    def branch_lanes(lanes):
        return lanes if rows.trained_trunk is None else lanes[..., : rows.lanes, :]

    def row(trunk, lanes):
        return layout.by_shard(cut_row(trunk, branch_lanes(lanes), layout.parts, mode="edge"))

    ids = row(rows.trunk_ids, rows.branch_ids)
    positions = row(rows.trunk_offset, rows.fork + rows.offset)
    window = 1 if rows.window is None else rows.window.shape[1]
    view = RowView(rows.trunk_segment, *map(branch_lanes, (rows.segment, rows.fork, rows.start)))
    routes = None if rows.trunk_routes is None else row(rows.trunk_routes, rows.branch_routes)
    offset, network = branch_lanes(rows.offset), bind(graphdef, params)
    if counted is None or not any(network.sparse):
        return network.rows(ids, positions, view, offset, routes, window=window, options=options)
    on_trunk, size = counted[:, rows.lanes :].reshape(len(counted), -1), rows.trunk_ids.shape[1]
    on_trunk = on_trunk[:, :size] if on_trunk.shape[1] else jnp.zeros(rows.trunk_ids.shape, bool)
    counted = layout.by_shard(cut_row(on_trunk, branch_lanes(counted), layout.parts))
    return network.rows(ids, positions, view, offset, routes, counted, window=window, options=options)


def predictors(rows: Rows, parts: int = 1) -> jax.Array:
    """int ``[B, (N + A) * T]``: the position in `row_states` from which each token of the lanes is predicted.

    For tokens a0 a1 a2 b0 ... in lanes that begin at position S: start+fork-1, S, S+1, start+fork-1, ...
    In the lanes of trunk tokens it is the trunk's position before.
    Of several ``parts`` the positions count on, from one part of the row to the next.
    """
    batch, all_lanes, length = rows.offset.shape
    trunk, lanes = rows.trunk_ids.shape[1], rows.lanes
    before = trunk + jnp.arange(all_lanes * length).reshape(1, all_lanes, length) - 1
    at_fork = jnp.maximum(rows.start + rows.fork - 1, 0)
    source = jnp.where(rows.offset == 0, at_fork, before).reshape(batch, -1)
    if lanes < all_lanes:
        of_trunk = jnp.clip(jnp.arange((all_lanes - lanes) * length) - 1, 0, trunk - 1)
        of_trunk = jnp.broadcast_to(of_trunk, (batch, of_trunk.size))
        source = jnp.concatenate([source[:, : lanes * length], of_trunk], axis=1)
    return source if parts == 1 else jnp.asarray(places_in_parts(RowSizes(trunk, lanes, length), parts))[source]
