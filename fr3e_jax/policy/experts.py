"""Routed experts: the MLP of a sparse layer, of which each token passes the few experts that its router prefers.

Tokens are sorted by expert, so that each expert has one product with all of its tokens (`jax.lax.ragged_dot`). No token
is dropped, and no expert has a capacity. (Shazeer et al. 2017; Gale et al. 2023, MegaBlocks.)

Dimension key: U tokens, X experts, C experts chosen for a token, E width, F columns of an expert's gate.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from fr3e_jax.policy.architecture import Architecture
from fr3e_jax.policy.modules import GATES, Linear, parameter
from fr3e_jax.policy.router_sums import RouterSums, router_sums


def routes_type(num_experts: int) -> np.dtype:
    """The type in which numbers of experts are recorded."""
    return np.dtype(np.uint8 if num_experts <= 256 else np.uint16)


class Kernels(NamedTuple):
    """The weights of a layer's experts."""

    gate: jax.Array  # [X, E, F]
    up: jax.Array  # [X, E, F]
    down: jax.Array  # [X, F, E]


class ExpertChoice(NamedTuple):
    """The experts of each token, and the factors of what they add."""

    experts: jax.Array  # int32 [U, C]
    weights: jax.Array  # float32 [U, C]


def routed(logits: jax.Array, count: int, *, normalised: bool, experts: jax.Array | None = None) -> ExpertChoice:
    """The ``count`` likeliest experts of each token and their probabilities; ``logits``: float32 ``[U, X]``.

    ``normalised``: the probabilities of a token's experts sum to 1, else those of all experts do. ``experts [U, C]``:
    the choice was made before; weights, and gradients of the logits, are those of these experts.
    """
    if experts is None:
        experts = jax.lax.top_k(jax.lax.stop_gradient(logits), count)[1]
    experts = experts.astype(jnp.int32)
    chosen = jnp.take_along_axis(logits, experts, axis=-1)
    total = jax.nn.logsumexp(chosen if normalised else logits, axis=-1, keepdims=True)
    return ExpertChoice(experts, jnp.exp(chosen - total))


# Both directions gather: jax's gradient of a gather is a scatter, which accelerators do far more slowly.
@jax.custom_vjp
def _sorted_copies(x: jax.Array, order: jax.Array, inverse: jax.Array) -> jax.Array:
    """C copies of each row of ``x [U, E]``, copy number ``order[i]`` (int ``[U·C]``) at place i."""
    return x[order // (order.shape[0] // x.shape[0])]


def _summed_copies(saved: tuple[int, jax.Array], slope: jax.Array) -> tuple:
    count, inverse = saved
    return (
        slope[inverse].reshape(-1, count, slope.shape[-1]).sum(axis=1, dtype=jnp.float32).astype(slope.dtype),
        None,
        None,
    )


_sorted_copies.defvjp(
    lambda x, order, inverse: (_sorted_copies(x, order, inverse), (order.shape[0] // x.shape[0], inverse)),
    _summed_copies,
)


@jax.custom_vjp
def _permuted(x: jax.Array, order: jax.Array, inverse: jax.Array) -> jax.Array:
    """``x[order]``; ``inverse`` is the inverse permutation."""
    return x[order]


_permuted.defvjp(lambda x, order, inverse: (x[order], inverse), lambda inverse, slope: (slope[inverse], None, None))


def apply_experts(
    x: jax.Array,
    choice: ExpertChoice,
    kernels: Kernels,
    *,
    activation: str,
    first: jax.Array | None = None,
    grouped_product: Callable = jax.lax.ragged_dot,
) -> jax.Array:
    """The experts' addition to ``x [U, E]``: ``Σ_c weight_c · expert_c(x)``, in float32.

    ``first``: ``kernels`` are a part of the experts, from this number on; those that are not there add 0.
    ``grouped_product``: `jax.lax.ragged_dot`, or what equals it.
    """
    count, here = choice.experts.shape[-1], kernels.gate.shape[0]
    owner, weights = choice.experts.reshape(-1), choice.weights
    if first is not None:
        owner = owner - first
        owner = jnp.where((owner >= 0) & (owner < here), owner, here)  # tokens of others come last
    order = jnp.argsort(owner, stable=True)
    inverse = jnp.argsort(order)
    sizes = jnp.bincount(owner, length=here).astype(jnp.int32)  # `length` leaves out the others
    copies = _sorted_copies(x, order, inverse)
    owned = None if first is None else (jnp.arange(len(owner)) < sizes.sum())[:, None]

    # Rows of no group are undefined, in products and in their gradients.
    def only(rows):
        return rows if owned is None else jnp.where(owned, rows, jnp.zeros((), rows.dtype))

    product = partial(grouped_product, group_sizes=sizes)
    copies = only(copies)
    inner = only(GATES[activation](product(copies, kernels.gate), product(copies, kernels.up)))
    added = _permuted(only(product(inner, kernels.down)), inverse, order).reshape(-1, count, x.shape[-1])
    return (added.astype(jnp.float32) * weights[..., None]).sum(axis=1)


class Routes(NamedTuple):
    """Routes and masks of tokens before they pass a layer with experts."""

    experts: jax.Array | None = None  # int [U, C], a choice that was made before; None: the router chooses
    counted: jax.Array | None = None  # bool [U], tokens to sum over (`router_sums`); None: nothing is summed


NO_ROUTES = Routes()


class Passed(NamedTuple):
    """The routes of tokens through a layer with experts, and their sums."""

    experts: jax.Array  # int32 [U, C]
    sums: RouterSums | None = None  # where tokens are counted


class RoutedExperts(nnx.Module):
    """Router and experts of a sparse layer."""

    def __init__(self, rngs: nnx.Rngs, a: Architecture, dtype: str):
        experts, width, columns = a.num_experts, a.hidden_size, a.expert_size
        wide, narrow = ("experts", "expert_embed", None), ("experts", None, "expert_embed")
        self.router = Linear(rngs, width, experts, ("embed", None), dtype)
        self.gate = parameter(rngs, (experts, width, columns), wide, width**-0.5, dtype)
        self.up = parameter(rngs, (experts, width, columns), wide, width**-0.5, dtype)
        self.down = parameter(rngs, (experts, columns, width), narrow, columns**-0.5, dtype)
        self.count, self.normalised, self.activation = a.experts_per_token, a.norm_topk_prob, a.family.activation

    def __call__(
        self, x: jax.Array, apply: Callable = apply_experts, routes: Routes = NO_ROUTES
    ) -> tuple[jax.Array, Passed]:
        """The MLP's addition to ``x [U, E]``, and the routes; ``apply`` computes `apply_experts`."""
        choice = routed(self.logits(x), self.count, normalised=self.normalised, experts=routes.experts)
        kernels = Kernels(*(kernel[...].astype(x.dtype) for kernel in (self.gate, self.up, self.down)))
        added = apply(x, choice, kernels, activation=self.activation).astype(x.dtype)
        if routes.counted is None:
            return added, Passed(choice.experts)
        return added, Passed(choice.experts, router_sums(self.logits, x, choice.experts, routes.counted))

    def logits(self, x: jax.Array) -> jax.Array:
        """The router's logits, float32 ``[U, X]``."""
        return jnp.matmul(x, self.router.kernel[...].astype(x.dtype), preferred_element_type=jnp.float32)
