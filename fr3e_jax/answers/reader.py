r"""From texts to trees: a recursive-descent grammar of answers, in LaTeX and in plain text.

Nothing here evaluates anything, and no text of a model ever reaches Python's or sympy's own parsers. The grammar, from
loose to tight::

    answer     item ((, | ; | and | or) item)*
    item       set ((= | < | \le | \in | \approx | ...) set)*
    set        ratio ((\cup | \cap | \setminus) ratio)*
    ratio      additive (: additive)*
    additive   [+ | - | \pm] term ((+ | - | \pm | \mp) term)*
    term       unary ((* | \cdot | \times | / | \div | \bmod | nothing) unary)*
    postfix    atom (^ exponent | ! | % | ' | _ subscript | text)*

``1/2x`` is (1/2)x, ``\sin 2x`` is sin(2x), ``\sin a \cos b`` a product, ``2\frac12`` a mixed number, as latex2sympy
and Math-Verify read them. A bar closes an absolute value wherever it can. If the text cannot be read so, an outermost
absolute value may hold all bars of its product: ``||x||y||`` is the absolute value of ``|x||y|``.

The rules are functions of one ``Cursor``. Each file imports only files below it: ``expressions`` (down to factors),
``atoms``, ``commands``, ``big_operators``, ``brackets``. For the way up the cursor carries ``Rules``, named here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from fr3e_jax.answers.atoms import atom
from fr3e_jax.answers.brackets import stacked
from fr3e_jax.answers.cursor import END, Cursor, Rules
from fr3e_jax.answers.expression_tree import Node
from fr3e_jax.answers.expressions import additive, answer, item, postfix, term
from fr3e_jax.answers.limits import Unreadable
from fr3e_jax.answers.tokens import Token, tokenise
from fr3e_jax.answers.words import inward_brackets, plain_words, split_commas

_RULES = Rules(answer=answer, item=item, additive=additive, term=term, postfix=postfix, atom=atom)
_DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+")
_DECIMAL_POINT = re.compile(r"[-+]?\d*\.\d+")
_SEVERAL = {"list", "set", "bracket"}
_TEXT_PIECES = re.compile(r"\d+(?:\.\d+)?|\S")
_NESTED_BARS = 6  # the fewest bars in which an absolute value holds two others


def read_tokens(tokens: Sequence[Token], commas_group: bool = True) -> Node:
    """The tree of an answer.

    Args:
      commas_group: whether ``1,000`` outside of brackets is one number rather than two.

    Raises:
      Refused: beyond a limit.
      Unreadable: not in the grammar.
    """
    prepared = plain_words(split_commas(inward_brackets(tokens), commas_group))
    try:
        return _parsed(prepared, enclosing_bars=False)
    except Unreadable:
        if sum(token.value == "|" for token in prepared) < _NESTED_BARS:
            raise
        return _parsed(prepared, enclosing_bars=True)


@lru_cache(maxsize=1024)
def read(text: str, commas_group: bool = True) -> Node:
    """The tree of an answer, as ``read_tokens``; trees of texts read lately are remembered."""
    return read_tokens(_trimmed(tokenise(text)), commas_group)


def _parsed(tokens: list[Token], enclosing_bars: bool) -> Node:
    cursor = Cursor(tokens, _RULES, enclosing_bars)
    tree = stacked(cursor)
    if cursor.next is not END:
        raise Unreadable(f"{cursor.next.value!r} was not expected there")
    return tree


def keys(text: str) -> list[tuple[str, str]]:
    """The keys by which texts are literally equal: their tokens, without blanks, styles and a final full stop.

    Raises:
      Refused, Unreadable: see ``tokenise``.
    """
    tokens = tokenise(text)
    keys: list[tuple[str, str]] = []
    for index, token in enumerate(tokens):
        if token.kind == "text":
            keys += [_piece_key(piece) for piece in _TEXT_PIECES.findall(token.value)]
        else:
            keys.append(("spaced", token.value) if _between_digits(tokens, index) else token.key)
    return keys[:-1] if keys and keys[-1][1] == "." else keys


def _piece_key(piece: str) -> tuple[str, str]:
    """The key of a letter, number or mark in words, as if it stood outside of them."""
    return ("number" if piece[0].isdigit() else "letter" if piece.isalpha() else "mark"), piece


def _between_digits(tokens: Sequence[Token], index: int) -> bool:
    """Return whether a blank before this token keeps two numbers apart: 1 1/2 is not 11/2."""
    token = tokens[index]
    return token.kind == "number" and token.spaced and index > 0 and tokens[index - 1].kind == "number"


def readings(gold: str, answer: str) -> Iterator[tuple[Node, Node]]:
    """The trees of gold and answer, the likeliest reading first.

    ``1,000`` is one number. It may also be two where the gold answer is a list or has brackets, and no group of digits
    starts with 0.

    Raises:
      Refused, Unreadable: see ``read_tokens``.
    """
    yield read(gold), read(answer)
    if read(gold).head in _SEVERAL and (_has_commas(gold) or _has_commas(answer)):
        yield read(gold, commas_group=False), read(answer, commas_group=False)
    for text, other in ((gold, answer), (answer, gold)):
        if _DECIMAL_COMMA.fullmatch(text) and _DECIMAL_POINT.fullmatch(other) and not _has_commas(text):
            pair = read(text.replace(",", ".")), read(other)
            yield pair if text is gold else pair[::-1]


def _has_commas(text: str) -> bool:
    return any(token.kind == "commas" for token in tokenise(text))


def _trimmed(tokens: Sequence[Token]) -> Sequence[Token]:
    """Without a final full stop, comma or backslash, and without a relation that has nothing before it."""
    while tokens and tokens[0].value in ("=", "\\approx", ":"):
        tokens = tokens[1:]
    while tokens and tokens[-1].value in (".", ",", ";", "\\", "\\\\"):
        tokens = tokens[:-1]
    if len(tokens) == 2 and "." in tokens[0].value and tokens[1].value == r"\ldots":
        tokens = tokens[:1]  # 0.333333...
    return tokens
