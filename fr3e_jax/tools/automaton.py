"""A table that recognises calls and stop texts token by token. The decoder looks it up at each step.

A call is ``begin``, any text, ``end``. Two searches run side by side over the bytes of a response: one for the marks of
calls in turn, one for stop texts. The state of a search is the longest beginning of a sought text with which the text
so far ends (the automaton of Aho and Corasick). A state of the table is a pair of their states that some text reaches.
A token is a word of bytes, so the table over (state, token) is exact for every tokenizer, however a text, or a
character of it, is split into tokens. Two states stand apart, the last ones, in which a lane of the decoder stops: in
STOP a stop text is complete, in DONE a call. From the state OFF no call is recognised, because the response has used up
its calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

START = 0


@dataclass(frozen=True)
class CallTable:
    """``next[state, token]`` is the state after a token, int16 ``[states, V]``; ``off``: the state OFF."""

    next: np.ndarray
    off: int

    @property
    def done(self) -> int:
        """The state of a complete call, which no token leaves. The tool's answer resets it."""
        return len(self.next) - 1

    @property
    def stop(self) -> int:
        """The state of a complete stop text, which no token leaves."""
        return len(self.next) - 2

    def run(self, token_ids: Sequence[int] | np.ndarray, state: int = START) -> int:
        """The state after ``token_ids``; the run stops at a complete call or stop text."""
        for token in np.asarray(token_ids, np.int64).tolist():
            if state >= self.stop:
                break
            state = int(self.next[state, token])
        return state


def call_table(
    begin: str, end: str, token_bytes: Sequence[bytes], stops: Sequence[int] = (), stop_texts: Sequence[str] = ()
) -> CallTable:
    """The table of calls between the marks ``begin`` and ``end``.

    Args:
      begin: "" for turns, which begin at once and end with ``end``, a stop token or a stop text. OFF is then not used.
      end: "" for turns that end with a stop token or a stop text alone.
      token_bytes: ``token_bytes[i]`` are the bytes of token i, or b"" if it has none.
      stops: the stop tokens. They complete a turn, and no call between two marks.
      stop_texts: texts that end a response as a stop token does.
    """
    if not begin:
        table = _table(_search([end] * bool(end) + [*stop_texts]), _search([]), token_bytes)
    else:
        table = _table(_in_turn(_search([begin]), _search([end])), _search(stop_texts), token_bytes)
    table.next[: table.stop, list(stops)] = table.off if begin else table.done
    return table


def stop_table(stop_texts: Sequence[str], token_bytes: Sequence[bytes]) -> CallTable:
    """The table of stop texts alone, without calls."""
    return _table(_search([]), _search(stop_texts), token_bytes)


def _table(calls: np.ndarray, stop_texts: np.ndarray, token_bytes: Sequence[bytes]) -> CallTable:
    """The table of two searches side by side; a stop text wins where a byte completes both."""
    complete, stopped, off = len(calls) - 1, len(stop_texts) - 1, len(calls)
    calls = np.vstack([calls, np.full((1, 256), off)])

    def after(pair: tuple[int, int]) -> list[tuple[int, int]]:
        return list(zip(calls[pair[0]].tolist(), stop_texts[pair[1]].tolist(), strict=True))

    reached = {(0, 0), (off, 0)}
    fresh = [*reached]
    while fresh:
        following = {pair for pair in after(fresh.pop()) if pair[0] != complete and pair[1] != stopped} - reached
        reached |= following
        fresh += following
    pairs = sorted(reached)
    numbers, stop = {pair: number for number, pair in enumerate(pairs)}, len(pairs)

    def number(pair: tuple[int, int]) -> int:
        return stop if pair[1] == stopped else stop + 1 if pair[0] == complete else numbers[pair]

    step = np.array([[number(each) for each in after(pair)] for pair in pairs] + [[stop] * 256, [stop + 1] * 256])
    return CallTable(_words(step, token_bytes).astype(np.int16), numbers[off, 0])


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


def _search(texts: Sequence[str]) -> np.ndarray:
    """The state after each byte of a search for any of ``texts``, ``[states, 256]``; in the last state it has ended."""
    sought = [text.encode() for text in texts]
    beginnings = sorted({b""} | {text[:length] for text in sought for length in range(len(text))}, key=len)
    numbers = {beginning: number for number, beginning in enumerate(beginnings)}
    step = np.zeros((len(numbers) + 1, 256), np.int64)
    step[-1] = len(numbers)
    for beginning in beginnings:
        for byte in set(b"".join(sought)):
            seen = beginning + bytes([byte])
            longest = next(seen[n:] for n in range(len(seen) + 1) if seen[n:] in numbers)
            step[numbers[beginning], byte] = len(numbers) if seen.endswith((*sought,)) else numbers[longest]
    return step


def _in_turn(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The search that begins with ``first`` and goes on with ``second`` where that has ended."""
    return np.vstack([first[:-1], second + len(first) - 1])
