"""The bytes that a compiled program moves between a device's memory (HBM) and its cores, read from its optimised HLO.

Each operation of a program reads its operands from memory and writes its results there, except what the compiler
placed in the chip's fast memory. A fusion is one operation. Of an array from which it only cuts a slice, or into which
it only writes one, the slice counts. A fused kernel (Pallas) states how much it moves, because it reads some of its
operands several times.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping

from fr3e_jax.planning.costs import BITS, WHILE, computations, loop_length

_NAMED = re.compile(r"\s*(ROOT )?%?([\w.\-]+) = (.*)$")
_KIND = re.compile(r"\s*([\w\-]+)\((.*)$")
_ARRAY = re.compile(r"([a-z]+\d*\w*)\[([\d,]*)\](?:\{[^}]*?(S\(\d+\))?\})?")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}|(?:true|false)_computation=%?([\w.\-]+)|to_apply=%?([\w.\-]+)")
_NOTHING_MOVES = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id"}
_NOTHING_MOVES |= {"while", "conditional", "call", "opt-barrier", "replica-id"}
_SLICES = {"dynamic-slice", "slice", "bitcast", "gather"}


class _Instruction:
    """One line of a computation, ``[ROOT] %name = shape kind(operands), ...``."""

    def __init__(self, line: str, root: bool, name: str, rest: str):
        end = len(_until_closed(rest[1:])) + 2 if rest.startswith("(") else rest.index(" ")
        self.line, self.root, self.name, self.bytes = line, root, name, _bytes(rest[:end])
        self.kind, arguments = _KIND.match(rest[end:]).groups()
        self.operands = re.findall(r"%([\w.\-]+)", _until_closed(arguments))


def moved_bytes(text: str, *, trips: int = 1) -> dict[str, int]:
    """Bytes that each device reads from its memory or writes to it, by part of the network.

    Args:
      text: ``compiled.as_text()``.
      trips: the assumed length of each loop whose length the program does not state.

    Returns:
      ``attention``: between the projections of the layers' attention; ``other``: all else.
    """
    bodies, entry = computations(text)
    parsed: dict[str, dict[str, _Instruction]] = {}

    def instructions(name: str) -> dict[str, _Instruction]:
        if name not in parsed:
            found = filter(None, map(_NAMED.match, bodies.get(name, ())))
            parsed[name] = {line[2]: _Instruction(line.string, bool(line[1]), line[2], line[3]) for line in found}
        return parsed[name]

    sums: dict[str, int] = defaultdict(int)

    def visit(name: str, times: int) -> None:
        known = instructions(name)
        for one in known.values():
            if one.kind == "while":
                condition, body = WHILE.search(one.line).groups()
                visit(body, times * loop_length(bodies.get(condition, []), trips))
            elif one.kind in ("conditional", "call"):
                for several, single, called in _BRANCHES.findall(one.line):
                    for branch in (several or single or called).replace("%", "").split(", "):
                        visit(branch, times)
            elif one.kind not in _NOTHING_MOVES:
                part = "attention" if re.search(r'op_name="[^"]*\battention\b', one.line) else "other"
                sums[part] += times * _moved(one, known, instructions)

    visit(entry, 1)
    return dict(sums)


def _moved(one: _Instruction, known: Mapping[str, _Instruction], instructions) -> int:
    """The bytes of one operation."""
    if stated := re.search(r'"cost_estimate":\{[^}]*"bytes_accessed":"(\d+)"', one.line):
        return int(stated[1])
    operands = [known[name].bytes if name in known else 0 for name in one.operands]
    if one.kind == "fusion":
        inner = instructions(re.search(r"calls=%?([\w.\-]+)", one.line)[1])
        return _fused(inner, operands, one.bytes, instructions)
    if one.kind in _SLICES:
        return 2 * one.bytes
    if one.kind.endswith("slice-start"):  # its results are the operand, the slice and a flag
        return min(operands[0], _size(*_ARRAY.findall(one.line.split(" = ", 1)[1])[1][:2]))
    if one.kind == "dynamic-update-slice":
        return 2 * operands[1]
    if one.kind.endswith("-start"):
        return sum(operands)
    return one.bytes + (0 if one.kind.endswith("-done") else sum(operands))


def _fused(inner: Mapping[str, _Instruction], operands: list[int], result: int, instructions) -> int:
    """The bytes of a fusion with these ``operands`` and ``result`` in memory."""
    total, written = 0, 0
    for one in inner.values():
        if one.kind == "parameter":
            total += min(operands[_place(one)], _read(one, inner, instructions))
        if one.root and one.kind == "dynamic-update-slice" and result:
            written = inner[one.operands[1]].bytes
    return total + (written or result)


def _place(parameter: _Instruction) -> int:
    return int(re.search(r"parameter\((\d+)\)", parameter.line)[1])


def _read(array: _Instruction, inner: Mapping[str, _Instruction], instructions) -> float:
    """The bytes of ``array`` that a fusion reads, if it only cuts slices or writes into it; else infinite.

    It may do so through another name, or in a fusion of its own.
    """
    total = 0.0
    for user in (one for one in inner.values() if array.name in one.operands):
        if user.kind in ("dynamic-slice", "slice", "gather") and user.operands[0] == array.name:
            total += user.bytes
        elif user.kind in ("bitcast", "pad"):
            own = math.inf if user.root else _read(user, inner, instructions)
            total += own * array.bytes / max(user.bytes, 1)  # what is padded is not read
        elif user.kind == "fusion":
            deeper = instructions(re.search(r"calls=%?([\w.\-]+)", user.line)[1])
            taken = [i for i, name in enumerate(user.operands) if name == array.name]
            of_user = [one for one in deeper.values() if one.kind == "parameter" and _place(one) in taken]
            total += sum(min(one.bytes, _read(one, deeper, instructions)) for one in of_user)
        elif not (user.kind == "dynamic-update-slice" and user.operands[0] == array.name):
            return math.inf
    return total


def _until_closed(text: str) -> str:
    """``text`` up to the parenthesis that closes the one before it."""
    depth = 1
    for at, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if not depth:
            return text[:at]
    return text


def _bytes(shape: str) -> int:
    """The bytes of an array, or of the arrays of a tuple, that lie in the device's memory."""
    total = 0
    for dtype, dimensions, space in _ARRAY.findall(shape):
        total += 0 if space else _size(dtype, dimensions)
    return total


def _size(dtype: str, dimensions: str) -> int:
    return math.prod(int(n) for n in dimensions.split(",") if n) * BITS.get(dtype, 8) // 8
