"""``fr3e gradient-noise``: the signal-to-noise ratio of a recipe's policy gradient at fixed weights, without training.

A repeat is one round of the recipe: fresh prompts, First Return, Explore, advantages. Its gradient is that of the
trainer's loss on all that trains of the round, as one mini-batch before any update. A round with nothing to train on
has the gradient 0: its tokens are spent. An oracle is plain REINFORCE against the mean of very many rollouts a prompt.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from fr3e_jax.cli.arguments import declare_run_to_read, on_this_machine, positive
from fr3e_jax.cli.parser import Verb
from fr3e_jax.cli.run_selection import run_to_read, settings_of_run
from fr3e_jax.configuration import Config, ConfigError
from fr3e_jax.configuration.check import check
from fr3e_jax.configuration.error_conversion import as_config_error
from fr3e_jax.learning.experience import count_rollouts
from fr3e_jax.learning.learner import Learner
from fr3e_jax.loop.collection import Batch, StepStages, run_round
from fr3e_jax.loop.kept_bases import KeptBases
from fr3e_jax.loop.prompts import PromptFeed
from fr3e_jax.loop.state import TrainingState
from fr3e_jax.objectives.signal_to_noise import count_sketch, inner_products
from fr3e_jax.policy.network import Params
from fr3e_jax.runs.compilation import compilations
from fr3e_jax.runs.console import Console
from fr3e_jax.runs.ledger import cpu_seconds_of_process
from fr3e_jax.session.grading import GradingFailed
from fr3e_jax.session.run_weights import load_run_params, refused_weights
from fr3e_jax.session.session import Session, open_session
from fr3e_jax.studies.analysis.figure import Finding
from fr3e_jax.studies.analysis.finding_content import write_findings
from fr3e_jax.studies.analysis.gradient_findings import Repeat, RepeatedGradients, gradient_findings
from fr3e_jax.studies.laboratory.batch_gradient import batch_gradient
from fr3e_jax.studies.printing import print_tables

SKETCH = 1_000_000  # coordinates; larger gradients are sketched
LEAST_REPEATS = 4
ORACLE_PARTS = 8
_ORACLE_STEP = 1_000_000  # names noise that no repeat uses
LETTERS = {"K": "explore.num_anchors", "M": "explore.rollouts_per_state"}
"""The paper's letters, for short overrides of variants."""


