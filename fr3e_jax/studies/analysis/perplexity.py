"""Perplexity of right and wrong responses. (Deng et al. 2025, 3.2.3.)"""

from __future__ import annotations

import numpy as np

from fr3e_jax.studies.analysis.figure import Figure, Series
from fr3e_jax.studies.analysis.material import Material, NothingToShow, analysis
from fr3e_jax.studies.analysis.responses import Responses

BINS = 30
OUTER = 0.5  # percent of the responses beyond each end of the axis; they count in the outermost bins


def log_perplexity(responses: Responses) -> np.ndarray:
    """ln PPL(o) = −(1 / |o|) Σ_t ln π(o_t | q, o_<t) over the tokens that the policy wrote → float64 ``[R]``.

    π is the distribution that was sampled from. (Deng et al. 2025, 3.2.3 and eq. 7.)
    """
    return -responses.mean_by_response(responses.logprobs, responses.written)


@analysis("training rollouts", "Deng et al. 2025, 3.2.3, equation 7")
def perplexity_by_outcome(material: Material) -> Figure:
    """Histograms of PPL for right and wrong responses, on bins of equal width in ln PPL."""
    responses = material.training
    logs = log_perplexity(responses)
    measured = np.isfinite(logs)
    if not measured.any():
        raise NothingToShow("no rollout has log-probs")
    low, high = np.percentile(logs[measured], [OUTER, 100 - OUTER])
    edges = np.linspace(low, max(high, low + 1e-6), BINS + 1)
    centres = [float(x) for x in np.exp((edges[:-1] + edges[1:]) / 2)]
    series, medians = [], []
    for name, mask in responses.by_outcome.items():
        values = logs[mask & measured]
        if len(values):
            shares = np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0] / len(values)
            series.append(Series(name, centres, shares.tolist()))
            medians.append(f"median of {name} {np.exp(np.median(values)):.4g}")
    if not series:
        raise NothingToShow("no graded rollout")
    return Figure(
        title="Perplexity of right and wrong responses",
        x_label="perplexity of the response",
        y_label="share of the responses",
        series=series,
        note=f"{', '.join(medians)}; whole responses, under the sampling distribution; the outermost bins hold "
        f"{OUTER} % beyond each end; {responses.note}",
        log_x=True,
    )
