"""The bytes that a compiled program moves between a device's memory and its cores, read from its optimised HLO.

Each operation of a program reads its operands from memory and writes its results there, except what the compiler
placed in a chip's fast memory. A fusion is one operation. Of an array from which it only cuts a slice, or into which it
only writes one or scatters, the slice counts. A fused kernel counts as the bytes that it states, or else its operands
count once.
The L2 cache of a GPU counts as empty, so the figure is an upper bound for small arrays.

    python benchmarks/program_traffic.py RECIPE [SECTION.FIELD=VALUE ...] --topology h100:1 [--programs decode,...]

prints the figure of each program, with fused kernels of decode steps and without them: the text tells the capacity of
their caches, and not how much is filled. It needs the compiler that `fr3e plan` needs.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Iterable, Iterator
from functools import cache

_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
_NAMED = re.compile(r"\s*(ROOT )?%?([\w.\-]+) = (.*)$")
_ARRAY = re.compile(r"([a-z]+\d*\w*)\[([\d,]*)\](?:\{[^}]*?(S\(\d+\))?\})?")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}|(?:true|false)_computation=%?([\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_STATED = re.compile(r'"cost_estimate":\{[^}]*"bytes_accessed":"(\d+)"')
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "opt-barrier"}
_FREE |= {"replica-id", "copy-done", "async-done", "add-dependency"}
_CUTS = {"dynamic-slice", "slice", "gather"}
_NEED_ALL = {"reduce", "reduce-window", "dot", "convolution", "sort", "custom-call", "fusion", "tuple"}
_IN_PLACE = {"dynamic-update-slice": 1, "scatter": 2}  # the operand that is written into the first one
_WORKSPACE = "s8"  # of a library's matrix product: memory that it may use, not a result


class _Operation:
    """One line of a computation, ``[ROOT] %name = shape kind(operands), ...``."""

    def __init__(self, line: str, is_root: bool, name: str, rest: str):
        end = len(_until_closed(rest[1:])) + 2 if rest.startswith("(") else rest.index(" ")
        self.line, self.is_root, self.name, self.shape = line, is_root, name, rest[:end]
        self.kind, _, arguments = rest[end:].strip().partition("(")
        self.arguments = _until_closed(arguments)
        self.operands = re.findall(r"%([\w.\-]+)", self.arguments)
        self.bytes = _array_bytes(self.shape, ignored=_WORKSPACE if self.kind == "custom-call" else "")

    def named(self, attribute: str) -> str:
        """The computation that an attribute of the line names."""
        return re.search(rf"\b{attribute}=%?([\w.\-]+)", self.line)[1]


Execution = tuple[_Operation, float, int]
"""An operation, the bytes that it moves, and the number of its executions."""


class Traffic:
    """The operations of a compiled program that move bytes, in ``operations``."""

    def __init__(self, text: str, *, trips: int = 1):
        """``text``: of ``compiled.as_text()``; ``trips``: length of each loop whose length the text does not state."""
        self._lines, self._trips, entry = dict[str, list[str]](), trips, ""
        for line in text.splitlines():
            if header := _HEADER.match(line):
                lines = self._lines[header[2]] = []
                entry = header[2] if header[1] else entry
            elif line.startswith(" "):
                lines.append(line)
        self._parsed, self._reads = cache(self._parse), dict[_Operation, float]()
        self.operations = list(self._visited(entry, 1))

    def moved_bytes(self, without: str = "") -> int:
        """Bytes that a device reads from its memory or writes to it in one call of the program.

        ``without``: a pattern; operations of whose name in the program it finds a part are left out.
        """
        ignored = re.compile(rf'op_name="[^"]*(?:{without})') if without else None
        return int(_total(entry for entry in self.operations if ignored is None or not ignored.search(entry[0].line)))

    def _parse(self, name: str) -> dict[str, _Operation]:
        matches = filter(None, map(_NAMED.match, self._lines.get(name, ())))
        return {match[2]: _Operation(match.string, bool(match[1]), match[2], match[3]) for match in matches}

    def _visited(self, name: str, times: int) -> Iterator[Execution]:
        operations = self._parsed(name)
        for operation in operations.values():
            if operation.kind == "while":
                yield from self._visited(operation.named("body"), times * self._length(operation))
            elif operation.kind == "call":
                yield from self._visited(operation.named("to_apply"), times)
            elif operation.kind == "conditional":
                names = ", ".join(several or single for several, single in _BRANCHES.findall(operation.line))
                branches = [list(self._visited(name, times)) for name in names.replace("%", "").split(", ")]
                yield from max(branches, key=_total)  # one of them runs
            elif operation.kind not in _FREE:
                yield operation, self._moved(operation, operations), times

    def _length(self, loop: _Operation) -> int:
        """The trip count that the text states, or the constant that the loop's counter is compared with."""
        if stated := _TRIPS.search(loop.line):
            return int(stated[1])
        condition = self._parsed(loop.named("condition"))
        root = next((operation for operation in condition.values() if operation.is_root), None)
        bound = condition.get(root.operands[-1]) if root and root.kind == "compare" and root.operands else None
        return int(bound.arguments) if bound and bound.kind == "constant" else self._trips

    def _moved(self, operation: _Operation, operations: dict[str, _Operation]) -> float:
        """The bytes of one operation."""
        if stated := _STATED.search(operation.line):
            return int(stated[1])
        operands = [operations[name].bytes if name in operations else 0 for name in operation.operands]
        kind = operation.kind
        if kind == "fusion":
            return self._fused(self._parsed(operation.named("calls")), operands, operation.bytes)
        if kind in _CUTS:
            return 2 * operation.bytes
        if kind == "dynamic-update-slice":
            return 2 * operands[1]
        if kind == "slice-start":  # its results are the operand, the slice and a flag
            return 2 * _size(*_ARRAY.findall(operation.shape)[1][:2])
        if kind.endswith("-start"):
            return 2 * sum(operands)
        return operation.bytes + (0 if kind.endswith("-done") else sum(operands))

    def _fused(self, inner: dict[str, _Operation], operands: list[int], result: int) -> float:
        """The bytes of a fusion with these ``operands`` and ``result`` in memory."""
        parameters = [operation for operation in inner.values() if operation.kind == "parameter"]
        read = sum(min(operands[int(array.arguments)], self._read(array, inner)) for array in parameters)
        root = next(operation for operation in inner.values() if operation.is_root)
        if root.kind == "bitcast":
            root = inner.get(root.operands[0], root)
        written = [inner.get(name) for name in root.operands] if root.kind == "tuple" else [root]
        saved = sum(
            array.bytes - inner[array.operands[_IN_PLACE[array.kind]]].bytes
            for array in written
            if array is not None and array.kind in _IN_PLACE
        )
        return read + max(result - saved, 0)

    def _read(self, array: _Operation, inner: dict[str, _Operation]) -> float:
        """The bytes of ``array`` that a fusion reads if it only cuts slices or writes into it; else infinite."""
        if array not in self._reads:
            self._reads[array] = self._read_by_users(array, inner)
        return self._reads[array]

    def _read_by_users(self, array: _Operation, inner: dict[str, _Operation]) -> float:
        total = 0.0
        for user in (operation for operation in inner.values() if array.name in operation.operands):
            if user.kind in _CUTS and user.operands[0] == array.name:
                total += user.bytes
            elif user.kind == "fusion":
                deeper = self._parsed(user.named("calls"))
                places = [place for place, name in enumerate(user.operands) if name == array.name]
                parameters = (operation for operation in deeper.values() if operation.kind == "parameter")
                chosen = [operation for operation in parameters if int(operation.arguments) in places]
                total += sum(min(operation.bytes, self._read(operation, deeper)) for operation in chosen)
            elif user.kind in _IN_PLACE and user.operands[0] == array.name:
                total += inner[user.operands[2]].bytes if user.kind == "scatter" else 0  # which adds to what is there
            elif user.is_root or user.kind in _NEED_ALL or user.kind in _IN_PLACE:
                return math.inf
            else:  # by element, so it computes what its users need of it
                total += self._read(user, inner) * array.bytes / max(user.bytes, 1)
        return total


