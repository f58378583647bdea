"""A table that recognises a call token by token: ``begin``, any text, ``end``. The decoder looks it up at each step.

Characters drive two Knuth-Morris-Pratt matchers in turn. In states 0 ... b-1 the state number is the length of the
prefix of ``begin`` that the text ends with. In states b ... b+e-1 ``begin`` has occurred, and the number counts the
matched prefix of ``end`` since. A token is a word of characters, so the table over (state, token) is exact for every
tokenizer whose tokens have a text, however a mark is split into tokens. Two more states follow: in DONE the call is
complete; in OFF no further call is recognised, because the response has used up its calls.
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


def call_table(begin: str, end: str, token_texts: Sequence[str], stops: Sequence[int] = ()) -> CallTable:
    """The table of calls between the marks ``begin`` and ``end``.

    Args:
      begin: "" for turns, which begin at once and end with ``end`` or a stop token. OFF is then not used.
      end: "" for turns that end with a stop token alone.
      token_texts: ``token_texts[i]`` is the text of token i, or "" if it has none.
      stops: the stop tokens. They complete a turn, and no call between two marks.
    """
    marks = tuple(mark for mark in (begin, end) if mark)
    if marks:
        table = _table(marks, token_texts)
    else:
        table = np.repeat(np.array([[0], [1], [2]], np.int16), len(token_texts), axis=1)
    done, off = len(table) - 2, len(table) - 1
    table[:done, list(stops)] = off if begin else done
    return CallTable(table)


def _table(marks: Sequence[str], token_texts: Sequence[str]) -> np.ndarray:
    """The states after each token, int16 ``[states, V]``; the last two are DONE and OFF."""
    alphabet, done = sorted(set("".join(marks))), sum(map(len, marks))
    table = np.empty((done + 2, len(token_texts)), np.int16)
    table[done:] = np.array([[done], [done + 1]])
    table[:done] = _words(_characters(marks, alphabet), alphabet, token_texts)[:done]
    return table


def _words(step: np.ndarray, alphabet: list[str], texts: Sequence[str]) -> np.ndarray:
    """The state after each text from each state, ``[states, texts]``. All texts advance together by one character."""
    characters = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    codepoints = np.array([ord(character) for character in alphabet], np.uint32)
    index = np.minimum(np.searchsorted(codepoints, characters), len(codepoints) - 1)
    codes = np.where(codepoints[index] == characters, index, len(codepoints))
    lengths = np.array([len(text) for text in texts], np.int64)
    first = np.cumsum(lengths) - lengths
    after = np.tile(np.arange(len(step))[:, None], (1, len(texts)))
    for position in range(int(lengths.max(initial=0))):
        longer = np.flatnonzero(lengths > position)
        after[:, longer] = step[after[:, longer], codes[first[longer] + position]]
    return after


def _characters(marks: Sequence[str], alphabet: list[str]) -> np.ndarray:
    """The state after each character, ``[states, characters + 1]``. The last column stands for all other characters.

    The last state, a complete call, maps to itself.
    """
    *firsts, done = np.cumsum([0, *map(len, marks)]).tolist()
    step = np.full((done + 1, len(alphabet) + 1), done)
    for mark, first in zip(marks, firsts, strict=True):
        for matched in range(len(mark)):
            step[first + matched] = first
            for character in set(mark):
                seen = mark[:matched] + character
                longest = next(n for n in range(len(seen), -1, -1) if seen.endswith(mark[:n]))
                step[first + matched, alphabet.index(character)] = first + longest
    return step
