"""Hardware by name."""

from __future__ import annotations

import pytest

from fr3e_jax.planning.topology import CHIPS, TopologyError, parse_topology


@pytest.mark.parametrize(
    ("text", "devices", "per_slice", "name"),
    [
        ("v5p:4x4x4", 64, 64, "v5p:4x4x4"),
        ("v5e:8x8", 64, 64, "v5e:8x8"),
        ("V5E:16x16x2slices", 512, 256, "v5e:16x16x2slices"),
        ("v5p:2x2x4x2slices", 32, 16, "v5p:2x2x4x2slices"),
        ("h100:8x4", 32, 8, "h100:8x4"),
        ("a100:8", 8, 8, "a100:8x1"),
    ],
)
def test_topology_is_read_from_its_name(text, devices, per_slice, name):
    found = parse_topology(text)
    assert (found.devices, found.chips_per_slice, found.name) == (devices, per_slice, name)
    assert parse_topology(found.name) == found


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("v5p-128", "a v5p-128: its name counts cores"),
        ("v5x:4x4", "no chip v5x; expected v4, v5e, v5p, v6e, a100, h100, h200; nearest: v5"),
        ("v5e:4x4x4", "has 3 dimensions; slices of v5e have 2, like v5e:4x4"),
        ("v5p:8x8", "has 2 dimensions; slices of v5p have 3, like v5p:4x4x4"),
        ("h100:8x4x2", "h100:GPUs of a hostxHOSTS"),
        ("v5e:0x4", "a size of 0"),
    ],
)
def test_mistake_is_reported_with_the_expected_form(text, says):
    with pytest.raises(TopologyError) as told:
        parse_topology(text)
    assert says in str(told.value)


def test_each_chip_names_the_source_of_its_figures():
    assert all(chip.source and chip.peak_flops > chip.hbm_bandwidth > chip.network_bandwidth for chip in CHIPS.values())