def _total(operations: Iterable[Execution]) -> float:
    return sum(size * times for _, size, times in operations)


def _until_closed(text: str) -> str:
    """``text`` up to the parenthesis that closes the one before it."""
    depth = 1
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if not depth:
            return text[:place]
    return text


def _array_bytes(shape: str, ignored: str = "") -> int:
    """The bytes of an array, or of the arrays of a tuple, that lie in the device's memory."""
    return sum(_size(kind, sizes) for kind, sizes, space in _ARRAY.findall(shape) if not space and kind != ignored)


def _size(kind: str, sizes: str) -> int:
    width = re.search(r"\d+", kind)  # tokens and opaque values have none
    bits = 8 if kind == "pred" else int(width[0]) if width else 0
    return math.prod(int(size) for size in sizes.split(",") if size) * bits // 8


def main() -> None:
    from fr3e_jax.configuration import load_config
    from fr3e_jax.planning.absent_devices import enter_planning_for

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--topology", required=True)
    parser.add_argument("--programs", default="", help="names, by commas; all that the recipe runs if empty")
    arguments = parser.parse_intermixed_args()
    topology = enter_planning_for(arguments.topology)
    # What loads jax comes after that.
    from fr3e_jax.learning.trained_trunks import trains_trunks
    from fr3e_jax.planning.compile import topology_devices
    from fr3e_jax.planning.estimate import Estimator
    from fr3e_jax.planning.plan import with_choices
    from fr3e_jax.planning.targets import Programs
    from fr3e_jax.planning.tuning import program_names
    from fr3e_jax.session.model import configured_architecture

    config = load_config(arguments.recipe, arguments.overrides, training=False)
    architecture = configured_architecture(config, 0)
    config = with_choices(config, architecture, topology)
    estimator = Estimator(config, architecture, topology.devices)
    shape, shards = estimator.micro_batch, estimator.train.batch_shards
    scored = shape.room + shape.trunk_size * trains_trunks(config.explore)
    chunks = -(-shape.rows // shards * scored // config.training.token_chunk)
    programs = Programs(config, topology_devices(topology))
    for name in arguments.programs.split(",") if arguments.programs else program_names(config, estimator):
        trips = config.rollout.decode_chunk if name in ("decode", "explore") else chunks
        traffic = Traffic(programs.target(name).lower().compile().as_text(), trips=trips)
        moved, rest = traffic.moved_bytes() / 1e9, traffic.moved_bytes(without="decode_kernel|cache_kernel") / 1e9
        print(f"{name:<12}{moved:10.3f} GB, {rest:10.3f} without the kernels of decode steps")


if __name__ == "__main__":
    main()
