"""Words after a number: units with their dimension and scale, counted things, and words that say nothing.

A unit is a product of powers of base units with a rational factor, so that ``J`` and ``kJ``, ``m/s`` and ``km/h`` are
compared by value. A counted thing (``apples``) is a base unit of its own. Other words are unknown: an answer may use
them only if the gold answer or the question does. ``units.txt`` has the words.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

MULTIPLES = {
    **{"dozen": Fraction(12), "hundred": Fraction(100), "thousand": Fraction(1000), "lakh": Fraction(10**5)},
    **{"million": Fraction(10**6), "crore": Fraction(10**7), "billion": Fraction(10**9), "trillion": Fraction(10**12)},
    **{"tenth": Fraction(1, 10), "hundredth": Fraction(1, 100), "thousandth": Fraction(1, 1000)},
}
ORDINALS = {"st", "nd", "rd", "th"}
_SYMBOL_PREFIXES = {
    **{"T": 12, "G": 9, "M": 6, "k": 3, "d": -1, "c": -2, "m": -3, "µ": -6, "u": -6, "n": -9, "p": -12, "f": -15},
}
_NAME_PREFIXES = {
    **{"tera": 12, "giga": 9, "mega": 6, "kilo": 3, "deci": -1, "centi": -2, "milli": -3, "micro": -6, "nano": -9},
    **{"pico": -12, "femto": -15},
}
_POWER_WORDS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_PIECES = re.compile(r"\^\{?(-?\d+)\}?|(/|\bper\b)|([^\W\d_]+(?:['’.☉-][^\W\d_]+)*\.?|°[CF]?|\$)")
_REMARK = re.compile(r"\(?\s*(?:rounded|to the nearest|correct to|to \d+ (?:decimal|significant))\b.*", re.DOTALL)
_TIMES = re.compile(r"\b(a|p)\.?\s*m\b\.?", re.IGNORECASE)
_TEMPERATURE = re.compile(r"\b(?:degrees?|deg)\s+(c|f)(?:elsius|ahrenheit)?\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit: its factor ``scale``, its base units with their exponents, and the words that are not known."""

    scale: Fraction = Fraction(1)
    powers: tuple[tuple[str, int], ...] = ()
    unknown: frozenset[str] = frozenset()


NO_UNIT = Unit()


@lru_cache(maxsize=4096)
def unit(words: str) -> Unit:
    """The unit that words after a number state: ``m/s^2``, ``square feet``, ``miles per hour``, ``cups of flour``."""
    scale, powers, unknown = Fraction(1), Counter(), set()
    sign, waiting, last = 1, 1, None
    words = without_remark(words)
    words = _TEMPERATURE.sub(lambda degrees: f"°{degrees[1].upper()}", _TIMES.sub(r"\1m", words))
    pieces = _PIECES.findall(words)
    for index, (exponent, division, word) in enumerate(pieces):
        if division or (word in ("a", "an", "every") and last and index + 1 < len(pieces)):
            sign = -1
            continue
        if exponent or (word in ("squared", "cubed") and last):
            power = int(exponent) if exponent else 2 if word == "squared" else 3
            if last is None or abs(power) > 9:
                unknown.add(words)
                continue
            factor, dimensions, side = last
            scale *= factor ** (side * (power - 1))
            powers.update({name: side * count * (power - 1) for name, count in dimensions})
            continue
        if word == "in" and any(later[2] for later in pieces[index + 1 :]):
            continue  # in total
        if word == "of" and last and not _OPERATING & {later[2].lower() for later in pieces[index:]}:
            break  # cups of flour
        if word.lower().rstrip(".") in _POWER_WORDS and index + 1 < len(pieces):
            waiting = _POWER_WORDS[word.lower().rstrip(".")]
            continue
        meaning = _meaning(word) or _meaning(word.rstrip("."))
        if meaning is None:
            if (word.lower().rstrip(".") in _FILLERS | ORDINALS) or (word == "and" and index == len(pieces) - 1):
                continue
            unknown.add(_singular(word.lower().rstrip("."))[-1])
            meaning = Fraction(1), ((word.lower(), 1),)
        factor, dimensions = meaning
        scale *= factor ** (sign * waiting)
        powers.update({name: sign * waiting * count for name, count in dimensions})
        last, sign, waiting = (factor, dimensions, sign), 1, 1
    return Unit(scale, tuple(sorted((name, count) for name, count in powers.items() if count)), frozenset(unknown))


def without_remark(words: str) -> str:
    """The words without "(rounded to the nearest tenth)" and the like at their end."""
    return _REMARK.sub("", words)


