"""The links that collectives use on a torus, by hand: which dimensions, rings or lines, shared or not."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from fr3e_jax.planning.compile import link_seconds
from fr3e_jax.planning.costs import Collective, collectives
from fr3e_jax.planning.estimate import Sizes
from fr3e_jax.planning.links import MeshLinks, closed_rings, estimated_links, links_of_mesh
from fr3e_jax.planning.planner_process import environment, find_libtpu
from fr3e_jax.planning.topology import parse_topology

V5P = parse_topology("v5p:4x4x4")


def line(size: int, closed: bool) -> MeshLinks:
    return MeshLinks(np.arange(size)[:, None], (size,), (closed,), {"x": size})


@pytest.mark.parametrize(
    ("name", "rings"),
    [
        ("v5p:4x4x4", (True, True, True)),
        ("v5p:4x4x8", (True, True, True)),
        ("v5p:4x4x2", (False, False, False)),  # no whole cube
        ("v4:2x2x4", (False, False, False)),
        ("v5e:8x8", (False, False)),
        ("v5e:8x16", (False, True)),
        ("v6e:16x16", (True, True)),
    ],
)
def test_rings_close_in_whole_cubes_and_along_whole_sides_of_a_pod(name, rings):
    assert closed_rings(parse_topology(name)) == rings


@pytest.mark.parametrize(
    ("mesh", "groups", "loads"),
    [
        (line(4, True), [[0, 1, 2, 3]], 1 / 2),  # both directions of a ring
        (line(4, False), [[0, 1, 2, 3]], 1),  # the ends of a line have one link
        (line(8, True), [[0, 1, 2, 3], [4, 5, 6, 7]], 1),  # half of a ring is a line
        (line(8, True), [[0, 2, 4, 6], [1, 3, 5, 7]], 1),  # two rings share both directions
        (line(8, False), [[0, 4], [1, 5], [2, 6], [3, 7]], 4),  # four pairs cross the middle link
    ],
)
def test_gathers_and_sums_have_the_links_of_their_ring_or_line(mesh, groups, loads):
    for kind in ("all-gather", "reduce-scatter", "all-reduce"):
        assert mesh.loads(kind, np.array(groups)) == (loads,)


def test_group_over_two_dimensions_has_the_links_of_both():
    places = np.stack(np.unravel_index(np.arange(64), (4, 4, 4)), axis=1)
    mesh = MeshLinks(places, (4, 4, 4), (True, True, True), {"fsdp": 16, "tensor": 4})
    assert mesh.loads("all-gather", mesh.groups(["fsdp"])) == (1 / 4, 1 / 4, 0)
    assert mesh.loads("all-gather", mesh.groups(["tensor"])) == (0, 0, 1 / 2)
    assert mesh.loads("all-gather", mesh.groups(["fsdp", "tensor"])) == (1 / 6, 1 / 6, 1 / 6)
    assert mesh.loads("all-gather", mesh.groups([])) == (0, 0, 0)
    assert mesh.axes_of(mesh.groups(["fsdp"])) == ("fsdp",) and mesh.axes_of(np.array([[0, 63]])) == ("fsdp", "tensor")


@pytest.mark.parametrize(
    ("closed", "pairs", "load"),
    [
        (True, [(0, 1), (1, 2), (2, 3), (3, 0)], 1),
        (False, [(0, 1), (1, 2), (2, 3), (3, 0)], 1),  # the last one goes back, in the other direction
        (True, [(0, 2), (1, 3), (2, 0), (3, 1)], 2),
        (False, [(0, 3), (1, 2)], 2),  # both pass the middle link
        (True, [(0, 3), (1, 2)], 1),  # the shorter way round
        (False, [(0, 3), (3, 0)], 1),  # in both directions
    ],
)
def test_permutation_takes_as_long_as_its_busiest_link(closed, pairs, load):
    assert line(4, closed).loads("collective-permute", np.array(pairs)) == (load,)


def test_permutation_goes_along_one_dimension_after_another():
    places = np.array([(0, 0), (0, 1), (1, 0), (1, 1)])
    mesh = MeshLinks(places, (2, 2), (False, False), {"x": 2, "y": 2})
    assert mesh.loads("collective-permute", np.array([(0, 3), (1, 2)])) == (1, 1)


@pytest.mark.parametrize(("closed", "load"), [(True, 2 / 3), (False, 4 / 3)])
def test_exchange_is_bound_by_the_middle_of_a_line(closed, load):
    """Of four chips two send two thirds of their bytes to the other half: over one link, or two of a ring."""
    assert line(4, closed).loads("all-to-all", np.arange(4)[None]) == pytest.approx((load,))


HLO = """HloModule jit_step

