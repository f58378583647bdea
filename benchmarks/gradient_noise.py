"""The signal-to-noise ratio of recipes' policy gradients per 1,000 sampled tokens, at fixed weights, without training.

    .venv/bin/python benchmarks/gradient_noise.py configs/demo_fr3e.yaml data.order.verifier=strict --repeats 48 \\
        --variants configs/demo_grpo.yaml configs/methods/treerl.yaml "explore.num_anchors=1"

A repeat is one round of the recipe: fresh prompts, First Return, Explore, advantages. Its gradient g is that of the
trainer's loss on all that trains of the round, as one mini-batch before any update; 0 if nothing trains. The oracle is
REINFORCE against the mean of ``--oracle-rollouts`` for each of ``--oracle-prompts``, in eight independent parts. The
ratio along its direction ranks: an estimator may be precise and point elsewhere.

    signal = ‖E g‖² = Σ_{i≠j} ⟨g_i, g_j⟩ / (N (N − 1)), over pairs of *different* repeats
    noise  = tr Cov g = Σ_i ‖g_i‖² / N − signal

Both are unbiased (Hoeffding 1948, U-statistics; McCandlish et al. 2018, arXiv:1812.06162, appendix A.1). Intervals are
95 % bootstrap intervals over repeats, which weigh these sums; a pair of copies of a repeat is no pair.

Dimension key: N repeats, K parts of the oracle, C coordinates; leading axes are draws of the bootstrap.
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path

import jax
import numpy as np

from fr3e_jax.configuration import Config, load_config
from fr3e_jax.configuration.check import check
from fr3e_jax.data.stream import PromptStream
from fr3e_jax.learning.batch_shaping import shape_mini_batch
from fr3e_jax.learning.dispatch import finished
from fr3e_jax.learning.learner import Learner
from fr3e_jax.learning.mini_batches import pack_mini_batch
from fr3e_jax.learning.setup import LearningSetup
from fr3e_jax.learning.update import loss_tokens, mini_batch_gradient, score_full_batch
from fr3e_jax.loop.collection import Batch, StepStages, run_round
from fr3e_jax.loop.kept_bases import KeptBases
from fr3e_jax.loop.state import TrainingState
from fr3e_jax.runs.console import Console
from fr3e_jax.session.run_weights import load_run_params
from fr3e_jax.session.session import open_session

ORACLE_PARTS = 8
_ORACLE_STEP = 1_000_000  # names noise that no repeat uses
_DRAWS = 10_000


def signal_and_noise(products: np.ndarray, counts: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """‖E g‖² and tr Cov g from ⟨g_i, g_j⟩ ``[N, N]``; ``counts [..., N]``: how often a draw took each repeat."""
    counts = np.ones(len(products)) if counts is None else np.asarray(counts, np.float64)
    diagonal = np.diagonal(products)
    total = np.einsum("...i,ij,...j->...", counts, products, counts, optimize=True)
    signal = (total - (counts**2) @ diagonal) / _pairs(counts)
    return signal, counts @ diagonal / counts.sum(axis=-1) - signal


def aimed_signal(crossed: np.ndarray, oracle: np.ndarray, counts: np.ndarray | None = None) -> np.ndarray:
    """⟨E g, E o⟩² / ‖E o‖² from ⟨g_i, o_k⟩ ``[N, K]`` and ⟨o_k, o_l⟩ ``[K, K]``.

    The parts of the oracle are noisy, too. So the square takes two different repeats with two different parts:
    Σ_{i≠j} Σ_{k≠l} ⟨g_i, o_k⟩ ⟨g_j, o_l⟩.
    """
    counts = np.ones(len(crossed)) if counts is None else np.asarray(counts, np.float64)
    parts, k = counts @ crossed, len(oracle)
    same_repeat = (counts**2) @ crossed.sum(axis=1) ** 2
    square = parts.sum(axis=-1) ** 2 - same_repeat - (parts**2).sum(axis=-1) + (counts**2) @ (crossed**2).sum(axis=1)
    return square / (k * (k - 1)) / _pairs(counts) / signal_and_noise(oracle)[0]


def _pairs(counts: np.ndarray) -> np.ndarray:
    """Σ_{i≠j} c_i c_j; NaN where a draw took one repeat alone."""
    pairs = counts.sum(axis=-1) ** 2 - (counts**2).sum(axis=-1)
    return np.where(pairs > 0, pairs, np.nan)


def oracle_config(config: Config, prompts: int, rollouts: int) -> Config:
    """REINFORCE against the mean of a prompt's rollouts, a part of the oracle a round, sampled as ``config`` does."""
    reinforce = Config()
    for section in ("model", "data", "rollout", "tools", "environment", "rewards", "runtime", "mesh", "training"):
        setattr(reinforce, section, copy.deepcopy(getattr(config, section)))
    reinforce.name, reinforce.seed = config.name, config.seed
    reinforce.data.seed += 1  # other prompts than those of the repeats
    reinforce.explore.enabled = False
    reinforce.advantage.base_estimator, reinforce.loss.aggregation = "mean", "token_mean"
    reinforce.rollout.prompts_per_round = prompts // ORACLE_PARTS
    reinforce.rollout.rollouts_per_prompt, reinforce.rollout.reject_degenerate = rollouts, False
    check(reinforce, training=False)
    return reinforce


