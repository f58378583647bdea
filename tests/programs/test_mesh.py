"""The sharding rules: a golden table for two large models, what falls back to whole, and meshes that do not fit."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from fr3e_jax.policy.architecture import PUBLISHED
from fr3e_jax.policy.network import build_network
from fr3e_jax.programs.mesh import MESH_AXES, MeshMismatch, batch_shards, like_params, make_mesh, param_shardings, spec

WHOLE, COLUMNS, ROWS, HEADS = P(None), P("fsdp", "tensor"), P("tensor", "fsdp"), P("tensor")
# Shapes and partitions on replica=1, fsdp=4, tensor=2. Each chip holds an eighth of every matrix.
GOLDEN = {
    "qwen2.5-7b": {
        "embedding": ((152064, 3584), ROWS),
        "head": ((3584, 152064), COLUMNS),
        "layers.0.attention.key.bias": ((512,), HEADS),
        "layers.0.attention.key.kernel": ((3584, 512), COLUMNS),
        "layers.0.attention.out.kernel": ((3584, 3584), ROWS),
        "layers.0.attention.query.bias": ((3584,), HEADS),
        "layers.0.attention.query.kernel": ((3584, 3584), COLUMNS),
        "layers.0.attention.value.bias": ((512,), HEADS),
        "layers.0.attention.value.kernel": ((3584, 512), COLUMNS),
        "layers.0.attention_norm.scale": ((3584,), WHOLE),
        "layers.0.down.kernel": ((18944, 3584), ROWS),
        "layers.0.gate.kernel": ((3584, 18944), COLUMNS),
        "layers.0.mlp_norm.scale": ((3584,), WHOLE),
        "layers.0.up.kernel": ((3584, 18944), COLUMNS),
        "norm.scale": ((3584,), WHOLE),
    },
    "qwen2.5-32b": {
        "embedding": ((152064, 5120), ROWS),
        "head": ((5120, 152064), COLUMNS),
        "layers.0.attention.key.bias": ((1024,), HEADS),
        "layers.0.attention.key.kernel": ((5120, 1024), COLUMNS),
        "layers.0.attention.out.kernel": ((5120, 5120), ROWS),
        "layers.0.attention.query.bias": ((5120,), HEADS),
        "layers.0.attention.query.kernel": ((5120, 5120), COLUMNS),
        "layers.0.attention.value.bias": ((1024,), HEADS),
        "layers.0.attention.value.kernel": ((5120, 1024), COLUMNS),
        "layers.0.attention_norm.scale": ((5120,), WHOLE),
        "layers.0.down.kernel": ((27648, 5120), ROWS),
        "layers.0.gate.kernel": ((5120, 27648), COLUMNS),
        "layers.0.mlp_norm.scale": ((5120,), WHOLE),
        "layers.0.up.kernel": ((5120, 27648), COLUMNS),
        "norm.scale": ((5120,), WHOLE),
    },
}


@dataclasses.dataclass(frozen=True)
class Device:
    id: int


def abstract_mesh(replica, fsdp, tensor):
    return AbstractMesh((replica, fsdp, tensor), MESH_AXES, axis_types=(AxisType.Auto,) * 3)


def one_layer(name):
    """Abstract parameters and axes with one of the layers, which are all alike."""
    _, abstract, axes = build_network(dataclasses.replace(PUBLISHED[name], num_layers=1))
    return abstract, axes


def by_name(tree):
    return {
        jax.tree_util.keystr(p, simple=True, separator="."): x for p, x in jax.tree_util.tree_leaves_with_path(tree)
    }


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_table(name):
    abstract, axes = one_layer(name)
    shardings = by_name(param_shardings(abstract_mesh(1, 4, 2), abstract, axes))
    found = {path: (leaf.shape, shardings[path].spec) for path, leaf in by_name(abstract).items()}
    assert found == GOLDEN[name]


def test_optimizer_state_is_sharded_like_the_parameters_it_mirrors():
    abstract, axes = one_layer("qwen2.5-7b")
    mesh = abstract_mesh(1, 4, 2)
    shardings = param_shardings(mesh, abstract, axes)
    state = jax.eval_shape(optax.adamw(optax.constant_schedule(1e-6)).init, abstract)
    found = by_name(like_params(mesh, state, abstract, shardings))
    expected = {path: sharding.spec for path, sharding in by_name(shardings).items()}
    for moment in ("mu", "nu"):
        assert {p.split(f".{moment}.")[1]: s.spec for p, s in found.items() if f".{moment}." in p} == expected
    assert [s.spec for p, s in found.items() if p.endswith("count")] == [P(), P()]


def test_a_dimension_that_the_axis_does_not_divide_stays_whole():
    mesh = SimpleNamespace(shape={"replica": 1, "fsdp": 4, "tensor": 2})
    assert spec(mesh, ("vocab", "embed"), (152065, 896)) == P(None, "fsdp")
    assert spec(mesh, ("vocab", "embed"), (152064, 898)) == P("tensor", None)
    assert spec(mesh, ("embed",), (6,)) == P(None)


def test_a_mesh_axis_of_one_device_and_an_axis_used_already_stay_out():
    mesh = SimpleNamespace(shape={"replica": 8, "fsdp": 1, "tensor": 2})
    assert spec(mesh, ("embed", "heads"), (64, 64)) == P(None, "tensor")
    assert spec(mesh, ("heads", "mlp"), (64, 64)) == P("tensor", None)


def test_fsdp_of_zero_takes_the_devices_that_remain():
    devices = [Device(i) for i in range(8)]
    for given, expected in (((1, 0, 1), (1, 8, 1)), ((2, 0, 2), (2, 2, 2)), ((8, 0, 1), (8, 1, 1))):
        mesh = make_mesh(*given, devices=devices)
        assert tuple(mesh.shape.values()) == expected and tuple(mesh.shape) == MESH_AXES
        assert batch_shards(mesh) == expected[0] * expected[1]


@pytest.mark.parametrize(("sizes", "product"), [((1, 3, 1), 3), ((3, 0, 1), 6), ((2, 0, 8), 16)])
def test_a_mesh_that_does_not_fit_names_its_sizes_and_the_devices(sizes, product):
    with pytest.raises(MeshMismatch) as error:
        make_mesh(*sizes, devices=[Device(i) for i in range(8)])
    assert f"mesh.replica={sizes[0]} x mesh.fsdp=" in str(error.value)
    assert f"is {product} devices, but there are 8; set mesh.fsdp=0" in str(error.value)


def test_the_default_mesh_shards_over_all_devices_of_the_session():
    mesh = make_mesh()
    assert batch_shards(mesh) == mesh.shape["fsdp"] == len(jax.devices())
    total = jax.jit(jnp.sum, in_shardings=jax.sharding.NamedSharding(mesh, P(("replica", "fsdp"))))(jnp.arange(8.0))
    assert float(total) == 28
