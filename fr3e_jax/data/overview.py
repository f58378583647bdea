"""The overview of a recipe's data for `fr3e data`: counts, lengths, overlaps and prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, get_args

from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.schema import Config
from fr3e_jax.data.datasets import DatasetsTask
from fr3e_jax.data.overlap import Overlap, overlaps
from fr3e_jax.data.task import Split, Task, held_out_split, load_task
from fr3e_jax.data.template_check import check_template
from fr3e_jax.data.templates import chat_options, load_template
from fr3e_jax.data.tokenizer import TextCodec
from fr3e_jax.problem import Problem

LARGEST = 1_000_000  # of larger (procedural) sets only a sample is measured
SAMPLE = 1000  # problems of that sample
EXAMPLES = 3


@dataclass
class Lengths:
    """Statistics of prompt lengths in tokens, template included.

    Attributes:
      histogram: (largest length of the class, prompts in it); each class is twice as wide as the one before.
      median, longest: in tokens; 0 without prompts.
      too_long: number of prompts with more than ``data.max_prompt_tokens`` tokens, which a run skips.
      unspeakable: number of prompts with a character that the tokenizer cannot spell; ``complaint`` is the first error.
    """

    histogram: list[tuple[int, int]] = field(default_factory=list)
    median: int = 0
    longest: int = 0
    too_long: int = 0
    unspeakable: int = 0
    complaint: str = ""


@dataclass
class SetOverview:
    """One dataset, or one split of a task without datasets.

    Attributes:
      name: ``card/split``, or ``task/split``.
      role: ``train`` or ``test``.
      problems: number of problems; ``looked_at`` of them are measured in ``lengths``.
      rows: number of rows in its files; None without files.
      dropped: maps reasons to numbers of rows.
      repeated_questions: number of problems with the question of another problem and another gold answer.
      share: share of the draws of the training mixture; None for evaluation sets.
      verifier: name of the card's verifier; empty if the task has its own.
    """

    name: str
    role: str
    problems: int
    looked_at: int
    rows: int | None
    dropped: dict[str, int]
    repeated_questions: int
    share: float | None
    verifier: str
    lengths: Lengths


@dataclass
class Overview:
    """The result of `fr3e data`; ``prompts`` are (problem id, gold answer, rendered text, token ids)."""

    recipe: str
    task: str
    template: str
    tokenizer: str
    max_prompt_tokens: int
    sets: list[SetOverview]
    overlaps: list[Overlap]
    prompts: list[tuple[str, str, str, list[int]]]

    def as_json(self) -> dict[str, Any]:
        """Plain mappings and lists, with the share of each overlap."""
        return asdict(self) | {"overlaps": [asdict(each) | {"share": each.share} for each in self.overlaps]}


@dataclass(frozen=True)
class _Set:
    name: str
    role: str
    problems: Sequence[Problem]
    shown: Sequence[Problem]  # all problems, or a sample


def overview(config: Config) -> Overview:
    """Read the data of a recipe, without loading a model or jax.

    Raises:
      ConfigError, ValueError, OSError: the task, the template or the tokenizer cannot be used.
    """
    task, template = load_task(config.data), load_template(config.data.template)
    task.verifier()  # raises for a card whose verifier does not exist, before any run
    directory = config.model.tokenizer or config.model.path
    codec = TextCodec.load(directory, model=config.model.path, chat=chat_options(config.data))
    codec.stop_at(config.rollout.stop_tokens, config.rollout.stop_texts)
    check_template(template, codec)
    sets = _sets(task)
    shown: dict[str, dict[str, Sequence[Problem]]] = {role: {} for role in get_args(Split)}
    for each in sets:
        shown[each.role][each.name] = each.shown

    def rendered(problem: Problem) -> str:
        return template.render(problem.prompt, codec.render_chat)

    examples = [(each.id, each.gold, *_or_complaint(rendered, codec, each)) for each in _examples(sets)]
    return Overview(
        recipe=config.name,
        task=task.name,
        template=template.name,
        tokenizer=directory or "embedded characters",
        max_prompt_tokens=config.data.max_prompt_tokens,
        sets=[_describe(each, task, config, lambda problem: codec.encode_prompt(rendered(problem))) for each in sets],
        overlaps=overlaps(shown["train"], shown["test"]),
        prompts=examples,
    )


def _sets(task: Task) -> list[_Set]:
    if isinstance(task, DatasetsTask):
        sets = [(loaded.name, role, loaded.problems) for role, parts in task.parts.items() for loaded in parts]
    else:
        sets = [(f"{task.name}/{role}", role, task.problems(role)) for role in get_args(Split) if _offers(task, role)]
    return [_Set(*each, _sample(each[2])) for each in sets]


def _offers(task: Task, role: Split) -> bool:
    """Return whether the task has such problems; only those of ``development`` may be missing."""
    if role != "development":
        return True
    try:
        return bool(len(held_out_split(task, role)))
    except ValueError:
        return False


def _sample(problems: Sequence[Problem]) -> Sequence[Problem]:
    if len(problems) <= LARGEST:
        return problems
    return [problems[index * (len(problems) // SAMPLE)] for index in range(SAMPLE)]


def _or_complaint(rendered: Callable[[Problem], str], codec: TextCodec, problem: Problem) -> tuple[str, list[int]]:
    """The prompt and its token ids, none if it cannot be spelled; or why the problem is dropped."""
    try:
        text = rendered(problem)
    except ConfigError:  # of the settings, and not of this problem
        raise
    except ValueError as error:
        return f"dropped: {error}", []
    try:
        return text, codec.encode_prompt(text)
    except ValueError:  # counted, and named once for all
        return text, []


def _describe(each: _Set, task: Task, config: Config, encode: Callable[[Problem], Sequence[int]]) -> SetOverview:
    described = SetOverview(
        name=each.name,
        role=each.role,
        problems=len(each.problems),
        looked_at=len(each.shown),
        rows=None,
        dropped=_dropped(task.dropped, each.role),
        repeated_questions=0,
        share=1.0 if each.role == "train" else None,
        verifier="",
        lengths=measure(each.shown, encode, config.data.max_prompt_tokens),
    )
    if isinstance(task, DatasetsTask):
        loaded = next(loaded for loaded in task.parts[each.role] if loaded.name == each.name)
        described.rows, described.dropped = loaded.rows, dict(loaded.dropped)
        described.repeated_questions, described.verifier = loaded.repeated_questions, loaded.card.verifier
        described.share = task.shares().get(each.name) if each.role == "train" else None
    return described


def _dropped(dropped: Mapping[str, int], role: str) -> dict[str, int]:
    """The dropped rows of one split of a task without cards."""
    return {reason.removeprefix(f"{role}/"): n for reason, n in dropped.items() if reason.startswith(f"{role}/")}


def measure(problems: Sequence[Problem], encode: Callable[[Problem], Sequence[int]], limit: int) -> Lengths:
    """Statistics of the lengths of prompts in tokens. Prompts of more than ``limit`` tokens count as too long."""
    lengths: list[int] = []
    statistics = Lengths()
    for problem in problems:
        try:
            lengths.append(len(encode(problem)))
        except ValueError as error:
            statistics.unspeakable += 1
            statistics.complaint = statistics.complaint or str(error)
    lengths.sort()
    if lengths:
        statistics.median, statistics.longest = lengths[len(lengths) // 2], lengths[-1]
    statistics.too_long = sum(length > limit for length in lengths)
    edge, start = 16, 0
    while start < len(lengths):
        inside = sum(length <= edge for length in lengths) - start
        if inside or statistics.histogram:
            statistics.histogram.append((edge, inside))
        edge, start = 2 * edge, start + inside
    return statistics


def _examples(sets: Sequence[_Set]) -> list[Problem]:
    """The first problem of each training set, then the second of each, and so on; evaluation sets if none trains."""
    ordered = sorted(sets, key=lambda each: each.role != "train")
    train = [each for each in ordered if each.role == "train"] or ordered
    examples = [each.shown[turn] for turn in range(EXAMPLES) for each in train if turn < len(each.shown)]
    return examples[:EXAMPLES]
