"""The reason of a verdict: the answer that stands in a response, and a phrase that says what the verifier found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fr3e_jax.data.templates import TEMPLATES
from fr3e_jax.rewards.extraction import Extraction, extract, readable_gold
from fr3e_jax.runs.rollout_store import RolloutRecord

AnswerReader = Callable[[str], str | None]
REASONS = {
    "right": "the verifier accepts it",
    "wrong": "not the gold answer",
    "restated": "equal to the gold answer, but a formula of the question that was to be worked out",
    "other_form": "equal to the gold answer, but not in the form that the question asks for",
    "no_answer": "no answer in the place that the prompt asks for",
    "refused": "the answer is too long, too deep or too large a number to be judged",
    "string_only": "the answer cannot be read as mathematics, and its text is not the gold answer's",
    "timeout": "the verifier was not done at its deadline",
    "worker_died": "the verifier's process died on it",
    "error": "the verifier raised an error",
    "judge_timeout": "the judge gave no answer in time",
    "judge_unreachable": "the judge could not be reached, or refused the request",
    "judge_unparseable": "the judge's answer has no score in it",
}


def answer_reader(settings: Mapping[str, Any]) -> AnswerReader:
    r"""The function that finds the final answer in a response of a run with these settings, by their dotted names.

    In an environment: none. ``order``: the text after the last ``>``. Datasets: the place that the template asks for;
    without one the last ``\boxed``, else the text after ``####``, else after ``Answer:``. Another task: these, else the
    last line.
    """
    task, template = str(settings.get("data.task", "")), TEMPLATES.get(str(settings.get("data.template", "")))
    forms: tuple[Extraction, ...] = ("boxed_or_hashes", "answer_line")
    if template and template.name != "plain":
        forms = ("answer_line",) if template.extraction == "answer_line" else ("boxed_or_hashes",)

    def by_form(text: str) -> str | None:
        return next((answer for form in forms if (answer := extract(text, form))), None)

    def after_sign(text: str) -> str | None:
        return text.rpartition(">")[2].strip() or None

    def last_line(text: str) -> str | None:
        return by_form(text) or next((line.strip() for line in reversed(text.splitlines()) if line.strip()), None)

    if settings.get("environment.kind", "none") != "none":
        return lambda text: None
    readers = {"order": after_sign, "datasets": by_form}
    return readers.get(task, last_line)


def answer_of(record: RolloutRecord, read: AnswerReader) -> str | None:
    """The answer in a stored response; None if the verifier found none."""
    return None if record.outcome == "no_answer" else read(record.prefix + record.response)


def gold_of(record: RolloutRecord) -> str:
    """The gold answer without its wrapping, and without the solution before it; "" if none is stored."""
    return readable_gold(record.gold.rpartition("####")[2]) or ""


def reason(record: RolloutRecord, answer: str | None) -> str:
    """The phrase that says why the response has its verdict; "" without one."""
    if not record.finished and record.outcome in (None, "no_answer"):
        return "the length cap ended it before an answer"
    if record.turns and record.outcome in ("right", "wrong"):
        return f"the environment gave it reward {record.reward:.3g}"
    if record.outcome == "wrong" and answer is None:
        return "the verifier rejects it"
    if record.outcome == "wrong" and answer == gold_of(record):
        cut = "" if record.finished else "; the length cap ended it"
        return f"the answer is the gold one, but the verifier asks for more than the answer{cut}"
    return REASONS.get(record.outcome or "", "")
