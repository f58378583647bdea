"""The text of an answer as its tokens come: what is certain so far, up to a stop text."""

from __future__ import annotations

from collections.abc import Sequence

from fr3e_jax.data.tokenizer import TextCodec

_TORN = "\ufffd"  # at the end: bytes of a character that later tokens may complete


class AnswerText:
    """A growing text, whose new parts `add` returns; a part that may begin a stop text waits.

    Args:
      codec: the tokenizer.
      stop_texts: texts that end the answer and are no part of it.
      retained: tokens with which the answer begins; their text is not new, but a stop text may begin in it.

    Attributes:
      token_ids: of the answer, retained ones included, up to the one that completes a stop text.
      retained: the text of the retained tokens; a character that they begin belongs to the new text.
      stopped: a stop text has ended it.
    """

    def __init__(self, codec: TextCodec, stop_texts: Sequence[str], retained: Sequence[int] = ()) -> None:
        self._codec = codec
        self._stops: tuple[str, ...] = ()
        self.token_ids: list[int] = []
        self.stopped, self._text = False, ""
        self._first = self._read = 0  # the last tokens whose text is certain
        for token in retained:
            self._read_on(token)
        self._stops, self.retained, self._sent = tuple(stop_texts), self._text, len(self._text)

    def add(self, token_ids: Sequence[int], *, last: bool) -> str:
        """The text that these tokens add; ``last``: none follow, so nothing waits."""
        for token in token_ids:
            if not self.stopped:
                self._read_on(token)
        if last and not self.stopped:
            self._read_on(None)
        end = len(self._text) if last or self.stopped else len(self._text) - self._waiting()
        new, self._sent = self._text[self._sent : end], max(end, self._sent)
        return new

    def _read_on(self, token: int | None) -> None:
        """Read a token; None: none follows."""
        if token is not None:
            self.token_ids.append(token)
        before, text = (self._decoded(end) for end in (self._read, None))
        if text.endswith(_TORN) and token is not None:
            return
        length = len(self._text)
        self._text += text[len(before) :]
        self._first, self._read = self._read, len(self.token_ids)
        places = (self._text.find(stop, max(0, length - len(stop) + 1)) for stop in self._stops)
        if cuts := [at for at in places if at >= 0]:
            self._text, self.stopped = self._text[: min(cuts)], True

    def _decoded(self, end: int | None) -> str:
        return self._codec.decode(self.token_ids[self._first : end], special_tokens=True)

    def _waiting(self) -> int:
        """Characters at the end with which a stop text begins."""
        longest = max(map(len, self._stops), default=0)
        ends = (n for n in range(min(longest - 1, len(self._text)), 0, -1))
        return next((n for n in ends if any(stop.startswith(self._text[-n:]) for stop in self._stops)), 0)
