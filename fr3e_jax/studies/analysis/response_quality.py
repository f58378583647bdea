"""Length, perplexity and defects of whole responses. (Deng et al. 2025, 3.2.2, 3.2.3, table 5.)"""

from __future__ import annotations

import numpy as np

from fr3e_jax.studies.analysis.figure import Figure, Series
from fr3e_jax.studies.analysis.material import Material, NothingToShow, analysis
from fr3e_jax.studies.analysis.responses import Responses, by_step

MOST_REDUNDANCY = 0.31
BINS = 30
OUTER = 0.5  # percent of the responses beyond each end of the axis; they count in the outermost bins


@analysis("training rollouts", "Deng et al. 2025, table 5")
def length_by_outcome(material: Material) -> Figure:
    """Length of right and wrong whole responses, by step; the paper compares the lengths of methods."""
    responses, lines = material.graded_training, []
    for name, mask in responses.by_outcome.items():
        lengths = responses.lengths[mask].astype(np.float64)
        steps, (low, high), means = by_step(responses.step[mask], lengths, (0.25, 0.75))
        lines.append(Series(name, steps, means, low, high))
    return Figure(
        title="Length of right and wrong responses",
        y_label="length (tokens)",
        series=lines,
        note="mean over responses, stop token and shared prefix included, band: quartiles; " + responses.note,
    )


def log_perplexity(responses: Responses) -> np.ndarray:
    """ln PPL(o) = −(1 / |o|) Σ_t ln π(o_t | q, o_<t) over the tokens that the policy wrote → float64 ``[R]``.

    π is the distribution that was sampled from. (Deng et al. 2025, 3.2.3 and eq. 7.)
    """
    return -responses.mean_by_response(responses.logprobs, responses.written)


@analysis("training rollouts", "Deng et al. 2025, 3.2.3, equation 7")
def perplexity_by_outcome(material: Material) -> Figure:
    """Histograms of PPL for right and wrong responses, on bins of equal width in ln PPL."""
    responses = material.graded_training
    logs = log_perplexity(responses)
    measured = np.isfinite(logs)
    if not measured.any():
        raise NothingToShow("no rollout has log-probs")
    low, high = np.percentile(logs[measured], [OUTER, 100 - OUTER])
    edges = np.linspace(low, max(high, low + 1e-6), BINS + 1)
    centres = [float(x) for x in np.exp((edges[:-1] + edges[1:]) / 2)]
    series, medians = [], []
    for name, mask in responses.by_outcome.items():
        if len(values := logs[mask & measured]):
            shares = np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0] / len(values)
            series.append(Series(name, centres, shares.tolist()))
            medians.append(f"median of {name} {np.exp(np.median(values)):.4g}")
    return Figure(
        title="Perplexity of right and wrong responses",
        x_label="perplexity of the response",
        y_label="share of the responses",
        series=series,
        note=f"{', '.join(medians)}; whole responses, under the sampling distribution; the outermost bins hold "
        f"{OUTER} % beyond each end; {responses.note}",
        log_x=True,
    )


@analysis("training rollouts", "Deng et al. 2025, 3.2.2, figure 3d")
def low_quality_responses(material: Material) -> Figure:
    """Share of defective responses at each step, by defect.

    The paper finds irrelevant content (garbled or repetitive text) with a language model. Here it is the paper's own
    rule of 4.4.1: a 3-gram redundancy above 0.31.
    """
    from fr3e_jax.objectives.redundancy import n_gram_redundancy  # loads jax

    responses = material.training
    redundancy = np.array([n_gram_redundancy(responses.tokens[responses.span(i)]) for i in range(len(responses))])
    defects = {
        f"repetition (3-gram redundancy above {MOST_REDUNDANCY})": redundancy > MOST_REDUNDANCY,
        "cut at the length cap": responses.column(lambda record: not record.finished),
        "no answer": responses.column(lambda record: record.outcome == "no_answer"),
    }
    steps, index = np.unique(responses.step, return_inverse=True)
    count = np.bincount(index)
    return Figure(
        title="Low-quality responses",
        y_label="share of the responses",
        series=[
            Series(name, steps.tolist(), (np.bincount(index, weights=mask) / count).tolist())
            for name, mask in defects.items()
        ],
        note=f"whole responses; {responses.note}",
    )
