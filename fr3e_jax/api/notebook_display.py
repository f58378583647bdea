"""Answers, states and runs in a notebook: HTML with styles of its own, and without scripts.

IPython asks an object for it by the method ``_repr_html_``; nothing here imports IPython. Colours are translucent, so
that they suit light and dark themes. Every text is escaped, and control characters are spelled.
"""

from __future__ import annotations

import codecs
import html
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fr3e_jax.studies.reports.token_pieces import Piece
from fr3e_jax.visible_text import visible

MOST_TOKENS = 2000  # of an answer that are shown
MOST_ANSWERS = 64
FULL_ENTROPY = 2.0  # nats at which a token has its darkest ground
WIDTH, HEIGHT = 320, 90  # of a curve, in pixels
TONES = ("#0072b2", "#d55e00", "#009e73", "#a2397d", "#b8860b", "#8c6bd6")
_TEXT = "font-family:monospace;white-space:pre-wrap;overflow-wrap:anywhere;unicode-bidi:isolate"
_MUTED = "opacity:0.65"

Curve = Sequence[tuple[float, float | None]]
"""Points (x, y); None breaks the line."""


def element(tag: str, content: str, style: str = "", title: str = "") -> str:
    """An element around ``content``, which is HTML already; ``title`` is text."""
    attributes = "".join(f' {name}="{text}"' for name, text in (("style", style), ("title", escaped(title))) if text)
    return f"<{tag}{attributes}>{content}</{tag}>"


def escaped(text: str) -> str:
    """A text as HTML; characters that act (escapes, changes of direction) are spelled."""
    return html.escape(visible(text))


def tokens_html(pieces: Sequence[Piece], logprobs: Sequence[float], entropies: Sequence[float], fork: int = 0) -> str:
    """The tokens of an answer: the higher the entropy, the darker the ground; those before ``fork`` are pale."""
    shown = "".join(
        element(
            "span",
            escaped(text),
            f"opacity:0.5;{_ground(entropies[at])}" if at < fork else _ground(entropies[at]),
            f"token {at}: log-prob {logprobs[at]:.3g}, entropy {entropies[at]:.3g} nats",
        )
        for at, text in _characters(pieces[:MOST_TOKENS])
    )
    left = len(pieces) - MOST_TOKENS
    return shown + (element("span", f" … {left} more tokens", _MUTED) if left > 0 else "")


def _ground(entropy: float) -> str:
    share = min(1.0, max(0.0, entropy / FULL_ENTROPY)) if math.isfinite(entropy) else 0.0
    return f"background:rgba(122,79,208,{0.5 * share:.2f})"


def _characters(pieces: Sequence[Piece]) -> Iterator[tuple[int, str]]:
    """(first token, text) of each token, or of the tokens that spell a character together."""
    decoder, start = codecs.getincrementaldecoder("utf-8")("replace"), 0
    for at, piece in enumerate([*pieces, ""]):
        if isinstance(piece, str):
            yield from ((place, text) for place, text in ((start, decoder.decode(b"", True)), (at, piece)) if text)
            continue
        start = start if decoder.getstate()[0] else at
        if text := decoder.decode(bytes(piece)):
            yield start, text
            start = at


def answer_html(head: str, tokens: str) -> str:
    """An answer: a line about it, then its tokens, `tokens_html`."""
    return element("div", element("div", escaped(head), _MUTED) + element("div", tokens, _TEXT), "margin:4px 0 8px")


def answers_html(groups: Iterable[tuple[str, Sequence[str]]]) -> str:
    """Answers by their question: (question, `answer_html` of each)."""
    parts, left = [], MOST_ANSWERS
    for question, answers in groups:
        parts.append(element("div", element("b", escaped(question), _TEXT) + "".join(answers[: max(0, left)])))
        left -= len(answers)
    return "".join(parts) + (element("div", f"… {-left} more answers", _MUTED) if left < 0 else "")


def tree_html(base: str, states: Iterable[tuple[float, str, Sequence[str]]]) -> str:
    """A base answer, and below it each state where it was left: (share of the base before it, head, answers)."""
    parts = [base]
    for share, head, answers in states:
        style = f"margin-left:{40 * share:.0f}%;padding-left:8px;border-left:3px solid rgba(122,79,208,0.6)"
        parts.append(element("div", element("b", escaped(head)) + "".join(answers), style))
    return element("div", "".join(parts))


def run_html(lines: Iterable[tuple[str, str]], curves: Mapping[str, Mapping[str, Curve]]) -> str:
    """A run: (name, value) lines, and charts by their titles, each of the curves by name."""
    rows = "".join(
        element("tr", element("td", escaped(name), _MUTED) + element("td", escaped(value), "text-align:left"))
        for name, value in lines
    )
    charts = "".join(_chart(title, drawn) for title, drawn in curves.items() if any(map(_points, drawn.values())))
    return element("table", rows) + element("div", charts, "display:flex;flex-wrap:wrap;gap:16px")


def _points(curve: Curve) -> list[tuple[float, float]]:
    return [(x, y) for x, y in curve if y is not None and math.isfinite(y)]


def _chart(title: str, curves: Mapping[str, Curve]) -> str:
    points = [point for curve in curves.values() for point in _points(curve)]
    (left, right), (low, high) = ((min(axis), max(axis)) for axis in zip(*points, strict=True))
    low, high = min(low, 0.0), max(high, low + 1e-9)

    def place(x: float, y: float) -> str:
        across = (x - left) / ((right - left) or 1)
        return f"{2 + across * (WIDTH - 4):.1f},{HEIGHT - 2 - (y - low) / (high - low) * (HEIGHT - 4):.1f}"

    lines, legend = [], []
    for tone, (name, curve) in zip(TONES, curves.items(), strict=False):
        if not (known := _points(curve)):
            continue
        drawn = " ".join(place(x, y) for x, y in known)
        lines.append(f'<polyline points="{drawn}" fill="none" stroke="{tone}" stroke-width="1.5"/>')
        ends = " → ".join(f"{y:.3g}" for y in dict.fromkeys((known[0][1], known[-1][1])))
        legend.append(element("div", f"{element('span', '■', f'color:{tone}')} {escaped(name)} {ends}"))
    box = f'<svg width="{WIDTH}" height="{HEIGHT}" style="border-bottom:1px solid rgba(128,128,128,0.5)">'
    return element("div", element("b", escaped(title)) + f"<br>{box}{''.join(lines)}</svg>" + "".join(legend))


def counted(count: int, noun: str) -> str:
    """``1 token``, ``2 tokens``."""
    return f"{count} {noun}{'s' * (count != 1)}"


def curve(records: Iterable[Mapping[str, Any]], name: str) -> Curve:
    """A metric over the steps of its records."""
    return [(record["step"], record.get(name)) for record in records]
