"""One split of a dataset as problems: rows are mapped, filtered and freed of duplicates, and drops are counted."""

from __future__ import annotations

import dataclasses
import itertools
import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fr3e_jax.configuration import ConfigError
from fr3e_jax.conversation import map_question, messages_of, question_of, without_answer
from fr3e_jax.data.card_file import WITHOUT_ANSWER, Card, SplitCard
from fr3e_jax.data.fields import Unusable, lookup, parse_path, text_of, unwrapped
from fr3e_jax.data.formats import NO_ROWS, Row, find_files, read_file, read_tfds
from fr3e_jax.problem import Problem
from fr3e_jax.rewards.extraction import can_be_boxed, last_boxed
from fr3e_jax.rewards.math_verifiers import right_letter

EXAMPLES = 20  # rows that are looked at for a complaint
WHOLE_RESPONSE = (*WITHOUT_ANSWER, "exact")  # verifiers that read the whole response: any gold answer can be given


@dataclass(frozen=True)
class LoadedSplit:
    """The problems of one split.

    Attributes:
      card, split: the dataset and its split; ``name`` is ``card/split``.
      rows: number of rows in the files, kept or dropped.
      problems: the problems of the kept rows; ids are ``card/split/row``.
      solutions: the worked solution of each problem, or None.
      dropped: reason to number of rows: ``malformed_row``, ``empty_question``, ``empty_gold`` (missing, null or
        blank), ``unreadable_question`` (faulty messages), ``unreadable_choices``, ``unreadable_gold`` (no marker, no
        closed box, neither text nor number, braces that do not close, none of the choices or two),
        ``filtered_PATH``, ``duplicate`` (question and gold answer of an earlier row); for programs also
        ``unusable_tests``, ``failing_reference`` and ``rewarded_empty_program`` (`fr3e_jax.data.program_checks`).
      repeated_questions: kept rows with the question of an earlier row and another gold answer.
    """

    card: Card
    split: str
    rows: int
    problems: tuple[Problem, ...]
    solutions: tuple[str | None, ...]
    dropped: Counter[str]
    repeated_questions: int

    @property
    def name(self) -> str:
        return f"{self.card.name}/{self.split}"

    def subset(self, chosen: Sequence[bool]) -> LoadedSplit:
        """The chosen problems alone; ``chosen`` has an entry for each."""
        problems = tuple(itertools.compress(self.problems, chosen))
        return dataclasses.replace(self, problems=problems, solutions=tuple(itertools.compress(self.solutions, chosen)))


class _Dropped(Exception):
    """The row makes no problem. The message is the reason under which it is counted."""


def load_split(card: Card, split: str, root: str) -> LoadedSplit:
    """Read a split from the files under ``root`` (``data.root``).

    Raises:
      FileNotFoundError: none of the split's files exists.
      ConfigError: no row makes a problem.
      ValueError: a file is damaged or has another format.
    """
    dropped: Counter[str] = Counter()
    problems_by_text: dict[tuple[str, str], tuple[Problem, str | None]] = {}
    lost: dict[str, list[Row]] = {}  # the first rows that were dropped for a reason
    index = -1
    for index, row in enumerate(_rows(card, split, root, dropped)):
        try:
            _keep(row, f"{card.name}/{split}/{index}", card, card.splits[split], problems_by_text)
        except _Dropped as drop:
            dropped[str(drop)] += 1
            if len(examples := lost.setdefault(str(drop), [])) < EXAMPLES:
                examples.append(row)
    if not problems_by_text:
        where = card.splits[split].builder or ", ".join(map(str, find_files(card.splits[split].files, root, card.name)))
        if index < 0 and not dropped:
            raise ConfigError(f"{card.path}: split {split} has no rows: {where} is empty; expected rows")
        reason = dropped.most_common(1)[0][0]
        is_card = card.path.suffix in (".yaml", ".yml")
        raise ConfigError(
            f"{card.path}: split {split} gives no problem (dropped: {dict(dropped)}): "
            f"{_complaint(reason, lost.get(reason, []), card.splits[split])}; "
            + (f"change the card or {where}" if is_card else "change them, or write a card for the file")
        )
    problems, solutions = zip(*problems_by_text.values(), strict=True)
    repeated = len(problems) - len({problem.prompt for problem in problems})
    rows = index + 1 + dropped["malformed_row"]
    return LoadedSplit(card, split, rows, problems, solutions, +dropped, repeated)


def _complaint(reason: str, rows: Sequence[Row], source: SplitCard) -> str:
    """The fault of rows that are dropped for a reason."""
    if reason == "malformed_row":
        return NO_ROWS
    fault, _, field = reason.partition("_")
    if fault == "filtered":
        allowed, values = source.filters[field], dict.fromkeys(str(lookup(row, field)) for row in rows)
        return f"filters.{field} keeps {list(allowed)}; the rows have {', '.join(values)}"
    field = "answer" if field == "gold" else field
    if field not in source.fields or not rows:
        return reason
    path = source.fields[field].path
    name, value = f"fields.{field} ({path})", lookup(rows[0], path)
    if value is None and not any(parse_path(path)[0] in row for row in rows):
        return f"{name} is missing; the rows have {', '.join(map(str, rows[0]))}"
    if fault == "empty":
        return f"{name} is empty or missing"
    if field == "question" and messages_of(value) is not None:
        try:
            question_of(value, tools=lookup(rows[0], source.fields["tools"].path) if "tools" in source.fields else None)
        except ValueError as error:
            return f"{name} {error}"
    if isinstance(value, list | tuple) and value:
        inner = f"{path}[0].content" if isinstance(value[0], Mapping) else f"{path}[0], or unwrap_list: true"
        return f"{name} is a list; expected a text or number: {inner}"
    if isinstance(value, Mapping) and value:
        return f"{name} is a mapping; expected a text or number: {path}.{next(iter(value))}"
    shown = str(value).lower() if isinstance(value, bool) else f"{value!r:.80}"
    rule = source.fields[field]
    if not isinstance(value, str):
        expected = "a text or number"
    elif rule.after_last and rule.after_last not in value:
        expected = f"a text with the marker {rule.after_last!r} (after_last)"
    elif rule.last_boxed and last_boxed(value) is None:
        expected = "a text with a closed \\boxed{...} (last_boxed)"
    else:
        expected = "a text whose braces close" if field == "answer" else "a text in the form of its rule"
    return f"{name} is {shown}; expected {expected}"


