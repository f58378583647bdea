"""A table that recognises a call token by token: ``begin``, any text, ``end``. The decoder looks it up at each step.

Bytes drive two Knuth-Morris-Pratt matchers in turn. In states 0 ... b-1 the state number is the length of the prefix
of ``begin`` that the text ends with. In states b ... b+e-1 ``begin`` has occurred, and the number counts the matched
prefix of ``end`` since. A token is a word of bytes, so the table over (state, token) is exact for every tokenizer,
however a mark, or a character of it, is split into tokens. Two more states follow: in DONE the call is complete; in
OFF no further call is recognised, because the response has used up its calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

START = 0


@dataclass(frozen=True)
class CallTable:
    """``next[state, token]`` is the state after a token, int16 ``[states, V]``."""

    next: np.ndarray

    @property
    def done(self) -> int:
        """The state of a complete call, which no token leaves. The tool's answer resets it."""
        return len(self.next) - 2

    @property
    def off(self) -> int:
        """The state that recognises no call."""
        return len(self.next) - 1

    def run(self, token_ids: Sequence[int] | np.ndarray, state: int = START) -> int:
        """The state after ``token_ids``; the run stops at a complete call."""
        for token in np.asarray(token_ids).tolist():
            if state == self.done:
                break
            state = int(self.next[state, token])
        return state


def call_table(begin: str, end: str, token_bytes: Sequence[bytes], stops: Sequence[int] = ()) -> CallTable:
    """The table of calls between the marks ``begin`` and ``end``.

    Args:
      begin: "" for turns, which begin at once and end with ``end`` or a stop token. OFF is then not used.
      end: "" for turns that end with a stop token alone.
      token_bytes: ``token_bytes[i]`` are the bytes of token i, or b"" if it has none.
      stops: the stop tokens. They complete a turn, and no call between two marks.
    """
    marks = tuple(mark.encode() for mark in (begin, end) if mark)
    if marks:
        table = _table(marks, token_bytes)
    else:
        table = np.repeat(np.array([[0], [1], [2]], np.int16), len(token_bytes), axis=1)
    done, off = len(table) - 2, len(table) - 1
    table[:done, list(stops)] = off if begin else done
    return CallTable(table)


def _table(marks: Sequence[bytes], token_bytes: Sequence[bytes]) -> np.ndarray:
    """The states after each token, int16 ``[states, V]``; the last two are DONE and OFF."""
    done = sum(map(len, marks))
    table = np.empty((done + 2, len(token_bytes)), np.int16)
    table[done:] = np.array([[done], [done + 1]])
    table[:done] = _words(_bytes(marks), token_bytes)[:done]
    return table


def _words(step: np.ndarray, words: Sequence[bytes]) -> np.ndarray:
    """The state after each word from each state, ``[states, words]``. All words advance together by one byte."""
    codes = np.frombuffer(b"".join(words), np.uint8)
    lengths = np.array([len(word) for word in words], np.int64)
    first = np.cumsum(lengths) - lengths
    after = np.tile(np.arange(len(step))[:, None], (1, len(words)))
    for position in range(int(lengths.max(initial=0))):
        longer = np.flatnonzero(lengths > position)
        after[:, longer] = step[after[:, longer], codes[first[longer] + position]]
    return after


def _bytes(marks: Sequence[bytes]) -> np.ndarray:
    """The state after each byte, ``[states, 256]``. The last state, a complete call, maps to itself."""
    *firsts, done = np.cumsum([0, *map(len, marks)]).tolist()
    step = np.full((done + 1, 256), done)
    for mark, first in zip(marks, firsts, strict=True):
        for matched in range(len(mark)):
            step[first + matched] = first
            for byte in set(mark):
                seen = mark[:matched] + bytes([byte])
                longest = next(n for n in range(len(seen), -1, -1) if seen.endswith(mark[:n]))
                step[first + matched, byte] = first + longest
    return step
