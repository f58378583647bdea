"""Host arrays onto a mesh that may span processes."""

from __future__ import annotations

import math
import mmap
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding


def on_mesh(tree: Any, sharding: Sharding) -> Any:
    """Put host or single-device arrays onto the mesh of ``sharding``, split as it says.

    On a mesh of several processes all must pass equal arrays; each gives its own devices their shards.
    `jax.device_put` would do the same, but first compares the arrays over the network: 3.6 ms a call between two
    processes of one machine against 0.07 ms. The loop compares its decisions itself, once a stage.
    """
    if sharding.is_fully_addressable:
        return jax.device_put(tree, sharding)
    return jax.tree.map(lambda leaf: _own_shards(leaf, sharding), tree)


def _own_shards(leaf: Any, sharding: Sharding) -> jax.Array:
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return jax.device_put(leaf, sharding)
    host = np.asarray(leaf)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index], dtype=host.dtype)


def params_on_mesh(params: Any, shardings: Any) -> Any:
    """Put host or single-device parameters onto the mesh, each with its own sharding."""
    return jax.tree.map(on_mesh, params, shardings)


def zeros_for(shape: tuple[int, ...], dtype: Any, *, whole: bool) -> np.ndarray:
    """Zeros to fill, all of them or, unless ``whole``, those of this process's rows: the others then take no memory.

    `np.zeros` clears all of a block that the heap had handed out before.
    """
    if whole:
        return np.zeros(shape, dtype)
    size = max(math.prod(shape) * np.dtype(dtype).itemsize, 1)
    return np.ndarray(shape, dtype, mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
