"""The compiled programs on eight devices: their collectives, and that no device holds another's share.

Read from the optimised HLO, whose shapes are those of one device.
"""

from __future__ import annotations

import math
from functools import partial
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from compiled_program import Compiled
from network_programs import abstract_params, adamw, one_device, shardings_on, train_programs

from fr3e_jax.learning.experience import TrainingBranch, TrainingTrunk
from fr3e_jax.learning.micro_batch_shapes import WINDOW
from fr3e_jax.learning.packing import pack
from fr3e_jax.programs.decoder_programs import DecoderPrograms
from fr3e_jax.programs.decoder_state import DecoderSizes, cache_shape
from fr3e_jax.programs.mesh import batch_shards, make_mesh, rollout_mesh
from fr3e_jax.programs.reshard import RolloutWeights
from fr3e_jax.programs.row_shape import RowShape
from fr3e_jax.programs.shardings import batch_sharding, replicated

pytestmark = pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 devices: FR3E_TEST_DEVICES=8 (make test-8)")

SIZES = dict(vocab_size=1024, hidden_size=128, num_heads=8, num_kv_heads=8, head_dim=16, intermediate_size=256)
SLOTS, LANES, POSITIONS = 16, 4, 64  # a trunk slot of each of eight batch shards has two trunks
SMALL = 1500  # elements: more than scalars and fetched results have, less than any activation here
REPLICA, FSDP, TENSOR, ALL = (8, 1, 1), (1, 8, 1), (1, 1, 8), (2, 2, 2)
MESHES = [ALL, REPLICA, FSDP, TENSOR]


def states_of_a_step(mesh):
    """Elements of a decode step's hidden states on a device: kept split by width, gathered for use."""
    return SLOTS // batch_shards(mesh) * LANES * SIZES["hidden_size"]


