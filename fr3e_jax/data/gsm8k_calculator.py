"""GSM8K's calculator annotations as an arithmetic task: ``<<48/2=24>>`` is the prompt ``48/2=`` with answer ``24``.

Annotations come from the ``answer`` field of JSONL rows (Cobbe et al. 2021, arXiv:2110.14168). The gold answer is the
right side exactly as written in the file, and the reward is equality with it.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fr3e_jax.configuration.schema import DataConfig
from fr3e_jax.data.jsonl import existing_file, local_file, read_rows
from fr3e_jax.data.shuffle import shuffled_indices
from fr3e_jax.data.task import Demonstration, Split
from fr3e_jax.problem import Problem
from fr3e_jax.rewards.verifier import Verifier, exact_match
from fr3e_jax.stores.objects import is_remote, join

ANNOTATION = re.compile(r"<<(.*?)>>")
CHARACTERS = frozenset("0123456789+-*/().=%")
HELD_OUT_ONE_IN = 20
DEVELOPMENT = 1  # the remainder of the hash of development prompts; that of test prompts is 0

Pair = tuple[str, str]


class CalculatorTask:
    """The annotations of ``data.path``, with those of ``data.eval_path`` held out; see ``fr3e_jax.data.task.Task``.

    Without ``data.eval_path`` the held-out file is the neighbour of ``data.path`` with ``test`` for ``train`` in its
    name. Without such a file, 5 % of the training prompts are held out by a hash of their text. A training prompt that
    is also a held-out prompt is dropped. Another 5 % are the development split. ``dropped`` counts by
    ``split/reason``.
    """

    name = "gsm8k_calculator"

    def __init__(self, config: DataConfig):
        path = existing_file(config.path, "data.path")
        self.dropped: Counter[str] = Counter()
        train = self._read(path, "train")
        eval_path = _eval_path(config, path)
        test = self._read(eval_path, "test") if eval_path else [pair for pair in train if _is_held_out(pair[0])]
        held_out = {left for left, _ in test}
        apart = [pair for pair in train if pair[0] not in held_out]
        # Without a file of its own the test split is part of the training file, so no prompt is lost.
        if eval_path and len(apart) < len(train):
            self.dropped["train/in_held_out"] = len(train) - len(apart)
        parts: dict[Split, list[Pair]] = {
            "train": [pair for pair in apart if not _is_held_out(pair[0], DEVELOPMENT)],
            "development": [pair for pair in apart if _is_held_out(pair[0], DEVELOPMENT)],
            "test": test,
        }
        self._problems = {split: _problems(split, pairs) for split, pairs in parts.items()}
        sources: dict[Split, Path] = {"train": path, "test": eval_path or path}
        for split, source in sources.items():
            if not self._problems[split]:
                raise ValueError(
                    f"{source} gives no {split} problem (dropped: {dict(self.dropped)}); expected JSONL rows whose "
                    "'answer' has annotations such as <<48/2=24>>"
                )
        self._seed = config.seed

    def problems(self, split: Split) -> tuple[Problem, ...]:
        return self._problems[split]

    def demonstration(self, index: int, step_fraction: float) -> Demonstration:
        """A training problem with its gold answer, in a new order each epoch. There is no curriculum."""
        problem = self._problems["train"][self._order[index]]
        return Demonstration(prompt=problem.prompt, response=problem.gold)

    @functools.cached_property
    def _order(self) -> Sequence[int]:
        return shuffled_indices(len(self._problems["train"]), self._seed)

    def verifier(self) -> Verifier:
        return exact_match

    def _read(self, path: Path, split: Split) -> list[Pair]:
        dropped: Counter[str] = Counter()
        pairs = read_annotations(path, dropped)
        self.dropped.update({f"{split}/{reason}": count for reason, count in dropped.items()})
        return pairs


def read_annotations(path: Path, dropped: Counter[str]) -> list[Pair]:
    """The distinct (left, right) sides of a file's annotations, in the order of their first appearance."""
    pairs: dict[Pair, None] = {}
    for row in read_rows(path, dropped):
        answer = row.get("answer")
        if not isinstance(answer, str):
            dropped["no_answer"] += 1
            continue
        for annotation in ANNOTATION.findall(answer):
            left, _, right = annotation.partition("=")
            reason = unusable(annotation) or ("duplicate" if (left, right) in pairs else "")
            if reason:
                dropped[reason] += 1
            else:
                pairs[left, right] = None
    return list(pairs)


def unusable(annotation: str) -> str:
    """The reason why the text between ``<<`` and ``>>`` makes no problem; empty if it makes one."""
    left, _, right = annotation.partition("=")
    if not CHARACTERS.issuperset(annotation):
        return "other_characters"
    if not left or not right:
        return "empty_side"
    try:
        float(right)
    except ValueError:
        return "result_not_a_number"
    return ""


def _eval_path(config: DataConfig, path: Path) -> Path | None:
    if config.eval_path:
        return existing_file(config.eval_path, "data.eval_path")
    name = path.name.replace("train", "test")
    sibling = local_file(join(config.path.rpartition("/")[0], name)) if is_remote(config.path) else path.with_name(name)
    return sibling if sibling != path and sibling.is_file() else None


def _is_held_out(left: str, remainder: int = 0) -> bool:
    digest = hashlib.blake2b(left.encode(), digest_size=8, person=b"gsm8k split").digest()
    return int.from_bytes(digest, "little") % HELD_OUT_ONE_IN == remainder


def _problems(split: Split, pairs: list[Pair]) -> tuple[Problem, ...]:
    return tuple(Problem(id=f"{split}/{i}", prompt=f"{left}=", gold=right) for i, (left, right) in enumerate(pairs))
