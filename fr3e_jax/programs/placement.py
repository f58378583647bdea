"""Host arrays onto a mesh that may span processes."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding


def on_mesh(tree: Any, sharding: Sharding) -> Any:
    """Host or single-device arrays as arrays of ``sharding``.

    On a mesh of several processes each must hand over equal arrays, and gives its own devices their shards.
    `jax.device_put` would do that too, but first compares the arrays over the network: 3.6 ms a call between two
    processes of one machine against 0.07 ms. The loop compares what it decided, once a stage.
    """
    if sharding.is_fully_addressable:
        return jax.device_put(tree, sharding)
    return jax.tree.map(lambda leaf: _own_shards(leaf, sharding), tree)


def _own_shards(leaf: Any, sharding: Sharding) -> jax.Array:
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return jax.device_put(leaf, sharding)
    host = np.asarray(leaf)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index], dtype=host.dtype)
