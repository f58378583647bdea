"""The first screen of a page: what the run was, a verdict in a sentence, and alerts. All are made by rules.

A level is the mean of a metric over the first or the last tenth of the steps that have it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, TypedDict

from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.load import load_config
from fr3e_jax.runs.run_state import run_state
from fr3e_jax.studies.analysis.run_curves import FINAL_SHARE, is_finite
from fr3e_jax.studies.analysis.run_overview import run_overview, score_name
from fr3e_jax.studies.analysis.stored_run import StoredRun
from fr3e_jax.studies.reports.what_was_learned import changes
from fr3e_jax.verdict import FAULTS

PACE_STEPS = 20  # last steps that tell the time left
SURE = 2.0  # standard errors of a difference that is no chance
COLLAPSE = 0.2  # share of its first level below which the entropy has collapsed
NOTABLE = 0.1  # relative change of the entropy that the verdict mentions
MOST_GAP = 0.05  # nats between sampler and trainer
MOST_CLIPPED = 0.1  # share of the trained tokens
MOST_WITHOUT_ANSWER = MOST_CUT = 0.2  # share of the responses
LEAST_SHARE = 0.01  # of the prompts that the verdict mentions
FEWEST_KEPT = 0.1  # share of the prompts
TROUBLE = tuple(f"verifier/{outcome}" for outcome in FAULTS)
CHECKED = {  # what alerts look at, and a metric that a run has if they can
    "entropy": "entropy/mean",
    "gap of sampler and trainer": "logprob_gap/mean",
    "clipping": "clip/low",
    "verdicts": "verifier/right",
    "lengths": "length/finished",
    "learning rate": "learning_rate",
}

Records = Sequence[Mapping[str, Any]]


class Alert(TypedDict):
    """Something to look at, and where in the page it is."""

    text: str
    place: Mapping[str, str]
    """``view``, and the ``metric`` whose chart, or the ``filter`` of prompts, or the ``setting`` that shows it."""


def headline(run: StoredRun, change_errors: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Facts as (name, value) pairs, the verdict, the alerts and what they looked at, and what changed first.

    ``change_errors``: see `verdict`.
    """
    training, evaluations = run.training, run.evaluations
    ending = run_state(run.directory)
    reason = f" ({ending.reason})" if ending.reason else ""
    state = "finished" if run.summary else ending.state + reason  # a run writes its page before its state
    return {
        "facts": [*facts(run), ("state", state), *progress(run)],
        "verdict": verdict(training, evaluations, change_errors),
        "alerts": [*_ending(run), *alerts(training, evaluations)],
        "checked": [name for name, metric in CHECKED.items() if _last(training, metric) is not None],
        "changes": [_chart(f"{name} by step {step}", metric) for metric, name, step in changes(training)],
    }


def facts(run: StoredRun) -> list[tuple[str, str]]:
    """The run in pairs: method, model, task, start, duration, code. Unknown ones are left out."""
    settings, origin = run.settings, run.provenance
    seconds = [record["wall_seconds"] for record in run.training if is_finite(record.get("wall_seconds"))]
    wall = (run.summary or {}).get("wall_seconds") or (seconds[-1] if seconds else None)
    checkout: Mapping[str, Any] = origin.get("git") or {}
    commit = checkout.get("commit")
    pairs = [
        ("method", _method(run)),
        ("model", _model(settings)),
        ("task", str(settings.get("data.task") or "")),
        ("started", str(origin.get("time") or "")[:16].replace("T", " ")),
        ("took", duration(wall) if is_finite(wall) else ""),
        ("on", str(origin.get("device_kind") or origin.get("platform") or "")),
        ("code", str(commit)[:10] if commit else ""),
    ]
    return [(name, value) for name, value in pairs if value]


def _method(run: StoredRun) -> str:
    verb = str(run.provenance.get("verb") or "train")
    if verb != "train":
        return {"sft": "supervised fine-tuning", "rft": "rejection sampling"}.get(verb, verb)
    try:
        algorithm = load_config(run.directory.config, training=False).algorithm
    except ConfigError:  # settings of another version
        algorithm = str((run.summary or {}).get("algorithm") or run.settings.get("advantage.base_estimator") or "")
    name, comma, rest = algorithm.partition(",")
    return name.upper() + comma + rest


def _model(settings: Mapping[str, Any]) -> str:
    if path := str(settings.get("model.path") or ""):
        return PurePath(path).name
    layers, width = settings.get("model.num_layers"), settings.get("model.hidden_size")
    return f"{layers} layers of width {width}" if layers and width else ""


def duration(seconds: float) -> str:
    """A time in its largest sensible unit: 40 s, 5 min, 3.2 h, 2.5 d."""
    for limit, size, unit in ((100, 1, "s"), (6000, 60, "min")):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86400:.1f} d"


