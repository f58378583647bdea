"""The compiled programs of an optimizer step, the same for the policy and the critic:

    gradients = programs.zero_gradients(params)
    for batch in micro_batches:
        gradients, sums = programs.accumulate(params, gradients, batch, denominator)
    params, state, norm = programs.apply(params, state, gradients)

`decoder_programs` and `reshard` declare their programs in the same way. For a newcomer, the four decisions in a
declaration:

**What jit is given.** A pure function of arrays: parameters, gradients, a batch, a few numbers. Everything that shapes
the program (the network's graphdef, the optimizer, options) is bound beforehand with `partial`. On the first call with
arrays of new shapes jax traces the function and XLA compiles it for all devices of the mesh. Later calls with the same
shapes only dispatch the compiled program. Numbers that change between steps are passed as arrays: a number bound
beforehand would be a constant of the program, and each new value would compile another one.

**Why shardings are pinned.** Inputs bring their shardings along. For outputs XLA would choose some. Then updated
parameters might lie differently from those of the step before, and the next step would compile again. So
``out_shardings`` says where each output lies: parameters, gradients and optimizer state as the rules of
`fr3e_jax.programs.shardings` split them, and metrics whole on every device, so that every process can fetch them.

**Why arguments are donated.** Parameters, gradients and optimizer state fill most of a device's memory. With
``donate_argnums`` an output takes over the memory of an input of the same shape and layout, so the new arrays need no
second copy. The donated array is deleted: callers must go on with the returned one.

**Why the update is a program of its own.** A mini-batch is processed in micro-batches to fit into memory, and clipping
by the global norm needs the gradient of all of them. The update does not depend on the shape of a micro-batch. On its
own it is compiled once and runs once per mini-batch, while `accumulate` is compiled for each shape.

On a mesh with several replicas each replica adds up its own gradients (`fr3e_jax.programs.replicas`); `apply` adds
those of all, so that gradients cross the slow network between slices once for each mini-batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from fr3e_jax.programs.host_arrays import on_mesh, zeros_for
from fr3e_jax.programs.program import Declarations, Program
from fr3e_jax.programs.replicas import (
    REPLICA,
    accumulate_apart,
    accumulate_by_replica,
    added,
    by_replica,
    zeros_by_replica,
)
from fr3e_jax.programs.shardings import abstract_arrays, batch_sharding, like_params, replicated


def apply_gradients(optimizer: optax.GradientTransformation, params, optimizer_state, gradients):
    """New parameters, new optimizer state, and the global norm of ``gradients`` before any clipping."""
    norm = optax.tree.norm(gradients)
    updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
    return optax.apply_updates(params, updates), optimizer_state, norm


def apply_of_replicas(optimizer: optax.GradientTransformation, params, optimizer_state, gradients):
    """`apply_gradients` of the sum of gradients ``[R, ...]`` of R replicas: here it crosses the slices."""
    return apply_gradients(optimizer, params, optimizer_state, added(gradients))


class OptimizerPrograms:
    """Compiled programs that train one set of parameters on one mesh.

    Attributes:
      abstract_state: shapes and types of ``params`` and ``optimizer``, by these names.
      param_shardings, optimizer_shardings: their shardings.
      gradient_shardings: of gradients, split as the parameters; of those of each replica, if there are several.
      init_optimizer: ``params -> optimizer state``.
      zero_gradients: ``params -> gradients`` of 0.
      norm: ``params -> global norm``, a scalar.
    """

    def __init__(
        self,
        mesh: Mesh,
        optimizer: optax.GradientTransformation,
        abstract_params: Any,
        param_shardings: Any,
        accumulate: Callable,
    ):
        """``accumulate(params, gradients, batch, *numbers) -> (gradients, sums)`` adds a micro-batch's gradient."""
        abstract_optimizer = jax.eval_shape(optimizer.init, abstract_params)
        self.abstract_state = {"params": abstract_params, "optimizer": abstract_optimizer}
        self.param_shardings = param_shardings
        self.optimizer_shardings = like_params(mesh, abstract_optimizer, abstract_params, param_shardings)
        self._rows, on_all, self._replicas = batch_sharding(mesh), replicated(mesh), mesh.shape[REPLICA]
        self.gradient_shardings, zeros, apply = param_shardings, partial(jax.tree.map, jnp.zeros_like), apply_gradients
        accumulate = partial(accumulate_apart, accumulate)
        if self._replicas > 1:
            self.gradient_shardings, zeros = by_replica(mesh, param_shardings), partial(zeros_by_replica, mesh)
            accumulate, apply = partial(accumulate_by_replica, mesh, accumulate), apply_of_replicas
            self._added = Program(added, out_shardings=param_shardings)
        self._gathered = Program(partial(jax.tree.map, jnp.asarray), out_shardings=on_all)
        self.init_optimizer = Program(optimizer.init, out_shardings=self.optimizer_shardings)
        self.zero_gradients = Program(zeros, out_shardings=self.gradient_shardings)
        self.norm = Program(partial(optax.tree.norm), out_shardings=on_all)  # with compilations of its own
        self._accumulate = Program(
            accumulate,
            donate_argnums=1,  # gradients
            out_shardings=(self.gradient_shardings, on_all, self._rows),  # values of tokens stay where the tokens are
        )
        self._apply = Program(
            partial(apply, optimizer),
            donate_argnums=(0, 1),  # parameters and optimizer state
            out_shardings=(self.param_shardings, self.optimizer_shardings, on_all),
        )

    def abstract_arrays(self) -> dict[str, Any]:
        """Abstract parameters and optimizer state with their shardings, to restore a checkpoint into."""
        return abstract_arrays(
            self.abstract_state, {"params": self.param_shardings, "optimizer": self.optimizer_shardings}
        )

    def declare_update(self, declare: Declarations, read: Any, batches: Sequence[Any], *numbers: Any) -> None:
        """Declare an update on ``batches``; all arguments are abstract, ``read`` is the result of `read_to_train`."""
        arrays = self.abstract_arrays()
        gradients = declare(self.zero_gradients, arrays["params"])
        for batch in batches:
            gradients = declare(self._accumulate, read, gradients, batch, *numbers)[0]
        declare(self._apply, arrays["params"], arrays["optimizer"], gradients)

    def read(self, params: Any) -> Any:
        """The weights that a pass over rows reads: the parameters."""
        return params

    def read_to_train(self, params: Any) -> Any:
        """The weights that `accumulate` reads."""
        return self.read(params)

    def place(self, batch: Any) -> Any:
        """Put host arrays of rows onto the mesh; the number of rows must be a multiple of the batch shards."""
        return on_mesh(batch, self._rows)

    def own_rows(self, rows: int) -> np.ndarray:
        """bool ``[rows]``: those of a batch that devices of this process hold; `place` reads no other row."""
        mask = np.zeros(rows, bool)
        for index in self._rows.addressable_devices_indices_map((rows,)).values():
            mask[index] = True
        return mask

    def counted_rows(self, rows: int) -> np.ndarray:
        """bool ``[rows]``: a part of `own_rows`; each row of a batch is in the part of one process."""
        owners = np.full(rows, jax.process_count())
        for device, index in self._rows.devices_indices_map((rows,)).items():
            owners[index] = np.minimum(owners[index], device.process_index)
        return owners == jax.process_index()

    def accumulate(self, params: Any, gradients: Any, batch: Any, *numbers: Any) -> tuple[Any, dict[str, jax.Array]]:
        """Add one micro-batch's gradient; returns the gradients (donated) and device sums for the metrics.

        Values of each token among the sums may lie on several processes; `fetched` gathers them.

        ``numbers``: the loss's denominator, then (for the policy) the temperature of its log-probs, whether the weights
        are those at the start of the full batch, and a `Balance` of experts (`fr3e_jax.programs.train_programs`).
        """
        numbers = jax.tree.map(np.float32, numbers)
        gradients, sums, by_token = self._accumulate(self.read_to_train(params), gradients, self.place(batch), *numbers)
        return gradients, sums | by_token

    def total(self, gradients: Any) -> Any:
        """The gradient of the parameters, of all replicas."""
        return gradients if self._replicas == 1 else self._added(gradients)

    def fetched(self, values: Sequence[jax.Array], *, everywhere: bool = True) -> list[np.ndarray]:
        """Values of the tokens of micro-batches, each ``[B, N, T]``, on the host.

        ``everywhere``: every process gets all rows. Otherwise each gets its own (`own_rows`); other rows are 0.
        """
        if all(array.is_fully_addressable for array in values):
            return jax.device_get(list(values))
        if everywhere:
            return jax.device_get([self._gathered(array) for array in values])
        return [_own_rows_of(array) for array in values]

    def apply(self, params: Any, optimizer_state: Any, gradients: Any) -> tuple[Any, Any, jax.Array]:
        """One optimizer step; parameters and state are donated. Returns parameters, state and the gradient norm."""
        return self._apply(params, optimizer_state, gradients)


