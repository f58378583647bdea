"""Values with arrays come back equal, shared objects stay shared, and damage is found."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from fr3e_jax.runs.packed_values import Packer, Unpacker, UnreadableValues


@dataclass
class Node:
    name: str
    held: Any = None
    found: Any = None


@dataclass(frozen=True, kw_only=True)
class Leaf:
    values: np.ndarray
    more: dict[Any, Any] = field(default_factory=dict)


class OnDevice:
    """Stays outside of the file."""


def through_a_file(path, value, device=(), **options):
    packer = Packer((Node, Leaf), (OnDevice,), options.get("derived"))
    packer.write(path, packer.content(value), [["kind", n] for n, _ in enumerate(packer.device)])
    file = Unpacker(path, (Node, Leaf), options.get("derived"))
    assert file.device == [["kind", n] for n, _ in enumerate(packer.device)]
    return file.value(device or packer.device)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.int32).reshape(2, 3)[:, ::2],
        np.array([np.nan, -0.0, np.inf, 1e-45], np.float32),
        np.zeros((0, 4), np.float64),
        np.array([[True], [False]]),
        np.arange(5, dtype=">i8"),
    ],
)
def test_arrays_come_back_with_their_bits_types_and_shapes(tmp_path, array):
    found = through_a_file(tmp_path / "values", [array, array[:1]])
    assert found[0].tobytes() == array.astype(array.dtype.newbyteorder("=")).tobytes()
    assert found[0].shape == array.shape and found[0].dtype == array.dtype.newbyteorder("=")
    found[0][...] = 0  # and can be written to


def test_containers_numbers_and_keys_come_back_as_they_were(tmp_path):
    value = {
        (1, 2): deque([1, 2]),
        "counts": Counter(a=2, b=0),
        "numbers": [1, 1.0, float("inf"), -0.0, True, None, np.float32(0.1), np.bool_(True)],
        3: ((), frozenset({2, 1}), {"deep": [[]]}),
    }
    found = through_a_file(tmp_path / "values", value)
    assert found == value and [type(one) for one in found["numbers"]] == [type(one) for one in value["numbers"]]
    assert type(found["counts"]) is Counter and type(found[(1, 2)]) is deque
    assert str(found["numbers"][3]) == "-0.0"


def test_an_object_that_occurs_twice_comes_back_as_one_also_in_a_circle(tmp_path):
    node = Node("a", Leaf(values=np.ones(2), more={1: "x"}))
    node.found = [node.held, node]
    found = through_a_file(tmp_path / "values", [node, node])
    assert found[0] is found[1] is found[0].found[1] and found[0].found[0] is found[0].held
    assert found[0].held.more == {1: "x"}


def test_objects_on_devices_and_derived_fields_stay_outside(tmp_path):
    held, place = OnDevice(), {"Node": {"found": lambda own: own["name"].upper()}}
    node = Node("a", [held, held], object())  # the object could not be written
    found = through_a_file(tmp_path / "values", node, ["restored"], derived=place)
    assert found.held == ["restored", "restored"] and found.found == "A"


def test_a_result_of_jax_is_an_array(tmp_path):
    np.testing.assert_array_equal(through_a_file(tmp_path / "values", jnp.arange(3)), [0, 1, 2])


def test_an_array_of_several_owners_is_written_once_and_comes_back_as_one(tmp_path):
    """As the routes of a trunk, which all of its branches have."""
    shared, empty = np.arange(1000), np.zeros((0, 4))
    found = through_a_file(tmp_path / "values", [shared, Leaf(values=shared), empty, shared[:1]])
    assert found[0] is found[1].values and not np.shares_memory(found[0], found[3])
    assert found[0].tolist() == list(range(1000)) and found[2].shape == (0, 4)
    assert (tmp_path / "values").stat().st_size < 1.5 * shared.nbytes


def test_other_types_are_refused():
    with pytest.raises(TypeError, match=r"OnDevice\) cannot be written; expected one of the named classes"):
        Packer((Node,)).content([OnDevice()])


def test_each_damaged_byte_is_found(tmp_path):
    path = tmp_path / "values"
    packer = Packer((Node, Leaf))
    packer.write(path, packer.content(Node("a", np.arange(3))), [])
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(UnreadableValues, match="is damaged: its checksum is wrong"):
            Unpacker(path, (Node, Leaf))
    path.write_bytes(whole[:20])
    with pytest.raises(UnreadableValues, match="is damaged"):
        Unpacker(path, (Node, Leaf))


def test_classes_of_another_version_are_named(tmp_path):
    path = tmp_path / "values"
    packer = Packer((Node, Leaf))
    packer.write(path, packer.content(Leaf(values=np.ones(1))), [])
    with pytest.raises(UnreadableValues, match="was written by another version: KeyError.'Leaf'"):
        Unpacker(path, (Node,)).value()
    other = dataclass(type("Leaf", (), {"__annotations__": {"values": Any, "weights": Any}}))
    with pytest.raises(UnreadableValues, match="another version: .*the fields of Leaf"):
        Unpacker(path, (Node, other)).value()