def _rows(card: Card, split: str, root: str, dropped: Counter[str]) -> Iterator[Row]:
    source, owner = card.splits[split], f"dataset card {card.name}, split {split}"
    if source.format == "tfds":
        yield from read_tfds(source.builder, source.builder_split, root, owner)
        return
    for path in find_files(source.files, root, owner):
        yield from read_file(path, source.format, dropped)


def _keep(row: Row, name: str, card: Card, source: SplitCard, problems: dict) -> None:
    """Put the row's problem and solution into ``problems``, or raise _Dropped."""
    for path, values in source.filters.items():
        if lookup(row, path) not in values:
            raise _Dropped(f"filtered_{path}")
    extra = _extra(row, card, source)
    question = _question(row, source)
    if "answer" not in source.fields and card.verifier not in WITHOUT_ANSWER:  # of the settings, not the card's
        raise _Dropped("empty_gold")
    golds = _read(row, source, "answer") if "answer" in source.fields else ("",)
    if card.verifier not in WHOLE_RESPONSE and not all(map(can_be_boxed, golds)):
        raise _Dropped("unreadable_gold")
    question, answered = without_answer(question, golds)
    offered = _choices(extra.pop("choices", ()))
    if len(offered) > 1:
        extra["choices"] = offered
        choices = map("({}) {}".format, string.ascii_uppercase, offered)
        question = map_question(question, lambda text: "\n".join([text, *choices]))
        golds = _letters(row, source, golds, offered)
    if card.verifier == "multiple_choice" and right_letter(golds[0], offered) is None:
        raise _Dropped("unreadable_gold")
    if len(golds) > 1:
        extra["golds"] = golds
    if (question, golds[0]) in problems:
        raise _Dropped("duplicate")
    solution = _optional(row, source, "solution") or answered
    problems[question, golds[0]] = Problem(name, question, golds[0], extra), solution


def _question(row: Row, source: SplitCard) -> str:
    """The question of a row; messages become a conversation, with the field's steps on the user's last message."""
    rule = source.fields["question"]
    value = lookup(row, rule.path)
    tools = lookup(row, source.fields["tools"].path) if "tools" in source.fields else None
    is_text = messages_of(value) is None
    value = _read(row, source, "question")[0] if is_text else value
    try:
        question = question_of(value, _optional(row, source, "system") or "", tools)
        question = question if is_text else map_question(question, rule.extract)
    except Unusable as error:
        raise _Dropped(f"{error.reason}_question") from None
    except ValueError:
        raise _Dropped("unreadable_question") from None
    if not question.strip():
        raise _Dropped("empty_question")
    return question


def _read(row: Row, source: SplitCard, field: str) -> tuple[str, ...]:
    try:
        return source.fields[field].read(row)
    except Unusable as error:
        raise _Dropped(f"{error.reason}_{'gold' if field == 'answer' else field}") from None


def _optional(row: Row, source: SplitCard, field: str) -> str | None:
    try:
        return source.fields[field].read(row)[0] if field in source.fields else None
    except Unusable:
        return None


def _extra(row: Row, card: Card, source: SplitCard) -> dict[str, Any]:
    """The values that verifiers and analyses need besides the gold answer, without those that the row lacks."""
    values: dict[str, Any] = {"dataset": card.name}
    values |= {field: _optional(row, source, field) for field in ("level", "subject")}
    for key, path in source.extra.items():
        value = lookup(row, path)
        values[key] = tuple(value) if isinstance(value, list) else value
    return {key: value for key, value in values.items() if value is not None and value != ""}


def _choices(value: Any) -> tuple[str, ...]:
    try:
        choices = tuple(map(text_of, unwrapped(value)))
    except Unusable:
        raise _Dropped("unreadable_choices") from None
    if len(choices) > len(string.ascii_uppercase):
        raise _Dropped("unreadable_choices")
    return choices


def _letters(row: Row, source: SplitCard, golds: tuple[str, ...], choices: tuple[str, ...]) -> tuple[str, ...]:
    """The gold answers, or the letter of the choice of this label (ARC), or of this number from 0 (MMLU).

    In CSV, where numbers are texts, an answer that is a choice's number and another's text is neither.
    """
    value, offered = (lookup(row, path) for path in (source.fields["answer"].path, source.extra["choices"]))
    labels = lookup(row, source.extra["choices"].removesuffix("text") + "label")
    if isinstance(labels, list) and golds[0] in labels:
        index = labels.index(golds[0])
    elif isinstance(value, int) and not isinstance(value, bool):
        index = value
    elif isinstance(offered, str) and golds[0].isdecimal():
        index = int(golds[0])
        if golds[0] in choices and (index >= len(choices) or choices[index] != golds[0]):
            raise _Dropped("unreadable_gold")
    else:
        return golds
    if not 0 <= index < len(choices):
        raise _Dropped("unreadable_gold")
    return (string.ascii_uppercase[index],)
