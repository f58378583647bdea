"""One spelling for each symbol: Unicode folded to LaTeX, synonyms of commands; deceptive characters are refused."""

from __future__ import annotations

import re
import unicodedata

from fr3e_jax.answers.limits import Refused

GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi "
    "omega"
).split()
GREEK_CAPITALS = "Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega".split()


def _greek(case: str, name: str) -> str:
    return unicodedata.lookup(f"GREEK {case} LETTER {name.upper().replace('LAMBDA', 'LAMDA')}")


FOLDED = {
    **dict.fromkeys("−–—‐‑﹣", "-"),
    **dict.fromkeys("·⋅∙•", r"\cdot "),
    **dict.fromkeys("’‘′", "'"),
    **dict.fromkeys("⩽≦", r"\le "),
    **dict.fromkeys("⩾≧", r"\ge "),
    **dict.fromkeys("\u00a0\u3000\u2009\u202f\u200a\u2002\u2003\u205f\u2005\u2006\u2007\u2008", " "),
    **{"×": r"\times ", "∗": "*", "÷": r"\div ", "∕": "/", "⁄": "/", "√": r"\sqrt ", "∞": r"\infty "},
    **{"≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "≡": r"\equiv ", "∼": r"\sim ", "≅": r"\cong "},
    **{"∈": r"\in ", "∉": r"\notin ", "∪": r"\cup ", "∩": r"\cap ", "∖": r"\setminus ", "∅": r"\emptyset "},
    **{"⊂": r"\subset ", "⊆": r"\subseteq ", "→": r"\to ", "∂": r"\partial ", "∶": ":", "″": "''", "∣": "|"},
    **{"±": r"\pm ", "∓": r"\mp ", "°": r"^\circ ", "∑": r"\sum ", "∏": r"\prod ", "∫": r"\int ", "…": r"\ldots "},
    **{"ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}", "ℂ": r"\mathbb{C}"},
    **{"⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "⟨": r"\langle ", "⟩": r"\rangle "},
    **{"∧": r"\text{ and }", "∨": r"\text{ or }"},
    **{"∠": r"\angle ", "△": r"\triangle ", "ϕ": r"\phi ", "ϵ": r"\epsilon "},
    **{_greek("SMALL", name): f"\\{name} " for name in GREEK},
    **{_greek("CAPITAL", name): f"\\{name} " for name in GREEK_CAPITALS},
}  # fmt: skip
SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹ⁿⁱ⁺⁻ˣ", "0123456789ni+-x")
SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉ₙᵢ₊₋", "0123456789ni+-")
_SUPERSCRIPT_RUN = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹ⁿⁱ⁺⁻ˣ]+")
_SUBSCRIPT_RUN = re.compile("[₀₁₂₃₄₅₆₇₈₉ₙᵢ₊₋]+")
_VULGAR = re.compile(r"([\u00bc-\u00be\u2150-\u215e\u2189])")
_BLANK = str.maketrans(dict.fromkeys("\t\n\r\f\v", " "))

# Commands that mean nothing for an answer, that mean the same as another, and that hold words.
VANISHING = set(
    r"\left \right \mleft \mright \big \Big \bigg \Bigg \bigl \bigr \Bigl \Bigr \biggl \biggr \Biggl \Biggr \middle "
    r"\displaystyle \textstyle \scriptstyle \limits \nolimits \quad \qquad \enspace \thinspace \medspace \thickspace "
    r"\negthinspace \hspace \phantom \rm \bf \it \sf \tt \cal \boldmath \allowbreak \nobreak \ensuremath \hfill "
    r"\newline \nonumber \boldsymbol \bm \mathstrut \strut \smash \large \Large \normalsize \mathop "
    r"\mathrel".split()
)
SYNONYMS = {
    **dict.fromkeys((r"\dfrac", r"\tfrac", r"\cfrac", r"\sfrac", r"\nicefrac"), r"\frac"),
    **dict.fromkeys((r"\leq", r"\leqslant", r"\leqq"), r"\le"),
    **dict.fromkeys((r"\geq", r"\geqslant", r"\geqq"), r"\ge"),
    **{r"\neq": r"\ne", r"\lt": "<", r"\gt": ">", r"\dbinom": r"\binom", r"\tbinom": r"\binom", r"\colon": ":"},
    **dict.fromkeys((r"\cdotp", r"\ast", r"\star", r"\bullet"), r"\cdot"),
    **dict.fromkeys((r"\lbrace", r"\lcurly"), r"\{"),
    **dict.fromkeys((r"\rbrace", r"\rcurly"), r"\}"),
    **{r"\lbrack": "[", r"\rbrack": "]", r"\lparen": "(", r"\rparen": ")", r"\land": r"\and", r"\lor": r"\or"},
    **dict.fromkeys((r"\vert", r"\lvert", r"\rvert", r"\mid", r"\mvert"), "|"),
    **dict.fromkeys((r"\Vert", r"\lVert", r"\rVert"), r"\|"),
    **dict.fromkeys((r"\varnothing", r"\empty"), r"\emptyset"),
    **dict.fromkeys((r"\backslash", r"\smallsetminus"), r"\setminus"),
    **dict.fromkeys((r"\bigcup",), r"\cup"),
    **dict.fromkeys((r"\bigcap",), r"\cap"),
    **dict.fromkeys((r"\simeq", r"\thickapprox", r"\doteq"), r"\approx"),
    **dict.fromkeys((r"\dots", r"\cdots", r"\dotsc", r"\dotsb", r"\dotsm", r"\vdots", r"\ddots"), r"\ldots"),
    **{r"\arctg": r"\arctan", r"\tg": r"\tan", r"\ctg": r"\cot", r"\sh": r"\sinh", r"\ch": r"\cosh", r"\prime": "'"},
    **{r"\varphi": r"\phi", r"\varepsilon": r"\epsilon", r"\vartheta": r"\theta", r"\mod": r"\bmod"},
    **{r"\degree": r"\circ", r"\implies": r"\Rightarrow", r"\iff": r"\Leftrightarrow"},
    **dict.fromkeys((r"\longrightarrow", r"\rightarrow"), r"\to"),
    **{r"\Longrightarrow": r"\Rightarrow", r"\lgroup": "(", r"\rgroup": ")"},
    **{r"\cr": r"\\", r"\tabularnewline": r"\\", r"\ulcorner": r"\lceil", r"\urcorner": r"\rceil"},
    **{r"\pounds": "£", r"\euro": "€", r"\yen": "¥", r"\textsterling": "£", r"\texteuro": "€"},
    **{r"\percent": "%", r"\owns": r"\ni", r"\R": r"\Reals", r"\infin": r"\infty"},
}  # fmt: skip
TEXT_COMMANDS = set(
    r"\text \textbf \textit \textrm \textsf \texttt \textnormal \textup \textsc \mbox \hbox \mathrm \mathbf \mathit "
    r"\mathsf \mathtt \mathnormal \emph \underline \textmd \mathbin \unit".split()
)
UNIT_LETTERS = set("mgshlLNJKWVCFT")
BOXES = {r"\boxed", r"\fbox", r"\framebox"}


def fold(text: str) -> str:
    """``text`` with Unicode mathematics written in LaTeX, decimal digits of any script in ASCII, blanks as spaces.

    Raises:
      Refused: a control character, or one that changes the direction or visibility of its neighbours. Text with such
        characters looks different from what it says.
    """
    if text.isascii():
        return _printable(text.translate(_BLANK))
    text = _SUPERSCRIPT_RUN.sub(lambda run: f"^{{{run[0].translate(SUPERSCRIPTS)}}}", text)
    text = _SUBSCRIPT_RUN.sub(lambda run: f"_{{{run[0].translate(SUBSCRIPTS)}}}", text)
    text = _VULGAR.sub(lambda match: _fraction(match[0]), text)
    text = "".join(FOLDED.get(character) or _one(character) for character in text)
    return _printable(text.translate(_BLANK))


def _fraction(character: str) -> str:
    upper, _, lower = unicodedata.normalize("NFKC", character).partition("⁄")
    return rf"\frac{{{upper}}}{{{lower}}}"


def _one(character: str) -> str:
    if character.isascii():
        return character
    if character.isdecimal():
        return str(unicodedata.decimal(character))
    if unicodedata.category(character) in ("Cf", "Cc", "Co", "Cs", "Cn"):
        raise Refused(f"the answer contains the invisible character U+{ord(character):04X}; nothing was graded")
    folded = unicodedata.normalize("NFKC", character)
    return folded if folded.isascii() else FOLDED.get(folded, character)


def _printable(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    for character in text:
        if unicodedata.category(character) == "Cc":
            raise Refused(f"the answer contains the control character U+{ord(character):04X}; nothing was graded")
    return text
