"""Problems and rewards that a Python program gives to the trainer, in place of a task and a verifier in files."""

from __future__ import annotations

import functools
import hashlib
import inspect
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.schema import DataConfig
from fr3e_jax.conversation import question_of, without_answer
from fr3e_jax.data.cards import COLUMNS
from fr3e_jax.data.fields import Unusable, lookup, text_of
from fr3e_jax.data.formats import SUFFIXES, read_file
from fr3e_jax.data.jsonl import existing_file
from fr3e_jax.data.task import Demonstration, Split, Task
from fr3e_jax.problem import Problem
from fr3e_jax.rewards.verifier import UserCodeError, Verifier, exact_match, is_number
from fr3e_jax.trusted_code import is_interrupt, users_code

Reward = Callable[..., float]
"""``f(prompt, response, **columns) -> float``: the number is in [0, 1]; 1 is right."""
Rewards = Reward | Sequence[Reward | tuple[Reward, float]]
"""One reward, or several with or without weights; the reward is their weighted mean."""
Rows = str | Path | Iterable[Mapping[str, Any]]
"""A file (JSONL, JSON, CSV, Parquet), or rows: dicts, a ``datasets.Dataset``, a Grain source."""

MakeEnvironment = Callable[[], Any]
"""A callable without arguments that makes an environment: ``reset(problem, seed)`` and ``step(text)``."""

PROMPT = ("prompt", *COLUMNS["question"])  # columns that hold the question; the first that a row has counts
GOLD = ("gold", *(name for name in COLUMNS["answer"] if name != "solution"))  # and those with the gold answer
HELD_OUT_SHARE = 10  # one row in so many is held out if no held-out problems are given
_OWN = ("prompt", "response")


def read_problems(
    rows: Rows, what: str, dropped: Counter[str] | None = None, *, needs_gold: bool = True, needs_prompt: bool = True
) -> list[Problem]:
    """Problems of rows. ``prompt`` is a row's question, a text or messages; ``gold`` or ``answer`` is its answer.

    Other usual names (`fr3e_jax.data.cards.COLUMNS`), and columns ``system`` and ``tools``, are read as in files.

    All columns go to rewards.

    Rows without a question or an answer are dropped, and answers are written, as those of dataset cards.

    Args:
      rows: see `Rows`.
      what: names the rows in messages: ``problems``.
      dropped: counts the dropped rows by reason.
      needs_gold: whether a row without an answer is dropped.
      needs_prompt: whether a row with a blank question is.

    Raises:
      ValueError: there is no row, or a row is no mapping with a ``prompt`` that is a text or messages.
      FileNotFoundError: there is no such file.
    """
    dropped = Counter() if dropped is None else dropped
    source = _rows_of_file(existing_file(str(rows), what), dropped) if isinstance(rows, str | Path) else rows
    problems: dict[str, Problem] = {}
    for index, row in enumerate(_each(source)):
        prompt = _prompt(row, f"{what}[{index}]")
        gold, fault = _gold(row)
        if needs_prompt and not prompt.strip():
            dropped["empty_question"] += 1
        elif needs_gold and fault:
            dropped[f"{fault}_gold"] += 1
        else:
            prompt, _ = without_answer(prompt, [gold])
            name = _text_or_fault(row.get("id"))[0]
            name = f"{what}/{index}" if not name or name in problems else name
            problems[name] = Problem(id=name, prompt=prompt, gold=gold, extra=dict(row))
    if not problems:
        reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
        lost = f" that is a problem (dropped: {reasons})" if reasons else ""
        raise ValueError(
            f"{what} holds no row{lost}; expected at least one mapping with a prompt, and a text or number under "
            f"{' or '.join(GOLD)} unless Trainer(reward=...), an environment or judge.model judges"
        )
    return list(problems.values())


def _rows_of_file(path: Path, dropped: Counter[str]) -> Iterable[Mapping[str, Any]]:
    suffix = Path(path.name.removesuffix(".gz")).suffix
    return read_file(path, "auto" if suffix in SUFFIXES else "jsonl", dropped)


def _gold(row: Mapping[str, Any]) -> tuple[str, str]:
    """The gold answer of a row, or "" and the fault of the last column that could have it."""
    fault = "empty"
    for name in GOLD:
        value = lookup(row, name)
        text, reason = _text_or_fault(value)
        if text:
            return text, ""
        fault = reason if value is not None else fault
    return "", fault


def _text_or_fault(value: Any) -> tuple[str, str]:
    """A text or number as a text, or "" and "empty" or "unreadable"."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        value = value.item()
    if value is None or (isinstance(value, float) and math.isnan(value)):  # pandas has NaN for a missing value
        return "", "empty"
    try:
        text = text_of(value)
    except Unusable as error:
        return "", error.reason
    return (text, "") if text.strip() else ("", "empty")


def _each(rows: Any) -> Iterable[Any]:
    """The rows of an iterable, or of what has a length and takes indices, as Grain's sources do."""
    if hasattr(rows, "__iter__"):
        return rows
    if hasattr(rows, "__len__") and hasattr(rows, "__getitem__"):
        return (rows[index] for index in range(len(rows)))
    raise ValueError(f"problems are a {type(rows).__name__}; expected rows: a list of dicts, a JSONL file, a dataset")


