"""The text of single tokens, such that the pieces of a response add up to its exact text.

A token of a byte-level vocabulary may hold part of a character. Such a piece is its bytes; the page joins the bytes of
consecutive tokens and shows those that make no character as hexadecimal numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fr3e_jax.data.tokenizer import TextCodec  # transformers loads slowly

Piece = str | list[int]
"""Text, or bytes that are no text by themselves."""

_BYTE_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def pieces_of(codec: TextCodec, ids: Iterable[int]) -> dict[int, Piece]:
    """The piece of each id. An id beyond the vocabulary has the piece ``⟨id⟩``."""
    tokenizer = codec.tokenizer
    special = set(tokenizer.all_special_ids) | set(codec.stop_ids)
    byte_level = _is_byte_level(tokenizer.backend_tokenizer.decoder)
    pieces: dict[int, Piece] = {}
    for token in sorted(set(ids)):
        spelled = tokenizer.backend_tokenizer.id_to_token(token)
        if spelled is None:
            pieces[token] = f"⟨{token}⟩"
        elif token in special:
            pieces[token] = spelled
        elif byte_level:
            pieces[token] = _from_alphabet(spelled)
        elif match := _BYTE_FALLBACK.fullmatch(spelled):
            pieces[token] = _text_or_bytes(bytes([int(match[1], 16)]))
        else:
            pieces[token] = _after_another(codec, token)
    return pieces


def _is_byte_level(decoder: Any) -> bool:
    return "ByteLevel" in repr(decoder)  # alone, or within a sequence


def _from_alphabet(spelled: str) -> Piece:
    try:
        return _text_or_bytes(bytes(_byte_of()[character] for character in spelled))
    except KeyError:  # a token that was added as text
        return spelled


def _text_or_bytes(content: bytes) -> Piece:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return list(content)


def _after_another(codec: TextCodec, token: int) -> str:
    """The text that ``token`` adds after itself: a decoder may strip the space before a first token."""
    once, twice = (codec.decode([token] * count, special_tokens=True) for count in (1, 2))
    return twice.removeprefix(once)


@cache
def _byte_of() -> dict[str, int]:
    """The byte that each character of the byte-level alphabet stands for (GPT-2's ``bytes_to_unicode``, inverted)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