ENTRY %main (x: bf16[64,128]) -> bf16[64,128] {
  %g.1 = bf16[64,128]{1,0} all-gather(%x), channel_id=1, replica_groups=[4,16]<=[16,4]T(1,0), dimensions={0}
  %g.2 = bf16[64,128]{1,0} all-gather(%g.1), channel_id=2, replica_groups=[16,4]<=[64], dimensions={0}
  %r.1 = bf16[64,128]{1,0} all-reduce(%g.2), channel_id=3, replica_groups=[16,4]<=[64]
  %p.1 = bf16[64,128]{1,0} collective-permute(%r.1), channel_id=4, source_target_pairs={{0,1},{1,2},{2,3},{3,0}}
}
"""


def test_collectives_of_a_program_take_the_time_of_their_axes_and_other_dimensions_run_beside():
    """16 x 4 chips of a cube: a gather over fsdp has four links, what runs over tensor has two, one after another."""
    mesh = estimated_links(V5P, Sizes(1, 16, 1, 4), Sizes(1, 16, 1, 4))
    found = {(c.kind, c.axes): c for c in collectives(HLO, mesh=mesh)}
    size, link = 64 * 128 * 2, 4800e9 / 8 / 6
    assert V5P.chip.bandwidth_of_a_link == link
    fsdp, tensor = found["all-gather", ("fsdp",)], found["all-gather", ("tensor",)]
    assert max(fsdp.loads) == 1 / 4 and fsdp.sent_bytes == size * 15 // 16
    assert max(tensor.loads) == 1 / 2 and tensor.sent_bytes == size * 3 // 4
    over_tensor = size * 3 / 4 / 2 + 2 * size * 3 / 4 / 2 + size  # gather, sum, a shift by one place
    assert link_seconds(list(found.values()), V5P) == pytest.approx(over_tensor / link)
    assert link_seconds([fsdp], V5P) == pytest.approx(size * 15 / 16 / 4 / link)
    assert not any(c.loads or c.axes for c in collectives(HLO))


def test_between_slices_and_on_gpus_no_torus_counts():
    across = Collective("all-reduce", 2, True, 1, 10**9)
    assert link_seconds([across], V5P) == 0
    gpu = parse_topology("h100:8x4")
    assert estimated_links(gpu, Sizes(1, 8, 1, 4), Sizes(1, 8, 1, 4)) is None
    assert link_seconds([Collective("all-gather", 8, False, 1, 450 * 10**9)], gpu) == pytest.approx(1)


def test_axis_that_is_a_part_of_a_dimension_has_a_line():
    """v5e:8x8 has no rings: tensor lies on one dimension, or on parts of both."""
    mesh = estimated_links(parse_topology("v5e:8x8"), Sizes(1, 16, 1, 4), Sizes(1, 16, 1, 4))
    links = 1 / max(mesh.loads("all-gather", mesh.groups(["tensor"])))
    assert links in (1, 2) and 1 / max(mesh.loads("all-gather", mesh.groups(["fsdp"]))) < 2


def test_rollouts_have_the_devices_of_training_in_the_same_order():
    sizes = Sizes(1, 16, 1, 4), Sizes(8, 1, 1, 8)
    training, rollouts = (estimated_links(V5P, sizes[0], own) for own in sizes)
    assert (training.places == rollouts.places).all() and rollouts.axes["tensor"] == 8
    # Eight neighbours: all of one dimension and two of another, which pairs cross.
    assert sorted(rollouts.loads("all-reduce", rollouts.groups(["tensor"])), reverse=True)[2] == 0


LAYOUTS = {
    "v5p:4x4x4": Sizes(1, 16, 1, 4),
    "v5p:2x2x2": Sizes(1, 4, 1, 2),
    "v5e:8x8": Sizes(1, 16, 1, 4),
    "v6e:4x4": Sizes(2, 2, 2, 2),
    "v4:4x4x4": Sizes(1, 16, 1, 2, 2),
    "v5e:4x4x2slices": Sizes(2, 4, 1, 4),
}
DESCRIBED = """
from fr3e_jax.planning.compile import topology_devices
from fr3e_jax.planning.links import estimated_links, links_of_mesh
from fr3e_jax.planning.topology import parse_topology
from fr3e_jax.programs.mesh import make_mesh
from tests.planning.test_links import LAYOUTS
for name, s in LAYOUTS.items():
    topology = parse_topology(name)
    devices = topology_devices(topology)
    mesh = make_mesh(s.replica, s.fsdp, s.tensor, devices, context=s.context, expert=s.expert)
    described, estimated = links_of_mesh(mesh, topology), estimated_links(topology, s, s)
    assert (described.places == estimated.places).all() and described.axes == estimated.axes, name
print("compared", len(LAYOUTS))
"""


@pytest.mark.slow
def test_estimated_layouts_are_those_of_the_devices_that_libtpu_describes():
    """In a process of its own, because libtpu reads its environment when jax is loaded."""
    if find_libtpu() is None:
        pytest.skip("no libtpu.so; `make test-plan` installs it and runs this")
    command = [sys.executable, "-c", DESCRIBED]
    told = subprocess.run(command, env=environment(find_libtpu()), capture_output=True, text=True)
    assert told.stdout.strip() == f"compared {len(LAYOUTS)}", told.stderr


def test_places_are_counted_from_the_corner_of_the_slice():
    devices = np.array([SimpleNamespace(coords=(4, 2, 0)), SimpleNamespace(coords=(5, 2, 0))])
    mesh = SimpleNamespace(devices=devices, shape={"x": 2})
    assert links_of_mesh(mesh, parse_topology("v5e:2x1")).places.tolist() == [[0, 0], [1, 0]]
