"""Bytes moved through HBM, read from the text of compiled programs; the lines are written as libtpu writes them."""

from __future__ import annotations

from fr3e_jax.planning.traffic import moved_bytes

PROGRAM = """HloModule jit_step, is_scheduled=true

%sliced (param_0: f32[8,1024], param_1: s32[]) -> f32[1024] {
  %param_0 = f32[8,1024]{1,0:T(8,128)} parameter(0)
  %param_1 = s32[]{:T(128)} parameter(1)
  %cut = f32[1,1024]{1,0:T(1,128)} dynamic-slice(%param_0, %param_1, %param_1), dynamic_slice_sizes={1,1024}
  ROOT %flat = f32[1024]{0:T(1024)} bitcast(%cut)
}

%written (param_0: f32[8,1024], param_1: f32[1,1024], param_2: s32[]) -> f32[8,1024] {
  %param_0 = f32[8,1024]{1,0:T(8,128)} parameter(0)
  %param_1 = f32[1,1024]{1,0:T(1,128)} parameter(1)
  %param_2 = s32[]{:T(128)S(6)} parameter(2)
  ROOT %put = f32[8,1024]{1,0:T(8,128)} dynamic-update-slice(%param_0, %param_1, %param_2, %param_2)
}

%body (state: (s32[], f32[8,1024])) -> (s32[], f32[8,1024]) {
  %state = (s32[]{:T(128)S(6)}, f32[8,1024]{1,0:T(8,128)}) parameter(0)
  %step = s32[]{:T(128)S(6)} get-tuple-element(%state), index=0
  %rows = f32[8,1024]{1,0:T(8,128)} get-tuple-element(%state), index=1
  %row = f32[1024]{0:T(1024)} fusion(%rows, %step), kind=kLoop, calls=%sliced
  %fast = f32[1024]{0:T(1024)S(1)} add(%row, %row), metadata={op_name="jit(step)/while/body/attention/add"}
  %one = f32[1,1024]{1,0:T(1,128)} bitcast(%row)
  %after = f32[8,1024]{1,0:T(8,128)} fusion(%rows, %one, %step), kind=kLoop, calls=%written
  ROOT %next = (s32[]{:T(128)S(6)}, f32[8,1024]{1,0:T(8,128)}) tuple(%step, %after)
}

%condition (state: (s32[], f32[8,1024])) -> pred[] {
  %state = (s32[]{:T(128)S(6)}, f32[8,1024]{1,0:T(8,128)}) parameter(0)
  %step = s32[]{:T(128)S(6)} get-tuple-element(%state), index=0
  %last = s32[]{:T(128)S(6)} constant(8)
  ROOT %on = pred[]{:T(512)S(6)} compare(%step, %last), direction=LT
}

ENTRY %main (x: f32[8,1024], q: bf16[2,1024]) -> (f32[8,1024], bf16[2,1024]) {
  %x = f32[8,1024]{1,0:T(8,128)} parameter(0)
  %q = bf16[2,1024]{1,0:T(8,128)(2,1)} parameter(1)
  %zero = s32[]{:T(128)S(6)} constant(0)
  %start = (s32[]{:T(128)S(6)}, f32[8,1024]{1,0:T(8,128)}) tuple(%zero, %x)
  %loop = (s32[]{:T(128)S(6)}, f32[8,1024]{1,0:T(8,128)}) while(%start), condition=%condition, body=%body
  %found = f32[8,1024]{1,0:T(8,128)} get-tuple-element(%loop), index=1
  %kernel = (bf16[2,1024]{1,0:T(8,128)(2,1)}, f32[2]{0:T(128)}) custom-call(%q), custom_call_target="tpu_custom_call", \
metadata={op_name="jit(step)/transpose(jvp(attention))/kernel"}, \
backend_config={"custom_call_config":{"cost_estimate":{"flops":"7","transcendentals":"1","bytes_accessed":"5000"}}}
  %mixed = bf16[2,1024]{1,0:T(8,128)(2,1)} get-tuple-element(%kernel), index=0
  %copy-start = (bf16[2,1024]{1,0:T(8,128)(2,1)S(1)}, bf16[2,1024]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}) copy-start(%mixed)
  %copy-done = bf16[2,1024]{1,0:T(8,128)(2,1)S(1)} copy-done(%copy-start)
  ROOT %both = (f32[8,1024]{1,0:T(8,128)}, bf16[2,1024]{1,0:T(8,128)(2,1)}) tuple(%found, %mixed)
}
"""


def test_operations_count_as_often_as_they_run_by_what_they_read_and_write_in_memory():
    """Eight times: a row of 4 KiB is cut out, read twice into fast memory, and put back. Then a copy reads an array."""
    row = 4 * 1024
    cut_out, put_back, copied = row + row, row + row, 2 * 2 * 1024
    assert moved_bytes(PROGRAM) == {"attention": 8 * 2 * row + 5000, "other": 8 * (cut_out + put_back) + copied}


SLICED = """HloModule jit_step, is_scheduled=true

%half (param_0: f32[1,2048,4096], param_1: s32[]) -> f32[2,1024,4096] {
  %param_0 = f32[1,2048,4096]{2,1,0:T(8,128)} parameter(0)
  %param_1 = s32[]{:T(128)} parameter(1)
  %low = f32[]{:T(128)} constant(-inf)
  %wider = f32[2,2048,4096]{2,1,0:T(8,128)} pad(%param_0, %low), padding=0_1x0_0x0_0
  ROOT %cut = f32[2,1024,4096]{2,1,0:T(8,128)} dynamic-slice(%wider, %param_1, %param_1, %param_1), \
dynamic_slice_sizes={2,1024,4096}
}

%product (param_0: f32[2048,4096], param_1: s32[]) -> f32[2] {
  %param_0 = f32[2048,4096]{1,0:T(8,128)} parameter(0)
  %param_1 = s32[]{:T(128)} parameter(1)
  %named = f32[1,2048,4096]{2,1,0:T(8,128)} bitcast(%param_0)
  %part = f32[2,1024,4096]{2,1,0:T(8,128)} fusion(%named, %param_1), kind=kLoop, calls=%half
  ROOT %sums = f32[2]{0:T(128)} reduce(%part, %part), dimensions={1,2}, to_apply=%add
}

ENTRY %main (x: f32[2048,4096]) -> f32[2] {
  %x = f32[2048,4096]{1,0:T(8,128)} parameter(0)
  %zero = s32[]{:T(128)S(6)} constant(0)
  %slice-start = ((f32[2048,4096]{1,0:T(8,128)}), f32[512,4096]{1,0:T(8,128)S(1)}, s32[]{:S(2)}) \
slice-start(%x), slice={[512:1024], [0:4096]}
  %slice-done = f32[512,4096]{1,0:T(8,128)S(1)} slice-done(%slice-start)
  ROOT %result = f32[2]{0:T(128)} fusion(%x, %zero), kind=kOutput, calls=%product
}
"""


def test_parts_of_an_array_count_where_a_copy_or_an_inner_fusion_reads_them_alone():
    """A quarter is brought into fast memory. Then a product reads a half, which an inner fusion cuts from an array that
    it pads to twice its size."""
    row = 4 * 4096
    assert moved_bytes(SLICED) == {"other": 512 * row + 1024 * row + 2 * 4}
