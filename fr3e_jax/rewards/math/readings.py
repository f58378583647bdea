r"""The readings of a pair of texts: mostly one, but two where ``1,000`` is one number or two."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fr3e_jax.rewards.math.expression_tree import Node
from fr3e_jax.rewards.math.reader import read_tokens
from fr3e_jax.rewards.math.tokens import Token, tokenise

_DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+")
_DECIMAL_POINT = re.compile(r"[-+]?\d*\.\d+")
_TEXT_PIECES = re.compile(r"\d+(?:\.\d+)?|\S")


def keys(text: str) -> list[tuple[str, str]]:
    """The keys by which texts are literally equal: their tokens, without blanks, styles and a final full stop.

    Raises:
      Refused, Unreadable: see ``tokenise``.
    """
    tokens = tokenise(text)
    found: list[tuple[str, str]] = []
    for index, token in enumerate(tokens):
        if token.kind == "text":
            found += [_piece_key(piece) for piece in _TEXT_PIECES.findall(token.value)]
        else:
            found.append(("spaced", token.value) if _between_digits(tokens, index) else token.key)
    return found[:-1] if found and found[-1][1] == "." else found


def _piece_key(piece: str) -> tuple[str, str]:
    """The key of a letter, number or mark in words, as if it stood outside of them."""
    return ("number" if piece[0].isdigit() else "letter" if piece.isalpha() else "mark"), piece


def _between_digits(tokens: list[Token], index: int) -> bool:
    """Whether a blank before this token keeps two numbers apart: 1 1/2 is not 11/2."""
    token = tokens[index]
    return token.kind == "number" and token.spaced and index > 0 and tokens[index - 1].kind == "number"


def readings(gold: str, answer: str) -> Iterator[tuple[Node, Node]]:
    """The trees of gold and answer, the likeliest reading first.

    Raises:
      Refused, Unreadable: see ``read``.
    """
    gold_tokens, answer_tokens = _trimmed(tokenise(gold)), _trimmed(tokenise(answer))
    yield read_tokens(gold_tokens), read_tokens(answer_tokens)
    if _has_commas(gold_tokens) or _has_commas(answer_tokens):
        yield read_tokens(gold_tokens, commas_group=False), read_tokens(answer_tokens, commas_group=False)
    for one, other in ((gold, answer), (answer, gold)):
        if _DECIMAL_COMMA.fullmatch(one) and _DECIMAL_POINT.fullmatch(other):
            pair = read_tokens(tokenise(one.replace(",", "."))), read_tokens(tokenise(other))
            yield pair if one is gold else pair[::-1]


def _has_commas(tokens: list[Token]) -> bool:
    return any(token.kind == "commas" for token in tokens)


def _trimmed(tokens: list[Token]) -> list[Token]:
    """Without a final full stop, comma or backslash, and without a relation that has nothing before it."""
    while tokens and tokens[0].value in ("=", "\\approx", ":"):
        tokens = tokens[1:]
    while tokens and tokens[-1].value in (".", ",", ";", "\\", "\\\\"):
        tokens = tokens[:-1]
    if len(tokens) == 2 and "." in tokens[0].value and tokens[1].value == r"\ldots":
        tokens = tokens[:1]  # 0.333333...
    return tokens
