"""Tables of repeated gradients: signal-to-noise ratios of recipes per 1,000 sampled tokens, ranked, with intervals.

Dimension key: N repeats, K parts of the oracle, D draws of the bootstrap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fr3e_jax.objectives.signal_to_noise import aimed_signal, oracle_cosine, signal_and_noise
from fr3e_jax.studies.analysis.bootstrap import DRAWS, percentiles
from fr3e_jax.studies.analysis.figure import Figure, Finding, Series, TextTable

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
        taken = np.ones(len(self.repeats)) if counts is None else counts
        thousands = taken @ self.column("sampled_tokens") / taken.sum(axis=-1) / 1000
        found = {_INTERVALS[0]: signal / noise / thousands}
        if oracle is not None and self.crossed is not None:
            found[_INTERVALS[1]] = aimed_signal(self.crossed, oracle, counts) / noise / thousands
            found[_INTERVALS[2]] = oracle_cosine(self.crossed, oracle, self.products, counts)
        return found


def gradient_findings(
    measured: Sequence[RepeatedGradients], oracle: np.ndarray | None, note: str, seed: int = 0
) -> list[Finding]:
    """The ranked table, its first column as bars, and a table of all repeats.

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
    rows = [_row(one, oracle, seed) for one in measured]
    worst = lambda value: -np.inf if value is None else value
    rows.sort(key=lambda row: -worst(row[ranking]))
    columns = list(rows[0])
    note = f"ranked by {ranking}; 95 % bootstrap intervals over repeats. {note}"
    title = "Signal-to-noise ratio of the policy gradient"
    names = [row["variant"] for row in rows]
    ends = [[row[key] for row in rows] for key in (ranking, f"{ranking}, low", f"{ranking}, high")]
    series = [Series(ranking, names, *ends)]
    return [
        TextTable("gradient_noise", title, columns, [[row[key] for key in columns] for row in rows], SOURCE, note),
        Figure("gradient_noise_bars", title, "bars", "variant", ranking, series, SOURCE, note),
        _all_repeats(measured, note),
    ]


def _row(one: RepeatedGradients, oracle: np.ndarray | None, seed: int) -> dict:
    n = len(one.repeats)
    draws = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=DRAWS)
    drawn = one.figures(oracle, draws)
    row: dict = {"variant": one.name}
    for name, value in one.figures(oracle).items():
        kept = drawn[name][np.isfinite(drawn[name])]
        low, high = percentiles(kept) if len(kept) else (np.nan, np.nan)
        row |= {name: _number(value), f"{name}, low": _number(low), f"{name}, high": _number(high)}
    signal, noise = signal_and_noise(one.products)
    shares = {
        "prompts that train": one.column("training_prompts").sum() / one.column("prompts").sum(),
        "rollouts that train": one.column("training_rollouts").sum() / one.column("rollouts").sum(),
    }
    means = ("sampled_tokens", "loss_tokens", "trained_positions", "cpu_seconds")
    row |= {"SNR of a repeat": _number(signal / noise), "signal": _number(signal), "noise": _number(noise)}
    row |= {"repeats": n} | {f"{name.replace('_', ' ')} a repeat": float(one.column(name).mean()) for name in means}
    return row | {name: float(value) for name, value in shares.items()}


def _number(value: float | np.ndarray) -> float | None:
    """The value, or None where there is none."""
    return float(value) if np.isfinite(value) else None


def _all_repeats(measured: Sequence[RepeatedGradients], note: str) -> TextTable:
    cells = []
    for one in measured:
        for i, repeat in enumerate(one.repeats):
            others = (one.products[i].sum() - one.products[i, i]) / (len(one.repeats) - 1)
            crossed = None if one.crossed is None else float(one.crossed[i].mean())
            cells.append([one.name, i, float(one.products[i, i]), float(others), crossed, *vars(repeat).values()])
    inner = ["squared norm", "mean inner product with the others", "mean inner product with the oracle"]
    columns = ["variant", "repeat", *inner, *(name.replace("_", " ") for name in Repeat.__dataclass_fields__)]
    return TextTable("gradient_repeats", "Every repeat", columns, cells, SOURCE, note)
