"""Majority votes of samples over their final answers. (Deng et al. 2025, table 4.)

Dimension key: R responses, N samples of a problem, A distinct answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fr3e_jax.studies.analysis.figure import Figure
from fr3e_jax.studies.analysis.material import Material, NothingToShow, analysis
from fr3e_jax.studies.analysis.success import VOTES, SampleSets
from fr3e_jax.studies.analysis.verdicts import answer_of, answer_reader

Answer = str | None
_VOTES_AT_ONCE = 4_000_000  # votes summed in one piece


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


@analysis("samples", "Deng et al. 2025, table 4")
def maj_at_k(material: Material) -> Figure:
    """maj@k for k = 1 … n."""
    sets, generator = SampleSets.of(material), np.random.default_rng(material.seed)
    responses, read = sets.responses, answer_reader(material.run.settings)

    def of_set(problems: Mapping[str, list[int]], ks: list[int]) -> np.ndarray:
        answers = [[answer_of(responses.records[i], read) for i in samples] for samples in problems.values()]
        rights = [responses.right[samples].tolist() for samples in problems.values()]
        return np.stack([majority_curve(*each, ks, generator) for each in zip(answers, rights, strict=True)])

    series = sets.curves(of_set)
    if not any(y for line in series for y in line.y):
        raise NothingToShow("no response has a final answer")
    return Figure(
        title="maj@k",
        x_label="k (samples)",
        y_label="maj@k",
        series=series,
        note=f"{VOTES} seeded subsets of each problem where 1 < k < n; ties share; {sets.note}",
        log_x=True,
    )
