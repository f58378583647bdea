"""The costs of a program: its FLOPs, counted in the jaxpr, and the bytes it sends, read from its optimised HLO.

XLA's own ``cost_analysis`` counts the body of a loop once, so it cannot serve programs that loop over layers or tokens.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from jax.extend import core

from fr3e_jax.planning.links import MeshLinks

_COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute")
BITS = {"pred": 8, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "f16": 16, "bf16": 16, "s16": 16, "u16": 16}
BITS |= {"s32": 32, "u32": 32, "f32": 32, "s64": 64, "u64": 64, "f64": 64}
_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
_OPERATION = re.compile(r"= (\(.*?\)|\S+) (" + "|".join(_COLLECTIVES) + r")(-start)?\(")
# Between slices, libtpu leaves a collective to the runtime of several slices, which it sends to and receives from.
_BETWEEN_SLICES = re.compile(
    r"= \((\w+\[[\d,]*\]).*? send\(.*_xla_megascale_target=\"\{([\d,:]+)\}.*_xla_megascale_transfer_type=\"(\w+)\""
)
_CALLED = re.compile(r"(?:calls|to_apply|body|condition)=%?([\w.\-]+)|branch_computations=\{([^}]*)\}")
_SCATTERED = "all-reduce-scatter"  # libtpu's reduce-scatter is a fusion of this name: an all-reduce and a slice
WHILE = re.compile(r"\bcondition=%?([\w.\-]+), body=%?([\w.\-]+)")


def count_flops(jaxpr: core.Jaxpr, trips: int = 1, groups: int = 1) -> int:
    """The FLOPs of all devices together: 2·m·n·k for each matrix product, times the lengths of the loops around it.

    Only matrix products are counted, so the result is a lower bound.

    Args:
      jaxpr: the whole program.
      trips: the assumed length of each loop whose length is only known at run time (``while``). Nested loops multiply.
      groups: parts that experts are split into. A device's product with its experts has rows for all experts, of which
        it computes its own.
    """
    total = 0
    inside = partial(count_flops, trips=trips, groups=groups)
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name == "dot_general":
            total += _dot_flops(equation)
        elif name == "ragged_dot_general":
            total += _ragged_flops(equation) // groups
        elif name == "scan":
            total += equation.params["length"] * inside(equation.params["jaxpr"].jaxpr)
        elif name == "while":
            total += trips * inside(equation.params["body_jaxpr"].jaxpr)
        elif name == "shard_map":  # its inner program is that of one device
            mesh = equation.params["mesh"]
            total += mesh.size * count_flops(equation.params["jaxpr"], trips, mesh.shape.get("expert", 1))
        elif name == "pallas_call":  # how often its inner program runs is known at run time alone
            total += equation.params["cost_estimate"].flops
        elif name == "cond":
            total += max(inside(branch.jaxpr) for branch in equation.params["branches"])
        else:
            total += sum(inside(inner) for inner in _jaxprs_of(equation))
    return total


def _dot_flops(equation) -> int:
    """The FLOPs of one product or a batch of products of matrices; 0 if one factor is a vector.

    A product with a vector is limited by reading the matrix, not by computing.
    """
    (contracted, _), (batch, _) = equation.params["dimension_numbers"]
    left, right = (variable.aval for variable in equation.invars)
    if min(left.ndim, right.ndim) == len(contracted) + len(batch):
        return 0
    depth = math.prod(left.shape[axis] for axis in contracted)
    shared = math.prod(left.shape[axis] for axis in batch)
    return 2 * left.size * right.size // max(depth * shared, 1)


def _ragged_flops(equation) -> int:
    """The FLOPs of products of rows with the matrix of their group, or of the gradients of these matrices."""
    left, right, _ = (variable.aval for variable in equation.invars)
    if right.ndim == 3:  # rows [m, k] and matrices [g, k, n] or [g, n, k]
        return 2 * equation.outvars[0].aval.size * left.shape[1]
    return 2 * left.size * right.shape[1]  # [m, k] and [m, n]


def _jaxprs_of(equation) -> Iterator[core.Jaxpr]:
    """The inner programs that an equation calls once: jit, checkpoint, custom derivatives."""
    for value in equation.params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, core.ClosedJaxpr):
                yield item.jaxpr
            elif isinstance(item, core.Jaxpr):
                yield item


@dataclass(frozen=True)
class Collective:
    """All collectives of one kind, over the same groups."""

    kind: str
    group: int  # devices that take part in each collective
    across_slices: bool
    count: int  # executions
    sent_bytes: int  # the least bytes that each device sends
    axes: tuple[str, ...] = ()  # of the mesh, that the groups span; () where they are not known
    loads: tuple[float, ...] = ()  # of the torus's links (`MeshLinks.loads`); () where all links of a chip serve alike


def collectives(
    text: str, *, trips: int = 1, chips_per_slice: int = 0, mesh: MeshLinks | None = None
) -> list[Collective]:
    """The collectives of a compiled program, the most bytes first.

    Bytes are those of a ring of g devices. For an array of n bytes, all-gather and reduce-scatter send n(g-1)/g,
    all-reduce sends twice that, and a permutation sends n.

    Args:
      text: ``compiled.as_text()``.
      trips: the assumed length of each loop whose length the program does not state.
      chips_per_slice: devices of a slice, in the order of the mesh; 0 if there is one slice.
      mesh: where the devices lie on the torus; None: they lie on none.
    """
    bodies, entry = computations(text)
    times = _executions(bodies, entry, trips)
    sums: dict[tuple, list[int]] = defaultdict(lambda: [0, 0])
    seen: set[str] = set()
    for name, lines in bodies.items():
        for line in lines:
            if times.get(name) and (transfer := _BETWEEN_SLICES.search(line)):
                kind, group, size = _transfer(*transfer.groups())
                sums[kind, group, True, (), ()][0] += times[name]
                sums[kind, group, True, (), ()][1] += times[name] * _sent(kind, size, group)
            found = _OPERATION.search(_bare(line))
            channel = re.search(r"channel_id=(\d+)", line)
            if not found or not times.get(name) or (channel and channel[1] in seen):
                continue  # a collective that several fusions share is written in each of them
            seen.update([channel[1]] if channel else [])
            groups = _groups(line)
            operation, size = found[2], _result_bytes(found[1], found[2], bool(found[3]))
            if name.startswith(_SCATTERED):
                operation, size = "reduce-scatter", size // groups.shape[1]
            sent = _sent(operation, size, groups.shape[1])
            slices = groups // (chips_per_slice or groups.max() + 1)
            known = mesh is not None and groups.shape[1] > 1
            spans = (mesh.axes_of(groups), mesh.loads(operation, groups)) if known else ((), ())
            kind = operation, groups.shape[1], bool((slices != slices[:, :1]).any()), *spans
            sums[kind][0] += times[name]
            sums[kind][1] += times[name] * sent
    rows = [Collective(*key[:3], *both, *key[3:]) for key, both in sums.items()]
    return sorted((row for row in rows if row.sent_bytes), key=lambda row: -row.sent_bytes)


def _bare(line: str) -> str:
    """The line without layouts and comments, which may hold parentheses."""
    return re.sub(r"\{[^{}]*\}|/\*.*?\*/", "", line)


def computations(text: str) -> tuple[dict[str, list[str]], str]:
    """The lines of each computation of a compiled program by its name, and the name of the first one to run."""
    bodies: dict[str, list[str]] = {}
    entry = current = ""
    for line in text.splitlines():
        if header := _HEADER.match(line):
            current = header[2]
            bodies[current] = []
            entry = current if header[1] else entry
        elif line.startswith("}"):
            current = ""
        elif current:
            bodies[current].append(line)
    return bodies, entry


def _executions(bodies: dict[str, list[str]], entry: str, trips: int) -> dict[str, int]:
    """The number of times each computation runs. Every branch counts as taken."""
    times: dict[str, int] = defaultdict(int)

    def visit(name: str, count: int) -> None:
        times[name] += count
        for line in bodies.get(name, ()):
            loop = WHILE.search(line)
            many = count * (loop_length(bodies.get(loop[1], ()), trips) if loop else 1)
            for called in _CALLED.finditer(line):
                for one in (called[1] or called[2]).replace("%", "").split(", "):
                    if one in bodies:
                        visit(one, many)

    visit(entry, 1)
    return times


def loop_length(condition: list[str], trips: int) -> int:
    """The length of a loop: the constant that its counter is compared with, else ``trips``."""
    found = (re.search(r"%?([\w.\-]+) = .*\bconstant\((\d+)\)", line) for line in condition)
    constants = dict(match.groups() for match in found if match)
    root = next((line for line in condition if line.lstrip().startswith("ROOT")), "")
    compared = re.search(r"compare\(%?([\w.\-]+), %?([\w.\-]+)\), direction=LT", root)
    return int(constants[compared[2]]) if compared and compared[2] in constants else trips


def _result_bytes(shapes: str, kind: str, started: bool) -> int:
    sizes = [
        int(np.prod([int(n) for n in dimensions.split(",") if n], dtype=np.int64)) * BITS.get(dtype, 8) // 8
        for dtype, dimensions in re.findall(r"([a-z]+\d*\w*)\[([\d,]*)\]", shapes)
        if not (started and dtype == "u32" and not dimensions)
    ]
    if started and kind != "all-reduce":  # operands and results
        sizes = sizes[len(sizes) // 2 :]
    return sum(sizes)


def _transfer(shape: str, slices: str, kind: str) -> tuple[str, int, int]:
    """Kind of a collective between slices, the slices that take part, and the bytes that `_sent` asks for."""
    first, _, last = slices.partition(":")
    group = int(last) - int(first) + 1 if last else len(slices.split(","))
    name, size = kind.lower().replace("_", "-"), _result_bytes(shape, kind, False)
    if name not in _COLLECTIVES:
        return "collective-permute", group, size
    # What is sent is the operand: of an all-gather one part of the result, of a reduce-scatter all parts.
    return name, group, {"all-gather": size * group, "reduce-scatter": size // group}.get(name, size)


def _sent(kind: str, size: int, group: int) -> int:
    if kind == "collective-permute":
        return size
    if kind == "reduce-scatter":  # ``size`` is that of the result, which is one part
        return size * (group - 1)
    return (2 if kind == "all-reduce" else 1) * size * (group - 1) // group


def _order(text: str | None, count: int) -> np.ndarray:
    """Numbers of a mesh's devices, in its order: a list, or numbers as ``[2,4]T(1,0)`` turns them; None: in order."""
    if turned := re.fullmatch(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text or f"[{count}]"):
        numbers = np.arange(count).reshape([int(n) for n in turned[1].split(",")])
        return numbers.transpose([int(n) for n in turned[2].split(",")]) if turned[2] else numbers
    return np.array([int(n) for n in re.findall(r"\d+", text or "")])


