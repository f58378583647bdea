"""The critic of PPO, compiled: a network like the policy's with a scalar head, over the same trunk-and-branch rows.

The value of the state that a token is drawn from is read from the hidden state that predicts it, so a shared trunk
passes the critic once for all its branches.

Dimension key: B rows, N lanes of a row, T positions of a lane, E width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh

from fr3e_jax.objectives.reductions import masked_sum
from fr3e_jax.objectives.returns import clipped_value_losses
from fr3e_jax.policy.architecture import Architecture
from fr3e_jax.policy.network import WHOLE, Params, Pass, build_network
from fr3e_jax.policy.rows import Rows, predictors, row_states
from fr3e_jax.programs.mesh import batch_sharding, like_params, param_shardings, placement, replicated
from fr3e_jax.programs.placement import on_mesh
from fr3e_jax.programs.train_programs import apply_gradients


class ValueRows(NamedTuple):
    """Rows and what the critic's loss reads of each branch token, ``[B, N, T]``."""

    rows: Rows
    loss_mask: jax.Array  # bool
    returns: jax.Array  # float32
    old_values: jax.Array  # float32, of the critic before the full batch's first update


@dataclass(frozen=True)
class _Network:
    """What is static of a value pass."""

    graphdef: nnx.GraphDef
    passing: Pass

    def values(self, params: Any, rows: Rows) -> jax.Array:
        """float32 ``[B, N, T]``, 0 on padding."""
        states = row_states(self.graphdef, params["network"], rows, self.passing)
        head = params["value"]
        by_position = states.astype(jnp.float32) @ head["kernel"] + head["bias"]
        values = jnp.take_along_axis(by_position, predictors(rows), axis=1).reshape(rows.segment.shape)
        return jnp.where(rows.segment > 0, values, 0.0)


def _accumulate(network: _Network, clip: float, params, gradients, batch: ValueRows, denominator):
    def loss(params):
        values = network.values(params, batch.rows)
        losses = clipped_value_losses(values, batch.old_values, batch.returns, batch.loss_mask, clip=clip)
        total = masked_sum(losses, batch.loss_mask) / denominator
        return total, {"loss": total, "value": masked_sum(values, batch.loss_mask)}

    fresh, sums = jax.grad(loss, has_aux=True)(params)
    return jax.tree.map(jnp.add, gradients, fresh), sums


class CriticPrograms:
    """Compiled programs of a critic for one architecture, optimizer and mesh."""

    def __init__(
        self,
        architecture: Architecture,
        mesh: Mesh,
        optimizer: optax.GradientTransformation,
        *,
        clip: float,
        param_dtype: str = "float32",
        compute_dtype: str = "float32",
        passing: Pass = WHOLE,
    ):
        """``clip``: see `clipped_value_losses`; ``passing``: how the network is computed."""
        headless = replace(architecture, tie_word_embeddings=True)  # a critic has no use for an output head
        graphdef, network, axes = build_network(headless, param_dtype=param_dtype, compute_dtype=compute_dtype)
        network_shardings = param_shardings(mesh, network, axes, headless)
        number = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
        self._rows, whole = batch_sharding(mesh), replicated(mesh)
        self.abstract_params = {
            "network": network,
            "value": {"kernel": number(architecture.hidden_size), "bias": number()},
        }
        self.param_shardings = {"network": network_shardings, "value": {"kernel": whole, "bias": whole}}
        self.abstract_state = jax.eval_shape(optimizer.init, self.abstract_params)
        self.optimizer_shardings = like_params(mesh, self.abstract_state, self.abstract_params, self.param_shardings)
        self.graphdef = graphdef
        static = _Network(graphdef, replace(passing, place=placement(mesh)))
        self.init_optimizer = jax.jit(optimizer.init, out_shardings=self.optimizer_shardings)
        self.zero_gradients = jax.jit(partial(jax.tree.map, jnp.zeros_like), out_shardings=self.param_shardings)
        self._start = jax.jit(self._with_new_head, out_shardings=self.param_shardings)
        self._values = jax.jit(static.values, out_shardings=whole)
        self._accumulate = jax.jit(
            partial(_accumulate, static, clip), donate_argnums=1, out_shardings=(self.param_shardings, whole)
        )
        self._apply = jax.jit(
            partial(apply_gradients, optimizer),
            donate_argnums=(0, 1),
            out_shardings=(self.param_shardings, self.optimizer_shardings, whole),
        )

    def _with_new_head(self, network: Params) -> Any:
        value = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self.abstract_params["value"])
        return {"network": jax.tree.map(jnp.copy, network), "value": value}

    def initial_params(self, policy: Params) -> Any:
        """A copy of the policy's network, and a value head that says 0 everywhere."""
        return self._start({name: part for name, part in policy.items() if name != "head"})

    def abstract_arrays(self) -> dict[str, Any]:
        """Abstract parameters and optimizer state with their shardings, to restore a checkpoint into."""
        sharded = lambda leaf, s: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=s)
        return {
            "params": jax.tree.map(sharded, self.abstract_params, self.param_shardings),
            "optimizer": jax.tree.map(sharded, self.abstract_state, self.optimizer_shardings),
        }

    def values(self, params: Any, rows: Rows) -> jax.Array:
        """V of the state that each branch token is drawn from, ``[B, N, T]``; 0 on padding."""
        return self._values(params, on_mesh(rows, self._rows))

    def accumulate(self, params: Any, gradients: Any, batch: ValueRows, denominator: float):
        """Add one micro-batch's gradient; returns the gradients (donated) and device sums for the metrics."""
        return self._accumulate(params, gradients, on_mesh(batch, self._rows), jnp.float32(denominator))

    def apply(self, params: Any, optimizer_state: Any, gradients: Any):
        """One optimizer step; parameters and state are donated. Returns parameters, state and the gradient norm."""
        return self._apply(params, optimizer_state, gradients)