def verdict(training: Records, evaluations: Records, change_errors: Mapping[str, float] | None = None) -> str:
    """The course of the run in a sentence: the score, the entropy, and the prompts that are still all wrong.

    ``change_errors``: standard errors of the changes of ``avg`` and ``greedy`` from the first evaluation to the last,
    of the same problems; None: bounds that do not know the problems.
    """
    clauses = [_score_clause(training, evaluations, change_errors or {})]
    before, after = levels(training, "entropy/mean")
    if before and after is not None and abs(after / before - 1) >= NOTABLE:
        word = "fell" if after < before else "rose"
        clauses.append(f"entropy {word} by {abs(after / before - 1):.0%} ({before:.3g} → {after:.3g} nats)")
    counts = [_last(training, f"base_groups/{name}") for name in ("all_wrong", "mixed", "all_right")]
    if all(count is not None for count in counts) and (total := sum(filter(None, counts))):
        wrong, right = (counts[0] or 0) / total, (counts[2] or 0) / total
        share, state = (wrong, "still all wrong") if wrong >= right else (right, "all right")
        if share >= LEAST_SHARE:
            clauses.append(f"{share:.0%} of the prompts are {state}")
    return "; ".join(filter(None, clauses))


def _score_clause(training: Records, evaluations: Records, change_errors: Mapping[str, float]) -> str:
    """How the held-out score moved; without evaluations, the reward or the loss."""
    name = score_name(key for record in reversed(evaluations) for key, value in record.items() if is_finite(value))
    scored = [record for record in evaluations if is_finite(record.get(name))]
    if len(scored) > 1:
        before, after = scored[0][name], scored[-1][name]
        step = f" at step {scored[-1]['step']}"
        bound = math.hypot(_error(scored[0], name), _error(scored[-1], name))
        error = change_errors.get(name.partition("@")[0], bound)
        word = "no clear change" if abs(after - before) <= SURE * error else "learned" if after > before else "lost"
        best = max(scored, key=lambda record: record[name])
        peak = (
            f" (best {_percent(best[name])} at step {best['step']})"
            if best["step"] and best[name] > after + SURE * error
            else ""
        )
        return f"{word}: {name} {_percent(before)} → {_percent(after)}{step}{peak}"
    if scored:
        step = scored[0]["step"]
        when = f"at step {step}, not evaluated before" if step else "before training, not evaluated since"
        return f"{name} {_percent(scored[0][name])} {when}"
    for metric, label in (("reward/mean", "reward"), ("loss/supervised", "loss")):
        before, after = levels(training, metric)
        if before is not None and after is not None:
            return f"{label} {before:.3g} → {after:.3g} in training; no held-out score"
        if (only := _last(training, metric)) is not None:
            return f"{label} {only:.3g} at the only step that has it; no held-out score"
    return "no score was measured"


def _error(record: Mapping[str, Any], name: str) -> float:
    """The standard error of a mean over held-out problems, as large as it can be; 0 for an unknown number of them."""
    share, problems = min(1.0, max(0.0, record[name])), record.get("prompts")
    return math.sqrt(share * (1 - share) / problems) if is_finite(problems) and problems else 0.0


def _percent(share: float) -> str:
    return f"{share:.1%}"


def alerts(training: Records, evaluations: Records) -> Iterator[Alert]:
    """Faults of a run, the gravest first."""
    broken = sorted({name for record in training for name, value in record.items() if _is_broken(value)})
    if broken:
        yield _chart(f"{', '.join(broken[:3])}: a value is not finite", broken[0])
    first, last = levels(training, "entropy/mean")
    if first and last is not None and last < COLLAPSE * first:
        yield _chart(f"the entropy collapsed: {first:.3g} → {last:.3g} nats a token", "entropy/mean")
    gap = _last(training, "logprob_gap/mean")
    if gap is not None and gap > MOST_GAP:
        yield _chart(f"sampler and trainer differ by {gap:.3g} nats a token", "logprob_gap/mean")
    clipped = (_last(training, "clip/low") or 0) + (_last(training, "clip/high") or 0)
    if clipped > MOST_CLIPPED:
        yield _chart(f"{clipped:.0%} of the trained tokens are clipped: the updates are large", "clip/low")
    rates = [record["learning_rate"] for record in training if is_finite(record.get("learning_rate"))]
    if rates and 2 * rates.count(0) > len(rates):
        yield _chart(f"the learning rate is 0 in {rates.count(0)} of {len(rates)} steps", "learning_rate")
    failed = sum(_total(training, name) for name in TROUBLE) + _total(evaluations, "not_graded")
    if failed:
        yield {
            "text": f"{failed:.0f} responses have no verdict: the verifier timed out or failed",
            "place": {"view": "prompts", "filter": "trouble"},
        }
    yield from _weak_responses(training, evaluations)
    kept, rejected = _last(training, "prompts/kept"), _last(training, "prompts/rejected")
    if kept is not None and rejected is not None and kept + rejected and kept < FEWEST_KEPT * (kept + rejected):
        yield _chart(
            f"{kept / (kept + rejected):.0%} of the prompts teach: the others have equal rewards", "prompts/kept"
        )
    for name, reason in (
        ("too_long", "longer than data.max_prompt_tokens"),
        ("unspeakable", "the tokenizer cannot encode"),
    ):
        dropped = max((record.get(f"data/dropped_{name}") or 0 for record in training), default=0)
        dropped += max((record.get(f"prompts_{name}") or 0 for record in evaluations), default=0)
        if dropped:
            place = {
                "view": "settings",
                "setting": "data.max_prompt_tokens" if name == "too_long" else "model.tokenizer",
            }
            yield {"text": f"{dropped:.0f} prompts were left out: {reason}", "place": place}


