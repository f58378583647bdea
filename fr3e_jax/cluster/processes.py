"""Several processes that run one loop: what they tell one another, and the proof that they decide alike.

Every process runs the same host loop and gets the same sampled tokens. What only one of them knows (the verdicts of the
rollouts that it graded, a signal, a file that it made) is gathered at fixed points, and what all of them decided is
compared there. `Processes()` is a process on its own, which sends nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from fr3e_jax.configuration import ConfigError

Result = TypeVar("Result")

_MESSAGE = 1024  # bytes that one gather sends of each process; more takes a second
_LENGTH = 8  # of them say how long the message is
_EXCERPT = 160  # characters shown of values that differ
_LARGEST_TEXT = 1 << 20  # characters of a value that are compared to show where values differ


class Divergence(RuntimeError):
    """Processes that should have decided alike did not; raised on all of them."""


@dataclass(frozen=True)
class Processes:
    """The processes of a run; this one is number ``index`` of ``count``."""

    index: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes what the run has one of: metrics, rollouts, summary, what a person sees."""
        return self.index == 0

    def is_mine(self, number: int) -> bool:
        """Whether work of this number falls to this process; each number is one process's."""
        return number % self.count == self.index

    def gather(self, content: Any) -> list[Any]:
        """JSON content of every process, in their order. All must call, in the same order of calls."""
        if self.count == 1:
            return [content]
        return [json.loads(message) for message in _gathered(json.dumps(content).encode())]

    def exchange(self, point: str, own: Any = None, **decisions: Any) -> list[Any]:
        """`gather` of ``own``, and proof that all processes are at this ``point`` with equal ``decisions``.

        Args:
          point: a name for the message, such as ``"step 3, first return"``.
          own: JSON content, another one in each process.
          decisions: what must be equal: NumPy arrays, JSON content, or lists of arrays.

        Raises:
          Divergence: with the values of the processes that differ.
        """
        if self.count == 1:
            return [own]
        digests = {name: _digest(value) for name, value in decisions.items()}
        told = self.gather([point, digests, own])
        for name in digests:
            if len({message[1].get(name) for message in told}) > 1 and all(point == message[0] for message in told):
                raise Divergence(_difference(point, name, self.gather(_text(decisions[name])[:_LARGEST_TEXT])))
        if len({message[0] for message in told}) > 1:
            raise Divergence(_difference("the order of stages", "stage", [message[0] for message in told]))
        return [message[2] for message in told]

    def agree(self, point: str, **decisions: Any) -> None:
        """`exchange` of decisions alone."""
        self.exchange(point, **decisions)

    def asked_to_stop(self, received: list[str], step: int) -> str:
        """Why all are to stop after ``step``, or nothing: a signal that any of them received, or notice of preemption.

        The notice is the platform's, for which jax names the same step to all. All must ask once a step.
        """
        signals = [name for names in self.gather(received[:1]) for name in names]
        notified = self.count > 1 and multihost_utils.reached_preemption_sync_point(step)
        return signals[0] if signals else "notice of preemption" * notified

    def whole_on_first(self, arrays: Any) -> Any:
        """A pytree of arrays in the host memory of process 0, one array after the other; None elsewhere."""
        if self.count == 1:
            return arrays

        def fetched(leaf: jax.Array) -> np.ndarray | None:
            whole = multihost_utils.process_allgather(leaf, tiled=True)
            return np.asarray(whole) if self.first else None

        hosts = jax.tree.map(fetched, arrays)
        return hosts if self.first else None

    def on_first(self, function: Callable[[], Result]) -> Result:
        """What ``function()`` returned on process 0, as JSON content; a ``ConfigError`` there is raised on all."""
        if self.count == 1:
            return function()
        result, fault = None, None
        if self.first:
            try:
                result = function()
            except ConfigError as error:
                fault = str(error)
        result, fault = self.gather([result, fault])[0]
        if fault is not None:
            raise ConfigError(fault)
        return result


def own_processes() -> Processes:
    """The processes that jax knows of; starts its backend."""
    return Processes(jax.process_index(), jax.process_count())


def _gathered(message: bytes) -> list[bytes]:
    """Bytes of every process; two transfers if one of them is long."""
    rows = _padded_and_gathered(message, _MESSAGE)
    lengths = [int.from_bytes(row[:_LENGTH].tobytes(), "little") for row in rows]
    longest = max(lengths) + _LENGTH
    if longest > _MESSAGE:  # in powers of two, so that few programs are compiled
        rows = _padded_and_gathered(message, 1 << (longest - 1).bit_length())
    return [row[_LENGTH : _LENGTH + length].tobytes() for row, length in zip(rows, lengths, strict=True)]


def _padded_and_gathered(message: bytes, size: int) -> np.ndarray:
    """uint8 ``[count, size]``: the length of each message and its bytes, cut to the size."""
    sent = (len(message).to_bytes(_LENGTH, "little") + message)[:size]
    return np.asarray(multihost_utils.process_allgather(np.frombuffer(sent.ljust(size, b"\0"), np.uint8)))


def _digest(value: Any) -> str:
    hashed = hashlib.blake2b(digest_size=8)
    _add(hashed, value)
    return hashed.hexdigest()


def _add(hashed: Any, value: Any) -> None:
    if isinstance(value, np.ndarray):
        hashed.update(f"{value.dtype}{value.shape}".encode())
        hashed.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, list | tuple):
        hashed.update(f"[{len(value)}".encode())
        for entry in value:
            _add(hashed, entry)
    else:
        hashed.update(json.dumps(value, sort_keys=True, default=_plain).encode())


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=_plain)


def _plain(value: Any) -> Any:
    """Arrays, array scalars and whatever else JSON lacks."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _difference(point: str, name: str, texts: list[str]) -> str:
    """Who has which value, each shown from shortly before the first character that differs."""
    start = next((i for i, characters in enumerate(zip(*texts, strict=False)) if len(set(characters)) > 1), 0)
    start = max(0, start - _EXCERPT // 4)
    holders: dict[str, list[int]] = {}
    for index, text in enumerate(texts):
        holders.setdefault(text, []).append(index)
    lines = [
        f"  process{'es' if len(indices) > 1 else ''} {', '.join(map(str, indices))}: {_excerpt(text, start)}"
        for text, indices in holders.items()
    ]
    return (
        f"the processes differ at {point} in {name!r}:\n" + "\n".join(lines) + "\nThey must decide alike: give all of "
        "them the same recipe, files, versions and hardware, then continue from the last checkpoint with --resume"
    )


def _excerpt(text: str, start: int) -> str:
    shown = text[start : start + _EXCERPT]
    return ("..." if start else "") + shown + ("..." if len(text) > start + _EXCERPT else "")