def declare(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("--repeats", type=positive, default=32, metavar="N", help="rounds of a variant (default 32)")
    parser.add_argument(
        "--variants",
        nargs="+",
        default=[],
        metavar="TEXT",
        help="compare these: overrides such as 'explore.num_anchors=2', K=2 M=16 for anchors and rollouts of a state, "
        "or another recipe (FILE.yaml) with overrides or without; settings before --variants hold for all",
    )
    parser.add_argument("--oracle", action="store_true", help="compare with the direction of a large-sample gradient")
    parser.add_argument("--oracle-prompts", type=positive, default=64, metavar="N", help="of the oracle (default 64)")
    parser.add_argument(
        "--oracle-rollouts", type=positive, default=256, metavar="N", help="of each of its prompts (default 256)"
    )
    parser.add_argument(
        "--out",
        type=on_this_machine,
        metavar="DIR",
        help="folder of the results (default: gradient_noise/ of the run or runtime.output_dir)",
    )
    declare_run_to_read(parser, "take the weights of")


def run(arguments: argparse.Namespace) -> int:
    """Measure all variants, print the ranked table, write the files; return the exit code."""
    run_dir = None if arguments.run is None else run_to_read(arguments.run, checkpoints=True)
    texts = arguments.variants or [arguments.recipe]
    settings = [variant_settings(text, arguments.recipe, arguments.overrides) for text in texts]
    configs = [settings_of_run(recipe, overrides, run_dir) for recipe, overrides in settings]
    variants = [Variant(text, config) for text, config in zip(texts, configs, strict=True)]
    oracle = Oracle(arguments.oracle_prompts, arguments.oracle_rollouts) if arguments.oracle else None
    parent = run_dir or Path(configs[0].runtime.output_dir).expanduser()
    folder = Path(arguments.out).expanduser() if arguments.out else parent / "gradient_noise"
    _check(variants, arguments.repeats, oracle)
    try:
        findings = gradient_noise(variants, run_dir, arguments.repeats, oracle, folder)
    except GradingFailed as error:
        print(f"fr3e: {error}", file=sys.stderr)
        return 1
    print_tables(findings[:1])
    print(f"the table and every repeat as JSON and CSV: {folder}")
    return 0


def variant_settings(text: str, recipe: str, overrides: Sequence[str]) -> tuple[str, list[str]]:
    """The recipe and the overrides of a variant's text; the variant's own overrides come last and win.

    Raises:
      ConfigError: the text has more than one recipe, or quotes that do not close.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"--variants {text!r}: {error}") from error
    recipes, settings = [word for word in words if "=" not in word], [word for word in words if "=" in word]
    if len(recipes) > 1:
        raise ConfigError(f"--variants {text!r}: found recipes {' and '.join(recipes)}; expected one at most")
    named = [f"{LETTERS.get(name, name)}={value}" for name, _, value in (word.partition("=") for word in settings)]
    return (recipes or [recipe])[0], [*overrides, *named]


@dataclass(frozen=True)
class Variant:
    """A recipe with its overrides, under the name that the table shows."""

    name: str
    config: Config


@dataclass(frozen=True)
class Oracle:
    """The size of the oracle: ``prompts`` with ``rollouts`` each."""

    prompts: int
    rollouts: int


def gradient_noise(
    variants: Sequence[Variant], run_dir: Path | None, repeats: int, oracle: Oracle | None, folder: Path
) -> list[Finding]:
    """Measure one variant after the other at the same weights, and write the findings after each.

    Args:
      variants: the recipes; they must agree in ``model`` and ``data``. The oracle samples as the first one.
      run_dir: the run whose newest checkpoint has the weights; None: the model that the recipes name.
      repeats: rounds of each variant.
      oracle: the oracle's size; None: no oracle.
      folder: of the files.

    Raises:
      ConfigError: the weights cannot be used, or a variant has no gradient to compare.
      GradingFailed: the verifier fails.
    """
    parts = None
    if oracle is not None:
        reference = Variant("the oracle", oracle_config(variants[0].config, oracle))
        _, parts = _repeated(reference, run_dir, ORACLE_PARTS, of_oracle=True)
    products = None if parts is None else inner_products(parts, parts)
    measured: list[RepeatedGradients] = []
    findings: list[Finding] = []
    for variant in variants:
        costs, vectors = _repeated(variant, run_dir, repeats)
        crossed = None if parts is None else inner_products(vectors, parts)
        measured.append(RepeatedGradients(variant.name, costs, inner_products(vectors, vectors), crossed))
        note = _note(variant.config, run_dir, vectors.shape[1], repeats, oracle)
        findings = gradient_findings(measured, products, note)
        write_findings(findings, folder)
    return findings


def _note(config: Config, run_dir: Path | None, coordinates: int, repeats: int, oracle: Oracle | None) -> str:
    note = f"{repeats} repeats; weights of {run_dir or config.model.path or 'the seed'}; gradients of {coordinates:,} "
    note += "coordinates" + (", a sketch of larger ones" if coordinates == SKETCH else "")
    if oracle is not None:
        note += f"; oracle: {oracle.prompts} prompts with {oracle.rollouts} rollouts each, in {ORACLE_PARTS} parts"
    return note


def _check(variants: Sequence[Variant], repeats: int, oracle: Oracle | None) -> None:
    if repeats < LEAST_REPEATS:
        raise ConfigError(f"--repeats {repeats}: expected at least {LEAST_REPEATS}, to tell signal from noise")
    if oracle is not None and (oracle.rollouts < 2 or oracle.prompts < ORACLE_PARTS or oracle.prompts % ORACLE_PARTS):
        raise ConfigError(
            f"--oracle-prompts {oracle.prompts} --oracle-rollouts {oracle.rollouts}: expected prompts in a multiple of "
            f"{ORACLE_PARTS}, the independent parts of the oracle, and at least 2 rollouts"
        )
    first = variants[0]
    for variant in variants:
        for section in ("model", "data"):
            if getattr(variant.config, section) != getattr(first.config, section):
                raise ConfigError(
                    f"the variants {first.name!r} and {variant.name!r} differ in section {section}; expected the same "
                    "weights and problems: give such settings before --variants, or measure in two commands"
                )
        if variant.config.advantage.base_estimator == "gae":
            raise ConfigError(
                f"{variant.name}: found a critic (advantage.base_estimator=gae), which must train first; expected none"
            )
        if variant.config.returns.size:
            raise ConfigError(f"{variant.name}: a repeat starts without kept bases; expected returns.size=0")


def oracle_config(config: Config, oracle: Oracle) -> Config:
    """REINFORCE against the mean of a prompt's rollouts, a part of the oracle a round, sampled as ``config`` does.

    Summed over all tokens of all prompts, r - mean(r) gives the gradient of the expected reward, up to a factor.
    """
    reinforce = Config()
    for section in ("model", "data", "rollout", "tools", "environment", "rewards", "runtime", "mesh", "training"):
        setattr(reinforce, section, copy.deepcopy(getattr(config, section)))
    reinforce.name, reinforce.seed = config.name, config.seed
    reinforce.explore.enabled, reinforce.tools.branching = False, False
    reinforce.advantage.base_estimator, reinforce.loss.aggregation = "mean", "token_mean"
    reinforce.rollout.prompts_per_round = oracle.prompts // ORACLE_PARTS
    reinforce.rollout.rollouts_per_prompt, reinforce.rollout.reject_degenerate = oracle.rollouts, False
    check(reinforce, training=False)
    return reinforce


def _repeated(
    variant: Variant, run_dir: Path | None, count: int, *, of_oracle: bool = False
) -> tuple[list[Repeat], np.ndarray]:
    """Repeats of a recipe and their gradients ``[N, D]``; those of the oracle have prompts and noise of their own."""
    config = variant.config
    session = open_session(config, keeps_routes=True)
    if session.processes.count > 1:
        raise ConfigError(
            f"found {session.processes.count} processes; expected one: gradients are compared on one host"
        )
    with as_config_error():
        params, step = load_run_params(session, run_dir)
    data = dataclasses.replace(config.data, seed=config.data.seed + of_oracle)
    prompts = PromptFeed(session.task.problems("train"), session.texts, data)
    shown = Console(config.runtime.console, stream=sys.stderr, compiled=compilations)
    # Nothing updates the weights, so the reference may be the policy itself.
    reference = params if config.kl.coefficient else None
    learner = Learner(session.model.train_programs(config), params, None, reference=reference)
    state = TrainingState(learner, prompts, KeptBases(session.config.returns))
    repeats, vectors = [], []
    with session.grader, refused_weights(config.model, run_dir, step), shown:
        for i in range(count):
            shown.stage(f"{variant.name}: repeat {i + 1} of {count}")
            state.step = i + 1 + of_oracle * _ORACLE_STEP
            repeat, vector = _one_repeat(session, state)
            repeats.append(repeat)
            vectors.append(vector)
    session.sampler.weights.release()
    return repeats, np.stack(vectors)


def _one_repeat(session: Session, state: TrainingState) -> tuple[Repeat, np.ndarray]:
    """The round of ``state.step`` and its gradient as a vector."""
    learner, start, before = state.learner, cpu_seconds_of_process(), state.ledger.sampled_tokens
    batch, stages = Batch([]), StepStages(state.step, Console("none"), state.ledger, session.processes)
    run_round(session, state, session.sampler.weights.of(learner.params), stages, batch)
    groups, credited, trunks = batch.groups, batch.explored, batch.trunks
    summed = batch_gradient(session.learning, learner, state.step, trunks)
    programs, gradient = learner.programs, summed.gradient
    if gradient is None:
        gradient = programs.total(programs.zero_gradients(learner.params))
    vector = as_vector(gradient)
    explored = sum(len(state) for base in credited for state in base.rollouts)
    repeat = Repeat(
        sampled_tokens=state.ledger.sampled_tokens - before,
        loss_tokens=summed.loss_tokens,
        trained_positions=summed.positions,
        prompts=len(groups),
        training_prompts=len({tuple(trunk.token_ids[: trunk.prompt_tokens].tolist()) for trunk in trunks}),
        rollouts=sum(len(group.rollouts) for group in groups) + explored,
        training_rollouts=count_rollouts(trunks),
        cpu_seconds=cpu_seconds_of_process() - start,
    )
    return repeat, vector


def as_vector(gradient: Params) -> np.ndarray:
    """A gradient as one float32 vector on the host; with more than `SKETCH` coordinates, its count sketch.

    All gradients of a call share the places and signs of the sketch, so that their inner products can be compared.
    """
    leaves = [np.asarray(leaf).ravel() for leaf in jax.tree.leaves(jax.device_get(gradient))]
    if sum(leaf.size for leaf in leaves) <= SKETCH:
        return np.concatenate(leaves).astype(np.float32)
    total = np.zeros(SKETCH)
    for i, leaf in enumerate(leaves):
        generator = np.random.default_rng(i)
        places, signs = generator.integers(0, SKETCH, leaf.size), generator.choice(np.array([-1, 1]), leaf.size)
        total += count_sketch(leaf.astype(np.float32), places, signs, SKETCH)
    return total.astype(np.float32)


VERB = Verb(
    "fr3e gradient-noise configs/demo_fr3e.yaml --variants 'K=1 M=32' 'K=4 M=8' configs/demo_grpo.yaml --oracle",
    declare,
    run,
)
