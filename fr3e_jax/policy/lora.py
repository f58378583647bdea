"""Low-rank adapters (LoRA): their place in the network, and parameters split into base and adapters, joined and merged.

An adapter lies beside the kernel that it adds to, as ``params[...]["adapter"] = {"a": [in, rank], "b": [rank, out]}``.
Two trees hold the parameters of a network with adapters: the base, which is the network without them and stays as it
is, and the adapters, which are trained. (Hu et al. 2021, LoRA.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from fr3e_jax.policy.architecture import Architecture, UnsupportedModel
from fr3e_jax.policy.huggingface import at, parameter_names, put
from fr3e_jax.policy.modules import LowRank
from fr3e_jax.policy.network import Params, build_network

ADAPTER = "adapter"


@dataclass(frozen=True)
class LoraSettings:
    """Rank, scale (alpha / rank), target projections under PEFT's names, and type of the adapters."""

    rank: int
    alpha: float
    targets: tuple[str, ...]
    param_dtype: str = "float32"

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


class Adapted(NamedTuple):
    """The parameters of a network with adapters: what a pass reads."""

    base: Params
    adapters: Params


def adapted_kernels(architecture: Architecture, targets: tuple[str, ...]) -> Iterator[tuple[tuple, str]]:
    """(path of the projection in ``params``, Hugging Face's name of it) for each projection with an adapter."""
    for path, name, _ in parameter_names(architecture):
        module = name.removesuffix(".weight")
        if path[-1] == "kernel" and module.rpartition(".")[2] in targets:
            yield path[:-1], module


def check_fits(architecture: Architecture, lora: LoraSettings) -> None:
    """Refuse adapters that the network cannot have.

    Raises:
      UnsupportedModel: it lacks a target, or a projection is narrower than the rank.
    """
    kernel_names = {name.rpartition(".")[2] for _, name in adapted_kernels(architecture, lora.targets)}
    if missing := [name for name in lora.targets if name not in kernel_names]:
        raise UnsupportedModel(
            f"the network ({architecture.model_type}) has no projection {missing[0]}; expected some of "
            f"{', '.join(sorted(kernel_names)) or 'its own'} in model.lora.targets"
        )
    a = architecture
    narrowest = min(a.hidden_size, a.intermediate_size, a.num_kv_heads * a.head_dim)
    if lora.rank > narrowest:
        raise UnsupportedModel(
            f"model.lora.rank={lora.rank} is more than the {narrowest} rows of the network's narrowest projection, "
            f"which a full update does not exceed; expected at most {narrowest}"
        )


def _with_adapters(architecture: Architecture, lora: LoraSettings, network: nnx.Module) -> nnx.Module:
    for path, _ in adapted_kernels(architecture, lora.targets):
        module: Any = network
        for key in path:
            module = module[key] if isinstance(key, int) else getattr(module, key)
        (size_in, size_out), axes = module.kernel.shape, module.kernel.axes
        module.adapter = LowRank(size_in, size_out, axes, lora.rank, lora.scale, lora.param_dtype)
    return network


def build_adapted_network(
    architecture: Architecture,
    lora: LoraSettings,
    *,
    param_dtype: str = "float32",
    compute_dtype: str = "float32",
    completed: Callable[[nnx.Module], nnx.Module] = lambda network: network,
) -> tuple[nnx.GraphDef, Adapted, Adapted]:
    """`build_network` with adapters: ``graphdef``, abstract parameters and logical axes, the last two split.

    Raises:
      UnsupportedModel: see `check_fits`.
    """
    check_fits(architecture, lora)
    types = {"param_dtype": param_dtype, "compute_dtype": compute_dtype}

    def both(network):
        return completed(_with_adapters(architecture, lora, network))

    graphdef, abstract, axes = build_network(architecture, completed=both, **types)
    return graphdef, split(abstract), split(axes)


def initial_adapters(architecture: Architecture, lora: LoraSettings, abstract: Params, key: jax.Array) -> Params:
    """New adapters, which add 0: ``a`` uniform in ±1/√in, ``b`` 0. ``abstract``: of `build_adapted_network`."""
    adapters: Params = {}
    for position, (path, _) in enumerate(adapted_kernels(architecture, lora.targets)):
        like = at(abstract, path)[ADAPTER]
        bound = like["a"].shape[0] ** -0.5
        drawn = jax.random.uniform(jax.random.fold_in(key, position), like["a"].shape, minval=-bound, maxval=bound)
        adapter = {"a": drawn.astype(like["a"].dtype), "b": jnp.zeros(like["b"].shape, like["b"].dtype)}
        put(adapters, (*path, ADAPTER), adapter)
    return adapters


def split(tree: Params) -> Adapted:
    """Base and adapters of a tree that holds both."""
    base, adapters = {}, {}
    for key, value in tree.items():
        if key == ADAPTER:
            adapters[key] = value
        elif isinstance(value, dict):
            base[key], adapter_of_child = split(value)
            adapters |= {key: adapter_of_child} if adapter_of_child else {}
        else:
            base[key] = value
    return Adapted(base, adapters)


def joined(params: Any) -> Params:
    """The inverse of `split`; free under `jax.jit`. Parameters without adapters come back as they are."""

    def beside(projection, adapter):
        return projection | {ADAPTER: adapter}

    return _combined(*params, beside) if isinstance(params, Adapted) else params


def _combined(base: Params, adapters: Params, combine: Callable[[Params, Params], Params]) -> Params:
    """``base`` with ``combine(projection, adapter)`` in place of each projection that has an adapter."""
    if ADAPTER in adapters:
        return combine(base, adapters[ADAPTER])
    return base | {key: _combined(base[key], value, combine) for key, value in adapters.items()}


def trained(params: Any) -> Params:
    """The part that is trained: the adapters, or all parameters of a network without them."""
    return params.adapters if isinstance(params, Adapted) else params


def with_trained(params: Any, new: Params) -> Any:
    """``params`` with another trained part."""
    return params._replace(adapters=new) if isinstance(params, Adapted) else new


def merged(scale: float, params: Adapted) -> Params:
    """The parameters of the network without adapters that computes the same: ``kernel + scale * a @ b``, in float32.

    With ``b = 0`` a kernel is the base's, bit for bit.
    """

    def into_kernel(projection, adapter):
        a, b = (adapter[factor].astype(jnp.float32) for factor in "ab")
        change = jnp.matmul(a, b, precision="highest")
        return projection | {"kernel": projection["kernel"].astype(jnp.float32) + scale * change}

    return _combined(*params, into_kernel)


def adapter_pairs(params: Adapted) -> list[tuple[jax.Array, dict[str, jax.Array]]]:
    """Kernel and adapter of each projection that has an adapter."""
    pairs = []

    def note(projection, adapter):
        pairs.append((projection["kernel"], adapter))
        return projection

    _combined(*params, note)
    return pairs


def relative_change(scale: float, params: Adapted) -> jax.Array:
    """``√(Σ |scale·a b|² / Σ |kernel|²)`` over the projections with an adapter: the share of the base that has moved.

    ``|a b|² = Σ (aᵀa)(b bᵀ)``, so that no product of the kernel's size is made.
    """
    moved, total = jnp.float32(0), jnp.float32(0)
    for kernel, adapter in adapter_pairs(params):
        a, b = (adapter[factor].astype(jnp.float32) for factor in "ab")
        exact = partial(jnp.matmul, precision="highest")
        moved += jnp.sum(exact(a.T, a) * exact(b, b.T))
        total += jnp.sum(jnp.square(kernel.astype(jnp.float32)))
    return scale * jnp.sqrt(jnp.maximum(moved, 0) / total)
