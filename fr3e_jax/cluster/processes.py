"""Several processes that run one loop: their messages to one another, and the proof that they decide alike.

Every process runs the same host loop and gets the same sampled tokens. Some facts are known to one process alone: the
verdicts of the rollouts that it graded, a signal, a file that it made. The processes gather these facts at fixed
points, and compare their decisions there. `Processes()` is a process on its own, which sends nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np
from isal.isal_zlib import crc32
from jax.experimental import multihost_utils

from fr3e_jax.configuration import ConfigError

Result = TypeVar("Result")

_MESSAGE = 1024  # bytes per process in one gather; a longer message takes a second gather
_LENGTH = 8  # of these bytes hold the length of the message
_EXCERPT = 160  # characters shown of values that differ
_LARGEST_TEXT = 1 << 20  # characters of a value in the search for the first difference


class Divergence(RuntimeError):
    """The processes did not decide alike; raised on all of them."""


@dataclass(frozen=True)
class Processes:
    """The processes of a run; this one is number ``index`` of ``count``."""

    index: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """True on the one process that writes metrics, rollouts, summary and the display of the run."""
        return self.index == 0

    def is_mine(self, index: int) -> bool:
        """True if this process does the work of this index; each index belongs to one process."""
        return index % self.count == self.index

    def gather(self, content: Any) -> list[Any]:
        """JSON content of every process, in their order; all processes must make the same calls in the same order."""
        if self.count == 1:
            return [content]
        return [json.loads(message) for message in _gathered(json.dumps(content).encode())]

    def exchange(self, point: str, content: Any = None, **decisions: Any) -> list[Any]:
        """`gather` of ``content``, with proof that all processes are at this ``point`` with equal ``decisions``.

        Args:
          point: name of the point in the run, for messages, such as ``"step 3, first return"``.
          content: JSON content, which may differ between processes.
          decisions: values that must be equal: NumPy arrays, JSON content, or lists of arrays. Of a list of arrays
            two processes compare each: it may be all tokens of a step.

        Raises:
          Divergence: a decision differs; the message shows the values.
        """
        if self.count == 1:
            return [content]
        digests = {name: self._digests(value) for name, value in decisions.items()}
        messages = self.gather([point, digests, content])
        for name in digests:
            points, values = {message[0] for message in messages}, [message[1].get(name, {}) for message in messages]
            differs = any(len({value[key] for value in values if key in value}) > 1 for key in set().union(*values))
            if differs and points == {point}:
                raise Divergence(_difference(point, name, self.gather(_text(decisions[name])[:_LARGEST_TEXT])))
        if len({message[0] for message in messages}) > 1:
            raise Divergence(_difference("the order of stages", "stage", [message[0] for message in messages]))
        return [message[2] for message in messages]

    def _digests(self, value: Any) -> dict[str, str]:
        """Digests to compare: of all, or of a list of arrays the lengths, this process's share and the next one's."""
        if not isinstance(value, list) or not value or not hasattr(value[0], "__array__"):
            return {"all": digest(value)}
        shares = {self.index, (self.index + 1) % self.count}
        of_shares = {str(share): digest(value[share :: self.count]) for share in shares}
        return of_shares | {"lengths": digest(np.array([len(array) for array in value]))}

    def agree(self, point: str, **decisions: Any) -> None:
        """`exchange` without content of one's own."""
        self.exchange(point, **decisions)

    def asked_to_stop(self, received: list[str], point: int) -> str:
        """Reason for all processes to stop here, or "": a signal that any received, or notice of preemption.

        The notice comes from the platform; jax gives the same point to all processes.

        Args:
          received: the signals that this process received.
          point: number of this safe point, one more than that of the last; all processes ask at each.
        """
        signals = [name for names in self.gather(received[:1]) for name in names]
        notified = self.count > 1 and multihost_utils.reached_preemption_sync_point(point)
        return signals[0] if signals else "notice of preemption" * notified

    def whole_on_first(self, arrays: Any) -> Any:
        """A pytree of arrays in the host memory of process 0, fetched one by one; None on other processes."""
        if self.count == 1:
            return arrays

        def fetched(leaf: jax.Array) -> np.ndarray | None:
            complete = multihost_utils.process_allgather(leaf, tiled=True)
            return np.asarray(complete) if self.first else None

        hosts = jax.tree.map(fetched, arrays)
        return hosts if self.first else None

    def on_first(self, function: Callable[[], Result]) -> Result:
        """Result of ``function()`` on process 0, as JSON content; its ``ConfigError`` is raised on all processes."""
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
    """The processes that jax knows; starts jax's backend.

    Raises:
      ConfigError: jax finds no device, as where ``JAX_PLATFORMS`` names a platform that is not here.
    """
    try:
        return Processes(jax.process_index(), jax.process_count())
    except (RuntimeError, AssertionError) as error:  # jax asserts that it has a device
        reason = str(error).partition(" (set JAX_")[0].rstrip(".") or "there is no such device, or jax lacks its plugin"
        platforms = jax.config.values["jax_platforms"] or ""
        raise ConfigError(
            f"JAX_PLATFORMS={platforms}: jax finds no device: {reason}; set it to a platform "
            "of this machine, such as JAX_PLATFORMS=cpu, or leave it unset"
        ) from error


def _gathered(message: bytes) -> list[bytes]:
    """Messages of all processes; two transfers if one of them is long."""
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


def digest(value: Any) -> str:
    """A short hash of NumPy arrays, JSON content, or lists of them.

    Of an array it reads a checksum, 30 times as fast as a cryptographic hash: it is to find faults, not attacks.
    """
    hashed = hashlib.blake2b(digest_size=8)
    _add(hashed, value)
    return hashed.hexdigest()


def _add(hashed: Any, value: Any) -> None:
    if hasattr(value, "__array__"):
        value = np.ascontiguousarray(value)
        checksum = crc32(value.reshape(-1).view(np.uint8))
        hashed.update(f"{value.dtype}{value.shape}{checksum}".encode())
    elif isinstance(value, list | tuple):
        hashed.update(f"[{len(value)}".encode())
        for entry in value:
            _add(hashed, entry)
    else:
        hashed.update(json.dumps(value, sort_keys=True, default=_plain).encode())


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=_plain)


def _plain(value: Any) -> Any:
    """JSON content for arrays and array scalars; text for any other value that JSON lacks."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _difference(point: str, name: str, texts: list[str]) -> str:
    """Message with the value of each process, shown from shortly before the first character that differs."""
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
