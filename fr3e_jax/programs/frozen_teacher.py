"""The teacher of on-policy distillation: a network of its own whose weights do not change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from flax import nnx

from fr3e_jax.policy.network import ForwardOptions, Params
from fr3e_jax.programs.shardings import abstract_arrays


class Taught(NamedTuple):
    """The parameters of policy and teacher, which a gradient pass reads where the loss has the teacher's term."""

    policy: Any
    teacher: Params


class FrozenTeacher:
    """The teacher of a run, on the run's mesh.

    Attributes:
      graphdef, abstract, shardings: of its network.
      options: how it is computed.
      columns: tokens of the policy's vocabulary, over which its distributions are read.
    """

    def __init__(
        self,
        graphdef: nnx.GraphDef,
        abstract: Params,
        shardings: Params,
        options: ForwardOptions,
        columns: int,
        load: Callable[[], Params],
    ):
        """``load``: makes the weights, when they are first read."""
        self.graphdef, self.abstract, self.shardings = graphdef, abstract, shardings
        self.options, self.columns = options, columns
        self._load, self._params = load, None

    def params(self) -> Params:
        """The weights."""
        if self._params is None:
            self._params = jax.block_until_ready(self._load())
        return self._params

    def abstract_params(self) -> Params:
        """Shapes, types and shardings of the weights."""
        return abstract_arrays(self.abstract, self.shardings)
