"""A test of weights before they leave the run: every number finite, and finite logits for a short text."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from fr3e_jax.policy.network import Params, bind
from fr3e_jax.policy.rows import run_trunks
from fr3e_jax.programs.program import Program


@Program
def _nonfinite_counts(params: Params) -> Params:
    return jax.tree.map(lambda leaf: jnp.sum(~jnp.isfinite(leaf)), params)


@partial(Program, static_argnums=0)
def _has_entropy(graphdef: nnx.GraphDef, params: Params, token_ids: jax.Array) -> jax.Array:
    logits = bind(graphdef, params).logits(run_trunks(graphdef, params, token_ids).hidden).astype(jnp.float32)
    return jnp.isfinite(jax.nn.logsumexp(logits, axis=-1)).all()


def fault_of_weights(graphdef: nnx.GraphDef, params: Params, token_ids: list[int]) -> str:
    """Why these weights cannot be used, or "".

    Args:
      graphdef: of `fr3e_jax.policy.network.build_network`.
      params: the weights, sharded or not.
      token_ids: a text of one token or more, which passes the network once.
    """
    counts = jax.device_get(_nonfinite_counts(params))
    for path, count in jax.tree_util.tree_leaves_with_path(counts):
        if count:
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            return f"{count} numbers of {name} are NaN or infinite"
    if not _has_entropy(graphdef, params, jnp.asarray([token_ids], jnp.int32)):
        return "all weights are finite, but their logits are NaN or infinite"
    return ""
