r"""The tokens of an answer: the same ones for LaTeX, plain text and Unicode.

Spacing, sizing and style commands vanish, synonyms become one command (``\dfrac``, ``\tfrac``, ``\cfrac`` are
``\frac``; ``≤``, ``<=``, ``\leqslant`` are ``\le``), words inside ``\text{...}`` become one token. One pass of one
regular expression whose alternatives exclude each other: linear in the text.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from fr3e_jax.answers.characters import BOXES, SYNONYMS, TEXT_COMMANDS, UNIT_LETTERS, VANISHING, fold
from fr3e_jax.answers.limits import LITERAL_DIGITS, TOKENS, Refused, Unreadable, check_length

Kind = Literal["number", "commas", "letter", "command", "text", "mark"]


@dataclass(frozen=True, slots=True)
class Token:
    """A token; ``spaced``: blank space stands before it, which matters between two numbers and between letters."""

    kind: Kind
    value: str
    spaced: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """Kind and value; tokens of equal keys mean the same, spacing aside."""
        return self.kind, self.value


_SCANNER = re.compile(
    r"(?P<blank>(?:\s|~|\\q?quad(?=[a-z])|\\[,;:!> ]|\$|\\\()+)"
    r"|(?P<grouped>\d{1,3}(?:(?:\s*\{\s*,\s*\}(?:\\!)?|,\\!|\\!,|\\,)\s*\d{3})+(?!\d)(?:\.\d+)?)"
    r"|(?P<commas>\d+(?:,\d+)+(?:\.\d+)?)"
    r"|(?P<number>\d+(?:\.(?:\d+|(?=/|\\(?:overline|bar|dot))))?|\.\d+)"
    r"|(?P<command>\\[a-zA-Z]+)"
    r"|(?P<letter>[^\W\d_])"
    r"|(?P<operator>\+/-|<=|>=|!=|==|:=|\*\*|&=|\\\$|\\%|\\\{|\\\}|\\\||\\\\|\\[#&_\[\])])"
    r"|(?P<mark>.)",
    re.DOTALL,
)
_OPERATORS = {
    "+/-": "\\pm", "<=": "\\le", ">=": "\\ge", "!=": "\\ne", "==": "=", ":=": "=", "**": "^", "&=": "=", "\\%": "%",
    "\\{": "\\{", "\\}": "\\}", "\\|": "\\|", "\\\\": "\\\\", "\\#": "#", "\\&": "&", "\\_": "_",
}  # fmt: skip
_FORMULA_ENDS = {"\\)", "\\[", "\\]"}
_CURRENCIES = {"USD", "US", "EUR", "GBP", "Rs", "Rs.", "RMB", "HK"}
_CURRENCY_UNITS = {r"\$": "dollars", "€": "euros", "£": "pounds", "¥": "yen", "₹": "rupees", "₽": "rubles", "₩": "won"}
_QUANTITY_ENDS = {"}", ")", "]", "|", "%", "!", r"\pi"}
_CALCULATION = re.compile(r"[\d\s.,+\-*/^()%{}]+")
_FORMULA = re.compile(r"(?=.*\\[a-zA-Z])(?:\\[a-zA-Z]+|(?<![a-zA-Z])[a-zA-Z](?![a-zA-Z])|[\d\s.,+\-*/^()%{}|=_])+")
_NEXT_FORMULA = re.compile(r"(?<=[^\s$\\])\$\s+\$(?=[^\s$])")
_MEASURED = re.compile(r"(-?\d[\d,]*(?:\.\d+)?)(?:\s+|(?=(?:st|nd|rd|th)\b))(\D+)")
_HEDGE = re.compile(r"(?:approximately|approx\.?|about|around|roughly|exactly)\s*", re.IGNORECASE)
_UNIT_SIGNS = (
    (re.compile(r"\\mu\s*(?=[a-zA-Z])"), "µ"),
    (re.compile(r"\\Omega\b"), "Ω"),
    (re.compile(r"\^\{?\\circ\s*\}?"), "°"),
)
_UNIT_FRACTION = re.compile(r"\\frac\{([^\d{}]*)\}\{([a-zA-Z^\d]*)\}")
_ROW_GAP = re.compile(r"\\\\(?:\*|\[\s*-?[\d.]+\s*(?:pt|em|ex|mm|cm|in|px)\s*\])")
# A quantifier over all values of a variable, at the end: "for all real numbers x", "\forall x \in \mathbb{R}".
_EVERYWHERE = re.compile(
    r"(?:\s|,|\\q?quad|\\[,;: ])*(?:\\text\s*\{\s*,?\s*|\()?(?:\\forall|\bfor\s+(?:all|every|each|any|integers?))"
    r"(?:\s|real|integers?|values?|numbers?|of|[,}$])*[a-zA-Z](?:\s*,\s*[a-zA-Z])*\s*(?:\\in\s*\\mathbb\s*\{?\s*[A-Z]\s*\}?)?[\s}).$]*$"
)
_EXCEPT = re.compile(r"all real(?: numbers?)?(?: x)?,? except(?: for)?", re.IGNORECASE)
_MONTH = re.compile(
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|March|April|May|June|July|August|Sept(?:ember)?|October|November|December)\b"
)
_DATE = re.compile(  # 4th of July, 1776 and July 4, 1776
    rf"(?:\b(\d{{1,2}})(?:st|nd|rd|th)?\s+(?:of\s+)?({_MONTH.pattern})"
    rf"|({_MONTH.pattern})\s+(\d{{1,2}})(?:st|nd|rd|th)?\b),?(?:\s+(\d{{4}}))?"
)
_SHORT_WORDS = {"if", "for", "or", "and"}
_CLOCK = re.compile(r"(\d{1,2}:\d{2})\s*([ap]\.?\s?m\.?|o'clock)?", re.IGNORECASE)
_GROUPS = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")
_LEADING_GROUPS = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?")
_OPERATOR_IN_BRACES = re.compile(r"(?<!\\)\{\s*([:;=<>+-])\s*\}")  # which changes the blanks around it
_ANNOUNCEMENT = re.compile(
    r"(?:[\s$]|\\[(\[])*(?:\\text\s*\{\s*)?(?:(?:so|thus|hence|therefore),?\s+)?(?:(?:the|our|my)\s+)?(?:(?:final|correct)\s+)?"
    r"(?:answer|result|solution|value)s?\s*(?:\s(?:is|are|equals)(?![a-z])|:|=)\s*:?\s*(?:\}|(?![^{}]*\}))",
    re.IGNORECASE,
)
_BRACED = re.compile(r"\s*\{.+(?<!\\)\}\s*", re.DOTALL)
_BRACE = re.compile(r"(?<!\\)[{}]")
_DOUBLED = re.compile(r"\\\\(?=[a-zA-Z({\[%$])")


@lru_cache(maxsize=1024)
def tokenise(text: str) -> tuple[Token, ...]:
    r"""The tokens of ``text``; those of texts read lately are remembered.

    Raises:
      Refused: beyond a limit, or characters that are not what they seem.
      Unreadable: a ``\text{`` that never ends.
    """
    check_length(text)
    text = _NEXT_FORMULA.sub(" , ", fold(text)).replace("...", r"\ldots ")
    if _MONTH.search(text):
        text = _DATE.sub(r"\5 \2\3 \1\4", text)
    if "for" in text or r"\forall" in text:
        text = _EVERYWHERE.sub("", text)
    if r"\begin" in text:
        text = _ROW_GAP.sub(r"\\\\ ", text)
    text = _OPERATOR_IN_BRACES.sub(r"\1", unannounced(_without_outer_braces(text)))
    if r"\\" in text and r"\begin" not in text and "matrix" not in text:
        text = _DOUBLED.sub(r"\\", text)  # backslashes that were escaped twice
    tokens: list[Token] = []
    position, spaced = 0, False
    while position < len(text):
        match = _SCANNER.match(text, position)
        position = match.end()
        kind, value = match.lastgroup, match[0]
        if kind == "blank":
            spaced = True
            continue
        if kind == "command" and value in (r"\color", r"\textcolor"):
            position = _argument(text, position)[1]
            continue
        if kind == "command" and value == r"\operatorname":
            name, position = _argument(text, position)
            tokens += [
                Token("letter", letter, index == 0) for index, letter in enumerate(name.strip()) if letter.isalpha()
            ]
        elif kind == "command" and value in TEXT_COMMANDS:
            value, position = _argument(text, position)
            tokens += _words(value, spaced, tokens)
        else:
            tokens += _token(kind, value, spaced)
        spaced = kind == "command" and value in VANISHING
        if len(tokens) > TOKENS:
            raise Refused(f"the answer has more than {TOKENS} tokens")
    return tuple(_in_currency(tokens) if any(token.value in _CURRENCY_UNITS for token in tokens) else tokens)


def _without_outer_braces(text: str) -> str:
    """``text`` without braces around one value. Those of ``{1, 2}`` stay, for it stands for a set."""
    inner = text.strip()[1:-1]
    several = set(inner) & set(",;") and inner.strip().removeprefix(r"\left")[:1] not in "[]"
    if several or not _BRACED.fullmatch(text):
        return text
    depths = list(itertools.accumulate({"{": 1, "}": -1}[brace[0]] for brace in _BRACE.finditer(inner)))
    return inner if not depths or (depths[-1] == 0 and min(depths) == 0) else text


def _token(kind: str, value: str, spaced: bool) -> list[Token]:
    if kind in ("number", "commas", "grouped"):
        if kind == "grouped":
            kind, value = "number", re.sub(r"[^\d.]", "", value)
        if len(value) > LITERAL_DIGITS:
            raise Refused(f"the answer has a number of {len(value)} digits; at most {LITERAL_DIGITS} are read")
        return _comma_run(value, spaced) if kind == "commas" else [Token(kind, value, spaced)]
    if kind in ("command", "operator"):
        if value in VANISHING or value in BOXES or value in _FORMULA_ENDS:
            return []
        if value in (r"\imath", r"\jmath"):
            return [Token("letter", value[1], spaced)]
        value = SYNONYMS.get(value) or _OPERATORS.get(value, value)
        return [Token("command" if len(value) > 2 and value[0] == "\\" else "mark", value, spaced)]
    return [Token(kind, value, spaced)]


def unannounced(text: str) -> str:
    """``text`` without "the answer is" and the like before the answer."""
    announcement = _ANNOUNCEMENT.match(text)
    return text[announcement.end() :] if announcement and announcement.end() < len(text) else text


def _comma_run(run: str, spaced: bool) -> list[Token]:
    """The tokens of digits and commas without blanks: one number if all later groups have three digits, else a list.

    A list may hold such numbers if one of them shows it by a group that starts with 0: ``1,000,20`` has two items.
    """
    groups = run.split(",")
    if _GROUPS.fullmatch(run):
        return [Token("commas", run, spaced)]
    if any(len(group.partition(".")[0]) == 3 and group[0] == "0" for group in groups[1:]):
        groups = _LEADING_GROUPS.findall(run)
    tokens = [Token("commas" if "," in group else "number", group, spaced and group is groups[0]) for group in groups]
    return [piece for token in tokens for piece in (Token("mark", ","), token)][1:]


def _in_currency(tokens: list[Token]) -> list[Token]:
    """The tokens without signs of currencies; an amount that is the whole answer gets the unit."""
    signs = [token.value for token in tokens if token.value in _CURRENCY_UNITS]
    rest = [token for token in tokens if token.value not in _CURRENCY_UNITS]
    amount = rest[1:] if rest and rest[0].value == "-" else rest
    single = len(amount) == 1 and amount[0].kind in ("number", "commas")
    return [*rest, Token("text", _CURRENCY_UNITS[signs[0]], True)] if single else rest


def _argument(text: str, position: int) -> tuple[str, int]:
    """The text in braces from ``position`` on (or the one character there), and where it ends."""
    while position < len(text) and text[position] in " *":
        position += 1
    if position >= len(text) or text[position] != "{":
        return text[position : position + 1], position + 1
    depth, start = 0, position + 1
    for end in range(position, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if not depth:
            return text[start:end], end + 1
    raise Unreadable("the answer has a \\text{ without its closing brace")


def _words(text: str, spaced: bool, tokens: list[Token]) -> list[Token]:
    r"""The tokens of ``\text{...}``: one for words, those of the formula for mathematics."""
    stripped = unannounced(re.sub(r"\\[,;:! ]|\\(?![a-zA-Z{])|[$~]", " ", text)).strip()
    if not stripped or (not tokens and (stripped in _CURRENCIES or _HEDGE.fullmatch(stripped))):
        return []
    if tokens and tokens[-1].value == r"\mu" and tokens[-1].kind == "command":
        stripped = f"µ{stripped}"
        tokens.pop()
    before = tokens[-1] if tokens else None
    numeral = before is not None and before.kind in ("number", "commas")
    after_quantity = numeral or (before is not None and before.value in _QUANTITY_ENDS)
    after_quantity = after_quantity or _after_unit(tokens) or (before is not None and before.kind == "text")
    if after_quantity and "\\" in stripped:
        stripped = _UNIT_FRACTION.sub(r"\1/\2", stripped)
        for sign, letter in _UNIT_SIGNS:
            stripped = sign.sub(letter, stripped)
    if len(stripped) == 1 and stripped.isalpha() and not (after_quantity and stripped in UNIT_LETTERS):
        return [Token("letter", stripped, spaced)]
    if _CALCULATION.fullmatch(stripped) or _FORMULA.fullmatch(stripped):
        return [Token(t.kind, t.value, spaced or t.spaced) for t in tokenise(stripped)]
    if _EXCEPT.fullmatch(stripped):
        return [Token("command", r"\Reals"), Token("command", r"\setminus")]
    if clock := _CLOCK.fullmatch(stripped):
        return [*tokenise(clock[1]), *([Token("text", clock[2], True)] if clock[2] else [])]
    if _MEASURED.sub("", stripped) == "":
        quantities: list[Token] = []
        for amount, unit in _MEASURED.findall(stripped):
            quantities += tokenise(amount)
            quantities += _words(unit, True, quantities)
        return quantities
    if (
        len(stripped) <= 3
        and stripped.isalpha()
        and stripped not in _SHORT_WORDS
        and before is not None
        and not after_quantity
        and stripped.islower()
    ):
        return [
            Token("letter", letter, spaced and not index) for index, letter in enumerate(stripped)
        ]  # \frac{\mathrm{gb}}{f}
    return [Token("text", " ".join(stripped.split()), spaced)]


def _after_unit(tokens: list[Token]) -> bool:
    """Return whether a unit goes on: after ``\\text{kg} \\cdot`` and ``\\text{m}^2 /``."""
    return bool(tokens) and tokens[-1].value in ("/", r"\cdot") and any(token.kind == "text" for token in tokens[-4:-1])