def _own_rows_of(array: jax.Array) -> np.ndarray:
    """The rows of an array that devices of this process hold; 0 in the others."""
    host = zeros_for(array.shape, array.dtype, whole=False)
    for shard in array.addressable_shards:
        host[shard.index] = shard.data
    return host


def make_optimizer(
    *,
    learning_rate: float,
    warmup_updates: int,
    decay_updates: int,
    beta2: float,
    weight_decay: float,
    max_grad_norm: float,
    beta1: float = 0.9,
    epsilon: float = 1e-8,
) -> optax.GradientTransformation:
    """AdamW (Loshchilov and Hutter 2019) with decay of matrices only, and clipping by the global norm (0: none).

    Args:
      learning_rate, warmup_updates, decay_updates: see `learning_rates`.
      beta1, beta2, epsilon, weight_decay: of AdamW.
      max_grad_norm: largest global norm of the gradients; 0: no clipping.
    """
    rate = learning_rates(learning_rate, warmup_updates, decay_updates)
    matrices = partial(jax.tree.map, lambda leaf: leaf.ndim >= 2)
    adamw = optax.adamw(rate, b1=beta1, b2=beta2, eps=epsilon, weight_decay=weight_decay, mask=matrices)
    return optax.chain(optax.clip_by_global_norm(max_grad_norm), adamw) if max_grad_norm else adamw


def learning_rate_at(update: int, *schedule: Any) -> float:
    """The learning rate of an update, counted from 0; ``schedule``: arguments of `learning_rates`."""
    rate = learning_rates(*schedule)
    return float(_rate_program(*schedule)(np.int32(update)) if callable(rate) else rate)


@functools.cache
def _rate_program(*schedule: Any) -> Program:
    return Program(learning_rates(*schedule))  # one program in place of one for each of its operations


def learning_rates(peak: float, warmup_updates: int, decay_updates: int) -> optax.ScalarOrSchedule:
    """The learning rate of each update: ``peak * i / w`` for i = 1 ... w = ``warmup_updates``, then a cosine.

    The cosine goes down to 0 at update ``decay_updates``; with ``decay_updates`` = 0 the rate stays at the peak.
    """
    warmup = optax.linear_schedule(peak / max(warmup_updates, 1), peak, max(warmup_updates - 1, 1))
    if not decay_updates:
        return warmup if warmup_updates else peak
    after = optax.cosine_decay_schedule(peak, max(decay_updates - warmup_updates, 1))
    return optax.join_schedules([warmup, after], [warmup_updates]) if warmup_updates else after
