"""The critic of PPO, compiled: a network like the policy's with a scalar head, over the same trunk-and-branch rows.

The value of the state that a token is drawn from is read from the hidden state that predicts the token. So a shared
trunk passes the critic once for all its branches. `optimizer_programs` has the optimizer step.

Dimension key: B rows, N lanes of a row, T positions of a lane.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh

from fr3e_jax.objectives.reductions import masked_sum
from fr3e_jax.objectives.returns import clipped_value_losses
from fr3e_jax.policy.architecture import Architecture
from fr3e_jax.policy.network import DEFAULT_OPTIONS, ForwardOptions, Params, build_network
from fr3e_jax.policy.rows import Rows, predictors, row_states
from fr3e_jax.programs.optimizer_programs import OptimizerPrograms
from fr3e_jax.programs.program import Declarations, Program, abstract
from fr3e_jax.programs.replicas import REPLICA
from fr3e_jax.programs.shardings import mesh_layout, param_shardings, replicated


class ValueRows(NamedTuple):
    """Rows and the critic loss's inputs for each branch token; all but ``rows`` are ``[B, N, T]``."""

    rows: Rows
    loss_mask: jax.Array  # bool
    returns: jax.Array  # float32
    old_values: jax.Array  # float32, of the critic before the first update on the full batch


@dataclass(frozen=True)
class _Network:
    """The static part of a value pass."""

    graphdef: nnx.GraphDef
    options: ForwardOptions

    def values(self, params: Any, rows: Rows) -> jax.Array:
        """float32 ``[B, N, T]``, 0 on padding."""
        states = row_states(self.graphdef, params["network"], rows, self.options)
        head = params["value"]
        by_position, parts = states.astype(jnp.float32) @ head["kernel"] + head["bias"], self.options.layout.parts
        in_turn = jnp.moveaxis(by_position.reshape(parts, len(rows.segment), -1), 0, 1).reshape(len(rows.segment), -1)
        values = jnp.take_along_axis(in_turn, predictors(rows, parts), axis=1).reshape(rows.segment.shape)
        return jnp.where(rows.segment > 0, values, 0.0)


def _accumulate(network: _Network, clip: float, params, gradients, batch: ValueRows, denominator):
    """``gradients`` plus those of a micro-batch's share of the loss, and sums over its tokens for the metrics."""

    def loss(params):
        values = network.values(params, batch.rows)
        losses = clipped_value_losses(values, batch.old_values, batch.returns, batch.loss_mask, clip=clip)
        total = masked_sum(losses, batch.loss_mask) / denominator
        return total, {"loss": total, "value": masked_sum(values, batch.loss_mask)}

    fresh, sums = jax.grad(loss, has_aux=True)(params)
    return jax.tree.map(jnp.add, gradients, fresh), sums


def _with_new_head(head: Any, network: Params) -> Any:
    value = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), head)
    return {"network": jax.tree.map(jnp.copy, network), "value": value}


class CriticPrograms(OptimizerPrograms):
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
        options: ForwardOptions = DEFAULT_OPTIONS,
    ):
        """Declare the programs; each is compiled on its first call.

        Args:
          architecture: of the policy.
          mesh, optimizer, options: see `fr3e_jax.programs.train_programs.TrainPrograms`.
          clip: see `clipped_value_losses`.
          param_dtype, compute_dtype: of the network; the value head is float32.
        """
        headless = replace(architecture, tie_word_embeddings=True)  # a critic needs no output head
        graphdef, network, axes = build_network(headless, param_dtype=param_dtype, compute_dtype=compute_dtype)
        float_array, on_all = partial(jax.ShapeDtypeStruct, dtype=jnp.float32), replicated(mesh)
        abstract = {
            "network": network,
            "value": {"kernel": float_array((architecture.hidden_size,)), "bias": float_array(())},
        }
        network_shardings = param_shardings(mesh, network, axes, headless)
        shardings = {"network": network_shardings, "value": {"kernel": on_all, "bias": on_all}}
        static = _Network(graphdef, replace(options, layout=mesh_layout(mesh, options.attention)))
        several = mesh.shape[REPLICA] > 1
        layout = mesh_layout(mesh, options.attention, each_replica=several)
        of_replica = replace(static, options=replace(options, layout=layout))
        super().__init__(mesh, optimizer, abstract, shardings, partial(_accumulate, of_replica, clip))
        self.graphdef = graphdef
        self._start = Program(partial(_with_new_head, abstract["value"]), out_shardings=shardings)
        self._values = Program(static.values, out_shardings=self._rows)

    def declare(self, declare: Declarations, policy: Params, rows: Sequence[Rows]) -> None:
        """Declare the programs of a run with such abstract rows; ``policy``: abstract."""
        params = declare(self._start, {name: weights for name, weights in policy.items() if name != "head"})
        declare(self.init_optimizer, params)
        for row in rows:
            declare(self._values, params, row)
        tokens = [jax.tree.map(lambda x: abstract(x.shape, np.float32, x.sharding), row.segment) for row in rows]
        masks = [abstract(x.shape, np.bool_, x.sharding) for x in tokens]
        batches = [ValueRows(row, mask, x, x) for row, mask, x in zip(rows, masks, tokens, strict=True)]
        self.declare_update(declare, params, batches, abstract((), np.float32))

    def initial_params(self, policy: Params) -> Any:
        """A copy of the policy's network, and a value head whose values are 0."""
        return self._start({name: weights for name, weights in policy.items() if name != "head"})

    def values(self, params: Any, rows: Rows) -> jax.Array:
        """V of the state that each branch token is drawn from, ``[B, N, T]``; 0 on padding."""
        return self._values(params, self.place(rows))