def _groups(line: str) -> np.ndarray:
    """Device numbers in the order of the mesh, int ``[groups, members]``."""
    if pairs := re.search(r"source_target_pairs=\{(\{[\d,{}]*\})\}", line):
        return np.array([[int(n) for n in pair.split(",")] for pair in re.findall(r"\{([\d,]+)\}", pairs[1])])
    if listed := re.search(r"replica_groups=\{(\{[\d,{}]*\})\}", line):
        return np.array([[int(n) for n in group.split(",")] for group in re.findall(r"\{([\d,]+)\}", listed[1])])
    if iota := re.search(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", line):
        sizes = [int(n) for n in iota[3].split(",")]
        numbers = np.arange(np.prod(sizes)).reshape(sizes)
        numbers = numbers.transpose([int(n) for n in iota[4].split(",")]) if iota[4] else numbers
        return numbers.reshape(int(iota[1]), int(iota[2]))
    if mesh := re.search(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(([^{]*)\))? \{([^}]*)\}", line):
        sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", mesh[1])}
        named = [list(sizes).index(name) for name in re.findall(r"'([^']+)'", mesh[3])]
        others = [axis for axis in range(len(sizes)) if axis not in named]
        numbers = _order(mesh[2], int(np.prod(list(sizes.values())))).reshape(list(sizes.values()))
        members = int(np.prod([numbers.shape[axis] for axis in named]))
        return numbers.transpose(others + named).reshape(-1, members)
    return np.zeros((1, 1), int)
