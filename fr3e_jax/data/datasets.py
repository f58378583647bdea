"""The task ``datasets``: trains on a mixture of dataset cards, evaluates on others, grades each by its own verifier."""

from __future__ import annotations

import functools
import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.schema import DataConfig
from fr3e_jax.data.card_file import Card, nearest
from fr3e_jax.data.cards import SUFFIXES, load_named
from fr3e_jax.data.dataset_split import LoadedSplit, load_split
from fr3e_jax.data.mixture import Mixture, MixtureOrder
from fr3e_jax.data.task import Demonstration, Split
from fr3e_jax.data.templates import load_template
from fr3e_jax.problem import Problem
from fr3e_jax.rewards.verifier import Verifier
from fr3e_jax.verdict import Job, Verdict

HASHES = re.compile(r"\n#### .*\Z")  # the last line of GSM8K's solutions


class DatasetsTask:
    """The cards of ``data.train`` and ``data.eval`` as a ``fr3e_jax.data.task.Task``. Construction reads their files.

    Prompts are the bare questions. The caller applies ``data.template``.

    Attributes:
      parts: maps each role to its loaded splits, in the order of the settings.
      dropped: maps ``card/split/reason`` to a number of rows.
    """

    name = "datasets"

    def __init__(self, config: DataConfig):
        self._config = config
        self._template = load_template(config.template)
        self.parts: dict[Split, tuple[LoadedSplit, ...]] = {
            "train": _load(config, config.train, "train", "data.train"),
            "test": _load(config, config.eval, "test", "data.eval"),
            "development": (),
        }
        if config.development_share:
            pairs = [_without_development(loaded, config.development_share) for loaded in self.parts["train"]]
            self.parts["train"], self.parts["development"] = zip(*pairs, strict=True) if pairs else ((), ())
        self._cards = _distinct_cards([loaded for parts in self.parts.values() for loaded in parts])
        if config.columns and self._cards and all(card.path.suffix in SUFFIXES for card in self._cards.values()):
            raise ConfigError(
                f"data.columns={config.columns} is read for files without a card, and all sets have cards, whose "
                "fields name their columns; set data.columns=[], or name a file of rows"
            )
        self.dropped: Counter[str] = Counter()
        for loaded in {loaded.name: loaded for parts in self.parts.values() for loaded in parts}.values():
            self.dropped.update({f"{loaded.name}/{reason}": count for reason, count in loaded.dropped.items()})

    def problems(self, split: Split) -> Sequence[Problem]:
        """For ``train`` a ``Mixture`` in the shares of ``data.weights``; else all problems in order.

        Those of ``test`` are ``data.eval``, and those of ``development`` the share of the training cards that does not
        train (``data.development_share``).
        """
        parts = self.parts[split]
        if not parts:
            if split == "development":
                raise ConfigError(
                    "evaluation.split=development evaluates on training problems that do not train, and "
                    "data.development_share=0 keeps none; set it, for example to 0.02, in all runs that are compared"
                )
            setting = "data.train" if split == "train" else "data.eval"
            raise ConfigError(f"{setting} is empty; name at least one dataset card, for example {setting}=[gsm8k]")
        if split != "train":
            return tuple(problem for loaded in parts for problem in loaded.problems)
        return Mixture({loaded.name: loaded.problems for loaded in parts}, self._config.weights)

    def shares(self) -> dict[str, float]:
        """The share of the training draws for each ``card/split``."""
        weights = self._config.weights or [len(loaded.problems) for loaded in self.parts["train"]]
        return {loaded.name: weight / sum(weights) for loaded, weight in zip(self.parts["train"], weights, strict=True)}

    def demonstration(self, index: int, step_fraction: float) -> Demonstration:
        """A training problem with its worked solution, which ends in the form that the template asks for.

        Demonstrations are drawn like training problems, from those that have a solution. There is no curriculum.

        Raises:
          ConfigError: a training card has no solutions.
        """
        problem, solution = self._worked[self._worked_order[index]]
        return Demonstration(problem.prompt, finished_solution(solution, problem.gold, self._template.extraction))

    def verifier(self) -> DatasetVerifier:
        from fr3e_jax.rewards.named_verifiers import (
            named_verifier,  # imported here because reading data needs no grader
        )

        named = {}
        for name, card in self._cards.items():
            try:
                named[name] = named_verifier(card.verifier, extraction=self._template.extraction)
            except ValueError as error:
                raise ConfigError(f"{card.path}: {error}") from error
        return DatasetVerifier(named)

    @functools.cached_property
    def _worked(self) -> Mixture:
        worked = {}
        for loaded in self.parts["train"]:
            pairs = zip(loaded.problems, loaded.solutions, strict=True)
            worked[loaded.name] = [pair for pair in pairs if pair[1] is not None]
        without = [name for name, pairs in worked.items() if not pairs]
        if without or not worked:
            raise ConfigError(
                f"there are no demonstrations in {', '.join(without) or 'an empty data.train'}: fine-tuning needs "
                "cards with fields.solution, such as gsm8k; change data.train"
            )
        return Mixture(worked, self._config.weights)

    @functools.cached_property
    def _worked_order(self) -> MixtureOrder:
        return self._worked.order(self._config.seed)


