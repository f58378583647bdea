"""Diversity of samples: distinct final answers, and majority votes.

Dimension key: R responses, N samples of a problem, A distinct answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fr3e_jax.studies.analysis.figure import Figure, Series
from fr3e_jax.studies.analysis.material import Material, NothingToShow, analysis
from fr3e_jax.studies.analysis.success import VOTES, SampleSets, pass_at_k_by_problem
from fr3e_jax.studies.analysis.verdicts import answer_reader

Answer = str | None
_VOTES_AT_ONCE = 4_000_000  # votes summed in one piece


def distinct_answers(answers: Sequence[Answer], ks: Sequence[int]) -> np.ndarray:
    """Expected number of distinct final answers among k of n samples → float64 ``[K]``.

    Σ_a (1 − C(n−n_a, k) / C(n, k)), with n_a samples that answer a: the estimator of pass@k for every answer a. A
    response without an answer adds none. (Deng et al. 2025, figure 1b; the paper gives no formula.)
    """
    frequencies = np.array(list(Counter(answer for answer in answers if answer is not None).values()), np.int64)
    if not len(frequencies):
        return np.zeros(len(ks))
    return pass_at_k_by_problem(np.full(len(frequencies), len(answers)), frequencies, ks).sum(axis=0)


def majority_verdict(votes: np.ndarray, right_votes: np.ndarray) -> np.ndarray:
    """Verdicts of votes, from the votes for each answer and those of them that are right: ``[..., A]`` → ``[...]``.

    The most frequent answer has the share of its responses that are right: 0 or 1 where the verifier judges answers
    alone. Tied answers count equally. Without any answer: 0.
    """
    leads = (votes == votes.max(axis=-1, keepdims=True, initial=1)) & (votes > 0)
    shares = np.where(leads, right_votes / np.maximum(votes, 1), 0.0)
    return shares.sum(axis=-1) / np.maximum(leads.sum(axis=-1), 1)


def majority_curve(
    answers: Sequence[Answer], right: Sequence[bool], ks: Sequence[int], generator: np.random.Generator
) -> np.ndarray:
    """maj@k of one problem → float64 ``[K]``: exact at k = 1 and k = n, between them the mean over seeded subsets.

    A response without an answer has no vote.
    """
    n, names = len(answers), sorted({answer for answer in answers if answer is not None})
    if not names:
        return np.zeros(len(ks))
    votes = np.array([[answer == name for name in names] for answer in answers], np.int32)
    right_votes = votes * np.asarray(right, np.int32)[:, None]
    exact = {
        1: majority_verdict(votes, right_votes).mean(),
        n: majority_verdict(votes.sum(axis=0), right_votes.sum(axis=0)),
    }
    between = [k for k in ks if k not in exact]
    verdicts, ends = np.zeros(len(between)), np.asarray(between, np.int64) - 1
    at_once = max(1, _VOTES_AT_ONCE // votes.size)
    for start in range(0, VOTES if between else 0, at_once):
        orders = np.argsort(generator.random((min(at_once, VOTES - start), n)), axis=1)
        sums = (np.cumsum(counted[orders], axis=1)[:, ends] for counted in (votes, right_votes))
        verdicts += majority_verdict(*sums).sum(axis=0) / VOTES
    by_k = exact | dict(zip(between, verdicts, strict=True))
    return np.array([float(by_k[k]) for k in ks])


def _curves(
    material: Material, of_problem: Callable[[list[Answer], list[bool], list[int]], np.ndarray]
) -> tuple[list[Series], str]:
    sets = SampleSets.of(material)
    responses = sets.responses
    read = answer_reader(material.run.settings)

    def of_set(problems: Mapping[str, list[int]], ks: list[int]) -> np.ndarray:
        rows = []
        for samples in problems.values():
            answers = [read(responses.records[i].response) for i in samples]
            rows.append(of_problem(answers, responses.right[samples].tolist(), ks))
        return np.stack(rows)

    series = sets.curves(of_set)
    if not any(y for line in series for y in line.y):
        raise NothingToShow("no response has a final answer")
    return series, sets.note


@analysis("samples", "Deng et al. 2025, figure 1b")
def answer_diversity(material: Material) -> Figure:
    """Distinct final answers among k samples, before and after training."""
    series, note = _curves(material, lambda answers, _, ks: distinct_answers(answers, ks))
    return Figure(
        title="Distinct final answers",
        x_label="k (samples)",
        y_label="distinct answers, mean over problems",
        series=series,
        note=note,
        log_x=True,
    )


@analysis("samples", "Deng et al. 2025, table 4")
def maj_at_k(material: Material) -> Figure:
    """maj@k for k = 1 … n."""
    generator = np.random.default_rng(material.seed)
    series, note = _curves(material, lambda answers, right, ks: majority_curve(answers, right, ks, generator))
    return Figure(
        title="maj@k",
        x_label="k (samples)",
        y_label="maj@k",
        series=series,
        note=f"{VOTES} seeded subsets of each problem where 1 < k < n; ties share; {note}",
        log_x=True,
    )
