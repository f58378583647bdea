"""Success of k samples: pass@k and maj@k curves, unsolvable problems and their overlap.

(Deng et al. 2025, 2.1 and 2.4.)

Dimension key: P problems, N samples of a problem, K places on the k axis.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from itertools import combinations

import numpy as np

from fr3e_jax.studies.analysis.bootstrap import means_of_resamples, percentiles
from fr3e_jax.studies.analysis.figure import Figure, Series
from fr3e_jax.studies.analysis.material import Material, NothingToShow
from fr3e_jax.studies.analysis.responses import Responses

DRAWS = 1_000  # resamples of the problems, for the intervals
MOST_PLACES = 48  # on the k axis
VOTES = 200  # seeded subsets for maj@k below k = n
MOST_SETS = 5  # sets whose overlap is shown


def sampled(responses: Responses, *, evaluation: bool) -> dict[tuple[str, int], dict[str, list[int]]]:
    """(benchmark, step) → problem → indices of its independent graded samples: neither greedy answers nor branches."""
    found: dict[tuple[str, int], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for i in range(len(responses)):
        independent = responses.base[i] > 0 if evaluation else responses.kind[i] == "base"
        if independent and responses.graded[i]:
            problem = responses.problem[i] if evaluation else f"{responses.problem[i]} of step {responses.step[i]}"
            found[responses.benchmark[i], int(responses.step[i])][problem].append(i)
    return {key: dict(problems) for key, problems in sorted(found.items())}


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
    from fr3e_jax.objectives.pass_at_k import pass_at_k  # loads jax

    table = np.empty((len(samples), len(ks)))
    for n in np.unique(samples):
        own = samples == n
        table[own] = np.stack([pass_at_k(int(n), right[own], k) for k in ks], axis=1)
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
    return [(benchmark, step) for benchmark, own in steps.items() for step in dict.fromkeys((min(own), max(own)))]


def thirds(steps: Sequence[int]) -> dict[str, list[int]]:
    """The first and the last third of the steps, at least one each; the whole if there is one step alone."""
    own = sorted(set(steps))
    size = max(1, len(own) // 3)
    if len(own) == 1:
        return {f"step {own[0]}": own}
    first, last = own[:size], own[-size:]
    return {f"steps {part[0]} to {part[-1]}" if len(part) > 1 else f"step {part[0]}": part for part in (first, last)}


def sample_sets(material: Material) -> tuple[Responses, str, dict[str, dict[str, list[int]]]]:
    """Sets of problems to compare: the first and last evaluation, else the first and last third of training.

    Returns columns, origin, and name of the set → problem → indices of its samples.

    Raises:
      NothingToShow: no problem has two samples.
    """
    responses, origin = material.sampled_problems
    evaluation = origin.startswith("evaluation")
    groups = sampled(responses, evaluation=evaluation)
    if evaluation:
        named = {
            _set_name(benchmark, step): groups[benchmark, step] for benchmark, step in first_and_last(list(groups))
        }
    else:
        named = {}
        for name, steps in thirds([step for _, step in groups]).items():
            named[name] = {
                problem: rows for (_, step), own in groups.items() if step in steps for problem, rows in own.items()
            }
    named = {name: problems for name, problems in named.items() if min(map(len, problems.values()), default=0) > 1}
    if not named:
        raise NothingToShow("no problem has two samples")
    return responses, origin, named


def _set_name(benchmark: str, step: int) -> str:
    return f"{benchmark}, step {step}" if benchmark else f"step {step}"


def pass_at_k_curve(material: Material) -> Figure:
    """Unbiased pass@k for k = 1 … n on a logarithmic axis, before and after training.

    (Deng et al. 2025, eq. 2, figure 1a.)
    """
    responses, origin, sets = sample_sets(material)
    series, described = [], []
    for name, problems in sets.items():
        samples, right = counts(responses, problems)
        ks = places(int(samples.min()))
        mean, low, high = curve_with_interval(pass_at_k_by_problem(samples, right, ks), material.seed)
        series.append(Series(name, ks, mean.tolist(), low.tolist(), high.tolist()))
        described.append(f"{name}: {len(samples)} problems, {samples.min()} samples each")
    return Figure(
        name="pass_at_k",
        title="pass@k",
        kind="lines",
        x_label="k (samples)",
        y_label="pass@k",
        series=series,
        source="Deng et al. 2025, equation 2, figure 1a",
        note=f"{origin}; {'; '.join(described)}; bands: 95 % bootstrap over problems, {DRAWS} draws, seed "
        f"{material.seed}; {responses.note}",
        log_x=True,
    )


def unsolved(responses: Responses, problems: Mapping[str, Sequence[int]]) -> set[str]:
    """The k-rollout unsolvable problems: those without a right one among their samples. (Deng et al. 2025, 2.1.)"""
    return {problem for problem, rows in problems.items() if not responses.right[list(rows)].any()}


def exclusive_overlaps(sets: Mapping[str, set[Hashable]] | Mapping[str, set[str]]) -> dict[tuple[str, ...], int]:
    """Members of exactly these sets, for every combination of names: the regions of a Venn diagram."""
    union: set = set().union(*sets.values()) if sets else set()
    regions = {c: 0 for size in range(1, len(sets) + 1) for c in combinations(sets, size)}
    for member in union:
        regions[tuple(name for name in sets if member in sets[name])] += 1
    return regions


def overlap_figure(sets: Mapping[str, set[str]], compared: int, samples: int, note: str) -> Figure:
    """Bars of the regions of a Venn diagram (an UpSet plot), and the size of each set."""
    regions = exclusive_overlaps(sets)
    names = [" and ".join(names) + (" only" if len(names) < len(sets) else "") for names in regions]
    return Figure(
        name="unsolvable_overlap",
        title=f"{samples}-rollout unsolvable problems",
        kind="bars",
        x_label="unsolvable in exactly",
        y_label="problems",
        series=[
            Series("in exactly these", names, list(regions.values())),
            Series("in all", list(sets), [len(members) for members in sets.values()]),
        ],
        source="Deng et al. 2025, 2.1, figure 1c",
        note=f"of {compared} problems that all sets have, {samples} samples or fewer each; {note}",
    )


def unsolvable_overlap(materials: Sequence[Material]) -> Figure:
    """Problems that no sample solves, and their overlap: first, middle and last evaluation, or the last of each run.

    (Deng et al. 2025, 2.1 and figure 1c.) Only problems that all sets have are compared, with the same number of
    samples: the first ones of each, as many as the smallest set has.
    """
    rows: dict[str, tuple[Responses, dict[str, list[int]]]] = {}
    for material in materials[:MOST_SETS]:
        responses = material.evaluation
        groups = sampled(responses, evaluation=True)
        steps = sorted({step for _, step in groups})
        for step in (
            steps[-1:] if len(materials) > 1 else sorted({*steps[:1], *steps[len(steps) // 2 :][:1], *steps[-1:]})
        ):
            merged = {p: own for (_, at), problems in groups.items() if at == step for p, own in problems.items()}
            if merged:
                name = f"step {step}" if len(materials) == 1 else f"{material.label}, step {step}"
                rows[name] = (responses, merged)
    if len(rows) < 2:
        raise NothingToShow("needs evaluation samples of two evaluations or two runs")
    common = set.intersection(*(set(problems) for _, problems in rows.values()))
    if not common:
        raise NothingToShow("the evaluations have no problem in common")
    samples = min(len(problems[problem]) for _, problems in rows.values() for problem in common)
    sets = {
        name: unsolved(responses, {problem: problems[problem][:samples] for problem in common})
        for name, (responses, problems) in rows.items()
    }
    dropped = f"; the first {MOST_SETS} of {len(materials)} runs" if len(materials) > MOST_SETS else ""
    note = f"evaluation samples, without the greedy answer{dropped}"
    return overlap_figure(sets, len(common), samples, note)
