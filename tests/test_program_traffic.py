"""The bytes that compiled programs move, counted by hand in short texts of the compiler's form."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

_SCRIPT = Path(__file__).parents[1] / "benchmarks" / "program_traffic.py"
_spec = importlib.util.spec_from_file_location("program_traffic", _SCRIPT)
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
Traffic = _module.Traffic

LOOP = """HloModule m
%body (p: (s32[], f32[8,64])) -> (s32[], f32[8,64]) {
  %p = (s32[], f32[8,64]{1,0}) parameter(0)
  %x = f32[8,64]{1,0} get-tuple-element(%p), index=1
  %y = f32[8,64]{1,0} negate(%x)
  ROOT %t = (s32[], f32[8,64]{1,0}) tuple(%n, %y)
}
%going (p: (s32[], f32[8,64])) -> pred[] {
  %p = (s32[], f32[8,64]{1,0}) parameter(0)
  %bound = s32[] constant(5)
  %n = s32[] get-tuple-element(%p), index=0
  ROOT %less = pred[] compare(%n, %BOUND), direction=LT
}
ENTRY %main (a: f32[8,64]) -> f32[8,64] {
  %a = f32[8,64]{1,0} parameter(0)
  %w = (s32[], f32[8,64]{1,0}) while(%a), condition=%going, body=%body STATED
}
"""
FUSION = """HloModule m
%fused (p0: f32[100,64], p1: s32[], p2: f32[1,64]) -> f32[1,64] {
  %p0 = f32[100,64]{1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %p2 = f32[1,64]{1,0} parameter(2)
  BODY
}
ENTRY %main (a: f32[100,64], i: s32[], u: f32[1,64]) -> f32[1,64] {
  %a = f32[100,64]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %u = f32[1,64]{1,0} parameter(2)
  ROOT %f = SHAPE fusion(%a, %i, %u), kind=kLoop, calls=%fused
}
"""
ROW, ARRAY = 64 * 4, 100 * 64 * 4


@pytest.mark.parametrize(
    ("bound", "stated", "times"),
    [
        ("bound", "", 5),
        ("other", "", 7),
        ("bound", 'backend_config={"known_trip_count":{"n":"3"}}', 3),
    ],
)
def test_loops_count_as_often_as_the_text_states_or_else_as_assumed(bound, stated, times):
    text = LOOP.replace("BOUND", bound).replace("STATED", stated)
    compared = times * (4 + 4 + 1)
    assert Traffic(text, trips=7).moved_bytes() == times * 2 * 8 * 64 * 4, compared


@pytest.mark.parametrize(
    ("body", "shape", "moved"),
    [
        # A slice of an array, also where it is negated before, and its result; the index has 4 bytes.
        ("ROOT %s = f32[1,64]{1,0} dynamic-slice(%p0, %p1)", "f32[1,64]{1,0}", 2 * ROW + 4),
        (
            "%n = f32[100,64]{1,0} negate(%p0)\n  ROOT %s = f32[1,64]{1,0} dynamic-slice(%n, %p1)",
            "f32[1,64]{1,0}",
            2 * ROW + 4,
        ),
        # A reduction needs all of it.
        ("%n = f32[100,64]{1,0} negate(%p0)\n  ROOT %s = f32[64]{0} reduce(%n, %p1)", "f32[64]{0}", ARRAY + 4 + ROW),
        # A row that is written in place.
        (
            "ROOT %s = f32[100,64]{1,0} dynamic-update-slice(%p0, %p2, %p1)",
            "f32[100,64]{1,0}",
            2 * ROW + 4,
        ),
        # A row that is added to what is there.
        ("ROOT %s = f32[100,64]{1,0} scatter(%p0, %p1, %p2), to_apply=%add", "f32[100,64]{1,0}", 3 * ROW + 4),
    ],
    ids=["slice", "slice of a negative", "sum", "written row", "scattered row"],
)
def test_fusion_moves_only_the_slices_that_it_cuts_or_writes(body, shape, moved):
    assert Traffic(FUSION.replace("BODY", body).replace("SHAPE", shape)).moved_bytes() == moved


def test_one_branch_of_a_condition_runs_and_kernels_can_be_left_out():
    text = """HloModule m
%small (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %n = f32[8]{0} negate(%p)
}
%large (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %n = f32[8]{0} negate(%p)
  ROOT %m = f32[8]{0} negate(%n)
}
ENTRY %main (a: f32[8], i: s32[]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %i = s32[] parameter(1)
  %c = f32[8]{0} conditional(%i, %a, %a), branch_computations={%small, %large}
  %k = (f32[8]{0}, s8[1024]{0}) custom-call(%c), custom_call_target="t", metadata={op_name="step/cache_kernel/call"}
  ROOT %v = f32[8]{0} get-tuple-element(%k), index=0
}
"""
    assert Traffic(text).moved_bytes() == 4 * 32 + 64, "the workspace of the library is not moved"
    assert Traffic(text).moved_bytes(without="decode_kernel|cache_kernel") == 4 * 32
