r"""Low-quality responses: format violations, repetition, language mixing. (Deng et al. 2025, 3.2.2, figure 3d.)

The paper finds irrelevant content (garbled or repetitive text) with a language model. Here it is the paper's own rule
of 4.4.1: a 3-gram redundancy above 0.31.
"""

from __future__ import annotations

import re

import numpy as np

from fr3e_jax.studies.analysis.figure import Figure, Series
from fr3e_jax.studies.analysis.material import Material, NothingToShow, analysis

MOST_REDUNDANCY = 0.31
BOX = "\\boxed{"
CHINESE = re.compile("[一-鿿]")  # CJK unified ideographs, U+4E00 to U+9FFF


def is_misformatted(text: str) -> bool:
    r"""Return whether the answer is unboxed or boxed several times. (Deng et al. 2025, 3.2.2.)"""
    return text.count(BOX) != 1


def mixes_languages(text: str) -> bool:
    """Return whether the text has a Chinese character. (Deng et al. 2025, 3.2.2.)"""
    return CHINESE.search(text) is not None


@analysis("training rollouts", "Deng et al. 2025, 3.2.2, figure 3d")
def low_quality_responses(material: Material) -> Figure:
    r"""Share of defective responses at each step, by defect.

    Format violations are counted where any response of the run has a box; else the share without an answer (outcome
    ``no_answer``). Language mixing needs the tokenizer.
    """
    from fr3e_jax.objectives.redundancy import n_gram_redundancy  # loads jax

    responses = material.training
    redundancy = np.array([n_gram_redundancy(responses.tokens[responses.span(i)]) for i in range(len(responses))])
    defects = {
        f"repetition (3-gram redundancy above {MOST_REDUNDANCY})": redundancy > MOST_REDUNDANCY,
        "cut at the length cap": ~responses.finished,
        "no answer": np.array([outcome == "no_answer" for outcome in responses.outcome]),
    }
    try:
        texts = material.training_texts
    except NothingToShow:
        texts = []
    if texts:
        if any(BOX in text for text in texts):
            defects["format (no box, or several)"] = np.array([is_misformatted(text) for text in texts])
        defects["language mixing (Chinese characters)"] = np.array([mixes_languages(text) for text in texts])
    steps, index = np.unique(responses.step, return_inverse=True)
    count = np.bincount(index)
    return Figure(
        title="Low-quality responses",
        y_label="share of the responses",
        series=[
            Series(name, steps.tolist(), (np.bincount(index, weights=mask) / count).tolist())
            for name, mask in defects.items()
        ],
        note=f"{'' if texts else 'no tokenizer: texts are not read; '}whole responses; {responses.note}",
    )
