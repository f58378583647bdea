"""The sharding rules: golden tables for three models, arrays that may stay whole, and meshes that do not fit."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from fr3e_jax.policy.architecture import PUBLISHED
from fr3e_jax.policy.network import build_network
from fr3e_jax.programs.decoder_programs import promoted_shardings
from fr3e_jax.programs.mesh import EXPERT_MESH_AXES, MESH_AXES, MeshMismatch, batch_shards, make_mesh, rollout_mesh
from fr3e_jax.programs.shardings import (
    batch_sharding,
    cache_sharding,
    head_counts,
    kept_hidden_sharding,
    like_params,
    param_shardings,
    spec,
)

GOLDEN = Path(__file__).with_name("golden_shardings")
# Meshes of 8, 64 (v5e-64) and 64 (v5p-128) chips.
MESHES = {"qwen2.5-0.5b": (1, 4, 2), "qwen2.5-7b": (1, 16, 4), "qwen2.5-32b": (1, 8, 8)}


@dataclasses.dataclass(frozen=True)
class Device:
    id: int


def abstract_mesh(replica, fsdp, tensor, context=1):
    return AbstractMesh((replica, fsdp, context, tensor), MESH_AXES, axis_types=(AxisType.Auto,) * 4)


def one_layer(name):
    """Abstract parameters and axes with one of the layers, which are all alike."""
    _, abstract, axes = build_network(dataclasses.replace(PUBLISHED[name], num_layers=1))
    return abstract, axes


def by_name(tree):
    return {
        jax.tree_util.keystr(p, simple=True, separator="."): x for p, x in jax.tree_util.tree_leaves_with_path(tree)
    }


def share(shape, partition, mesh):
    """Elements that one device holds."""
    axes = [a for entry in partition if entry for a in (entry if isinstance(entry, tuple) else (entry,))]
    return int(np.prod(shape)) // int(np.prod([mesh.shape[a] for a in axes]))


def sharding_table(name):
    """A line for each array that a run keeps on the mesh; one layer stands for all."""
    abstract, axes = one_layer(name)
    architecture, mesh = PUBLISHED[name], abstract_mesh(*MESHES[name])
    shardings = param_shardings(mesh, abstract, axes, architecture)
    optimizer = optax.adamw(optax.constant_schedule(1e-6))
    state = jax.eval_shape(optimizer.init, abstract)
    rows = [(f"parameter {n}", leaf.shape, by_name(shardings)[n].spec) for n, leaf in by_name(abstract).items()]
    moments = by_name(like_params(mesh, state, abstract, shardings))
    rows += [(f"optimizer {n}", leaf.shape, moments[n].spec) for n, leaf in by_name(state).items()]
    kv, slots = architecture.num_kv_heads, batch_shards(mesh)
    cache, kept = cache_sharding(mesh, architecture).spec, kept_hidden_sharding(mesh, architecture).spec
    batch = batch_sharding(mesh).spec
    rows += [("cache trunk key", (slots, kv, architecture.head_dim, 16384), cache)]
    rows += [("cache trunk hidden", (slots, 16384, architecture.hidden_size), kept)]
    rows += [("cache lane hidden", (slots * 16, 16384, architecture.hidden_size), kept)]
    rows += [("cache lane key", (slots * 16, kv, architecture.head_dim, 16384), cache)]
    rows += [("batch token ids", (slots, 16384), batch)]
    words = lambda entry: "-" if entry is None else "+".join([entry] if isinstance(entry, str) else entry)
    return [
        f"{label:<47} {'x'.join(map(str, shape)) or 'scalar':<20} {' '.join(map(words, partition)) or '-':<22} "
        f"{share(shape, partition, mesh):>12,}"
        for label, shape, partition in rows
    ]


@pytest.mark.parametrize("name", MESHES)
def test_sharding_table_equals_the_golden_file(name):
    """Made by: FR3E_WRITE_GOLDEN=1 pytest tests/programs/test_mesh.py -k golden. Read the difference first."""
    file, sizes = GOLDEN / f"{name}.txt", "replica={} fsdp={} tensor={}".format(*MESHES[name])
    title = f"{name} on {sizes}: array, shape, mesh axes by dimension, elements on a device\n"
    text = title + "\n".join(line.rstrip() for line in sharding_table(name)) + "\n"
    if os.environ.get("FR3E_WRITE_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text(), test_sharding_table_equals_the_golden_file.__doc__


@pytest.mark.parametrize("name", MESHES)
def test_no_large_array_of_a_run_is_whole_on_a_device(name):
    """Every matrix is split over all devices."""
    devices = np.prod(MESHES[name])
    abstract, axes = one_layer(name)
    mesh = abstract_mesh(*MESHES[name])
    shardings = by_name(param_shardings(mesh, abstract, axes, PUBLISHED[name]))
    for path, leaf in by_name(abstract).items():
        if leaf.ndim > 1:
            assert share(leaf.shape, shardings[path].spec, mesh) * devices == leaf.size, path


def test_optimizer_state_is_sharded_like_the_parameters_it_mirrors():
    abstract, axes = one_layer("qwen2.5-7b")
    mesh = abstract_mesh(1, 4, 2)
    shardings = param_shardings(mesh, abstract, axes, PUBLISHED["qwen2.5-7b"])
    state = jax.eval_shape(optax.adamw(optax.constant_schedule(1e-6)).init, abstract)
    found = by_name(like_params(mesh, state, abstract, shardings))
    expected = {path: sharding.spec for path, sharding in by_name(shardings).items()}
    for moment in ("mu", "nu"):
        assert {p.split(f".{moment}.")[1]: s.spec for p, s in found.items() if f".{moment}." in p} == expected
    assert [s.spec for p, s in found.items() if p.endswith("count")] == [P(), P()]


def test_large_optimizer_state_that_mirrors_no_parameter_is_refused():
    abstract, axes = one_layer("qwen2.5-0.5b")
    mesh = abstract_mesh(1, 4, 2)
    shardings = param_shardings(mesh, abstract, axes, PUBLISHED["qwen2.5-0.5b"])
    state = {"rows": jax.ShapeDtypeStruct((151936, 2), jnp.float32), "step": jax.ShapeDtypeStruct((), jnp.int32)}
    with pytest.raises(MeshMismatch, match=r"\['rows'\] \[151936, 2\] mirrors no parameter, and 303,872 elements"):
        like_params(mesh, state, abstract, shardings)


def partition(sizes, axes, shape, units=None, context=1):
    mesh = SimpleNamespace(shape=dict(zip(("replica", "fsdp", "tensor"), sizes, strict=True)) | {"context": context})
    return spec(mesh, axes, shape, units=units or {}, name="layers.0.gate.kernel")


def test_small_array_stays_whole_if_the_axis_does_not_divide_it():
    assert partition((1, 4, 2), ("vocab", "embed"), (21, 64)) == P(None, "fsdp")
    assert partition((1, 4, 2), ("vocab", "embed"), (20, 66)) == P("tensor", None)
    assert partition((1, 4, 2), ("embed",), (6,)) == P(None)


@pytest.mark.parametrize(
    ("axes", "shape", "found", "advice"),
    [
        (("vocab", "embed"), (152065, 896), "mesh.tensor=2 does not divide dimension 0 (vocab, 152065)", "tensor=1"),
        (("embed", "mlp"), (898, 4864), "mesh.fsdp=4 does not divide dimension 0 (embed, 898)", "mesh.fsdp=2"),
        (("embed", "mlp"), (64, 7), "mesh.tensor=2 does not divide dimension 1 (mlp, 7)", "mesh.tensor=1"),
    ],
)
def test_indivisible_dimension_of_a_large_array_is_refused_by_name(axes, shape, found, advice):
    with pytest.raises(MeshMismatch) as error:
        partition((1, 4, 2), axes, shape)
    assert f"{found} of layers.0.gate.kernel {list(shape)}" in str(error.value)
    assert f"nearest: {'mesh.' * (advice[:4] != 'mesh')}{advice}, and mesh." in str(error.value)


def test_heads_are_not_cut_and_fewer_key_value_heads_than_shards_stay_whole():
    with pytest.raises(MeshMismatch, match=r"mesh.tensor=8 does not divide dimension 1 \(heads, 28\)"):
        partition((1, 1, 8), ("embed", "heads"), (3584, 3584), {"heads": 28})
    assert partition((1, 2, 8), ("embed", "kv_heads"), (5120, 512), {"kv_heads": 4}) == P("fsdp", None)
    assert cache_sharding(abstract_mesh(1, 1, 7), PUBLISHED["qwen2.5-0.5b"]).spec == P(("replica", "fsdp"), None)
    assert head_counts(PUBLISHED["qwen2.5-7b"]) == {"heads": 28, "kv_heads": 4}


def test_context_shards_parameters_beside_fsdp_and_no_batch():
    assert partition((1, 4, 2), ("embed", "mlp"), (64, 64), context=2) == P(("fsdp", "context"), "tensor")
    assert partition((4, 1, 2), ("embed", "mlp"), (64, 64), context=2) == P("context", "tensor")
    with pytest.raises(MeshMismatch) as error:
        partition((1, 4, 2), ("embed", "mlp"), (900, 4864), context=8)
    assert "mesh.fsdp=4 x mesh.context=8 does not divide dimension 0 (embed, 900)" in str(error.value)
    assert "nearest: mesh.context=1, and mesh.replica=-1" in str(error.value)
    with pytest.raises(MeshMismatch, match="nearest: mesh.fsdp=3, and mesh.replica=-1"):
        partition((1, 4, 2), ("embed", "mlp"), (900, 4864), context=2)
    assert batch_shards(abstract_mesh(2, 4, 1, context=8)) == 8


def test_two_dimensions_on_one_mesh_axis_are_refused_by_name():
    with pytest.raises(MeshMismatch) as error:
        partition((8, 1, 2), ("heads", "mlp"), (64, 64))
    message = str(error.value)
    assert "layers.0.gate.kernel: dimensions 0 (heads) and 1 (mlp) both go to mesh axis tensor" in message


def test_mesh_axis_of_one_device_appears_in_no_spec():
    assert partition((8, 1, 2), ("embed", "heads"), (64, 64)) == P(None, "tensor")
    assert partition((8, 2, 1), ("mlp", "mlp"), (63, 64)) == P(None, None)


def test_size_of_minus_one_takes_the_remaining_devices():
    devices = [Device(i) for i in range(8)]
    cases = {(1, -1, 1): (1, 8, 1), (2, -1, 2): (2, 2, 2), (8, -1, 1): (8, 1, 1), (-1, 2, 1): (4, 2, 1)}
    for given, expected in (cases | {(1, 2, -1): (1, 2, 4)}).items():
        mesh = make_mesh(*given, devices=devices)
        replica, fsdp, tensor = expected
        assert mesh.shape == dict(replica=replica, fsdp=fsdp, context=1, tensor=tensor)
        assert tuple(mesh.shape) == MESH_AXES
        assert batch_shards(mesh) == expected[0] * expected[1]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (
            (1, 3, 1),
            "mesh.replica=1 x mesh.fsdp=3 x mesh.tensor=1 is 3 devices, but there are 8; set one of them to -1",
        ),
        ((3, -1, 1), "mesh.replica=3 x mesh.fsdp=2 x mesh.tensor=1 is 6 devices, but there are 8"),
        ((2, -1, 8), "is 16 devices, but there are 8"),
        ((1, 0, 1), "mesh.fsdp=0 is no size of a mesh axis; set a number of devices, or -1"),
        ((-1, -1, 1), "mesh.replica=-1 and mesh.fsdp=-1 leave the mesh undetermined"),
        ((1, 2, 2, 3), "mesh.fsdp=2 x mesh.context=3 x mesh.tensor=2 is 12 devices, but there are 8"),
    ],
)
def test_sizes_that_do_not_fit_the_devices_are_refused_by_name(sizes, message):
    with pytest.raises(MeshMismatch) as error:
        make_mesh(*sizes[:3], devices=[Device(i) for i in range(8)], context=sizes[3] if len(sizes) > 3 else 1)
    assert message in str(error.value)


def test_the_rollout_mesh_has_the_same_devices_in_the_same_order():
    training = make_mesh(1, -1, 1, devices=[Device(i) for i in range(8)])
    assert rollout_mesh(training) is training
    assert rollout_mesh(training, fsdp=8, tensor=1) is training
    mesh = rollout_mesh(training, tensor=4)
    assert tuple(mesh.shape.values()) == (2, 1, 1, 4)
    assert mesh.devices.ravel().tolist() == training.devices.ravel().tolist()
    long = make_mesh(1, 2, 2, devices=[Device(i) for i in range(8)], context=2)
    assert rollout_mesh(long).shape == dict(replica=1, fsdp=4, context=1, tensor=2)
    assert rollout_mesh(long).devices.ravel().tolist() == long.devices.ravel().tolist()
    with pytest.raises(
        MeshMismatch, match="mesh.rollout_fsdp=1 x mesh.rollout_tensor=3 is 3 devices, .* do not divide the 8"
    ):
        rollout_mesh(training, tensor=3)


@dataclasses.dataclass(frozen=True)
class Chip:
    """A TPU chip of a slice of 2 x 2."""

    id: int
    platform: str = "tpu"
    device_kind: str = "TPU of tests"
    core_on_chip: int = 0

    @property
    def slice_index(self):
        return self.id // 4

    process_index = slice_index

    @property
    def coords(self):
        return (self.id % 2, self.id // 2 % 2, 0)


@pytest.mark.parametrize("sizes", [(2, 2, 2, 1), (2, 2, 1, 2), (4, 2, 1, 1)])
def test_replica_alone_spans_slices(sizes):
    replica, fsdp, tensor, context = sizes
    mesh = make_mesh(replica, fsdp, tensor, [Chip(i) for i in range(8)], context=context)
    in_slices = np.vectorize(lambda chip: chip.slice_index)(mesh.devices).reshape(replica, -1)
    np.testing.assert_array_equal(in_slices, np.repeat([0, 1], replica // 2)[:, None] + np.zeros_like(in_slices))
    decoding = rollout_mesh(mesh, tensor=4)
    assert [chip.slice_index for chip in decoding.devices.ravel()] == [0] * 4 + [1] * 4


def test_meshes_whose_other_axes_would_span_slices_are_refused():
    chips = [Chip(i) for i in range(8)]
    with pytest.raises(MeshMismatch, match="mesh.replica=1 is not a multiple of the 2 slices .* set mesh.replica=2"):
        make_mesh(devices=chips)
    with pytest.raises(
        MeshMismatch, match="x mesh.rollout_tensor=8 is 8 devices, which do not divide the 4 of each of the 2 slices"
    ):
        rollout_mesh(make_mesh(2, devices=chips), tensor=8)


def test_the_default_mesh_shards_over_all_devices_of_the_session():
    mesh = make_mesh()
    assert batch_shards(mesh) == mesh.shape["fsdp"] == len(jax.devices())
    total = jax.jit(jnp.sum, in_shardings=jax.sharding.NamedSharding(mesh, P(("replica", "fsdp"))))(jnp.arange(8.0))
    assert float(total) == 28


@pytest.mark.parametrize("expert", [1, 4])
def test_promoted_trunks_are_split_by_position_over_all_batch_shards(expert):
    """An axis of experts splits batches, too: without it each of its devices would hold the same positions."""
    mesh = AbstractMesh((1, 2, expert, 1, 1), EXPERT_MESH_AXES, axis_types=(AxisType.Auto,) * 5)
    found = promoted_shardings(mesh, PUBLISHED["qwen3-30b-a3b"])
    assert batch_shards(mesh) == 2 * expert
    assert found.hidden.shard_shape((2, 64, 2048)) == (2, 64 // (2 * expert), 2048)
    assert found.layers[0].key.shard_shape((2, 4, 128, 64))[3] == 64 // (2 * expert)
    assert found.layers[0].value.shard_shape((2, 4, 64, 128))[2] == 64 // (2 * expert)
