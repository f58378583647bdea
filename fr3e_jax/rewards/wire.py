"""Messages between the processes of grading: four bytes of length, then the message; standard library only."""

from __future__ import annotations

import socket
import struct

LENGTH = struct.Struct("!I")


class Oversized(ValueError):
    """The other side announced a message longer than the limit; its further bytes cannot be trusted."""


def framed(message: bytes) -> bytes:
    """The message with its length before it."""
    return LENGTH.pack(len(message)) + message


def send(sock: socket.socket, message: bytes) -> None:
    """Send one message over a blocking socket."""
    sock.sendall(framed(message))


def receive(sock: socket.socket, limit: int) -> bytes | None:
    """The next message of a blocking socket; None once the other side has closed it.

    Raises:
      Oversized: the message is longer than ``limit`` bytes.
    """
    head = _exactly(sock, LENGTH.size)
    if head is None:
        return None
    (length,) = LENGTH.unpack(head)
    if length > limit:
        raise Oversized(f"a message of {length} bytes; expected at most {limit}")
    return _exactly(sock, length)


def _exactly(sock: socket.socket, size: int) -> bytes | None:
    received = bytearray()
    while len(received) < size:
        chunk = sock.recv(min(size - len(received), 1 << 20))
        if not chunk:
            return None
        received += chunk
    return bytes(received)


class Reader:
    """The bytes of a non-blocking socket, cut into messages of at most ``limit`` bytes."""

    def __init__(self, limit: int):
        self._limit, self._buffer = limit, bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that ``data`` completes; raises ``Oversized`` at the first length beyond the limit."""
        self._buffer += data
        messages = []
        while len(self._buffer) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._buffer)
            if length > self._limit:
                raise Oversized(f"a message of {length} bytes; expected at most {self._limit}")
            end = LENGTH.size + length
            if len(self._buffer) < end:
                break
            messages.append(bytes(self._buffer[LENGTH.size : end]))
            del self._buffer[:end]
        return messages
