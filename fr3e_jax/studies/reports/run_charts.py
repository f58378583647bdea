"""The charts of a run's page: which metrics each one draws. Every metric that the run wrote is in one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypedDict

from fr3e_jax.runs.declared_metrics import find


class Look(TypedDict, total=False):
    """How a chart draws its metrics."""

    range: Sequence[float]
    """Values that the axis holds at least."""
    stacked: bool
    points: bool
    logarithmic: bool
    colours: Mapping[str, str]
    """Metric → name of its colour; the others take the usual ones."""
    cut: bool
    """Steps far above the others, such as one that compiles, run out of the axis, and a note has their values."""


class Chart(TypedDict):
    """One chart."""

    title: str
    kind: str
    """``train`` or ``eval``."""
    metrics: list[str]
    look: Look
    first: bool
    """Whether it answers one of the first questions."""


_SHARES: Look = {"range": (0, 1)}
_HELD_OUT: Look = {"range": (0, 1), "points": True}
_VERDICTS = {"all_right": "right", "mixed": "between", "all_wrong": "wrong"}
_OUTCOMES = {
    **{"right": "right", "restated": "c6", "other_form": "c3", "wrong": "wrong", "string_only": "c5", "refused": "c8"},
    **{"no_answer": "none", "timeout": "trouble", "worker_died": "c7", "error": "between"},
    **{"judge_timeout": "entropy", "judge_unreachable": "accent", "judge_unparseable": "muted"},
}


def _groups(family: str) -> Look:
    return {"stacked": True, "colours": {f"{family}/{name}": colour for name, colour in _VERDICTS.items()}}


CHARTS: Sequence[tuple[str, str, str, Look]] = (
    ("Reward", "train", r"reward/mean|explore/reward|returns/reward", _SHARES),
    ("Held-out problems", "eval", r"greedy|avg|(avg|pass)@\d+", _HELD_OUT),
    ("Held-out problems by benchmark", "eval", r"[^/]+/(greedy|avg@\d+)", _HELD_OUT),
    ("Entropy (nats a token)", "train", r"entropy/\w+", {}),
    (
        "Prompts by their base rollouts",
        "train",
        r"base_groups/(all_right|mixed|all_wrong)",
        _groups("base_groups"),
    ),
    (
        "Explored states by their rollouts",
        "train",
        r"state_groups/(all_right|mixed|all_wrong)",
        _groups("state_groups"),
    ),
    ("Response length (tokens)", "train", r"length/mean|explore/length|returns/length", {}),
    ("Reward functions, of all responses", "train", r"rewards/.*", _SHARES),
    ("Values of states", "train", r"value/S_\d+", _SHARES),
    ("Modulation of advantages", "train", r"alpha/(mean|min|max)", {}),
    ("Clipped share of tokens", "train", r"clip/(low|high|dual)", {}),
    ("Gap of sampler and trainer (nats)", "train", r"logprob_gap/(mean|max)", {"logarithmic": True}),
    ("Loss", "train", r"loss/\w+", {}),
    ("Gradient norm", "train", r"gradient_norm/\w+", {}),
    (
        "Verdicts",
        "train",
        r"verifier/.*",
        {"stacked": True, "colours": {f"verifier/{name}": colour for name, colour in _OUTCOMES.items()}},
    ),
    ("Seconds by stage", "train", r"seconds/(?!grading_wait).*", {"stacked": True, "cut": True}),
    (
        "Tokens by kind",
        "train",
        r"tokens/(sampled_tokens|loss_tokens|trained_positions|reused_prefix_positions|prefill_positions)",
        {},
    ),
    ("Prompts of a step", "train", r"prompts/.*", {}),
)
"""Title, kind of the records, pattern of the names, and look of the charts that answer the first questions."""


def charts(tables: Mapping[str, Iterable[str]]) -> list[Chart]:
    """The charts of `CHARTS` for which the run has metrics, then those of every other metric by family and unit.

    Args:
      tables: the names of the metrics by ``train`` and ``eval``.
    """
    left = {kind: [name for name in names if name != "step"] for kind, names in tables.items()}
    made: list[Chart] = []
    for title, kind, pattern, look in CHARTS:
        drawn = [name for name in left.get(kind, ()) if re.fullmatch(pattern, name)]
        if drawn:
            first = list(look.get("colours", {}))
            shown = sorted(drawn, key=lambda name: first.index(name) if name in first else len(first))
            made.append({"title": title, "kind": kind, "metrics": shown, "look": look, "first": True})
            left[kind] = [name for name in left[kind] if name not in drawn]
    for kind, names in left.items():
        families: dict[tuple[str, str], list[str]] = {}
        for name in names:
            row = find(name, kind)
            family = name.partition("/")[0] if "/" in name else "further metrics"
            families.setdefault((family, row.unit if row else ""), []).append(name)
        for (family, unit), members in families.items():
            title = members[0] if len(members) == 1 else family.replace("_", " ")
            title = (
                ("held-out: " if kind == "eval" else "")
                + title
                + (f" ({unit.partition(',')[0]})" if unit not in ("", title) else "")
            )
            look = {"points": kind == "eval"}
            made.append({"title": title, "kind": kind, "metrics": members, "look": look, "first": False})
    return made


class DrawnChart(Chart):
    """A chart with what is written beside its lines."""

    names: Sequence[str]
    """Short names of the metrics, and their meanings."""
    meanings: Sequence[str]
    top: float | None
    """The top of an axis beyond which some steps run out, and a note that has their values."""
    note: str


def measured_charts(tables: Mapping[str, Mapping[str, Sequence[float | None]]]) -> list[DrawnChart]:
    """`charts` without the metrics that have no value, and without stacked ones that are always 0.

    Args:
      tables: the values of the metrics by their names, by ``train`` and ``eval``.
    """
    drawn: list[DrawnChart] = []
    for chart in charts(tables):
        table, look = tables[chart["kind"]], chart["look"]
        without = (0, None) if look.get("stacked") else (None,)
        metrics = [name for name in chart["metrics"] if any(value not in without for value in table[name])]
        if not metrics:
            continue
        rows = {name: find(name, chart["kind"]) for name in metrics}
        top, note = usual_top(table, metrics) if look.get("cut") else (None, "")
        drawn.append(
            {
                **chart,
                "metrics": metrics,
                "names": short_names(metrics),
                "meanings": [f"{name}: {row.explanation}" if row else name for name, row in rows.items()],
                "top": top,
                "note": note,
            }
        )
    return drawn


def short_names(metrics: Sequence[str]) -> list[str]:
    """The names without the family that all of them share."""
    family, slash, _ = metrics[0].partition("/")
    if not slash or not all(name.startswith(family + slash) for name in metrics):
        return list(metrics)
    return [name.removeprefix(family + slash).replace("_", " ") for name in metrics]


def usual_top(table: Mapping[str, Sequence[float | None]], metrics: Sequence[str]) -> tuple[float | None, str]:
    """The top of an axis that steps far above the others leave, such as one that compiles; and a note of them."""
    sums = [sum(value or 0 for value in values) for values in zip(*(table[name] for name in metrics), strict=True)]
    top = 3 * sorted(sums)[int(0.8 * len(sums))]
    above = [f"step {step} ({value:.3g})" for step, value in zip(table["step"], sums, strict=True) if value > top]
    if not above or not top:
        return None, ""
    return top, f"Beyond the axis: {', '.join(above[:4])}{' …' if len(above) > 4 else ''}"
