"""``fr3e metrics``: the meaning of every number in metrics.jsonl."""

from __future__ import annotations

import argparse

from fr3e_jax.cli.parser import Verb
from fr3e_jax.cli.tables import fitted
from fr3e_jax.configuration.error_conversion import as_config_error


def declare(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("part", nargs="?", default="", help="only metrics whose names have this part, such as clip")


def run(arguments: argparse.Namespace) -> int:
    """List the metrics."""
    with as_config_error():
        text = _list_metrics(arguments.part)
    print(fitted(text))
    return 0


def _list_metrics(text: str) -> str:
    """A line for each metric whose name has ``text``.

    Raises:
      ValueError: there is none.
    """
    from fr3e_jax.runs.metric_meanings import GROUPS

    matches = [(group, [metric for metric in group.metrics if text in metric.name]) for group in GROUPS]
    matches = [(group, metrics) for group, metrics in matches if metrics]
    if not matches:
        raise ValueError(f"found no metric whose name has {text!r}; `fr3e metrics` lists all names")
    width = max(len(metric.name) for _, metrics in matches for metric in metrics)
    lines = []
    for group, metrics in matches:
        when = group.when if group.kind == "train" else f"{group.when}, kind eval"
        lines += ["", f"{group.title} ({when})"]
        lines += [f"  {metric.name:<{width}}  {metric.explanation}" for metric in metrics]
    return "\n".join(lines[1:])


VERB = Verb("fr3e metrics clip", declare, run, recipe=False)
