"""FLOPs counted in a jaxpr, against counts by hand."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from fr3e_jax.configuration import load_config
from fr3e_jax.planning.costs import count_flops
from fr3e_jax.planning.targets import Programs
from fr3e_jax.planning.workload import base_shape
from fr3e_jax.policy.attention import KeyValue, RowView
from fr3e_jax.policy.fused_attention import fused_row_attention

A, B, C = 3, 5, 7


def count(function, *shapes, trips=1):
    arguments = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    return count_flops(jax.make_jaxpr(function)(*arguments).jaxpr, trips)


def scanned(x, w):
    return jax.lax.scan(lambda x, _: (x @ w, None), x, length=11)[0]


def looped(x, w):
    return jax.lax.while_loop(lambda c: c[1].sum() < 3, lambda c: (c[0] + 1, c[1] @ w), (0, x))[1]


def nested(x, w):
    return jax.lax.scan(lambda x, _: (scanned(x, w), None), x, length=2)[0]


def branched(x, w):
    return jax.lax.cond(x.sum() > 0, lambda: x @ w @ w, lambda: x @ w)


def sharded(x, w):
    devices = jax.sharding.AbstractMesh((4,), ("x",))
    return jax.shard_map(jnp.matmul, mesh=devices, in_specs=(P("x"), P()), out_specs=P("x"))(x, w)


def fused(query, key, value):
    """A trunk of eight tokens, and a lane of four that sees it whole."""
    lane = jnp.ones((1, 1, 4), jnp.int32)
    view = RowView(jnp.ones((1, 8), jnp.int32), lane, 8 * lane, 0 * lane)
    return fused_row_attention(query, KeyValue(key, value), view)


SQUARE = 2 * A * B * B
FUSED = [(1, 1, 12, 2, 3, 64), (1, 1, 2, 64, 12), (1, 1, 2, 12, 64)]
SEEN = 8 * 9 // 2 + 4 * 8 + 4 * 5 // 2


@pytest.mark.parametrize(
    ("function", "shapes", "expected"),
    [
        (jnp.matmul, [(A, B), (B, C)], 2 * A * B * C),
        (jnp.matmul, [(4, A, B), (4, B, C)], 4 * 2 * A * B * C),
        (lambda x: x.sum() + x * x, [(A, B)], 0),
        (lambda x, y: x @ (x.T @ y), [(A, B), (A,)], 0),
        (scanned, [(A, B), (B, B)], 11 * SQUARE),
        (nested, [(A, B), (B, B)], 22 * SQUARE),
        (looped, [(A, B), (B, B)], 6 * SQUARE),
        (branched, [(A, B), (B, B)], 2 * SQUARE),
        (jax.jit(jnp.matmul), [(A, B), (B, C)], 2 * A * B * C),
        (sharded, [(4 * A, B), (B, C)], 4 * 2 * A * B * C),
        (fused, FUSED, 2 * 2 * SEEN * 6 * 64),
        (jax.grad(lambda *x: fused(*x).sum(), (0, 1, 2)), FUSED, (2 + 3 + 4) * 2 * SEEN * 6 * 64),
        (jax.grad(lambda x, w: jnp.sin(x @ w).sum(), (0, 1)), [(A, B), (B, C)], 3 * 2 * A * B * C),
        (jax.grad(jax.checkpoint(lambda x, w: jnp.sin(x @ w).sum()), (0, 1)), [(A, B), (B, C)], 4 * 2 * A * B * C),
    ],
)
def test_each_product_is_counted_as_often_as_it_runs(function, shapes, expected):
    assert count(function, *shapes, trips=6) == expected


@pytest.fixture(scope="module")
def small():
    """A tiny recipe whose rows fill the head's chunks without padding."""
    sizes = ["model.hidden_size=32", "model.num_heads=4", "model.num_kv_heads=2", "model.intermediate_size=48"]
    sizes += ["model.num_layers=2", "data.max_prompt_tokens=16", "rollout.max_response_tokens=64"]
    sizes += ["rollout.rollouts_per_prompt=4", "explore.enabled=false", "training.micro_batch_tokens=512"]
    config = load_config("configs/fr3e_gsm8k.yaml", [*sizes, "training.batch_rollouts=8"], training=False)
    return config, Programs(config, jax.devices()[:1], vocab_size=20)


def flops_of(programs, name):
    target = programs.target(name)
    return count_flops(target.trace().jaxpr.jaxpr, target.trips)


def test_pass_costs_two_flops_per_weight_and_position_and_training_costs_three_passes(small):
    config, programs = small
    a = programs.architecture
    count_, trunk, lanes, length, window = programs.largest
    matrices = sum(leaf.size for leaf in jax.tree.leaves(programs.params["layers"]) if leaf.ndim == 2)
    positions = count_ * (trunk + lanes * length)
    own = length * min(window, lanes)
    attended = count_ * (trunk * trunk + lanes * length * (own + trunk))
    layers = 2 * positions * matrices + 4 * attended * a.num_heads * a.head_dim * a.num_layers
    head = 2 * count_ * lanes * length * a.vocab_size * a.hidden_size
    assert flops_of(programs, "score") == layers + head
    assert flops_of(programs, "accumulate") == 3 * (layers + head)


def test_rematerialisation_costs_one_more_pass_of_the_layers_without_their_last_product(small):
    config, programs = small
    again = dataclasses.replace(config, training=dataclasses.replace(config.training, remat="block"))
    a = programs.architecture
    head = 2 * programs.target("score").arguments[1].branch_ids.size * a.vocab_size * a.hidden_size
    layers = flops_of(programs, "score") - head
    last = 2 * programs.largest.positions * a.intermediate_size * a.hidden_size * a.num_layers
    assert flops_of(Programs(again, jax.devices()[:1], 20), "accumulate") == 4 * layers - last + 3 * head


def test_decode_chunk_costs_the_sum_of_its_steps(small):
    config, programs = small
    a, target = programs.architecture, programs.target("decode")
    matrices = sum(leaf.size for leaf in jax.tree.leaves(programs.params["layers"]) if leaf.ndim == 2)
    state = programs.state(base_shape(config, programs.slots))
    window = target.steps  # columns of the ring that a chunk writes into: a power of two here
    attended = state.trunks.hidden.shape[1] + state.capacity + window
    token = 2 * (matrices + a.vocab_size * a.hidden_size) + 4 * attended * a.num_heads * a.head_dim * a.num_layers
    assert flops_of(programs, "decode") == target.positions * token
