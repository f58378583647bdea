"""Collectives read from the text of compiled programs; the lines are written as libtpu writes them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from fr3e_jax.planning.costs import Collective, collectives

LOOP = """HloModule jit_step

%cond.1 (p.1: (s32[], f32[8,4])) -> pred[] {
  %p.1 = (s32[]{:T(128)}, f32[8,4]{1,0:T(8,128)}) parameter(0)
  %limit.1 = s32[]{:T(128)} constant(12)
  %i.1 = s32[]{:T(128)} get-tuple-element(%p.1), index=0
  ROOT %lt.1 = pred[]{:T(512)} compare(%i.1, %limit.1), direction=LT, metadata={op_name="while/cond/lt"}
}

%open.1 (p.2: (s32[], s32[], f32[8,4])) -> pred[] {
  %p.2 = (s32[]{:T(128)}, s32[], f32[8,4]{1,0:T(8,128)}) parameter(0)
  %i.2 = s32[]{:T(128)} get-tuple-element(%p.2), index=0
  %n.2 = s32[]{:T(128)} get-tuple-element(%p.2), index=1
  ROOT %lt.2 = pred[]{:T(512)} compare(%i.2, %n.2), direction=LT
}

%body.1 (p.3: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %g.1 = f32[8,4]{1,0:T(8,128)S(1)} all-gather(%x.1), channel_id=1, replica_groups=mesh['a'=2,'b'=4] {'b'}
}

%fused.1 (p.4: f32[8,4]) -> f32[8,4] {
  %again.1 = f32[8,4]{1,0:T(8,128)S(1)} all-gather(%x.2), channel_id=1, replica_groups=[2,4]<=[8], dimensions={0}
}

%body.2 (p.5: (s32[], s32[], f32[8,4])) -> (s32[], s32[], f32[8,4]) {
  %w.1 = (s32[]{:T(128)}, f32[8,4]{1,0}) while(%t.1), condition=%cond.1, body=%body.1
}

%all-reduce-scatter.1 (input: f32[16,4]) -> f32[4,4] {
  %input = f32[16,4]{1,0:T(8,128)S(1)} parameter(0)
  %all-reduce.1 = f32[16,4]{1,0:T(8,128)} all-reduce(%input), channel_id=6, replica_groups={{0,1,2,3},{4,5,6,7}}
}

ENTRY %main (x: f32[8,4]) -> f32[8,4] {
  %w.2 = (s32[], s32[], f32[8,4]{1,0}) while(%t.2), condition=%open.1, body=%body.2
  %f.1 = f32[8,4]{1,0} fusion(%w.2), kind=kLoop, calls=%fused.1
  %f.2 = f32[4,4]{1,0} fusion(%w.2), kind=kCustom, calls=%all-reduce-scatter.1
  %r.1 = bf16[16,2]{1,0:T(8,128)(2,1)} all-reduce(%y.1), channel_id=2, replica_groups=[2,4]<=[4,2]T(1,0)
  %s.1 = f32[2,4]{1,0} reduce-scatter(%y.2), channel_id=3, replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}
  %p.6 = (bf16[4,4]{1,0:T(8,128)(2,1)}, bf16[4,4]{1,0}, u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%y.3), \
channel_id=4, source_target_pairs={{0,4},{4,0}}
  %p.7 = bf16[4,4]{1,0} collective-permute-done(%p.6)
  %g.2 = (f32[2,4]{1,0}, f32[8,4]{1,0}) all-gather-start(%y.4), channel_id=5, replica_groups=[2,4]<=[8], dimensions={0}
}
"""


def test_sent_bytes_are_those_of_a_ring_times_the_loops_around_it():
    found = collectives(LOOP, trips=5, chips_per_slice=4)
    gathers = 5 * 12 + 1  # the loop of 12 in the one of unknown length, and the one outside; a second copy is none
    assert set(found) == {
        Collective("all-gather", 4, False, gathers, gathers * 8 * 4 * 4 * 3 // 4),
        Collective("all-reduce", 4, True, 1, 2 * 16 * 2 * 2 * 3 // 4),
        Collective("reduce-scatter", 4, False, 2, 2 * 4 * 4 * 3 + 4 * 4 * 4 * 3),
        Collective("collective-permute", 2, True, 1, 4 * 4 * 2),
    }
    assert [row.sent_bytes for row in found] == sorted((row.sent_bytes for row in found), reverse=True)


def test_collectives_that_libtpu_leaves_to_the_runtime_between_slices_are_counted():
    """As libtpu 0.0.42 writes them for two slices of 2 x 2."""
    send = (
        "  %send = (f32[3,8,128]{2,1,0:T(8,128)}, u32[], token[]) send(%bitcast, %after-all), channel_id=3, "
        'is_host_transfer=true, frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",'
        '_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="KIND"}'
    )
    lines = [send.replace("KIND", kind) for kind in ("ALL_REDUCE", "ALL_GATHER")]
    found = collectives("\n".join(["ENTRY %main () -> f32[] {", *lines, "}"]), chips_per_slice=4)
    size = 4 * 3 * 8 * 128
    assert set(found) == {Collective("all-reduce", 2, True, 1, size), Collective("all-gather", 2, True, 1, size)}


@pytest.mark.parametrize(
    ("order", "axes", "group", "crosses"),
    [
        ("", "'a'", 2, True),
        (", device_ids=([2,2,2]T(0,2,1))", "'a'", 2, True),
        (", device_ids=([2,2,2]T(2,1,0))", "'a'", 2, False),
        (", device_ids=([2,4]T(1,0))", "'b','c'", 4, True),
        (", device_ids=(0,4,1,5,2,6,3,7)", "'c'", 2, True),
        (", device_ids=(0,4,1,5,2,6,3,7)", "'b'", 2, False),
    ],
)
def test_groups_of_a_mesh_whose_devices_are_in_another_order_are_read(order, axes, group, crosses):
    groups = f"replica_groups=mesh['a'=2,'b'=2,'c'=2]{order} {{{axes}}}, use_global_device_ids=true"
    text = f"ENTRY %main () -> f32[] {{\n  %r.1 = f32[16]{{0}} all-reduce(%x), channel_id=1, {groups}\n}}"
    (found,) = collectives(text, chips_per_slice=4)
    assert (found.group, found.across_slices) == (group, crosses)
    assert found.sent_bytes == 2 * 64 * (group - 1) // group


def test_collectives_of_one_slice_do_not_cross_slices():
    assert not any(row.across_slices for row in collectives(LOOP))


@pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 devices: make test-8")
def test_compiled_sum_over_eight_devices_sends_one_all_reduce():
    """On CPU, whose text has the same form."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    rows = jax.ShapeDtypeStruct((64, 128), np.float32, sharding=NamedSharding(mesh, P("x")))
    whole = NamedSharding(mesh, P())
    compiled = jax.jit(lambda x: jnp.sum(x, axis=0), out_shardings=whole).lower(rows).compile()
    (found,) = collectives(compiled.as_text())
    assert (found.kind, found.group, found.sent_bytes) == ("all-reduce", 8, 2 * 128 * 4 * 7 // 8)