def _weak_responses(training: Records, evaluations: Records) -> Iterator[Alert]:
    """Responses without an answer, and those that the length cap cut."""
    verdicts = {name for record in training for name in record if name.startswith("verifier/")}
    graded = sum(_last(training, name) or 0 for name in verdicts)
    silent = (_last(training, "verifier/no_answer") or 0) / graded if graded else 0
    if silent > MOST_WITHOUT_ANSWER:
        yield _chart(f"{silent:.0%} of the responses have no answer", "verifier/no_answer")
    held_out = evaluations[-1].get("no_answer") if evaluations else None
    if is_finite(held_out) and held_out > MOST_WITHOUT_ANSWER:
        text = f"{held_out:.0%} of the held-out responses have no answer, step {evaluations[-1]['step']}"
        yield {"text": text, "place": {"view": "held-out"}}
    finished = _last(training, "length/finished")
    if finished is not None and 1 - finished > MOST_CUT:
        text = f"{1 - finished:.0%} of the responses are cut at the length cap (rollout.max_response_tokens)"
        yield {"text": text, "place": {"view": "prompts", "filter": "cut"}}


def _ending(run: StoredRun) -> Iterator[Alert]:
    ending = run_state(run.directory)
    if not run.summary and ending.state in ("failed", "interrupted", "stopped"):
        reason = f": {ending.reason}" if ending.reason else ""
        yield {"text": f"the run {_ENDED[ending.state]}{reason}", "place": {"view": "settings", "setting": ""}}


_ENDED = {"failed": "failed", "interrupted": "was interrupted", "stopped": "was stopped"}


def progress(run: StoredRun) -> list[tuple[str, str]]:
    """Steps and sampled tokens so far, with their limits, and the time left at the pace of late."""
    row = run_overview(run.directory.path)
    recent = [r for r in run.training if is_finite(r.get("wall_seconds"))][-PACE_STEPS:]
    left: list[float] = []
    if row.state == "running" and len(recent) > 1:
        seconds = recent[-1]["wall_seconds"] - recent[0]["wall_seconds"]
        if row.max_steps:
            left.append(seconds * (row.max_steps - row.step) / (recent[-1]["step"] - recent[0]["step"]))
        tokens = sum(r.get("tokens/sampled_tokens") or 0 for r in recent[1:])
        if row.max_sampled_tokens and tokens:
            left.append(seconds * (row.max_sampled_tokens - row.sampled_tokens) / tokens)
    pairs = [("training steps", _of(row.step, row.max_steps))]
    if row.sampled_tokens:
        pairs.append(("sampled tokens", _of(row.sampled_tokens, row.max_sampled_tokens)))
    return [*pairs, ("left", duration(max(0.0, min(left))))] if left else pairs


def _of(count: float, limit: float | None) -> str:
    return f"{count:,.0f} of {limit:,.0f}" if limit else f"{count:,.0f}"


def levels(records: Records, name: str) -> tuple[float | None, float | None]:
    """The first and the last level of a metric; None without two steps that have it."""
    values = [record[name] for record in records if is_finite(record.get(name))]
    if len(values) < 2:
        return None, None
    count = math.ceil(FINAL_SHARE * len(values))
    return sum(values[:count]) / count, sum(values[-count:]) / count


def _last(records: Records, name: str) -> float | None:
    """The last level of a metric; the value itself if only one step has it."""
    values = [record[name] for record in records if is_finite(record.get(name))]
    return levels(records, name)[1] if len(values) > 1 else values[0] if values else None


def _total(records: Records, name: str) -> float:
    return sum(record.get(name) or 0 for record in records)


def _chart(text: str, metric: str) -> Alert:
    return {"text": text, "place": {"view": "curves", "metric": metric}}


def _is_broken(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