def conversion(left: Unit, right: Unit) -> Fraction | None:
    """The number of left units in a right one: 1 where a side has none; None for units of different dimensions."""
    if not left.powers or not right.powers:
        return Fraction(1)
    if left.powers == right.powers:
        return right.scale / left.scale
    physical = [{name for name, _ in side.powers} & _BASES for side in (left, right)]
    general = any(name in _GENERAL for side in (left, right) for name, _ in side.powers)
    if general and (not all(physical) or left.powers[0][0] == "unit" or right.powers[0][0] == "unit"):
        exponents = [sum(abs(count) for _, count in side.powers) for side in (left, right)]
        return Fraction(1) if exponents[0] == exponents[1] or not any(physical) or 1 in exponents else None
    return None


def is_thing(word: str, allowed: frozenset[str]) -> bool:
    """Return whether an unknown word may name a thing, as it is one of ``allowed`` and no word of a calculation."""
    return word in allowed and word not in _OPERATING and word not in MULTIPLES


def words_of(text: str) -> frozenset[str]:
    """The words of a text, in lower case and singular."""
    return frozenset(_singular(word.lower())[-1] for word in re.findall(r"[^\W\d_]+", text))


def multiple(word: str) -> Fraction | None:
    """The value of a number word such as ``million``."""
    return next((MULTIPLES[name] for name in _singular(word.lower()) if name in MULTIPLES), None)


def _singular(word: str) -> list[str]:
    """A word and its singulars, the likeliest one last."""
    if word in _IRREGULAR:
        return [word, _IRREGULAR[word]]
    if len(word) < 3 or not word.endswith("s") or word.endswith("ss"):
        return [word]
    if word.endswith("ies"):
        return [word, f"{word[:-3]}y", word[:-1]]
    return [word, word[:-2], word[:-1]] if word.endswith(("ches", "shes", "xes", "ses", "oes")) else [word, word[:-1]]


@lru_cache(maxsize=4096)
def _meaning(word: str) -> tuple[Fraction, tuple[tuple[str, int], ...]] | None:
    names = [*_singular(word), *_singular(word.lower())]
    for name in names:
        if name in _TABLE:
            return _TABLE[name]
        for prefixes in (_SYMBOL_PREFIXES, _NAME_PREFIXES):
            prefix = next((p for p in prefixes if name.startswith(p) and name[len(p) :] in _PREFIXED), None)
            if prefix and (prefixes is _NAME_PREFIXES) == (len(name) - len(prefix) > 3):
                factor, dimensions = _TABLE[name[len(prefix) :]]
                return factor * Fraction(10) ** prefixes[prefix], dimensions
    name = next((name for name in names if name in _THINGS or name in _GENERAL), None)
    return (Fraction(1), ((name, 1),)) if name else None


def _defined(definition: str, name: str) -> tuple[Fraction, tuple[tuple[str, int], ...]]:
    if not definition:
        return Fraction(1), ((name, 1),)
    factor, _, rest = definition.rpartition(" ") if " " not in definition else definition.partition(" ")
    if not factor[:1].isdigit():
        factor, rest = "1", definition
    scale, powers = Fraction(factor), Counter()
    for piece in rest.split():
        base, _, exponent = piece.partition("^")
        inner, dimensions = _TABLE[base]
        scale *= inner ** int(exponent or 1)
        powers.update({name: count * int(exponent or 1) for name, count in dimensions})
    return scale, tuple(powers.items())


def _sections() -> dict[str, list[str]]:
    """The lines of ``units.txt`` below each heading."""
    sections: dict[str, list[str]] = {}
    for line in Path(__file__).with_name("units.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            lines = sections.setdefault(line.strip("[]"), [])
        elif line and line[0] != "#":
            lines.append(line)
    return sections


_SECTIONS = _sections()
_THINGS, _GENERAL, _FILLERS, _OPERATING = (
    set(" ".join(_SECTIONS[name]).split()) for name in ("things", "general", "fillers", "operating")
)
_IRREGULAR = dict(pair.split("=") for pair in " ".join(_SECTIONS["irregular"]).split())
_TABLE: dict[str, tuple[Fraction, tuple[tuple[str, int], ...]]] = {}
for _line in _SECTIONS["metric"] + _SECTIONS["other"]:
    _names, _, _definition = _line.partition(" = ")
    _TABLE.update(dict.fromkeys(_names.split(), _defined(_definition, _names.split()[0])))
_PREFIXED = {name for line in _SECTIONS["metric"] for name in line.partition(" = ")[0].split()}
_BASES = {name for _, dimensions in _TABLE.values() for name, _ in dimensions}
