"""Rows whose positions are split over the mesh axis ``context`` against whole rows on one device.

The rows hold several trunks, one-token branches, branches that cross lanes, forks at both ends and inside, padding, and
a whole row of it. Neither trunks nor lanes divide into the parts.
"""

from __future__ import annotations

import jax
import numpy as np
import pytest
from compiled_program import Compiled
from network_programs import abstract_params, assert_close, one_device, placed, train_programs
from random_rows import random_rows

from fr3e_jax.policy.rows import Rows
from fr3e_jax.programs.mesh import make_mesh
from fr3e_jax.programs.shardings import batch_sharding, replicated
from fr3e_jax.programs.train_programs import LossSettings, TrainRows

pytestmark = pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 devices: FR3E_TEST_DEVICES=8 (make test-8)")

SIZES = dict(vocab_size=40, hidden_size=64, num_heads=4, num_kv_heads=2, head_dim=16, intermediate_size=64)
SHAPE = dict(trunk=45, lanes=4, length=11, window=3)
LOSS = LossSettings(entropy_coefficient=0.05, entropy_advantage=(0.4, 2.0))
LONG = dict(remat="block", attention_block=8, scan=True)
TEMPERATURE, DENOMINATOR = 0.8, 150.0


def draw_rows():
    """A micro-batch of eight rows in the shape above; the last one is empty."""
    rng = np.random.default_rng(3)
    view = random_rows(rng, rows=8, **SHAPE)
    segment = np.asarray(view.segment)
    assert ((segment[:, 1:, 0] == segment[:, :-1, -1]) & (segment[:, 1:, 0] > 0)).any(), "a branch crosses lanes"
    assert (np.unique(segment[segment > 0], return_counts=True)[1] > 0).all() and not segment[-1].any()
    trunk_offset, offset = places_in_segments(view.trunk_segment), places_in_segments(segment.reshape(8, -1))
    ids = lambda like: rng.integers(0, SIZES["vocab_size"], like.shape).astype(np.int32)
    normal = lambda: rng.standard_normal(segment.shape).astype(np.float32)
    rows = Rows(
        ids(view.trunk_segment),
        np.asarray(view.trunk_segment),
        trunk_offset,
        ids(segment),
        segment,
        np.asarray(view.start),
        np.asarray(view.fork),
        offset.reshape(segment.shape),
        np.ones((8, SHAPE["window"]), bool),
    )
    mask = (segment > 0) & (rng.random(segment.shape) < 0.8)
    return TrainRows(rows, mask, np.abs(normal()), normal(), normal() - 3, normal() - 3)


def places_in_segments(segment):
    """int ``[B, L]``: how many tokens of the same segment lie before each token."""
    segment = np.asarray(segment)
    place = np.arange(segment.shape[1], dtype=np.int32)[None]
    changes = np.pad(segment[:, 1:] != segment[:, :-1], ((0, 0), (1, 0)))
    return place - np.maximum.accumulate(np.where(changes, place, 0), axis=1)


def trained(network, mesh, **options):
    """Scores, gradients and sums of the micro-batch."""
    programs, params = train_programs(network, mesh, loss=LOSS, chunk=16, **options), placed(network, mesh)
    batch = draw_rows()
    scores = programs.score(params, batch.rows, TEMPERATURE)
    numbers = DENOMINATOR, TEMPERATURE, 1.0
    gradients, sums = programs.accumulate(params, programs.zero_gradients(params), batch, *numbers)
    gradients = programs.total(gradients)
    return jax.device_get((scores, programs.branching(params, batch.rows), gradients, sums))


@pytest.fixture(scope="module")
def network(tiny_network):
    return tiny_network(**SIZES)


@pytest.fixture(scope="module")
def alone(network):
    return trained(network, one_device())


# replica, fsdp, context, tensor
@pytest.mark.parametrize("sizes", [(1, 2, 2, 2), (1, 1, 8, 1), (2, 1, 4, 1)], ids=str)
def test_scores_and_gradients_of_split_rows_equal_those_of_whole_rows(sizes, network, alone):
    *others, context, tensor = sizes
    assert_close(trained(network, make_mesh(*others, tensor, context=context)), alone)


