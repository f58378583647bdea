"""The check of data whose answers are programs: tests must accept the row's own program and refuse an empty one."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence

from fr3e_jax.configuration import ConfigError
from fr3e_jax.data.dataset_split import LoadedSplit
from fr3e_jax.problem import Problem
from fr3e_jax.rewards.code import CodeVerifier
from fr3e_jax.rewards.code_tests import UnusableTests, read_tests
from fr3e_jax.rewards.grader import Grader, Pending

logger = logging.getLogger(__name__)

SAMPLE = 32  # rows of a split whose tests are run, if those of the first ones have a fault
FIRST = 8  # rows that are run first
NAMES_SHOWN = 5
UNREADABLE, FAILING, REWARDED = "unusable_tests", "failing_reference", "rewarded_empty_program"


def with_usable_tests(loaded: LoadedSplit) -> LoadedSplit:
    """The split without rows whose tests cannot decide; they are counted in ``dropped`` and named in the log.

    The tests of every row are read. Those of `FIRST` rows, evenly spread, are run: on the row's answer, if it has
    one, on an empty program, and on functions that do nothing. If one has a fault, `SAMPLE` rows are run. An answer
    that runs out of time stays, so that a busy machine never changes the data.

    Raises:
      ConfigError: more than half of the rows that were read, or run, are dropped.
    """
    faults = {i: UNREADABLE for i, problem in enumerate(loaded.problems) if _is_unreadable(problem)}
    _report(loaded, faults, len(loaded.problems))
    readable = [i for i in range(len(loaded.problems)) if i not in faults]
    failed: dict[int, str] = {}
    for most in (min(FIRST, SAMPLE), SAMPLE):
        size = min(most, len(readable))
        failed = dict(_failed(loaded.problems, [readable[n * len(readable) // size] for n in range(size)]))
        if not failed:
            break
    _report(loaded, failed, size)
    faults |= failed
    usable = loaded.subset([i not in faults for i in range(len(loaded.problems))])
    usable.dropped.update(Counter(faults.values()))
    return usable


def _is_unreadable(problem: Problem) -> bool:
    try:
        _, _, tests, entry_point, *_ = CodeVerifier().job(problem, "pass").arguments
        read_tests(tests, entry_point)
    except UnusableTests:
        return True
    return False


def _failed(problems: Sequence[Problem], sample: Sequence[int]) -> Iterator[tuple[int, str]]:
    """The sampled rows whose tests fail the check, with the reason."""
    verifier = CodeVerifier()
    with Grader(lambda problem, code, finished: verifier.job(problem, code)) as grader:
        pending = [_submitted(grader, problems[i]) for i in sample]
        for i, (reference, empty) in zip(sample, pending, strict=True):
            if any(verdict.result().right for verdict in empty):
                yield i, REWARDED
            elif reference is not None and reference.result().outcome == "wrong":
                yield i, FAILING
            elif reference is not None and not reference.result().right:
                logger.warning("%s: its own program ended as %s", problems[i].id, reference.result().outcome)


def _submitted(grader: Grader, problem: Problem) -> tuple[Pending | None, list[Pending]]:
    """The verdicts on the row's own program and on programs that do nothing."""
    _, _, tests, entry_point, *_ = CodeVerifier().job(problem, "pass").arguments
    parsed = read_tests(tests, entry_point)
    names = [name for name in (parsed.entry_point, *parsed.names) if name.isidentifier()]
    idle = "".join(f"def {name}(*args, **kwargs):\n    pass\n" for name in names)
    empty = [grader.submit(problem, program, True) for program in ("pass\n", idle) if program]
    return grader.submit(problem, problem.gold, True) if problem.gold.strip() else None, empty


def _report(loaded: LoadedSplit, faults: dict[int, str], size: int) -> None:
    """Log the rows that are dropped.

    Raises:
      ConfigError: they are more than half.
    """
    if not faults:
        return
    shown = [f"{loaded.problems[i].id} ({reason})" for i, reason in list(faults.items())[:NAMES_SHOWN]]
    complaint = f"{loaded.name}: the tests of {len(faults)} of {size} rows cannot decide: {', '.join(shown)}"
    if 2 * len(faults) > size:
        raise ConfigError(
            f"{complaint}; expected tests that accept the row's answer and refuse an empty program: change "
            f"extra.tests, extra.entry_point or fields.answer in {loaded.card.path} (docs/users/code_execution.md)"
        )
    logger.warning("%s; these rows are dropped", complaint)
