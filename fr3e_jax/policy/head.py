"""The output head, applied to the counted tokens a chunk at a time: ``[tokens, V]`` logits never exist as a whole.

Tokens that are not counted (padding, and tokens without a loss) are sorted after the counted ones. A loop whose length
is known at run time ends before them. `token_loss` computes the loss and its gradient in the same pass over a chunk, as
fused linear cross-entropies do: the logits are computed once and never kept.

Tokens are sorted within each of ``shards`` groups of rows. So on a mesh no token leaves its device, and the head's
gradient is summed over devices once. Where rows are cut into parts, a token's state may lie in another part, and
`StateTransfer` reads it there.

Dimension key: B rows, Q queried tokens of a row, P positions of a row, F shards of rows, U = B·Q/F tokens of a shard,
E width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fr3e_jax.policy.attention import softcapped


class Head(NamedTuple):
    """The output weight as stored (`fr3e_jax.policy.network.Decoder.output_weight`), and the softcap."""

    weight: jax.Array  # [V, E] where tied, else [E, V]
    tied: bool
    softcap: float = 0.0  # of logits; 0: none


class Counted(NamedTuple):
    """Tokens sorted so that the counted ones come first; all but ``count`` are ``[F, U]``, padded to whole chunks."""

    order: jax.Array  # int, position in the shard's B·Q/F tokens
    source: jax.Array  # int, position in the shard's B·P/F states
    valid: jax.Array  # bool, whether the token is counted
    count: jax.Array  # int scalar, counted tokens of the fullest shard


def _take_states(hidden: jax.Array, source: jax.Array) -> jax.Array:
    return jnp.take_along_axis(hidden, source[..., None], axis=1)


def _add_to_states(total: jax.Array, source: jax.Array, new: jax.Array) -> jax.Array:
    # Shard by shard: with indices of shard and source, XLA would first gather the states of all shards on every device.
    return jax.vmap(lambda total, at, new: total.at[at].add(new))(total, source, new)


@dataclass(frozen=True)
class StateTransfer:
    """The transfer of predicting states to tokens, and of the tokens' gradients back to the states.

    The default serves shards that hold whole rows. (`fr3e_jax.programs.context_axis` makes that of rows in parts.)
    """

    parts: int = 1  # of a row; as many shards hold the states of the same rows
    take: Callable[[jax.Array, jax.Array], jax.Array] = _take_states  # of [F, states, E] and [F, n]: [F, n, E]
    add: Callable[[jax.Array, jax.Array, jax.Array], jax.Array] = _add_to_states  # the sum with [F, n, E] added


LOCAL_STATES = StateTransfer()


def count_tokens(mask: jax.Array, source: jax.Array, positions: int, *, shards: int, chunk: int) -> Counted:
    """Sort the tokens of each shard so that the counted ones come first.

    Args:
      mask: bool ``[B, Q]``, true where a token is counted.
      source: int ``[B, Q]``, position of each token's hidden state in its row, or in its parts one after another.
      positions: P, hidden states of a row, or of a part of it.
      shards: F; divides B.
      chunk: tokens of each shard whose logits exist at once, at most.
    """
    rows, queried = mask.shape
    group = rows // shards
    row = jnp.arange(rows, dtype=jnp.int32)[:, None] % group
    part_index = source // positions  # after the states of all rows in the parts before
    source = source + (part_index * (group - 1) + row) * positions
    mask, source = (x.reshape(shards, -1) for x in (mask, source))
    order = jnp.argsort(~mask, axis=1, stable=True)
    padding = -order.shape[1] % even_chunk(chunk, order.shape[1])

    def pad(x):
        return jnp.pad(jnp.take_along_axis(x, order, axis=1), ((0, 0), (0, padding)))

    return Counted(jnp.pad(order, ((0, 0), (0, padding))), pad(source), pad(mask), mask.sum(axis=1).max())


def gather_tokens(counted: Counted, values: Any) -> Any:
    """Arrays ``[B, ...]`` of per-token values as ``[F, U]`` in the order of ``counted``."""
    shards = counted.order.shape[0]
    return jax.tree.map(lambda x: jnp.take_along_axis(x.reshape(shards, -1), counted.order, axis=1), values)


def scatter_tokens(counted: Counted, values: Any, shape: tuple[int, ...]) -> Any:
    """The inverse of `gather_tokens`, as arrays of ``shape`` (``[B, ...]``); 0 where a token is not counted."""
    unsort = jnp.argsort(counted.order[:, : math.prod(shape) // counted.order.shape[0]], axis=1)

    def back(x):
        return jnp.take_along_axis(jnp.where(counted.valid, x, 0.0), unsort, axis=1).reshape(shape)

    return jax.tree.map(back, values)


def even_chunk(chunk: int, tokens: int) -> int:
    """The size of equal chunks, at most ``chunk``, that hold all ``tokens``: the last one is not left half empty."""
    return -(-tokens // -(-tokens // chunk))


def _chunks(counted: Counted, chunk: int) -> tuple[int, jax.Array]:
    chunk = even_chunk(chunk, counted.order.shape[1])
    return chunk, (counted.count + chunk - 1) // chunk


def _piece(x: Any, start: jax.Array, chunk: int) -> Any:
    return jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, start, chunk, 1), x)


def _products(weight: jax.Array, tied: bool, states: jax.Array) -> jax.Array:
    """Logits before a softcap, float32 ``[F, chunk, V]``."""
    contract = (((2,), (1 if tied else 0,)), ((), ()))
    return jax.lax.dot_general(states, weight.astype(states.dtype), contract, preferred_element_type=jnp.float32)


def by_shard(hidden: jax.Array, shards: int) -> jax.Array:
    """Hidden states ``[B, P, E]`` as ``[F, states, E]``."""
    return hidden.reshape(shards, -1, hidden.shape[-1])


def head_logits(head: Head, states: jax.Array) -> jax.Array:
    """Logits of states ``[F, chunk, E]``, float32 ``[F, chunk, V]``."""
    return softcapped(_products(head.weight, head.tied, states), head.softcap)


def token_scores(
    head: Head,
    hidden: jax.Array,
    counted: Counted,
    ids: jax.Array,
    scores: Callable,
    *,
    chunk: int,
    states: StateTransfer = LOCAL_STATES,
) -> tuple[jax.Array, ...]:
    """Two scores of each counted token, shaped as ``ids``; 0 elsewhere. Not for differentiation.

    Args:
      head: the output weight.
      hidden: ``[B, P, E]``.
      counted: the tokens, of `count_tokens`.
      ids: int ``[B, ...]``, Q token ids a row.
      scores: ``(logits [F, chunk, V], ids [F, chunk]) -> two arrays [F, chunk]``.
      chunk: as for `count_tokens`.
      states: how tokens read their states.
    """
    shards = counted.order.shape[0]
    hidden, sorted_ids = by_shard(hidden, shards), gather_tokens(counted, ids)
    chunk, loops = _chunks(counted, chunk)

    def body(i, out):
        source, at = _piece((counted.source, sorted_ids), i * chunk, chunk)
        fresh = scores(head_logits(head, states.take(hidden, source)), at)
        return tuple(jax.lax.dynamic_update_slice_in_dim(o, f, i * chunk, 1) for o, f in zip(out, fresh, strict=True))

    empty = jnp.zeros(counted.order.shape, jnp.float32)
    out = jax.lax.fori_loop(0, loops, body, (empty, empty))
    return scatter_tokens(counted, out, ids.shape)


def token_loss(
    head: Head,
    hidden: jax.Array,
    counted: Counted,
    tokens: Any,
    scalars: Any,
    loss: Callable,
    *,
    chunk: int,
    shard_gradient: Callable[[jax.Array], jax.Array] = lambda x: x,
    states: StateTransfer = LOCAL_STATES,
    frozen: bool = False,
) -> tuple[jax.Array, tuple[dict[str, jax.Array], Any]]:
    """Sum of a loss over the counted tokens, sums for the metrics, and values of each token (``[F, U]``).

    Differentiable in weight and ``hidden``.

    Args:
      head: the output weight.
      hidden: ``[B, P, E]``.
      counted: the tokens, of `count_tokens`.
      tokens: pytree of ``[F, U]`` (`gather_tokens`).
      scalars: pytree of further inputs of ``loss``; no gradient reaches it.
      loss: ``(logits [F, chunk, V], valid [F, chunk], tokens, scalars) -> (scalar, (dict of scalars, values))``, where
        ``values`` is a pytree of float32 ``[F, chunk]``; it may be empty.
      chunk: tokens of each shard whose logits exist at once.
      shard_gradient: puts an array ``[F, ...]`` onto the mesh.
      states: how tokens read their states.
      frozen: the weight is not trained; its gradient is not computed, and is 0.
    """
    run = _fused(loss, head, chunk, shard_gradient, states, frozen)
    return run(head.weight, by_shard(hidden, counted.order.shape[0]), counted, tokens, scalars)


def _fused(
    loss: Callable, head: Head, chunk: int, shard_gradient: Callable, transfer: StateTransfer, frozen: bool
) -> Callable:
    """``(weight, hidden, counted, tokens, scalars) -> (total, sums)``; the forward pass also computes the gradient."""
    tied, softcap = head.tied, head.softcap

    def forward(with_gradient, weight, hidden, counted, tokens, scalars):
        size, loops = _chunks(counted, chunk)

        def take(i):
            return _piece((counted.source, counted.valid, tokens), i * size, size)

        def loss_of_piece(states, valid, piece):
            logits = _products(weight, tied, states)

            def run(logits):
                return loss(softcapped(logits, softcap), valid, piece, scalars)

            return jax.value_and_grad(run, has_aux=True)(logits) if with_gradient else (run(logits), None)

        def body(i, carry):
            totals, token_values, gradients = carry
            source, valid, piece = take(i)
            states = transfer.take(hidden, source)
            (fresh, (sums, values)), slope = loss_of_piece(states, valid, piece)
            totals = jax.tree.map(jnp.add, totals, (fresh, sums))

            def put(buffer, values_of_piece):
                return jax.lax.dynamic_update_slice_in_dim(buffer, values_of_piece, i * size, 1)

            token_values = jax.tree.map(put, token_values, values)
            if with_gradient:
                d_weight, d_hidden = gradients
                new_weight, new_states = _gradients(weight, tied, states, slope.astype(states.dtype), frozen)
                d_weight = None if frozen else d_weight + new_weight
                gradients = d_weight, transfer.add(d_hidden, source, new_states)
            return totals, token_values, gradients

        total, (sums, values) = jax.eval_shape(lambda: loss_of_piece(*_abstract_piece(hidden, take, transfer))[0])
        totals = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), (total, sums))
        token_values = jax.tree.map(lambda s: jnp.zeros(counted.order.shape, s.dtype), values)
        # Placed explicitly: XLA might split this gradient as the weight is split, and gather all shards' logits for it.
        by_width = weight.shape[::-1] if tied else weight.shape  # [E, V]

        def empty(*shape):
            return shard_gradient(jnp.zeros(shape, jnp.float32))

        start = None if frozen else empty(hidden.shape[0], *by_width), empty(*hidden.shape)
        (total, sums), token_values, gradients = jax.lax.fori_loop(
            0, loops, body, (totals, token_values, start if with_gradient else None)
        )
        return (total, (sums, token_values)), gradients

    @jax.custom_vjp
    def run(*inputs):
        return forward(False, *inputs)[0]

    def run_forward(weight, hidden, counted, tokens, scalars):
        out, (d_weight, d_hidden) = forward(True, weight, hidden, counted, tokens, scalars)
        if frozen:
            return out, (jnp.zeros_like(weight), d_hidden.astype(hidden.dtype), counted, tokens, scalars)
        d_weight = d_weight.sum(axis=0).astype(weight.dtype)
        d_weight = d_weight.T if tied else d_weight
        return out, (d_weight, d_hidden.astype(hidden.dtype), counted, tokens, scalars)

    def run_backward(saved, cotangent):
        d_weight, d_hidden, *rest = saved

        def scaled(x):
            return x * cotangent[0].astype(x.dtype)

        return scaled(d_weight), scaled(d_hidden), *(jax.tree.map(_no_gradient, gradient) for gradient in rest)

    run.defvjp(run_forward, run_backward)
    return run


def _abstract_piece(hidden, take, transfer):
    source, valid, piece = take(jnp.zeros((), jnp.int32))
    return transfer.take(hidden, source), valid, piece


def _no_gradient(x: jax.Array):
    if jnp.issubdtype(x.dtype, jnp.floating):
        return jnp.zeros_like(x)
    return np.zeros(x.shape, jax.dtypes.float0)


def _gradients(weight, tied: bool, states, slope, frozen: bool):
    """A chunk's share of the weight's gradient, and that of its states; ``slope``: the gradient of the logits.

    The first is None if the weight is ``frozen``.
    """
    product, d_weight = partial(jax.lax.dot_general, preferred_element_type=jnp.float32), None
    if not frozen:
        # Lay the states out as [E, chunk]: XLA on CPU takes twice as long over a product that transposes a factor.
        columns = jax.lax.optimization_barrier(jnp.swapaxes(states, 1, 2))
        d_weight = product(columns, slope, (((2,), (1,)), ((0,), (0,))))
    d_states = product(slope, weight.astype(slope.dtype), (((2,), (0 if tied else 1,)), ((), ())))
    return d_weight, d_states