@pytest.mark.parametrize("attention", ["xla", "pallas"])
def test_long_row_options_of_split_rows_change_nothing(attention, network, alone):
    mesh = make_mesh(1, 2, 2, context=2)
    assert_close(trained(network, mesh, attention=attention, **LONG), alone)


def test_windows_of_layers_change_no_score_and_no_gradient_on_eight_devices(tiny_network):
    """With matrix products, and with fused kernels in a scan over a whole period of two layers and one more."""
    softcaps = dict(attention_softcap=2.0, final_softcap=3.0)
    network = tiny_network(**SIZES, **softcaps, model_type="gemma2", windows=(7, 0), num_layers=3)
    expected = trained(network, one_device())
    mesh = make_mesh(1, 2, 2, context=2)
    for options in ({}, LONG | {"attention": "pallas"}):
        assert_close(trained(network, mesh, **options), expected)


def test_bfloat16_scores_and_gradients_of_split_rows_are_as_near_to_float32_as_those_of_whole_rows(tiny_network, alone):
    """Sums over parts round once more, at the most; the error of the whole gradient counts."""
    network = tiny_network(**SIZES, compute_dtype="bfloat16")
    flat = lambda found: np.concatenate([np.ravel(x).astype(np.float64) for x in jax.tree.leaves((found[0], found[2]))])
    exact = flat(alone)
    whole = np.linalg.norm(flat(trained(network, one_device())) - exact)
    split = np.linalg.norm(flat(trained(network, make_mesh(1, 2, 1, context=4))) - exact)
    assert 0 < split < 1.2 * whole < 0.1 * np.linalg.norm(exact)


def compiled(network, mesh, rows, **options):
    """The gradient program for ``rows`` rows of a trunk of 1,024 and two lanes of 512 tokens."""
    programs = train_programs(network, mesh, loss=LOSS, chunk=16, remat="block", scan=True, **options)
    params = abstract_params(network, mesh)
    array = lambda kind, *shape: jax.ShapeDtypeStruct((rows, *shape), kind, sharding=batch_sharding(mesh))
    trunk, lane, number = array(np.int32, 1024), array(np.int32, 2, 512), array(np.float32, 2, 512)
    batch = TrainRows(Rows(*(trunk,) * 3, *(lane,) * 5, array(bool, 2)), array(bool, 2, 512), *(number,) * 4)
    scalar = jax.ShapeDtypeStruct((), np.float32, sharding=replicated(mesh))
    return Compiled(programs._accumulate.lower(params, params, batch, scalar, scalar, scalar))


def test_a_device_has_its_part_of_scores_and_states_and_gathers_keys_and_values_alone(network):
    """Two rows a batch shard: states of rows and parts must not be flattened together, or XLA would gather them."""
    whole = compiled(network, make_mesh(1, 2, 1, jax.devices()[:2]), 4)
    split = compiled(network, make_mesh(1, 2, 1, context=4), 4)
    assert split.largest * 4 == whole.largest, "scores"
    assert split.memory.temp_size_in_bytes < 0.35 * whole.memory.temp_size_in_bytes
    heads, head_dim, positions = SIZES["num_kv_heads"], SIZES["head_dim"], 2048 // 4
    keys = (4, 2, 1, heads, head_dim, positions)
    large = 4096  # elements; parameters of this network are smaller
    assert split.gathered(large) == {keys, (*keys[:4], positions, head_dim)}
    assert split.kinds(large) == {"all-gather", "all-reduce"}


def test_states_between_layers_are_split_over_tensor_within_a_part(network):
    shapes = compiled(network, make_mesh(1, 1, 2, context=4), 2).shapes
    width = SIZES["hidden_size"]
    assert (2, 2, 1, 2048 // 4 // 2, width) in shapes  # of two layers and two rows
    assert not {shape for shape in shapes if shape[0] == 2 * 4 and shape[-1] == width}, "states of other parts"
