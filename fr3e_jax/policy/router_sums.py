"""Sums over tokens of what the routers of a network decide: for metrics, and for a loss that balances the experts.

Everything is a count or a sum over tokens, so that those of micro-batches and of devices add up to those of all tokens.

Dimension key: U tokens, X experts, C experts of a token, L layers with experts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp


class RouterSums(NamedTuple):
    """Sums of one layer over the tokens that count; of several layers each has an axis ``[L, ...]`` in front."""

    tokens: jax.Array  # int32 [X], tokens that passed each expert
    probabilities: jax.Array  # float32 [X], probabilities of each expert, with gradients of the router's weights alone
    entropy: jax.Array  # float32 scalar, entropies of the router's distribution in nats
    changed: jax.Array  # float32 scalar, of each token the share of its C experts that the router would not choose


def router_sums(logits_of: Callable, x: jax.Array, passed: jax.Array, counted: jax.Array) -> RouterSums:
    """The sums of a layer.

    Args:
      logits_of: the router, ``x -> float32 [U, X]``.
      x: ``[U, E]``, what the router reads.
      passed: int ``[U, C]``, the experts that the tokens passed: its own choice, or a recorded one.
      counted: bool ``[U]``, the tokens that count.
    """
    logits = logits_of(jax.lax.stop_gradient(x))
    fixed, every = jax.lax.stop_gradient(logits), jnp.arange(logits.shape[-1]).reshape(1, 1, -1)
    logprobs = jax.nn.log_softmax(fixed)
    entropies = -jnp.sum(jnp.exp(logprobs) * logprobs, axis=-1)
    passed = passed.astype(jnp.int32)[..., None]  # compared with all experts: a scatter is slow on accelerators
    chosen = jnp.take_along_axis(fixed, passed[..., 0], axis=-1)[..., None]
    others = fixed[:, None, :]
    # `jax.lax.top_k` takes the first of equal logits.
    before = jnp.sum((others > chosen) | ((others == chosen) & (every < passed)), axis=-1)

    def sum_up(values):
        return jnp.sum(values, axis=0, where=counted.reshape(-1, *(1,) * (values.ndim - 1)))

    return RouterSums(
        sum_up(jnp.sum(passed == every, axis=1, dtype=jnp.int32)),
        sum_up(jax.nn.softmax(logits)),
        sum_up(entropies),
        sum_up(jnp.mean(before >= passed.shape[1], axis=1)),
    )


def of_layers(sums: Sequence[RouterSums | None]) -> RouterSums | None:
    """The sums of all layers that have some, one after another; None: no layer has."""
    present = [layer for layer in sums if layer is not None]
    return jax.tree.map(lambda *layers: jnp.stack(layers), *present) if present else None


def in_turn(stacked: Sequence[RouterSums | None], layers: int) -> list[RouterSums | None]:
    """The sums of ``layers`` layers; entry i of ``stacked`` has an axis of the layers i, i + n, i + 2n, ... of n."""

    def of(layer):
        return jax.tree.map(lambda leaf: leaf[layer // len(stacked)], stacked[layer % len(stacked)])

    return [of(layer) for layer in range(layers)]


class Balance(NamedTuple):
    """The inputs of a loss for balanced experts beside a micro-batch (Fedus et al. 2022, eq. 4-6, over all layers).

    The loss is ``X Σ_e f_e P_e``: the share f of the routes, of C for each token and layer, that go to expert e, and
    the mean P of its probability over tokens and layers. With even shares it is C, as in transformers'
    ``load_balancing_loss_func``; Fedus et al. divide by C. It is linear in P, so with f of a whole mini-batch the
    micro-batches' losses, and their gradients, add up to those of the mini-batch.
    """

    coefficient: jax.Array  # float32 scalar
    tokens: jax.Array  # float32 scalar, of the mini-batch
    routes: jax.Array | None = None  # float32 [X], of its tokens in all layers; None: each micro-batch's are read


def balance_loss(
    sums: RouterSums, balance: Balance, tokens: jax.Array, of_all: Callable[[jax.Array], jax.Array] = lambda x: x
) -> jax.Array:
    """A micro-batch's part of the loss, without the coefficient; ``tokens``: how many of it count.

    ``of_all``: sums over the parts of the micro-batch, where ``sums`` are of one of them.
    """
    layers, experts = sums.tokens.shape
    routes, of = balance.routes, balance.tokens
    if routes is None:
        routes, of = of_all(sums.tokens.sum(axis=0)), jnp.maximum(tokens, 1)
    shares, probabilities = routes / (of * layers), sums.probabilities.sum(axis=0) / (balance.tokens * layers)
    return experts * jnp.sum(shares * probabilities)


def count_routes(routes: jax.Array, counted: jax.Array, experts: int) -> jax.Array:
    """int32 ``[X]``: how often recorded ``routes [B, Q, N, T]`` name each expert, over the tokens in ``[B, N, T]``."""
    named = routes[..., None].astype(jnp.int32) == jnp.arange(experts).reshape(1, 1, 1, 1, -1)
    return jnp.sum(named & counted[:, None, ..., None], axis=(0, 1, 2, 3), dtype=jnp.int32)


def router_metrics(sums: RouterSums, *, replayed: bool) -> dict[str, jax.Array]:
    """The sums of a micro-batch's tokens that metrics are made of.

    ``router_entropy``: of each token the mean over layers, in nats; ``routes_changed``, if recorded experts were
    ``replayed``: of each token the share of these that its routers would not choose; ``expert_tokens``: int32
    ``[L, X]``, how many tokens passed each expert.
    """
    layers = sums.tokens.shape[0]
    metrics = {"router_entropy": sums.entropy.sum() / layers, "expert_tokens": sums.tokens}
    if replayed:
        metrics["routes_changed"] = sums.changed.sum() / layers
    return metrics
