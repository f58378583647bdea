"""Words after a number: units with their dimension and scale, counted things, and words that say nothing.

A unit is a product of powers of base units with a rational factor, so that ``J`` and ``kJ``, ``m/s`` and ``km/h`` are
compared by value. A counted thing (``apples``) is a base unit of its own. Other words are unknown: an answer may use
them only if the gold answer or the question does.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

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
# Symbols and names, and what they stand for; those of the first table take prefixes.
_METRIC = {
    "m meter metre": "", "g gram gramme gm": "", "s sec second": "", "A ampere amp": "", "K kelvin": "", "mol mole": "",
    "cd candela": "", "bit": "", "N newton": "1000 g m s^-2", "J joule": "1000 g m^2 s^-2", "W watt": "1000 g m^2 s^-3",
    "Pa pascal": "1000 g m^-1 s^-2", "Hz hertz": "s^-1", "C coulomb": "A s", "V volt": "1000 g m^2 s^-3 A^-1",
    "F farad": "1/1000 A^2 s^4 g^-1 m^-2", "Ω ohm": "1000 g m^2 s^-3 A^-2", "T tesla": "1000 g s^-2 A^-1",
    "Wb weber": "1000 g m^2 s^-2 A^-1", "H henry": "1000 g m^2 s^-2 A^-2", "L l liter litre": "1/1000 m^3",
    "eV electronvolt": "1.602176634e-16 g m^2 s^-2", "cal calorie": "4184 g m^2 s^-2",
    "Wh": "3600000 g m^2 s^-2", "B byte": "8 bit", "bar": "100000000 g m^-1 s^-2", "t tonne": "1000000 g",
    "M molar": "1000 mol m^-3", "Sv sievert": "m^2 s^-2", "Bq becquerel": "s^-1", "lm lumen": "", "lx lux": "",
}  # fmt: skip
_OTHERS = {
    "min minute": "60 s", "h hr hour": "3600 s", "d day": "86400 s", "week wk": "604800 s", "month mo": "",
    "year yr": "12 month", "decade": "120 month", "century": "1200 month", "in inch": "0.0254 m",
    "ft foot": "0.3048 m", "yd yard": "0.9144 m", "mi mile": "1609.344 m", "ha hectare": "10000 m^2",
    "acre": "4046.8564224 m^2", "lb pound": "453.59237 g", "oz ounce": "28.349523125 g", "ton": "",
    "gal gallon": "0.003785411784 m^3", "qt quart": "0.000946352946 m^3",
    "pt pint": "0.000473176473 m^3", "cup": "0.0002365882365 m^3",
    "tbsp tablespoon": "0.00001478676478125 m^3", "tsp teaspoon": "0.00000492892159375 m^3",
    "cc": "1/1000000 m^3", "mph": "0.44704 m s^-1", "kmh kph": "5/18 m s^-1", "knot kn": "463/900 m s^-1",
    "atm": "101325000 g m^-1 s^-2", "psi": "", "deg degree °": "", "rad radian": "", "rev revolution": "",
    "rpm": "1/60 rev s^-1", "dollar USD usd buck $": "", "cent penny": "1/100 dollar", "euro EUR": "", "rupee": "",
    "yuan": "", "yen": "", "pence": "", "°C celsius": "", "°F fahrenheit": "", "u amu": "", "dB decibel": "",
    "am a.m.": "", "pm p.m.": "", "lightyear light-year": "", "point pts": "",
}  # fmt: skip
_THINGS = set(
    "adult album angle animal ant apartment apple arc area atom bacterium bag ball balloon banana bar barrel basket "
    "bean bear beat bed bee berry bicycle bike bill bird biscuit block board boat bone book bottle bouquet bowl box "
    "boy bracelet branch bread brick brother brownie bucket bug bulb bus bush button cake calf call can candle candy "
    "car card carrot case cat cell chair cherry chicken child chip chocolate chord circle class clip coin color "
    "colour column comic container cookie copy cow crate crayon cube customer date decrease desk diagonal die digit "
    "dime discount dish divisor doctor dog doll doughnut dress drink driver duck edge egg electron email employee "
    "engineer entry envelope episode error event eye face factor family fan farmer fish flag flavor flavour floor "
    "flower fly fraction friend frog fruit fry function game gift girl glass goal grain grape graph group guest "
    "handshake hat head hit hole home horse house increase interest jar jellybean key kid kind kitten leaf leg lemon "
    "letter level license line list load loaf log loss machine man marble mark marker marshmallow match meal meeting "
    "member message molecule mouse move movie muffin name newspaper nickel night note nurse orange order pack package "
    "packet page pair pancake paper parent park party passenger pear pebble pen pencil pet photo picture pie piece "
    "pig pizza plane plant plate player pole polygon polynomial poster pot potato present prime prize problem profit "
    "proton quarter question rabbit race recipe rectangle region ring road rock room root round sandwich scoop seat "
    "seed segment sentence sequence serving set setting sheep sheet shelf ship shirt shoe shop shot side sister sock "
    "soda spot square stamp star station step stick sticker stone story strawberry string student subject sum sweet "
    "symbol table teacher team tent term test text throw ticket tile tire token tomato tooth toy train tray treat "
    "tree triangle trip triple triplet truck tuple turn vegetable vehicle vertex video visit vote vowel wall wheel "
    "win window woman word worker zero".split()
)
# Things that are called in several ways: they agree with every other thing.
_GENERAL = set(
    "unit person people way time item object thing number integer value solution digit possibility arrangement "
    "combination permutation outcome choice method path route element case multiple subset pattern configuration "
    "count".split()
)
_FILLERS = set(
    "of the in total all altogether overall each more fewer less left remaining extra additional old long tall wide "
    "deep high thick away apart different distinct possible full only just exactly approximately approx about roughly "
    "around correct nearest us o'clock respectively any there are is positive ordered prime even odd real natural "
    "perfect whole red blue green white yellow black pink ones".split()
)
_IRREGULAR = {
    **{"feet": "foot", "people": "person", "children": "child", "men": "man", "women": "woman", "mice": "mouse"},
    **{"geese": "goose", "teeth": "tooth", "leaves": "leaf", "loaves": "loaf", "shelves": "shelf", "calves": "calf"},
    **{"dice": "die", "vertices": "vertex", "bacteria": "bacterium", "pennies": "penny", "halves": "half"},
}
# Words of calculations: they are no things even where the question has them.
_OPERATING = set(
    "squared cubed plus minus times over than most least above below half base modulo mod divided multiplied "
    "factorial percent not no or nor but either wait maybe also instead except zero one two three four five six seven "
    "eight nine ten to the power root square cube".split()
)
_POWER_WORDS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_PIECES = re.compile(r"\^\{?(-?\d+)\}?|(/|\bper\b)|([^\W\d_]+(?:['’.☉-][^\W\d_]+)*\.?|°[CF]?|\$)")
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


_TABLE: dict[str, tuple[Fraction, tuple[tuple[str, int], ...]]] = {}
for _names, _definition in {**_METRIC, **_OTHERS}.items():
    _TABLE.update(dict.fromkeys(_names.split(), _defined(_definition, _names.split()[0])))
_PREFIXED = {name for names in _METRIC for name in names.split()}
_BASES = {name for _, dimensions in _TABLE.values() for name, _ in dimensions}
