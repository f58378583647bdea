"""How fast responses are graded: one JSON line per measurement, to standard output. Nothing is asserted.

    .venv/bin/python benchmarks/rewards.py [integers] [mixture] [faults] [code] [--data DIR]

``integers``: GSM8K-style golds, graded in this process. ``mixture``: 70 % integers, 30 % MATH-style expressions, most
of which go to worker processes; distinct pairs of gold and answer, so that nothing comes from the cache. ``faults``:
10,000 jobs of which 1 % hang (half of them busily) and 0.1 % kill their worker. ``code``: HumanEval's own solutions.
Without the data sets the expressions are made up and ``code`` is left out.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import json
import os
import platform
import random
import resource
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fr3e_jax.configuration.schema import RewardsConfig
from fr3e_jax.problem import Problem
from fr3e_jax.rewards.grader import Grader
from fr3e_jax.rewards.named_verifiers import named_verifier
from fr3e_jax.rewards.pool import worker_count
from fr3e_jax.rewards.verifier import Verifier
from fr3e_jax.verdict import Job

Case = tuple[Problem, str]


def measure(name: str, verifier: Verifier, cases: list[Case], warm: list[Case] = ()) -> dict[str, Any]:
    """Grades the cases as the loop does (all submitted, then all fetched), after some to warm up with."""
    with Grader(verifier) as grader:
        for pending in [grader.submit(problem, response, True) for problem, response in warm]:
            pending.result()
        grader.take_outcomes()
        start, own, workers = time.perf_counter(), cpu_seconds(resource.RUSAGE_SELF), workers_cpu_seconds(grader)
        for pending in [grader.submit(problem, response, True) for problem, response in cases]:
            pending.result()
        wall = time.perf_counter() - start
        return {
            "measurement": name,
            "verdicts": len(cases),
            "seconds": round(wall, 3),
            "verdicts_per_second": round(len(cases) / wall, 1),
            "cpu_seconds_here": round(cpu_seconds(resource.RUSAGE_SELF) - own, 3),
            "cpu_seconds_workers": round(workers_cpu_seconds(grader) - workers, 3),
            "outcomes": dict(grader.take_outcomes()),
        }


def cpu_seconds(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def workers_cpu_seconds(grader: Grader) -> float:
    """CPU time of the processes that the grader has now; of killed workers as far as they were waited for."""
    process = grader._pool and grader._pool._workers._process
    if process is None:
        return 0.0
    return sum(_cpu_of(stat) for stat in Path("/proc").glob("[0-9]*/stat") if _is_below(stat, process.pid))


def _fields(stat: Path) -> list[str]:
    try:
        return stat.read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _is_below(stat: Path, pid: int) -> bool:
    fields = _fields(stat)
    return bool(fields) and pid in (int(stat.parent.name), int(fields[1]))


def _cpu_of(stat: Path) -> float:
    fields = _fields(stat)  # utime, stime and those of children that were waited for
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def integers(number: int) -> list[Case]:
    """Questions whose gold answer is an integer; three in four responses are right, some written another way."""
    draw = random.Random(0)
    cases = []
    for i in range(number):
        gold = draw.randrange(10_000)
        given = draw.choice([f"{gold}", f"{gold:,}", f"{gold}.00", f"{gold + 1 + draw.randrange(9)}"])
        response = f"First we add {gold // 2} and {gold - gold // 2}. " * 8 + f"So the answer is \\boxed{{{given}}}."
        cases.append((Problem(f"integers/{i}", "", f"We add. #### {gold}"), response))
    return cases


def expressions(number: int, golds: list[str]) -> list[Case]:
    """Each gold answer against itself, written with a difference that a grader must see through or must see."""
    draw = random.Random(0)
    changes: list[Callable[[str, int], str]] = [
        lambda gold, k: rf"{gold} + {k} - {k}",
        lambda gold, k: rf"\left({gold}\right) \cdot \frac{{{k}}}{{{k}}}",
        lambda gold, k: rf"{gold} + \frac{{1}}{{{k}}}",
        lambda gold, k: gold.replace(r"\frac", r"\dfrac") + r"\!" * (k % 3),
        lambda gold, k: rf"\sqrt{{{k}}} \left({gold}\right)",
    ]
    cases = []
    for i in range(number):
        gold, k = golds[i % len(golds)], 2 + draw.randrange(1000)
        response = rf"After some algebra we find \boxed{{{draw.choice(changes)(gold, k)}}}."
        cases.append((Problem(f"expressions/{i}", "", gold), response))
    return cases


def math_golds(data: Path) -> list[str]:
    """Gold answers of MATH's training set that are more than a number; made up where it is not at hand."""
    path = data / "math_train" / "train.jsonl.gz"
    if not path.exists():
        return [rf"\frac{{{a}\sqrt{{{b}}}}}{{{a + b}}} + x^{{{b}}}" for a in range(1, 40) for b in range(2, 12)]
    golds = {row["answer"] for row in rows(path) if row["answer"]}
    return sorted(gold for gold in golds if not gold.replace(",", "").lstrip("-").isdigit())


