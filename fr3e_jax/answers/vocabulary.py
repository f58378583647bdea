"""The words of the grammar: commands, functions, constants, relations, and the meaning of plain words."""

from __future__ import annotations

from fr3e_jax.answers.characters import GREEK, GREEK_CAPITALS
from fr3e_jax.answers.tokens import Token

CONSTANTS = {
    r"\pi": "pi", r"\infty": "infinity", r"\emptyset": "emptyset", r"\ldots": "ellipsis", r"\exponentialE": "e",
}  # fmt: skip
FUNCTION_NAMES = (
    "sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh coth arcsinh arccosh arctanh "
    "exp ln floor ceil max min gcd lcm det sgn abs cis"
).split()
INVERTIBLE = "sin cos tan cot sec csc sinh cosh tanh".split()
FUNCTIONS = {f"\\{name}": name for name in FUNCTION_NAMES} | {
    **{f"\\a{name}": f"arc{name}" for name in INVERTIBLE},
    r"\lg": "lg", r"\arsinh": "arcsinh", r"\arcosh": "arccosh", r"\artanh": "arctanh", r"\lb": "lb",
}  # fmt: skip
INVERSE = {name: f"arc{name}" for name in INVERTIBLE}
GREEK_SYMBOLS = {f"\\{name}" for name in (*GREEK, *GREEK_CAPITALS)} - {r"\pi"} | {
    r"\ell", r"\hbar", r"\wp", r"\nabla", r"\aleph",
}  # fmt: skip
ACCENTS = set(
    r"\overline \bar \vec \hat \widehat \tilde \widetilde \overrightarrow \dot \ddot \underline \angle \triangle "
    r"\overarc \wideparen".split()
)
SETS = {r"\Reals": "R", r"\mathbbR": "R", r"\mathbbZ": "Z", r"\mathbbN": "N", r"\mathbbQ": "Q", r"\mathbbC": "C"}
NUMBER_SETS = {"R", "Z", "N", "Q", "C"}
RELATIONS = {
    "=": "=", "<": "<", ">": ">", r"\le": "<=", r"\ge": ">=", r"\ne": "!=", r"\approx": "~", r"\in": "in",
    r"\to": "->", r"\equiv": "==", r"\notin": "notin", r"\Rightarrow": "=>", r"\subset": "subset",
    r"\subseteq": "subset", r"\cong": "~", r"\sim": "sim", r"\parallel": "parallel", r"\perp": "perp",
    r"\Leftrightarrow": "<=>", r"\mapsto": "->", r"\propto": "propto",
}  # fmt: skip
OPENING = {"(": ")", "[": "]", "\\{": "\\}", "\\langle": "\\rangle"}
SEPARATORS = {",", ";", "and", "or"}
CLOSING = set(OPENING.values())
UNDEFINED_FUNCTIONS = set("fghFGHPQW")

BASES = "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen".split()
UNITS = set(
    "cm mm km dm nm um kg mg ml mL cL dL lb lbs oz ft inch inches feet foot yd yard yards mile miles mph kmh kph cc "
    "meter meters metre metres cent cents dollar dollars euro euros yuan rupee rupees hour hours hr hrs min mins "
    "minute minutes sec secs second seconds day days week weeks month months year years units square cubic sq cu gram "
    "grams kilograms liter liters litre litres gallon gallons degree degrees deg rad radian radians Hz kHz MHz GHz "
    "ns ms kWh MB GB TB kB kJ kW MW eV keV MeV GeV Pa kPa MPa atm mol kmol people times ways point points percent bits "
    "ohms am pm AM PM USD EUR GBP".split()
)
TEXT_WORDS = {
    **dict.fromkeys(("and", "and,", ", and", "&", r"\and"), Token("mark", "and")),
    **dict.fromkeys(("or", "or,", ", or", r"\or"), Token("mark", "or")),
    **dict.fromkeys(("percent", "percents", "percentage", "pct"), Token("mark", "%")),
    **{"to": Token("mark", ":"), "mod": Token("command", r"\bmod")},  # 3 to 5, 3 (mod 5)
    **{"empty set": Token("command", r"\emptyset"), "all real numbers": Token("command", r"\Reals")},
    **dict.fromkeys(("all reals", "all real", "the real numbers", "real numbers"), Token("command", r"\Reals")),
}
PLAIN_WORDS = {
    **TEXT_WORDS,
    **{name: Token("command", f"\\{name}") for name in FUNCTION_NAMES},
    **{name: Token("command", f"\\{name}") for name in ("sqrt", "pi", "log", "theta", "alpha", "beta", "infty")},
    **{f"a{name}": Token("command", f"\\a{name}") for name in INVERTIBLE},
    **{f"ar{name}": Token("command", f"\\ar{name}") for name in ("sinh", "cosh", "tanh")},
    **{"infinity": Token("command", r"\infty"), "in": Token("command", r"\in")},
    **dict.fromkeys(("union", "U"), Token("command", r"\cup")),
}  # fmt: skip
