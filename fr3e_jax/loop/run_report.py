"""The words at the end of a training run: its summary, the cost of compilation, and why there was nothing to learn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fr3e_jax.configuration.schema import Config
from fr3e_jax.learning.finiteness import NonFiniteUpdate
from fr3e_jax.loop import step_report
from fr3e_jax.loop.expansion import Credited, PromptGroup
from fr3e_jax.loop.state import Progress
from fr3e_jax.rollouts.requests import NonFiniteLogits
from fr3e_jax.runs.ledger import TokenLedger


def run_summary(config: Config, verb: str, state: Progress) -> dict[str, Any]:
    """The content of ``summary.json`` for a finished run of this verb."""
    ledger = state.ledger
    return {
        "recipe": config.name,
        "algorithm": config.algorithm if verb == "train" else verb,
        "seed": config.seed,
        "steps": state.step,
        "updates": state.learner.updates,
        "sampled_tokens": ledger.sampled_tokens,
        "loss_tokens": ledger.loss_tokens,
        "trained_positions": ledger.trained_positions,
        "cpu_seconds": ledger.cpu_seconds,
        "wall_seconds": ledger.wall_seconds,
        "compilations": ledger.compilations._asdict(),
        "before": state.before,
        "after": state.evaluated,
    }


def compilation_line(ledger: TokenLedger) -> str:
    """The console line on the programs compiled, those fetched from the cache, and the seconds spent."""
    made = ledger.compilations
    return (
        f"compiled {made.programs - made.cache_hits} programs and fetched {made.cache_hits} from the cache "
        f"(runtime.compilation_cache) in {made.seconds:.1f} s"
    )


NON_FINITE = (NonFiniteUpdate, NonFiniteLogits)
"""Errors that end a run whose numbers are no longer finite."""
_COLLAPSED = 1e-4  # nats; less than this mean entropy is a policy without choices
FIGURES = ("loss/policy", "loss/supervised", "gradient_norm/max", "gradient_norm/mean", "entropy/mean", "reward/mean")
"""Metrics that show how a run went before its numbers stopped being finite."""


def non_finite_message(
    config: Config,
    error: Exception,
    last: Mapping[str, Any],
    updates: int,
    newest: int | None,
    way_on: str,
    rate: str = "optimizer.learning_rate",
) -> str:
    """The message of a run that left the finite numbers.

    Args:
      config: the run's settings.
      error: one of `NON_FINITE`.
      last: metrics of the last finished step with its ``step``; empty if this process finished none.
      updates: optimizer steps that the weights have seen.
      newest: the newest checkpoint, which was finite when it was saved; None: there is none.
      way_on: how to continue the run, "continue with" a command.
      rate: name of the learning rate's setting.
    """
    figures = [f"{name} {last[name]:.4g}" for name in FIGURES if math.isfinite(last.get(name, math.nan))]
    section, _, field = rate.partition(".")
    advice = [
        f"lower {rate} (now {getattr(getattr(config, section), field):g})",
        f"lower optimizer.max_grad_norm (now {config.optimizer.max_grad_norm:g}; 0 is no limit)",
    ]
    if config.model.compute_dtype != "float32":
        advice.append(f"set model.compute_dtype=float32 (now {config.model.compute_dtype})")
    seen = f" Last finite figures, of step {last['step']}: {', '.join(figures)}." if figures else ""
    if not updates:
        start = f"model.path={config.model.path}" if config.model.path else "the random weights of model.*"
        advice = [f"if the weights that the run starts from ({start}) are damaged, choose others", *advice]
    saved = (
        "There is no checkpoint yet"
        if newest is None
        else f"Nothing of this was saved; the newest checkpoint, of step {newest}, is as it was"
    )
    return f"{error}.{seen} {saved}: {', or '.join(advice)}, then {way_on}"


def no_signal_message(config: Config, groups: list[PromptGroup], credited: list[Credited], rounds: int) -> str:
    """The message of `NoSignal`: the results of the step's rounds, and the settings to change."""
    if not groups:
        return (
            f"{rounds} rounds in a row, all of returns to kept successes, gave nothing to train on: the rollouts of "
            f"each depth earned the same. Raise returns.rollouts (now {config.returns.rollouts}), returns.visits (now "
            f"{config.returns.visits}) or rollout.max_rounds_without_signal (now "
            f"{config.rollout.max_rounds_without_signal})"
        )
    counts = step_report.rollout_metrics(groups, credited)
    right, wrong = int(counts["base_groups/all_right"]), int(counts["base_groups/all_wrong"])
    seen = (
        f"{rounds} rounds in a row gave nothing to train on; of {len(groups)} prompts {right} were all right, "
        f"{wrong} all wrong, {len(groups) - right - wrong} mixed"
    )
    entropy = step_report.moments(step_report.entropies_of(groups))[1]
    collapsed = entropy < _COLLAPSED
    if credited:
        dull = int(counts["state_groups/all_right"] + counts["state_groups/all_wrong"])
        seen += f"; {dull} of {dull + int(counts['state_groups/mixed'])} explored states were all right or all wrong"
    if collapsed:
        advice = (
            f"The policy gives one response to each prompt (mean entropy {entropy:.2g} nats): lower "
            f"optimizer.learning_rate (now {config.optimizer.learning_rate:g}) and start from an earlier checkpoint"
        )
    elif wrong >= right:
        advice = "The task is too hard for this policy: warm it up longer with fr3e sft, choose easier problems"
    else:
        advice = "The policy already solves these problems: choose harder ones"
    if credited and not collapsed:
        cures = "explore.train_base=true, explore.initial_state=fresh or explore.enabled=false"
        advice += f", train what was sampled from the prompt as well ({cures})"
    return (
        f"{seen}. {advice}, raise rollout.rollouts_per_prompt (now {config.rollout.rollouts_per_prompt}) or "
        f"rollout.temperature (now {config.rollout.temperature:g}), or raise rollout.max_rounds_without_signal"
    )
