"""Tokens prepared for the grammar: letters that spell words, commas that group digits, brackets turned inward."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fr3e_jax.answers.limits import Unreadable
from fr3e_jax.answers.tokens import Token
from fr3e_jax.answers.units import ORDINALS
from fr3e_jax.answers.vocabulary import CLOSING, FUNCTION_NAMES, OPENING, PLAIN_WORDS, TEXT_WORDS, UNITS

_PROSE_LETTERS, _PROSE_WORDS = 3, 3
_SILENT = {"{", "}", ".", "!"}
_NO_SOLUTION = re.compile(
    r"(?:there (?:is|are|exists?) |it has |has )?no (?:real |integer |such |valid |possible )*"
    r"(?:solutions?|values?|numbers?|integers?|roots?|x)(?: exists?)?",
)
_ARTICLE = re.compile(r"(?:an|the|on|a(?= [a-z]{4})) (?=[a-z]{3})")
_ABSENT = re.compile(r"(?:the )?(?:limit )?(?:dne|does not exist|doesn't exist)")
_RATE_UNITS = UNITS | set("hsgmlL")
_RATES = [[amount, "/", time] for amount in "mg" for time in "sh"]
_AFTER_INTERVALS = {r"\cup", r"\cap", r"\setminus", ",", ";", "and", "or"}
_BEFORE_INTERVALS = _AFTER_INTERVALS | {r"\in", "="}


def inward_brackets(tokens: Sequence[Token]) -> list[Token]:
    """The tokens with ``(2, 5)`` for ``]2, 5[``: a bracket turned away from an interval is a round one."""
    turned = list(tokens)
    for index, token in enumerate(tokens):
        before = tokens[index - 1] if index else None
        after = tokens[index + 1] if index + 1 < len(tokens) else None
        if token.value == "]" and (before is None or before.value in _BEFORE_INTERVALS):
            turned[index] = Token("mark", "(", token.spaced)
        elif token.value == "[" and before is not None and (after is None or after.value in _AFTER_INTERVALS):
            turned[index] = Token("mark", ")", token.spaced)
    return turned


def split_commas(tokens: list[Token], commas_group: bool) -> list[Token]:
    """The tokens with ``1,000`` as one number outside of brackets, and as several inside.

    A group that starts with 0, as nobody writes an item of a list, makes one number everywhere.
    """
    split: list[Token] = []
    depth = 0
    for token in tokens:
        depth += (token.value in OPENING) - (token.value in CLOSING)
        if token.kind != "commas":
            split.append(token)
        elif (commas_group and depth <= 0) or ",0" in token.value:
            split.append(Token("number", token.value.replace(",", ""), token.spaced))
        else:
            items = [Token("number", item, token.spaced) for item in token.value.split(",")]
            split += [piece for item in items for piece in (Token("mark", ","), item)][1:]
    return split


def plain_words(tokens: list[Token]) -> list[Token]:
    """The tokens with the meaning of words for their letters: ``\\sqrt`` for ``sqrt``, a unit for ``cm`` after 5.

    Raises:
      Unreadable: formulas in prose.
    """
    if (phrase := _phrase(tokens)) is not None:
        return [phrase]
    joined: list[Token] = []
    position = unknown = 0
    while position < len(tokens):
        if tokens[position].kind != "letter":
            called = position + 1 < len(tokens) and tokens[position + 1].value == "("
            joined.append(_text_word(tokens[position], called))
            position += 1
            continue
        end = position + 1
        while end < len(tokens) and tokens[end].kind == "letter" and not tokens[end].spaced:
            end += 1
        rate = _rate(tokens, position)
        word = [Token("text", tokens[position].value, True)] if rate else _word(tokens[position:end], joined)
        unknown += len(word) >= _PROSE_LETTERS and not (joined and joined[-1].value in ("{", "_"))
        joined += word
        position = end
    if unknown >= _PROSE_WORDS and any(token.kind in ("number", "command") for token in joined):
        raise Unreadable("formulas in prose")  # as products of letters the words would vanish
    return joined


def _phrase(tokens: list[Token]) -> Token | None:
    r"""The token of an answer that is words alone: ``\emptyset`` for "no solution"; None if the words mean nothing."""
    spoken = [token for token in tokens if token.value not in _SILENT]
    if not spoken or any(token.kind not in ("letter", "text") for token in spoken):
        return None
    said = "".join(" " * token.spaced + token.value for token in spoken).lower().strip(" .")
    if article := _ARTICLE.match(said):
        return Token("text", said[article.end() :])
    if _NO_SOLUTION.fullmatch(said):
        return Token("command", r"\emptyset")
    return Token("text", "DNE") if _ABSENT.fullmatch(said) else None


def _text_word(token: Token, called: bool) -> Token:
    if (called or token.value == "cis") and token.kind == "text" and token.value in FUNCTION_NAMES:
        return PLAIN_WORDS[token.value]
    return TEXT_WORDS.get(token.value.lower(), token) if token.kind in ("text", "letter", "command") else token


def _word(letters: list[Token], before: list[Token]) -> list[Token]:
    word = "".join(token.value for token in letters)
    meaning = PLAIN_WORDS.get(word) or PLAIN_WORDS.get(word.lower())
    if len(word) > 1 and meaning:
        return [meaning]
    if word in _RATE_UNITS and _after_unit(before):
        return [Token("text", word, letters[0].spaced)]
    after_quantity = bool(before) and (before[-1].kind in ("number", "text") or before[-1].value in ("}", ")", "%"))
    raised = [token.value for token in before[-2:] if token.value in "^{"]
    if word in ORDINALS and (raised[:1] == ["^"] or (after_quantity and not letters[0].spaced)):
        return [Token("text", word)]
    if after_quantity and (word in UNITS or (len(word) > 3 and letters[0].spaced)):
        return [Token("text", word, letters[0].spaced)]
    return letters


def _after_unit(before: list[Token]) -> bool:
    """Return whether a unit goes on: ``km/h``."""
    return len(before) > 1 and before[-1].value == "/" and before[-2].kind == "text"


def _rate(tokens: list[Token], position: int) -> bool:
    """Return whether metres or grams per second or hour begin here: ``45 m/s``."""
    values = [token.value for token in tokens[position : position + 3]]
    return position > 0 and tokens[position - 1].kind == "number" and values in _RATES
