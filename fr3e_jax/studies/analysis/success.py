"""pass@k curves of samples, and the sets of problems that all curves over k compare. (Deng et al. 2025, 2.4.)

Dimension key: P problems, N samples of a problem, K places on the k axis.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fr3e_jax.studies.analysis.bootstrap import means_of_resamples, percentiles
from fr3e_jax.studies.analysis.figure import Figure, Series
from fr3e_jax.studies.analysis.material import Material, NothingToShow, analysis
from fr3e_jax.studies.analysis.responses import Responses, problem_of

DRAWS = 1_000  # resamples of the problems, for the intervals
MOST_PLACES = 48  # on the k axis
VOTES = 200  # seeded subsets for maj@k below k = n


def sampled(responses: Responses) -> dict[tuple[str, int], dict[str, list[int]]]:
    """(benchmark, step) → problem → indices of its graded samples, without the greedy answer."""
    groups: dict[tuple[str, int], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for i, record in enumerate(responses.records):
        if record.base > 0 and responses.graded[i]:
            groups[record.benchmark, record.step][problem_of(record)].append(i)
    return {key: dict(problems) for key, problems in sorted(groups.items())}


def counts(responses: Responses, problems: Mapping[str, Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Samples and right samples of each problem, int64 ``[P]`` each."""
    rows = list(problems.values())
    return np.array([len(row) for row in rows]), np.array([int(responses.right[list(row)].sum()) for row in rows])


def places(most: int) -> list[int]:
    """k = 1 … ``most``, thinned to equal distances on a logarithmic axis if there are many; with 1, 2, 4, … and all."""
    if most <= MOST_PLACES:
        return list(range(1, most + 1))
    spread = np.geomspace(1, most, MOST_PLACES).round().astype(int)
    return sorted({*spread.tolist(), *(2**i for i in range(most.bit_length())), most})


def pass_at_k_by_problem(samples: np.ndarray, right: np.ndarray, ks: Sequence[int]) -> np.ndarray:
    """1 − C(n−c, k) / C(n, k) of each problem → float64 ``[P, K]``. k is at most the least n.

    (Deng et al. 2025, eq. 2.)
    """
    from fr3e_jax.objectives.pass_at_k import pass_at_k as estimate  # loads jax

    table = np.empty((len(samples), len(ks)))
    for n in np.unique(samples):
        rows = samples == n
        table[rows] = np.stack([estimate(int(n), right[rows], k) for k in ks], axis=1)
    return table


def curve_with_interval(by_problem: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean over problems of ``[P, K]`` and the ends of its bootstrap 95 % interval, ``[K]`` each."""
    low, high = percentiles(means_of_resamples(by_problem, draws=DRAWS, seed=seed))
    return by_problem.mean(axis=0), low, high


def first_and_last(keys: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Of each benchmark the first and the last evaluation."""
    steps: dict[str, list[int]] = defaultdict(list)
    for benchmark, step in keys:
        steps[benchmark].append(step)
    return [(benchmark, step) for benchmark, at in steps.items() for step in dict.fromkeys((min(at), max(at)))]


@dataclass(frozen=True)
class SampleSets:
    """Sets of problems to compare: those of the first and of the last evaluation."""

    responses: Responses
    problems: Mapping[str, Mapping[str, list[int]]]
    """Name of the set → problem → indices of its samples."""
    seed: int

    @classmethod
    def of(cls, material: Material) -> SampleSets:
        """The sets of a run.

        Raises:
          NothingToShow: no problem has two samples.
        """
        groups = sampled(material.evaluation)
        sets = {
            f"{benchmark}, step {step}" if benchmark else f"step {step}": groups[benchmark, step]
            for benchmark, step in first_and_last(list(groups))
        }
        sets = {name: problems for name, problems in sets.items() if min(map(len, problems.values()), default=0) > 1}
        if not sets:
            raise NothingToShow("no problem has two samples")
        return cls(material.evaluation, sets, material.seed)

    def curves(self, of_set: Callable[[Mapping[str, list[int]], list[int]], np.ndarray]) -> list[Series]:
        """A line with its interval over k = 1 … n for each set; ``of_set``: from problems and ks → ``[P, K]``."""
        lines = []
        for name, problems in self.problems.items():
            ks = places(min(map(len, problems.values())))
            columns = curve_with_interval(of_set(problems, ks), self.seed)
            lines.append(Series(name, ks, *(column.tolist() for column in columns)))
        return lines

    @property
    def note(self) -> str:
        """Intervals and samples, for the figures."""
        return f"bands: 95 % bootstrap over problems, {DRAWS} draws, seed {self.seed}; {self.responses.note}"


@analysis("samples", "Deng et al. 2025, equation 2, figure 1a")
def pass_at_k(material: Material) -> Figure:
    """Unbiased pass@k for k = 1 … n on a logarithmic axis, before and after training."""
    sets = SampleSets.of(material)

    def of_set(problems: Mapping[str, list[int]], ks: list[int]) -> np.ndarray:
        return pass_at_k_by_problem(*counts(sets.responses, problems), ks)

    sizes = [
        f"{name}: {len(problems)} problems, {min(map(len, problems.values()))} samples each"
        for name, problems in sets.problems.items()
    ]
    return Figure(
        title="pass@k",
        x_label="k (samples)",
        y_label="pass@k",
        series=sets.curves(of_set),
        note=f"{'; '.join(sizes)}; {sets.note}",
        log_x=True,
    )