def states_between_layers(mesh, batch, split=1):
    """Shape of a device's share of the hidden states of a training batch, its positions split ``split`` ways."""
    count, positions = len(batch.rows.trunk_ids), batch.rows.trunk_ids.shape[1]
    positions += math.prod(batch.rows.branch_ids.shape[1:])
    return (count // batch_shards(mesh), 1, positions // split, SIZES["hidden_size"])


def by_replica(mesh, name, shapes):
    """The shapes as they are in the program ``name``: `accumulate` has a first axis of replicas, if there are any."""
    several = mesh.shape["replica"] > 1 and name == "accumulate"
    return {(1, *shape) for shape in shapes} if several else shapes


def gathered_parameters(network, mesh):
    """Shapes of parameters gathered over ``fsdp``, and still split over ``tensor``."""
    found, tensor = set(), mesh.shape["tensor"]
    shardings = jax.tree.leaves(shardings_on(network, mesh))
    for leaf, sharding in zip(jax.tree.leaves(network.abstract), shardings, strict=True):
        axes = (*sharding.spec, *(None,) * leaf.ndim)[: leaf.ndim]
        found.add(tuple(n // tensor if a == "tensor" else n for n, a in zip(leaf.shape, axes, strict=True)))
    return found


def bytes_of_a_device(network, shardings):
    """Bytes of a device's share of the parameters."""
    pairs = zip(jax.tree.leaves(network.abstract), jax.tree.leaves(shardings), strict=True)
    return sum(math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf, sharding in pairs)


def abstract_outputs(lowered):
    return jax.tree.map(lambda o: jax.ShapeDtypeStruct(o.shape, o.dtype, sharding=o.sharding), lowered.out_info)


def compile_all(network, mesh, slots):
    """All programs for ``slots`` trunk slots and as many training rows."""
    params, scalar = abstract_params(network, mesh), lambda kind: on(mesh, (), kind)
    decoder = DecoderPrograms(network.graphdef, network.architecture, mesh)
    prefill = decoder._prefill.lower(params, on(mesh, (slots, POSITIONS), np.int32))
    like = cache_shape(abstract_outputs(prefill))
    state = abstract_outputs(decoder._empty.lower(like, DecoderSizes(slots, LANES, POSITIONS, POSITIONS, 6, 1, True)))
    train, batch = train_programs(network, mesh, optimizer=adamw(), chunk=32), training_batch(mesh, slots)
    moments, gradients = train.abstract_arrays()["optimizer"], train.zero_gradients.results(params)
    lowered = dict(
        prefill=prefill,
        decode=decoder._chunk.lower(params, state, scalar(np.int32), steps=16, filtered=False),
        score=train._score.lower(params, batch.rows, scalar(np.float32)),
        accumulate=train._accumulate.lower(params, gradients, batch, scalar(np.float32), scalar(np.float32)),
        apply=train._apply.lower(params, moments, gradients),
    )
    return {name: Compiled(program) for name, program in lowered.items()}


def on(mesh, shape, kind):
    sharding = batch_sharding(mesh) if shape else replicated(mesh)
    return jax.ShapeDtypeStruct(shape, kind, sharding=sharding)


def training_batch(mesh, rows):
    """A trunk a row, whose branches fill the row's lanes."""
    nothing = np.zeros(64, np.float32)
    branches = [TrainingBranch(20, np.ones(64, np.int32), nothing, nothing) for _ in range(6)]
    trunks = [TrainingTrunk(np.ones(20, np.int32), branches, 0) for _ in range(rows)]
    shapes = [RowShape(rows, trunk_size=32, lanes=12, capacity=32, window=WINDOW)]
    (micro,) = pack(trunks, shapes=shapes, pad_id=0, shards=batch_shards(mesh))
    assert micro.batch.rows.trunk_ids.shape[0] == rows
    return jax.tree.map(lambda x: on(mesh, x.shape, x.dtype), micro.batch)


@pytest.fixture(scope="module")
def network(tiny_network):
    return tiny_network(**SIZES, num_layers=1, tie_word_embeddings=False)


@pytest.fixture(scope="module", params=MESHES, ids=str)
def programs(request, network):
    """The mesh, its programs, and those of one device that has one device's share of the batch."""
    mesh = make_mesh(*request.param)
    alone = one_device()
    share = SLOTS // batch_shards(mesh)
    return SimpleNamespace(mesh=mesh, here=compile_all(network, mesh, SLOTS), alone=compile_all(network, alone, share))


def test_no_device_holds_more_than_it_would_with_its_share_of_the_batch_alone(programs):
    """A batch, a cache or an activation that is whole on a device would be larger."""
    for name, program in programs.here.items():
        assert program.largest <= programs.alone[name].largest, name


def test_large_gathered_arrays_are_parameters(programs, network):
    """No cache, and no activation but those that `mesh_layout` splits by position over ``tensor``."""
    tensor, fsdp = programs.mesh.shape["tensor"], programs.mesh.shape["fsdp"]
    gathered, batch = gathered_parameters(network, programs.mesh), training_batch(programs.mesh, SLOTS)
    for name, program in programs.here.items():
        large = program.gathered(max(SMALL, states_of_a_step(programs.mesh)) if name == "decode" else SMALL)
        split = tensor > 1 and name in ("score", "accumulate")
        between = by_replica(programs.mesh, name, {states_between_layers(programs.mesh, batch)} if split else set())
        assert between <= large <= between | (gathered if fsdp > 1 else set()), (name, large)


def test_each_program_has_only_the_collectives_that_its_mesh_needs(programs):
    """Gradients are summed over ``fsdp``, and once an update over ``replica``; products over ``tensor``.

    A few numbers are not counted.
    """
    replica, fsdp, _, tensor = programs.mesh.devices.shape
    gather = {"all-gather"} if fsdp > 1 else set()
    total = {"all-reduce"} if tensor > 1 else set()
    between = {"all-gather"} if tensor > 1 else set()  # of hidden states between layers in training
    # Token ids go to the embedding's columns and the found columns back, where the embedding is split by them alone.
    exchange = {"all-to-all"} if fsdp > 1 and tensor == 1 else set()
    gradients = {"all-reduce"} if fsdp > 1 else set()
    expected = dict(
        prefill=gather | total | exchange,
        score=gather | total | exchange | between,
        accumulate=gather | total | exchange | gradients | between,
        apply={"all-reduce"} if replica > 1 else set(),
    )
    for name, kinds in expected.items():
        found = programs.here[name].kinds(least=SMALL) - {"reduce-scatter"}  # some backends make one of an all-reduce
        assert found == kinds, name


def test_gradients_cross_replicas_in_apply_alone(programs, network):
    """As many bytes as one sum of a device's share; a micro-batch sends a few sums for the metrics."""
    mesh, replica = programs.mesh, programs.mesh.shape["replica"]
    share = bytes_of_a_device(network, shardings_on(network, mesh))
    crossing = {name: programs.here[name].sent_between(mesh.size // replica) for name in ("accumulate", "apply")}
    assert crossing["accumulate"] <= 64
    assert crossing["apply"] == pytest.approx(2 * share * (replica - 1) / replica, abs=64)


def test_states_between_layers_are_split_by_position_and_gathered_only_over_tensor(tiny_network):
    """One row a shard: XLA tries to split the flattened states by rows and positions together."""
    network, mesh, layers = tiny_network(**SIZES, num_layers=3), make_mesh(1, 2, 4), 3
    train = train_programs(network, mesh, remat="block", scan=True)
    params, one = abstract_params(network, mesh), on(mesh, (), np.float32)
    batch = training_batch(mesh, batch_shards(mesh))
    program, states = Compiled(train._accumulate.lower(params, params, batch, one, one)), states_between_layers
    assert (layers, *states(mesh, batch, split=4)) in program.shapes
    assert (layers, *states(mesh, batch)) not in program.shapes
    assert program.gathered(SMALL) <= gathered_parameters(network, mesh) | {states(mesh, batch)}
    assert program.kinds(SMALL) <= {"all-gather", "all-reduce", "reduce-scatter"}


def test_decoding_gathers_parameters_only_where_they_are_split_over_the_batch(programs):
    kinds = programs.here["decode"].kinds(least=max(SMALL, states_of_a_step(programs.mesh)))
    assert ("all-gather" in kinds) == (programs.mesh.shape["fsdp"] > 1)
    assert not kinds & {"collective-permute", "reduce-scatter"}


@pytest.mark.parametrize("sizes", [FSDP, (1, 4, 2), ALL], ids=str)
def test_resharding_takes_no_more_memory_than_both_layouts(sizes, network):
    mesh = make_mesh(*sizes)
    source, target = shardings_on(network, mesh), shardings_on(network, rollout_mesh(mesh, tensor=4))
    weights = RolloutWeights(network.abstract, source, target)
    program = Compiled(weights.reshard.lower(abstract_params(network, mesh)))
    share = partial(bytes_of_a_device, network)
    assert program.memory.output_size_in_bytes == pytest.approx(share(target), rel=0.01)
    assert program.memory.temp_size_in_bytes < share(source) + share(target)
    whole = max(leaf.size for leaf in jax.tree.leaves(network.abstract))
    assert program.largest < whole, "no array is whole on a device"
