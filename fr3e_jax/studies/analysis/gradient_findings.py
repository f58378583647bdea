"""Tables of repeated gradients: signal-to-noise ratios of recipes per 1,000 sampled tokens, ranked, with intervals.

Dimension key: N repeats, K parts of the oracle, D draws of the bootstrap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fr3e_jax.objectives.signal_to_noise import aimed_signal, oracle_cosine, signal_and_noise
from fr3e_jax.studies.analysis.bootstrap import DRAWS, percentiles
from fr3e_jax.studies.analysis.figure import Finding, TextTable, finite

SOURCE = "this project; McCandlish et al. 2018, arXiv:1812.06162, appendix A.1"
_INTERVALS = ("SNR per 1,000 tokens", "SNR to the oracle per 1,000 tokens", "cosine with the oracle")


@dataclass(frozen=True)
class Repeat:
    """The cost of one repeat and the part of it that trains."""

    sampled_tokens: int
    loss_tokens: int
    trained_positions: int
    prompts: int
    training_prompts: int  # with a rollout that trains
    rollouts: int
    training_rollouts: int
    cpu_seconds: float


@dataclass(frozen=True)
class RepeatedGradients:
    """The repeats of one recipe with the inner products of their gradients.

    Attributes:
      name: of the recipe or its variant.
      repeats: N of them.
      products: ⟨g_i, g_j⟩ ``[N, N]``.
      crossed: ⟨g_i, o_k⟩ ``[N, K]`` with the parts of the oracle; None: there is none.
    """

    name: str
    repeats: Sequence[Repeat]
    products: np.ndarray
    crossed: np.ndarray | None = None

    def column(self, name: str) -> np.ndarray:
        """One field of all repeats ``[N]``."""
        return np.array([getattr(repeat, name) for repeat in self.repeats], np.float64)

    def figures(self, oracle: np.ndarray | None, counts: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """The figures of `_INTERVALS`; with the ``counts`` of a bootstrap ``[D, N]``, those of each draw ``[D]``."""
        signal, noise = signal_and_noise(self.products, counts)
        times = np.ones(len(self.repeats)) if counts is None else counts
        thousands = times @ self.column("sampled_tokens") / times.sum(axis=-1) / 1000
        figures = {_INTERVALS[0]: signal / noise / thousands}
        if oracle is not None and self.crossed is not None:
            figures[_INTERVALS[1]] = aimed_signal(self.crossed, oracle, counts) / noise / thousands
            figures[_INTERVALS[2]] = oracle_cosine(self.crossed, oracle, self.products, counts)
        return figures


def gradient_findings(
    measured: Sequence[RepeatedGradients], oracle: np.ndarray | None, note: str, seed: int = 0
) -> list[Finding]:
    """The ranked table, and a table of all repeats.

    With an ``oracle`` (⟨o_k, o_l⟩ ``[K, K]``) the ratio along its direction ranks, without one the whole ratio. If the
    oracle has no signal of its own, it is left out, and the note says so. The intervals are 95 % percentile intervals
    of a bootstrap over repeats. The oracle is not drawn again.
    """
    if oracle is not None:
        strength, spread = map(float, signal_and_noise(oracle))
        note += f"; SNR of a part of the oracle: {strength / spread:.3g}"
        if strength <= 0:
            note += ", so it has no direction: give more --oracle-prompts or --oracle-rollouts"
            oracle = None
    ranking = _INTERVALS[1] if oracle is not None else _INTERVALS[0]
    rows = [_row(gradients, oracle, seed) for gradients in measured]
    rows.sort(key=lambda row: np.inf if row[ranking] is None else -row[ranking])
    columns = list(rows[0])
    note = f"ranked by {ranking}; 95 % bootstrap intervals over repeats. {note}"
    ranked = TextTable(
        name="gradient_noise",
        title="Signal-to-noise ratio of the policy gradient",
        columns=columns,
        cells=[list(row.values()) for row in rows],
        source=SOURCE,
        note=note,
    )
    return [ranked, _all_repeats(measured, note)]


def _row(gradients: RepeatedGradients, oracle: np.ndarray | None, seed: int) -> dict:
    n = len(gradients.repeats)
    draws = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=DRAWS)
    drawn = gradients.figures(oracle, draws)
    row: dict = {"variant": gradients.name}
    for name, value in gradients.figures(oracle).items():
        valid = drawn[name][np.isfinite(drawn[name])]
        low, high = map(float, percentiles(valid)) if len(valid) else (math.nan, math.nan)
        row |= {name: finite(float(value)), f"{name}, low": finite(low), f"{name}, high": finite(high)}
    signal, noise = map(np.float64, signal_and_noise(gradients.products))
    row |= {"SNR of a repeat": finite(signal / noise), "signal": finite(signal), "noise": finite(noise), "repeats": n}
    for name in ("sampled_tokens", "loss_tokens", "trained_positions", "cpu_seconds"):
        row[f"{name.replace('_', ' ')} a repeat"] = float(gradients.column(name).mean())
    for name in ("prompts", "rollouts"):
        trained, everything = gradients.column(f"training_{name}").sum(), gradients.column(name).sum()
        row[f"{name} that train"] = float(trained / everything)
    return row


def _all_repeats(measured: Sequence[RepeatedGradients], note: str) -> TextTable:
    cells = []
    for gradients in measured:
        for i, repeat in enumerate(gradients.repeats):
            row = gradients.products[i]
            others = (row.sum() - row[i]) / (len(row) - 1)
            crossed = None if gradients.crossed is None else float(gradients.crossed[i].mean())
            cells.append([gradients.name, i, float(row[i]), float(others), crossed, *vars(repeat).values()])
    inner = ["squared norm", "mean inner product with the others", "mean inner product with the oracle"]
    columns = ["variant", "repeat", *inner, *(name.replace("_", " ") for name in Repeat.__dataclass_fields__)]
    return TextTable(
        name="gradient_repeats", title="Every repeat", columns=columns, cells=cells, source=SOURCE, note=note
    )