def _prompt(row: Any, where: str) -> str:
    """The question of a row; raises ValueError if it has none."""
    if not isinstance(row, Mapping):
        raise ValueError(
            f"{where} is a {type(row).__name__}; expected a mapping with a prompt, as {{'prompt': '1+2='}}"
        )
    name = next((name for name in PROMPT if name in row), "")
    if not name:
        raise ValueError(
            f"{where} has no prompt (its columns: {', '.join(map(str, row)) or 'none'}); expected a text or a list of "
            "messages under 'prompt'; for a chat model set data.template=chat"
        )
    system = next((row[each] for each in COLUMNS["system"] if isinstance(row.get(each), str)), "")
    try:
        return question_of(row[name], system, row.get("tools"))
    except ValueError as error:
        raise ValueError(f"{where}: its {name} {error}") from None


@dataclass(frozen=True)
class PythonVerifier:
    """The weighted mean of reward functions, called in the run's own process. It notes what each function returns.

    Each function gets ``prompt`` and ``response`` as its first two arguments, and by name those columns of the row that
    it asks for, ``finished`` among them: whether the response ended with a stop token. A function with ``**columns``
    gets all.

    Raises:
      UserCodeError: a function raised, or returned something else than a finite number in [0, 1]; see its cause.
    """

    rewards: tuple[Reward, ...]
    weights: tuple[float, ...]
    columns: tuple[frozenset[str] | None, ...]  # that each function takes by name; None: all
    results: dict[str, list[float]]  # of each function, by its name, since they were taken

    @classmethod
    def of(cls, rewards: Rewards, first: Problem) -> PythonVerifier:
        """The verifier of reward functions, whose signatures are checked against the columns of a first problem.

        Raises:
          TypeError, ValueError: a reward cannot be called so, or weights are not positive numbers.
        """
        pairs = [reward if isinstance(reward, tuple) else (reward, 1.0) for reward in _several(rewards)]
        for function, weight in pairs:
            if not callable(function):
                raise TypeError(f"reward is {function!r}; expected a function f(prompt, response, **columns) -> float")
            if not isinstance(weight, int | float) or not 0 < weight < float("inf"):
                raise ValueError(f"the weight of the reward {_name(function)} is {weight!r}; expected a number above 0")
        functions, weights = zip(*pairs, strict=True)
        available = {*_OWN, "finished", "id", *first.extra, *(("gold",) if first.gold else ())}
        columns = tuple(_columns_of(function, available) for function in functions)
        return cls(functions, weights, columns, {name: [] for name in _distinct_names(functions)})

    def __call__(self, problem: Problem, response: str, finished: bool) -> float:
        columns = {**_row(problem), "finished": finished}
        for name in _OWN:
            columns.pop(name, None)
        results = []
        for function, names in zip(self.rewards, self.columns, strict=True):
            arguments = columns if names is None else {name: columns[name] for name in names if name in columns}
            try:
                with users_code():
                    results.append(function(problem.prompt, response, **arguments))
            except Exception as error:
                raise UserCodeError(f"the reward {_name(function)} raised on problem {problem.id}") from error
            except BaseException as error:  # sys.exit() would end the program without a word
                if is_interrupt(error):
                    raise
                raised = f"{type(error).__name__}: {error}".rstrip(": ")
                raise UserCodeError(f"the reward {_name(function)} raised {raised} on problem {problem.id}") from None
            if not is_number(results[-1]) or not 0 <= results[-1] <= 1:  # false for NaN, too
                message = f"the reward {_name(function)} returned {results[-1]!r:.80} for problem {problem.id}"
                fault = ConfigError(f"{message}; expected a finite number in [0, 1]: rescale what it returns")
                raise UserCodeError(message) from fault
        for values, result in zip(self.results.values(), results, strict=True):
            values.append(float(result))
        return sum(w * float(r) for w, r in zip(self.weights, results, strict=True)) / sum(self.weights)

    def take_sums(self) -> dict[str, tuple[float, int]]:
        """The sum of what each function has returned since the last call, and how many there were."""
        taken = {name: (math.fsum(values), len(values)) for name, values in self.results.items()}
        for values in self.results.values():
            values.clear()
        return taken


def _row(problem: Problem) -> dict[str, Any]:
    """The columns of a problem: those of its row, and ``gold`` and ``id`` where it has none of these names."""
    return {"gold": problem.gold, "id": problem.id, **problem.extra}


def _several(rewards: Rewards) -> Sequence[Any]:
    if callable(rewards):
        return [rewards]
    if not isinstance(rewards, Sequence) or not rewards or isinstance(rewards, str):
        raise TypeError(f"reward is {rewards!r}; expected a function, or a list of functions or (function, weight)")
    return rewards


def _name(function: Any) -> str:
    function = function.func if isinstance(function, functools.partial) else function
    return getattr(function, "__name__", type(function).__name__)


