"""The text of single tokens, such that the pieces of a response add up to its exact text.

A token of a byte-level vocabulary may hold part of a character. Such a piece is its bytes; the page joins the bytes of
consecutive tokens and shows those that make no character as hexadecimal numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fr3e_jax.data.tokenizer import TextCodec  # transformers loads slowly

Piece = str | list[int]
"""Text, or bytes that are no text by themselves."""


def pieces_of(codec: TextCodec, ids: Iterable[int]) -> dict[int, Piece]:
    """The piece of each id. An id beyond the vocabulary has the piece ``⟨id⟩``."""
    spelled = codec.token_bytes()
    return {
        token: _text_or_bytes(spelled[token]) if token < len(spelled) else f"⟨{token}⟩" for token in sorted(set(ids))
    }


def _text_or_bytes(content: bytes) -> Piece:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return list(content)
