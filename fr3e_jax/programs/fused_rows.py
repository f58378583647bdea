"""Fused attention of rows on a mesh: where it runs, and how its kernels are placed on the devices."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from fr3e_jax.policy.attention import PLAIN, Scoring
from fr3e_jax.policy.fused_attention import fused_row_attention
from fr3e_jax.policy.triton_row_kernels import pltriton
from fr3e_jax.programs.context_axis import CONTEXT, row_axes

_HEAD_SIZES = 64  # the kernels for TPU were compiled for multiples of it
_GPU_HEAD_SIZES = (16, 32, 64, 128, 256)
_OLDEST_GPU = 8.0  # compute capability (Ampere) that Triton compiles for


def kernel_platform(mesh: Mesh) -> str:
    """The platform of the mesh's devices; an NVIDIA GPU that Triton does not compile for has its capability added."""
    device = mesh.devices.flat[0]
    capability = getattr(device, "compute_capability", "")
    is_old = device.platform == "gpu" and capability.replace(".", "").isdigit() and float(capability) < _OLDEST_GPU
    return f"gpu {capability}" if is_old else device.platform


def chosen_attention(setting: str, platform: str, head_dim: int) -> str:
    """The attention of rows, ``xla`` or ``pallas``, by the setting ``model.attention``.

    ``auto`` is ``pallas`` where its kernels compile: they move fewer bytes for rows of any size
    (docs/developers/decisions.md).

    Args:
      platform: of the mesh's devices, as `kernel_platform` names it.
      head_dim: of the network.

    Raises:
      ValueError: the setting asks for kernels that do not run there.
    """
    if setting == "xla":
        return setting
    refused = ""
    if platform not in ("tpu", "gpu"):
        refused = f"its kernels are for TPU and for GPU from Ampere on, and the devices are {platform.upper()}s"
    elif platform == "tpu" and head_dim % _HEAD_SIZES:
        refused = f"its kernels need heads of a multiple of {_HEAD_SIZES}, and the network's have {head_dim}"
    elif platform == "gpu" and head_dim not in _GPU_HEAD_SIZES:
        refused = f"its kernels for GPU need heads of {_GPU_HEAD_SIZES}, and the network's have {head_dim}"
    elif platform == "gpu" and pltriton is None:
        refused = f"its kernels for GPU need Pallas-Triton, which jax {jax.__version__} no longer has"
    if refused and setting == "pallas":
        raise ValueError(f"model.attention=pallas: {refused}; set model.attention=auto or xla")
    return "xla" if refused else "pallas"


def fused_rows(mesh: Mesh, *, each_replica: bool = False) -> Callable:
    """`fr3e_jax.policy.attention.row_attention` in fused kernels, each device with its rows and heads.

    Of rows in parts each device has the queries of its part, and gathers the keys and values of the others.
    Devices that are neither TPUs nor GPUs run the operations of the TPU's kernels one by one, for tests.
    ``each_replica``: rows are those of one replica.
    """
    platform = mesh.devices.flat[0].platform
    rows, parts = row_axes(mesh, each_replica=each_replica), mesh.shape[CONTEXT]
    by_head = P(rows, "tensor")

    def on_each_device(attend: Callable) -> Callable:
        # Values of the kernels' results cannot be tracked across devices (check_vma); nothing is replicated here.
        return jax.shard_map(
            attend, mesh=mesh, in_specs=(by_head, by_head, by_head, P(rows)), out_specs=by_head, check_vma=False
        )

    def attend_rows(query, lanes, view, *, window: int = 1, block: int = 0, scoring: Scoring = PLAIN) -> jax.Array:
        del block  # of scores, which the kernels cut into blocks of their own
        return fused_row_attention(
            query,
            lanes,
            view,
            window=window,
            scoring=scoring,
            head_shards=mesh.shape["tensor"],
            parts=parts,
            gather=lambda keys: jax.lax.all_gather(keys, CONTEXT),
            interpret=platform not in ("tpu", "gpu"),
            platform="gpu" if platform == "gpu" else "tpu",
            on_each_device=on_each_device if mesh.size > 1 else lambda attend: attend,
        )

    return attend_rows