def _distinct_names(functions: Sequence[Any]) -> list[str]:
    """Names for metrics: those of the functions, and a number for each but the first of a name."""
    names: list[str] = []
    for function in functions:
        name = re.sub(r"\W+", "_", _name(function)).strip("_") or "reward"
        repeats = len([other for other in functions[: len(names)] if _name(other) == _name(function)])
        names.append(f"{name}_{repeats + 1}" if repeats else name)
    return names


def _columns_of(function: Reward, available: set[str]) -> frozenset[str] | None:
    """The columns that a reward asks for by name; None if it takes them all."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some builtins have no signature
        return frozenset()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    several = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if len(positional) < 2 and not several:
        raise TypeError(
            f"the reward {_name(function)}{inspect.signature(function)} takes {len(positional)} positional arguments; "
            "expected f(prompt, response, **columns)"
        )
    named = [*positional[2:], *(p for p in parameters if p.kind is p.KEYWORD_ONLY)]
    missing = sorted(p.name for p in named if p.default is p.empty and p.name not in available)
    if missing:
        raise TypeError(
            f"the reward {_name(function)}{inspect.signature(function)} asks for {', '.join(missing)}, but the first "
            f"problem has the columns {', '.join(sorted(available - set(_OWN)))}; rename the argument, or add the "
            "column"
        )
    return frozenset(p.name for p in named)


class PythonTask:
    """Problems that a program gave; `fr3e_jax.data.task.Task` has the meaning of the methods.

    Args:
      problems: to train on.
      held_out: to evaluate on; None: every tenth of ``problems`` by a hash of its text, which then does not train.
      rewards: see `Rewards`; None: 1 if the response equals the row's gold answer.
      environment: plays the problems and gives the rewards; None: there is none.
      judged: whether a judge alone gives the rewards, so that rows need no gold answer.

    Raises:
      TypeError, ValueError, FileNotFoundError: see `read_problems` and `PythonVerifier.of`; or there are too few rows.
    """

    name = "python"

    def __init__(
        self,
        problems: Rows,
        held_out: Rows | None = None,
        rewards: Rewards | None = None,
        environment: MakeEnvironment | None = None,
        *,
        judged: bool = False,
    ):
        self.environment = environment
        needs_gold = rewards is None and environment is None and not judged
        needs = {"needs_gold": needs_gold, "needs_prompt": environment is None}
        dropped: dict[Split, Counter[str]] = {"train": Counter(), "test": Counter()}
        train = read_problems(problems, "problems", dropped["train"], **needs)
        if held_out is None:
            train, test = _divided(train)
        else:
            test = read_problems(held_out, "held_out", dropped["test"], **needs)
        self._problems = {"train": train, "test": test}
        self.dropped: Mapping[str, int] = {
            f"{split}/{reason}": count for split, counts in dropped.items() for reason, count in counts.items()
        }
        self._verifier: Verifier = exact_match if rewards is None else PythonVerifier.of(rewards, train[0])

    def problems(self, split: Split) -> Sequence[Problem]:
        return self._problems[split]

    def demonstration(self, index: int, step_fraction: float) -> Demonstration:
        raise ValueError("problems given in Python have no demonstrations; expected a task with some (data.task)")

    def verifier(self) -> Verifier:
        return self._verifier


def _divided(problems: list[Problem]) -> tuple[list[Problem], list[Problem]]:
    """Problems to train on, and the held-out tenth, of the smallest hashes; equal prompts stay together."""
    by_prompt: dict[str, list[Problem]] = {}
    for problem in problems:
        by_prompt.setdefault(problem.prompt, []).append(problem)
    if len(by_prompt) < 2:
        raise ValueError(
            f"problems holds {len(by_prompt)} different prompt, which cannot be divided; give held_out=... as well"
        )
    order = sorted(by_prompt, key=lambda prompt: hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).digest())
    chosen = set(order[: max(1, len(order) // HELD_OUT_SHARE)])
    held_out = [problem for problem in problems if problem.prompt in chosen]
    return [problem for problem in problems if problem.prompt not in chosen], held_out


class AdaptedTask:
    """A task whose rewards are a program's functions, or its environment's.

    Raises:
      TypeError, ValueError: see `PythonVerifier.of`.
    """

    def __init__(self, task: Task, rewards: Rewards | None = None, environment: MakeEnvironment | None = None):
        self.name, self.dropped, self.environment = task.name, task.dropped, environment
        self.problems, self.demonstration, self._task = task.problems, task.demonstration, task
        self._rewards: Verifier | None = None
        if rewards is not None:
            self._rewards = PythonVerifier.of(rewards, task.problems("train")[0])

    def verifier(self) -> Verifier:
        return self._task.verifier() if self._rewards is None else self._rewards


def from_the_command_line(config: DataConfig) -> Task:
    """Refuses ``data.task=python``, which a run has whose problems a program gave.

    Raises:
      ValueError: always; it says how to continue such a run.
    """
    raise ValueError(
        "data.task is 'python': a program gave the problems of this run; continue it with "
        "fr3e_jax.Trainer(RUN_DIR/config.yaml, problems=...).train(resume=RUN_DIR), with environment=... if "
        "the program gave that too, or name another task"
    )