def repeated(config: Config, run_dir: Path | None, count: int, first_step: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of ``count`` rounds as float32 vectors ``[N, C]``, and the tokens that each sampled ``[N]``.

    Raises:
      ValueError: the recipe has a critic, which would have to be trained first, or keeps bases between steps.
    """
    if config.advantage.base_estimator == "gae" or config.returns.size:
        raise ValueError(f"{config.name}: expected no critic (advantage.base_estimator=gae) and returns.size=0")
    session = open_session(config, keeps_routes=True)
    params, _ = load_run_params(session, run_dir)
    prompts = PromptStream(
        session.task.problems("train"), config.data.seed, session.texts.prompt_ids, config.data.max_prompt_tokens
    )
    # Nothing updates the weights, so the reference may be the policy itself.
    reference = params if config.kl.coefficient else None
    learner = Learner(session.model.train_programs(config), params, None, reference=reference)
    state = TrainingState(learner=learner, prompts=prompts, kept_bases=KeptBases(config.returns))
    vectors, tokens, weights = [], [], session.sampler.weights.of(params)
    with session.grader:
        for state.step in range(first_step, first_step + count):
            batch, before = Batch([]), state.ledger.sampled_tokens
            stages = StepStages(Console("none"), state.ledger)
            run_round(session, state, weights, stages, batch)
            vectors.append(gradient_of(session.learning, learner, state.step, batch.trunks))
            tokens.append(state.ledger.sampled_tokens - before)
    session.sampler.weights.release()
    return np.stack(vectors), np.array(tokens)


def gradient_of(setup: LearningSetup, learner: Learner, step: int, trunks: list) -> np.ndarray:
    """The gradient of the loss on a batch as one mini-batch, as a vector ``[C]``; the learner does not change."""
    gradient = learner.programs.zero_gradients(learner.params)
    if trunks:
        packed = [pack_mini_batch(setup, learner, list(enumerate(trunks)))]
        scored, _ = finished(score_full_batch(setup, learner, step, trunks, packed))
        finished(shape_mini_batch(setup, learner, step, trunks, packed[0], scored.old))
        if loss_tokens(packed[0]):
            gradient, _ = mini_batch_gradient(setup, learner, packed[0], scored)
    leaves = jax.tree.leaves(jax.device_get(learner.programs.total(gradient)))
    return np.concatenate([np.asarray(leaf, np.float32).ravel() for leaf in leaves])


def inner_products(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """⟨left_i, right_k⟩, summed in float64."""
    return left.astype(np.float64) @ right.astype(np.float64).T


def figures(vectors: np.ndarray, tokens: np.ndarray, parts: np.ndarray | None, counts: np.ndarray | None = None):
    """The ratio × 1,000 per 1,000 tokens, also along the oracle's direction (``parts [K, C]``), and the cosine."""
    signal, noise = signal_and_noise(inner_products(vectors, vectors), counts)
    times = np.ones(len(vectors)) if counts is None else counts
    scale = 1e6 / (times @ tokens / times.sum(axis=-1)) / noise
    found = {"SNR": signal * scale}
    if parts is not None:
        crossed, oracle = inner_products(vectors, parts), inner_products(parts, parts)
        inner = times @ crossed.mean(axis=1) / times.sum(axis=-1)
        lengths = np.maximum(signal * signal_and_noise(oracle)[0], 0.0)
        found = {"SNR to the oracle": aimed_signal(crossed, oracle, counts) * scale} | found
        found["cosine with the oracle"] = inner / np.sqrt(np.where(lengths > 0, lengths, np.nan))
    return found


def row(vectors: np.ndarray, tokens: np.ndarray, parts: np.ndarray | None) -> dict[str, str]:
    """The figures of a recipe with their intervals, as text."""
    n = len(vectors)
    draws = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=_DRAWS)
    values, drawn = figures(vectors, tokens, parts), figures(vectors, tokens, parts, draws)
    ends = {name: np.nanpercentile(drawn[name], [2.5, 97.5]) for name in values}
    cells = {name: f"{values[name]:.3g} ({ends[name][0]:.3g} to {ends[name][1]:.3g})" for name in values}
    return cells | {"tokens a repeat": f"{tokens.mean():,.0f}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*", default=[])
    parser.add_argument("--variants", nargs="+", default=[""], help="overrides, or another recipe with overrides")
    parser.add_argument("--repeats", type=int, default=32)
    parser.add_argument("--run", type=Path, help="weights of this run's newest checkpoint")
    parser.add_argument("--oracle-prompts", type=int, default=64, help="a multiple of 8; 0: no oracle")
    parser.add_argument("--oracle-rollouts", type=int, default=256)
    args = parser.parse_intermixed_args()
    configs = {}
    for text in args.variants:
        recipes = [word for word in text.split() if "=" not in word] or [args.recipe]
        overrides = [*args.overrides, *(word for word in text.split() if "=" in word)]
        configs[text or args.recipe] = load_config(recipes[0], overrides, training=False)
    first, parts = next(iter(configs.values())), None
    assert all((one.model, one.data) == (first.model, first.data) for one in configs.values()), "other weights or data"
    if args.oracle_prompts:
        oracle = oracle_config(first, args.oracle_prompts, args.oracle_rollouts)
        parts, _ = repeated(oracle, args.run, ORACLE_PARTS, _ORACLE_STEP)
    for name, config in configs.items():
        cells = row(*repeated(config, args.run, args.repeats), parts)
        if name == next(iter(configs)):
            print(f"| recipe | {' | '.join(cells)} |\n|{'---|' * (1 + len(cells))}")
        print(f"| {name} | {' | '.join(cells.values())} |", flush=True)


if __name__ == "__main__":
    main()
