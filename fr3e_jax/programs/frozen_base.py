"""The weights that adapters are added to: loaded once, read by every pass, never trained."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax

from fr3e_jax.policy.lora import Adapted, merged
from fr3e_jax.policy.network import Params
from fr3e_jax.programs.program import Program
from fr3e_jax.programs.shardings import abstract_arrays


class FrozenBase:
    """The base of a run with adapters.

    Policy, reference and the weights that sample ahead are adapters on this one base, so that none of them costs a
    second model.

    Attributes:
      abstract, shardings: of the base's parameters, as without adapters.
      scale: alpha / rank, the factor of the adapters' product.
    """

    def __init__(self, abstract: Params, shardings: Params, scale: float, load: Callable[[], Params]):
        """``load``: makes the weights, when they are first read."""
        self.abstract, self.shardings, self.scale = abstract, shardings, scale
        self._load, self._params = load, None

    def params(self) -> Params:
        """The weights."""
        if self._params is None:
            self._params = self._load()
        return self._params

    def abstract_below(self, adapters: Params) -> Adapted:
        """Shapes, types and shardings of `below`."""
        return Adapted(abstract_arrays(self.abstract, self.shardings), adapters)

    def below(self, adapters: Params) -> Adapted:
        """The parameters of the network with these adapters."""
        return Adapted(self.params(), adapters)


def merged_as_stored(base: FrozenBase, dtype: str = "") -> Program:
    """The program that merges base and adapters into a network of the base's layout.

    ``dtype``: of merged weights; empty: that of the base, as all others have.
    """
    return Program(partial(_merged_as_stored, base.scale, dtype), out_shardings=base.shardings)


def _merged_as_stored(scale: float, dtype: str, params: Adapted) -> Params:
    def typed(leaf: jax.Array, like: jax.Array) -> jax.Array:
        return leaf.astype(dtype if dtype and leaf.dtype != like.dtype else like.dtype)

    return jax.tree.map(typed, merged(scale, params), params.base)
