from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fr3e_jax.programs import checksums as module
from fr3e_jax.programs.checksums import checksums

KINDS = (np.float32, jnp.bfloat16, np.float16, np.int32, np.uint8, np.bool_)


def plain(array: np.ndarray) -> str:
    """The documented sums, element by element, with Python's integers."""

    def mixed(x: int) -> int:
        x = (x ^ x >> 16) * 0x7FEB352D % 2**32
        x = (x ^ x >> 15) * 0x846CA68B % 2**32
        return x ^ x >> 16

    bits = np.ascontiguousarray(array).reshape(-1).view(f"uint{8 * array.dtype.itemsize}").tolist()
    sums = [sum(mixed(b ^ i * spread % 2**32) for i, b in enumerate(bits)) for spread in (0x9E3779B1, 0x85EBCA77)]
    return "".join(f"{one % 2**32:08x}" for one in sums)


def random_array(kind, shape) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2 if kind == np.bool_ else 100, shape).astype(kind)


@pytest.mark.parametrize("host_bytes", [-1, 2**20])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(), (1,), (3, 4), (2, 3, 5), (0, 4)])
def test_checksums_are_the_documented_sums(kind, shape, host_bytes, monkeypatch):
    monkeypatch.setattr(module, "_HOST_BYTES", host_bytes)
    array = random_array(kind, shape)
    assert checksums({"x": array, "y": jnp.asarray(array)}) == {"x": plain(array), "y": plain(array)}


def test_small_arrays_need_no_program_and_large_ones_do_not_go_to_the_host(monkeypatch):
    programs = []
    monkeypatch.setattr(module, "_device_sums", lambda array: programs.append(array.size) or np.zeros(2, np.uint32))
    checksums({str(size): jnp.zeros(size, jnp.bool_) for size in (1, 2**20, 2**20 + 1)})
    assert programs == [2**20 + 1]


def test_host_arrays_of_64_bits_count_as_the_32_that_jax_restores():
    assert checksums({"x": np.float64([1.5])}) == checksums({"x": np.float32([1.5])})


def test_every_flipped_bit_changes_the_checksum():
    array = random_array(np.float32, (4, 8))
    seen = {checksums({"x": array})["x"]}
    for element in range(array.size):
        for bit in range(32):
            changed = array.copy()
            changed.reshape(-1).view(np.uint32)[element] ^= np.uint32(1 << bit)
            seen.add(checksums({"x": changed})["x"])
    assert len(seen) == 1 + 32 * array.size


def test_exchanged_elements_change_the_checksum():
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert checksums({"x": array}) != checksums({"x": array.T.reshape(3, 4)})
    assert checksums({"x": np.float32([1, 2])}) != checksums({"x": np.float32([2, 1])})


def test_minus_zero_and_the_bits_of_nan_count():
    assert checksums({"x": np.float32([0.0])}) != checksums({"x": np.float32([-0.0])})
    nans = np.uint32([0x7FC00000, 0x7FC00001]).view(np.float32)
    assert checksums({"x": nans[:1]}) != checksums({"x": nans[1:]})


@pytest.mark.skipif(jax.device_count() < 8, reason="needs eight devices (make test-8)")
@pytest.mark.parametrize("spec", [PartitionSpec("a"), PartitionSpec(None, "b"), PartitionSpec("a", "b")])
@pytest.mark.parametrize("host_bytes", [-1, 2**20])
def test_sharded_arrays_have_the_checksum_of_whole_ones(spec, host_bytes, monkeypatch):
    monkeypatch.setattr(module, "_HOST_BYTES", host_bytes)
    array = random_array(np.float32, (8, 16))
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("a", "b"))
    sharded = jax.device_put(array, NamedSharding(mesh, spec))
    assert checksums({"x": sharded}) == {"x": plain(array)}