def rows(path: Path) -> Iterable[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def faulty_job(number: int) -> float:
    """What a worker does in ``faults``: 1 in 100 hangs, 1 in 1000 kills its worker, the others compute a little."""
    if number % 1000 == 7:
        os._exit(1)
    if number % 200 == 11:
        time.sleep(3600)
    while number % 200 == 111:
        pass
    return float(sum(range(number % 1000)) >= 0)


def measure_integers(data: Path) -> dict[str, Any]:
    return measure("integers", named_verifier("gsm8k"), integers(50_000), expressions(10, math_golds(data)))


def measure_mixture(data: Path) -> dict[str, Any]:
    cases = integers(4200) + expressions(1800, math_golds(data))
    random.Random(1).shuffle(cases)
    warm = expressions(100, math_golds(data)[::7])
    return measure("mixture", named_verifier("math"), [(_bare(problem), text) for problem, text in cases], warm)


def _bare(problem: Problem) -> Problem:
    return Problem(problem.id, problem.prompt, problem.gold.rpartition("#### ")[2])


def measure_faults(data: Path) -> dict[str, Any]:
    function = f"{Path(__file__).resolve()}:faulty_job"
    verifier = lambda problem, response, finished: Job(function, (int(response),))
    return measure("faults", verifier, [(Problem(f"faults/{i}", "", ""), str(i)) for i in range(10_000)])


def measure_code(data: Path) -> dict[str, Any] | None:
    path = data / "humaneval" / "test.jsonl.gz"
    if not path.exists():
        return None
    cases = []
    for row in rows(path):
        extra = {"tests": row["test"], "entry_point": row["entry_point"]}
        cases.append((Problem(row["task_id"], row["prompt"], "", extra), row["canonical_solution"]))
    return measure("code", named_verifier("code"), cases)


MEASUREMENTS = {
    "integers": measure_integers,
    "mixture": measure_mixture,
    "faults": measure_faults,
    "code": measure_code,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("measurements", nargs="*", help=f"of {', '.join(MEASUREMENTS)}; all, if none is given")
    parser.add_argument("--data", type=Path, default=Path(), help="folder of the data sets (data.root)")
    arguments = parser.parse_args()
    if unknown := set(arguments.measurements) - set(MEASUREMENTS):
        parser.error(f"there is no {', '.join(sorted(unknown))}; expected some of {', '.join(MEASUREMENTS)}")
    machine = {
        "date": datetime.datetime.now().isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before",
        "python": platform.python_version(),
        "workers": worker_count(RewardsConfig().workers),
    }
    for name in arguments.measurements or MEASUREMENTS:
        measured = MEASUREMENTS[name](arguments.data)
        if measured is not None:
            print(json.dumps(measured | machine))
            sys.stdout.flush()


if __name__ == "__main__":
    main()