@dataclass(frozen=True)
class DatasetVerifier:
    """Grades each problem by the verifier of the card it comes from (``problem.extra["dataset"]``)."""

    by_card: Mapping[str, Verifier]

    @property
    def job_functions(self) -> tuple[str, ...]:
        """The worker functions of all its verifiers; see ``fr3e_jax.rewards.verifier``."""
        functions = [f for verifier in self.by_card.values() for f in getattr(verifier, "job_functions", ())]
        return tuple(dict.fromkeys(functions))

    def __call__(self, problem: Problem, response: str, finished: bool) -> float | Verdict | Job | Future[Verdict]:
        return self.by_card[problem.extra["dataset"]](problem, response, finished)


def finished_solution(solution: str, gold: str, extraction: str) -> str:
    """The solution, with the gold answer appended in the form of ``extraction`` unless it already ends so."""
    if extraction == "boxed_or_hashes" and HASHES.search(solution):
        return solution
    solution = HASHES.sub("", solution)
    if extraction == "answer_line":
        return f"{solution}\nAnswer: {gold}"
    return solution if "\\boxed" in solution else f"{solution}\nThe final answer is $\\boxed{{{gold}}}$."


def _load(config: DataConfig, names: Sequence[str], default_split: str, setting: str) -> tuple[LoadedSplit, ...]:
    loaded: list[LoadedSplit] = []
    for name in names:
        try:
            card, split = load_named(name, default_split, config.root, config.columns)
        except ConfigError as error:
            raise ConfigError(f"{setting}: {error}") from error
        if f"{card.name}/{split}" in [earlier.name for earlier in loaded]:
            raise ConfigError(f"{setting} names {card.name}/{split} twice; to weight it, use data.weights")
        if config.verifier and ":" not in config.verifier:
            card = _graded_by(card, config.verifier)
        read = load_split(card, split, config.root)
        if card.verifier == "code":
            from fr3e_jax.data.program_checks import with_usable_tests  # starts the grader's workers

            read = with_usable_tests(read)
        loaded.append(read)
    return tuple(loaded)


def _graded_by(card: Card, verifier: str) -> Card:
    """The card with a named verifier in place of its own; raises ConfigError if there is none of this name."""
    from fr3e_jax.rewards.named_verifiers import VERIFIERS  # imported here because reading data needs no grader

    if verifier not in VERIFIERS:
        raise ConfigError(f"data.verifier={verifier}: {nearest(verifier, VERIFIERS)}, or FILE.py:NAME of your own")
    return replace(card, verifier=verifier)


def _without_development(loaded: LoadedSplit, share: float) -> tuple[LoadedSplit, LoadedSplit]:
    """The split without its development problems, and these: a share by a hash of the question.

    Raises:
      ConfigError: one of the two would be empty.
    """
    apart = [_is_development(problem.prompt, share) for problem in loaded.problems]
    if all(apart) or not any(apart):
        raise ConfigError(
            f"data.development_share={share:g} keeps {sum(apart)} of the {len(apart)} problems of {loaded.name} from "
            "training; change it so that both sides have some"
        )
    return loaded.subset([not is_apart for is_apart in apart]), loaded.subset(apart)


def _is_development(question: str, share: float) -> bool:
    digest = hashlib.blake2b(question.encode(errors="surrogatepass"), digest_size=8, person=b"development").digest()
    return int.from_bytes(digest, "little") < share * 2**64


def _distinct_cards(parts: Sequence[LoadedSplit]) -> dict:
    """Cards by name; raises ConfigError if two files share a name, because problem ids would be ambiguous."""
    cards: dict = {}
    for loaded in parts:
        card = loaded.card
        other = cards.setdefault(card.name, card)
        if other.path.resolve() != card.path.resolve():
            raise ConfigError(f"{other.path} and {card.path} are both named {card.name}; rename one of them")
    return cards
