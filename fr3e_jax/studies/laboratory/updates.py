"""``fr3e updates``: how the updates between two checkpoints of a run changed the probabilities of sampled tokens.

(Deng et al. 2025, 3.2.2, figure 4.) Dimension key: T tokens of all responses.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fr3e_jax.cli.arguments import on_this_machine, positive, steps
from fr3e_jax.cli.parser import Verb
from fr3e_jax.cli.run_selection import run_to_read, saved_config
from fr3e_jax.cluster.processes import own_processes
from fr3e_jax.configuration import ConfigError, load_config
from fr3e_jax.configuration.error_conversion import as_config_error
from fr3e_jax.configuration.schema import Config
from fr3e_jax.objectives.entropy import gradient_weight
from fr3e_jax.programs.decode_steps import Alternatives
from fr3e_jax.runs.checkpoints import Checkpointer
from fr3e_jax.runs.rollout_store import RolloutRecord
from fr3e_jax.session.run_weights import read_run_params
from fr3e_jax.session.session import Session, open_session
from fr3e_jax.studies.analysis.figure import Figure, Finding, Series, TextTable
from fr3e_jax.studies.analysis.finding_content import write_findings
from fr3e_jax.studies.analysis.stored_run import StoredRun
from fr3e_jax.studies.printing import print_tables

SMALL = 0.06  # a change of probability below this is none (Deng et al. 2025, 3.2.2)
TOP = 0.2  # the share of tokens with the greatest changes
TENTHS = 10


def declare(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("run", metavar="RUN", help="directory of a training run with two checkpoints or more")
    parser.add_argument(
        "--steps", metavar="A,B", type=steps, default=(), help="the checkpoints (default: the newest two)"
    )
    parser.add_argument("--responses", type=positive, default=128, metavar="N", help="rollouts to score (default 128)")
    parser.add_argument("--out", type=on_this_machine, metavar="DIR", help="folder of the files (default RUN/analysis)")


def run(arguments: argparse.Namespace) -> int:
    """Score the rollouts under both checkpoints, write the findings, print their tables; return the exit code."""
    run_dir = run_to_read(arguments.run, checkpoints=True)
    config = load_config(saved_config(run_dir), training=False)
    results = token_updates(config, run_dir, arguments.steps, arguments.responses)
    folder = Path(arguments.out).expanduser() if arguments.out else run_dir / "analysis"
    write_findings(results, folder)
    print_tables(results)
    print(f"all findings as JSON and CSV: {folder}")
    return 0


def token_updates(config: Config, run_dir: Path, steps: Sequence[int], responses: int) -> list[Finding]:
    """The change of the tokens of a run's base rollouts between two checkpoints.

    Args:
      config: the run's settings.
      run_dir: the run.
      steps: the two checkpoints; empty: the newest two.
      responses: the number of base rollouts to score, drawn by the run's seed from the steps between.

    Raises:
      ConfigError: there are no two such checkpoints, or no rollouts are stored between them.
    """
    own_processes()  # refuses a machine without the devices that are asked for
    run = StoredRun.open(run_dir)
    earlier, later = _two(run, steps)
    chosen = _responses(run, earlier, later, responses, config.seed)
    session = open_session(config)
    scored = []
    for step in (earlier, later):
        with as_config_error():
            params = read_run_params(run_dir, session.model, step)[0]
        scored.append(_scores(session, params, chosen))
        session.sampler.weights.release()
    before, after = scored
    lengths = [len(record.token_ids) for record in chosen]
    advantages = np.repeat([np.nan if record.advantage is None else record.advantage for record in chosen], lengths)
    ratios = np.exp(before.own_logprobs - np.concatenate([record.logprobs for record in chosen]))
    weights = np.asarray(gradient_weight(ratios, advantages, config.loss.epsilon_high))
    right = np.repeat([record.outcome == "right" for record in chosen], lengths)
    note = (
        f"checkpoints of steps {earlier} and {later}; {len(chosen)} base rollouts of the steps between, "
        f"{sum(lengths):,} tokens; positive samples are right responses"
    )
    return [update_summary(before, after, right, np.abs(weights), note), update_by_entropy(before, after, right, note)]


def _two(run: StoredRun, steps: Sequence[int]) -> tuple[int, int]:
    folder = run.directory.checkpoints
    if not folder.is_dir():
        raise ConfigError(f"{folder} does not exist; expected the checkpoints of a run of train")
    with Checkpointer(folder, read_only=True) as checkpoints:
        saved = checkpoints.all_steps()
    pair = list(steps) or saved[-2:]
    if len(pair) != 2 or pair[0] >= pair[1] or not set(pair) <= set(saved):
        raise ConfigError(
            f"{run.directory.path} has checkpoints of steps {', '.join(map(str, saved)) or 'none'}; expected two of "
            "them, the earlier first: --steps A,B (checkpoint.keep_last and keep_best decide how many are kept)"
        )
    return pair[0], pair[1]


def _responses(run: StoredRun, earlier: int, later: int, count: int, seed: int) -> list[RolloutRecord]:
    """Base rollouts of the steps after ``earlier`` up to ``later``, as many of each step, drawn by chance."""
    stored = [step for step in run.steps() if earlier < step <= later]
    if not stored:
        raise ConfigError(
            f"{run.directory.rollouts} has no rollouts of steps {earlier + 1} to {later}; expected those that a run "
            "stores (runtime.store_rollouts)"
        )
    chosen: list[RolloutRecord] = []
    for i, step in enumerate(stored):
        bases = [record for record in run.rollouts(step) if record.kind == "base" and len(record.token_ids)]
        share = (count * (i + 1)) // len(stored) - (count * i) // len(stored)
        order = np.random.default_rng([seed, step]).permutation(len(bases))[:share]
        chosen += [bases[index] for index in np.sort(order)]
    if not chosen:
        raise ConfigError(f"steps {earlier + 1} to {later} sampled no base rollout; expected at least one: --steps A,B")
    return chosen


def _scores(session: Session, params, chosen: Sequence[RolloutRecord]) -> Alternatives:
    """The tokens of the responses under one set of weights, a few responses at a time."""
    engine, weights, parts = session.sampler.engine, session.sampler.weights.of(params), []
    for start in range(0, len(chosen), engine.slots):
        some = chosen[start : start + engine.slots]
        sequences = [np.concatenate([record.prompt_ids, record.token_ids]).astype(np.int32) for record in some]
        trunks = engine.prefill(weights, sequences)
        rows = np.concatenate([np.full(len(record.token_ids), row) for row, record in enumerate(some)])
        positions = np.concatenate([len(r.prompt_ids) + np.arange(len(r.token_ids)) for r in some])
        ids = np.concatenate([record.token_ids for record in some])
        parts.append(engine.programs.alternatives(weights, trunks[0].batch, rows, positions, ids))
    return Alternatives(*map(np.concatenate, zip(*parts, strict=True)))


def probability_changes(before: Alternatives, after: Alternatives) -> np.ndarray:
    """Δp of each token → float64 ``[T]``."""
    return np.subtract(*(np.exp(np.asarray(side.own_logprobs, np.float64)) for side in (after, before)))


def update_summary(
    before: Alternatives, after: Alternatives, right: np.ndarray, weights: np.ndarray, note: str
) -> TextTable:
    """Shares of small changes, mean changes, gradients and candidates, for positive and negative samples.

    G_t is averaged over the tokens of responses that trained. FR3E's base rollouts do not.

    Args:
      before, after: the tokens ``[T]`` under the two checkpoints.
      right: bool ``[T]``, the token's response is right, a positive sample.
      weights: |α_t| ``[T]`` (`objectives.entropy.gradient_weight`); NaN where the response trained nothing.
      note: of the finding.
    """
    delta, weighted = probability_changes(before, after), before.magnitudes * weights
    trained, size = ~np.isnan(weighted), np.abs(delta)
    most_changed = np.zeros(len(size), bool)
    most_changed[np.argsort(-size, kind="stable")[: max(1, round(TOP * len(size)))]] = True
    masks = {"all": np.ones(len(size), bool), "positive samples": right, "negative samples": ~right}
    rows: list[dict[str, Any]] = []
    for name, mask in masks.items():
        if not mask.any():
            continue
        top = mask & most_changed
        rows.append(
            {
                "tokens of": name,
                "tokens": int(mask.sum()),
                f"share with |Δp| < {SMALL}": _mean(size[mask] < SMALL),
                "mean Δp": _mean(delta[mask]),
                "mean |Δp|": _mean(size[mask]),
                "share that rose": _mean(delta[mask] > 0),
                "entropy of the top 20 %": _mean(before.entropies[top]),
                "entropy of all": _mean(before.entropies[mask]),
                "G_t/|α_t| of the top 20 %": _mean(before.magnitudes[top]),
                "G_t/|α_t| of all": _mean(before.magnitudes[mask]),
                "G_t of the top 20 %": _mean(weighted[top & trained]),
                "G_t of all": _mean(weighted[mask & trained]),
                "branching factor before": _mean(before.candidates[mask]),
                "branching factor after": _mean(after.candidates[mask]),
            }
        )
    return TextTable(
        name="token_updates",
        title="Token probability updates",
        columns=list(rows[0]),
        cells=[list(row.values()) for row in rows],
        source="Deng et al. 2025, 3.2.2, eq. 4 and 2.2",
        note=note,
    )


def update_by_entropy(before: Alternatives, after: Alternatives, right: np.ndarray, note: str) -> Figure:
    """Mean Δp of positive and negative samples, and mean |Δp|, by tenth of the entropy."""
    delta, order = probability_changes(before, after), np.argsort(before.entropies, kind="stable")
    tenth = np.empty(len(order), int)
    tenth[order] = np.arange(len(order)) * TENTHS // max(1, len(order))

    def line(name: str, values: np.ndarray, mask: np.ndarray) -> Series:
        return Series(name, list(range(1, TENTHS + 1)), [_mean(values[mask & (tenth == i)]) for i in range(TENTHS)])

    return Figure(
        name="updates_by_entropy",
        title="Probability updates by entropy",
        x_label="tenth of the entropy before, from the lowest",
        y_label="mean change",
        series=[
            line("positive samples, Δp", delta, right),
            line("negative samples, Δp", delta, ~right),
            line("all, |Δp|", np.abs(delta), np.ones(len(order), bool)),
        ],
        source="Deng et al. 2025, figure 4",
        note=note,
    )


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None


VERB = Verb("fr3e updates runs/demo-20250101-120000 --steps 60,70", declare, run, recipe=False)
