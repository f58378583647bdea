"""Entries of a page's lists: the filters that each entry passes, its place in each order, and what it shows.

An entry has ``address``, ``chunk`` (the element of the page with its rollouts, or None), ``title`` where its question
is not enough, ``tags`` (filters that it passes), ``order`` (a number for each order, the smallest first; without one it
stays in its place), ``bounds`` (least and most value of what a search may bound), ``facts`` (texts), ``share`` ([right,
with a verdict, all]) and, for held-out problems, ``icons``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fr3e_jax.studies.reports.outcome_marks import MARKS

Choices = Sequence[tuple[str, str]]
"""Names of filters or orders with their labels; the first is the usual one."""
_PROMPT_FILTERS = (
    ("all", "all prompts"),
    ("mixed", "mixed only"),
    ("explored", "explored"),
    ("returned", "kept responses"),
    ("flips", "flip points"),
    ("cut", "cut at the cap"),
    ("all_right", "all right"),
    ("all_wrong", "all wrong"),
    ("trouble", "time-outs and errors"),
    ("ungraded", "without a verdict"),
)
_PROMPT_ORDERS = (
    ("step", "in the order of training"),
    ("delta", "largest |ΔV| first"),
    ("longest", "longest first"),
    ("hardest", "hardest first"),
)
_COURSES = (
    ("learned", "learned"),
    ("forgotten", "forgotten"),
    ("changing", "changing"),
    ("solved", "solved from the start"),
    ("unsolved", "never solved"),
)
COURSES = tuple(name for name, _ in _COURSES)
"""Courses of a problem's greedy answer over the evaluations, the most telling first."""
HELD_OUT_CHOICES: Mapping[str, Choices] = {
    "filters": (("all", "all problems"), *_COURSES, ("present", "with their answers here")),
    "orders": (
        ("course", "by course, learned ones on top"),
        ("earliest", "solved earliest first"),
        ("hardest", "hardest at the end first"),
        ("easiest", "easiest at the end first"),
        ("index", "in their order"),
    ),
}
_MOST_ICONS = 9


def entitle(items: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Give the entries a ``title`` that share their question with other problems: it tells them apart."""
    problems: dict[str, set[str]] = {}
    for item in items:
        problems.setdefault(item["question"], set()).add(item["problem"])
    for item in items:
        if len(problems[item["question"]]) > 1:
            item["title"] = f"{item['question']} ({item['gold'] or item['problem']})"
    return items


def prompt_choices(items: Iterable[Mapping[str, Any]]) -> dict[str, Choices]:
    """The filters and orders of prompts: a filter for each outcome that one of them has."""
    outcomes = sorted({tag for item in items for tag in item["tags"] if tag in MARKS})
    by_outcome = [(outcome, f"some: {MARKS[outcome]['word']}") for outcome in outcomes]
    return {"filters": (*_PROMPT_FILTERS, *by_outcome), "orders": _PROMPT_ORDERS}


def prompt_item(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The entry of a prompt with this `prompt_summary`. In "hardest first", prompts without a verdict come last."""
    right, verdicts, answers = (summary[name] for name in ("right", "verdicts", "answers"))
    is_returned = summary["stratum"] == "returned"
    passes = {
        "mixed": 0 < right < answers,
        "explored": not is_returned and summary["states"],
        "returned": is_returned,
        "flips": summary["flips"],
        "cut": summary["cut"],
        "all_right": verdicts and right == answers,
        "all_wrong": verdicts and not right,
        "trouble": summary["trouble"],
        "ungraded": not verdicts,
    }
    facts = (
        f"{right}/{answers}" if verdicts else "–",
        f"step {summary['step']}",
        is_returned and "of a kept response",
        summary["states"] and f"|ΔV| {summary['delta']:.2f}",
        summary["flips"] and f"{summary['flips']} flip{'s' * (summary['flips'] > 1)}",
        summary["trouble"] and f"{summary['trouble']} not graded",
    )
    return {
        **{name: summary[name] for name in ("step", "position", "problem", "delta")},
        "address": f"{summary['step']}/{summary['position']}",
        "tags": [*(name for name, holds in passes.items() if holds), *summary["outcomes"]],
        "order": {
            "delta": -summary["delta"],
            "longest": -summary["lengths"][1],
            "hardest": right / verdicts - verdicts * 1e-9 if verdicts else 2,
        },
        "bounds": {"step": [summary["step"]] * 2, "reward": summary["rewards"], "length": summary["lengths"]},
        "facts": [fact for fact in facts if fact],
        "share": [right, verdicts, answers],
    }


def held_out_item(problem: Mapping[str, Any]) -> dict[str, Any]:
    """The entry of a held-out problem. Its icons are greedy answers at evaluations, the first and the last too."""
    (right, samples), greedy = problem["right"][-1], problem["greedy"]
    address = f"{problem['benchmark']}: {problem['problem']}" if problem["benchmark"] else problem["problem"]
    every = -(-len(greedy) // _MOST_ICONS)
    solved = right / (samples or 1)
    is_present = problem["chunk"] is not None
    since, index = problem["since"], problem["index"]
    is_learned = problem["course"] == "learned"
    facts = (
        is_learned and f"since step {since}",
        samples and f"{right}/{samples}",
        address,
        not is_present and "no text here",
    )
    return {
        "address": address,
        "tags": [problem["course"], *["present"] * is_present],
        "order": {
            "earliest": (1e9 if since is None else since) + 1e-6 * index,
            "hardest": solved,
            "easiest": -solved,
            "index": index,
        },
        "bounds": {},
        "facts": [fact for fact in facts if fact],
        "share": [right, samples, samples] if samples else None,
        "icons": [answer for n, answer in enumerate(greedy) if n % every == 0 or n == len(greedy) - 1],
    }
