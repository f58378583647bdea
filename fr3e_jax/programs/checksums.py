"""Checksums of arrays, computed where the arrays are and independent of how they are sharded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fr3e_jax.programs.program import Program

# The finaliser of Wellons' "lowbias32", one to one on 32-bit numbers.
_MULTIPLIERS = (0x7FEB352D, 0x846CA68B)
# Of an element's index, one for each of two sums; odd, so that indices stay apart.
_SPREADS = (0x9E3779B1, 0x85EBCA77)
_HOST_BYTES = 2**20  # of arrays that NumPy sums on the host: on a device, every shape is a program to compile


def checksums(arrays: Mapping[str, Any]) -> dict[str, str]:
    """A checksum of 64 bits, as 16 hexadecimal digits, for each array of any shape, type and sharding.

    It adds up one hash for each element, of the element's bits and its index, modulo 2³². Addition has no order, so
    every mesh gives the same sum. A change within one element always changes the checksum, because the hash is one to
    one in the bits. Any other damage goes unnoticed with a probability of about 2⁻⁶⁴.
    """
    # One program at a time: on CPU, sums over many devices that are under way together can wait for one another.
    sums = {
        name: _host_sums(np.asarray(array)) if _is_small(array) else np.asarray(jax.device_get(_device_sums(array)))
        for name, array in arrays.items()
    }
    return {name: "".join(f"{int(word):08x}" for word in pair) for name, pair in sums.items()}


def _is_small(array: Any) -> bool:
    addressable = not isinstance(array, jax.Array) or array.is_fully_addressable
    return addressable and array.nbytes <= _HOST_BYTES


def _host_sums(array: np.ndarray) -> np.ndarray:
    """uint32 ``[2]``, in NumPy."""
    flat = array.astype(jax.dtypes.canonicalize_dtype(array.dtype), order="C").reshape(-1)
    bits = flat if flat.dtype == np.bool_ else flat.view(f"uint{min(flat.itemsize * 8, 32)}")
    hashes = _hashes(bits.astype(np.uint32), np.arange(bits.size, dtype=np.uint32))
    return np.stack([np.sum(hash_, dtype=np.uint32) for hash_ in hashes])


@Program
def _device_sums(array: jax.Array) -> jax.Array:
    """uint32 ``[2]``, where the array is."""
    bits = _bits(array)
    index = jnp.zeros(bits.shape, jnp.uint32)
    for axis in range(bits.ndim):
        stride = math.prod(bits.shape[axis + 1 :]) % 2**32
        index += lax.broadcasted_iota(jnp.uint32, bits.shape, axis) * jnp.uint32(stride)
    return jnp.stack([jnp.sum(hash_, dtype=jnp.uint32) for hash_ in _hashes(bits, index)])


def _hashes(bits: Any, index: Any) -> list[Any]:
    return [_mixed(bits ^ (index * np.uint32(spread))) for spread in _SPREADS]


def _bits(array: jax.Array) -> jax.Array:
    """uint32 of the array's shape, with a last axis of 2 for types of 64 bits."""
    array = jnp.asarray(array)
    if array.dtype == jnp.bool_:
        return array.astype(jnp.uint32)
    width = array.dtype.itemsize * 8
    return lax.bitcast_convert_type(array, jnp.dtype(f"uint{min(width, 32)}")).astype(jnp.uint32)


def _mixed(bits: Any) -> Any:
    for shift, multiplier in zip((16, 15), _MULTIPLIERS, strict=True):
        bits = (bits ^ (bits >> shift)) * np.uint32(multiplier)
    return bits ^ (bits >> 16)
