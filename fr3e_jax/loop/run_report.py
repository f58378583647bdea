"""The words at the end of a training run: its summary, the cost of compilation, and why there was nothing to learn."""

from __future__ import annotations

from typing import Any

from fr3e_jax.configuration.schema import Config
from fr3e_jax.loop import step_report
from fr3e_jax.loop.expansion import Credited, PromptGroup
from fr3e_jax.loop.progress import Progress
from fr3e_jax.runs.ledger import TokenLedger


def run_summary(config: Config, progress: Progress, ledger: TokenLedger, after: dict[str, float]) -> dict[str, Any]:
    """The content of ``summary.json`` for a finished run; ``after``: its last held-out metrics."""
    return {
        "recipe": config.name,
        "algorithm": config.algorithm,
        "seed": config.seed,
        "steps": progress.step,
        "updates": progress.updates,
        "sampled_tokens": ledger.sampled_tokens,
        "loss_tokens": ledger.loss_tokens,
        "trained_positions": ledger.trained_positions,
        "cpu_seconds": ledger.cpu_seconds,
        "wall_seconds": ledger.wall_seconds,
        "compilations": ledger.compilations._asdict(),
        "before": progress.before,
        "after": after,
    }


def compilation_line(ledger: TokenLedger) -> str:
    """The console line on the programs compiled, those fetched from the cache, and the seconds spent."""
    made = ledger.compilations
    return (
        f"compiled {made.programs - made.cache_hits} programs and fetched {made.cache_hits} from the cache "
        f"(runtime.compilation_cache) in {made.seconds:.1f} s"
    )


def no_signal_message(config: Config, groups: list[PromptGroup], credited: list[Credited], rounds: int) -> str:
    """The message of `NoSignal`: the results of the step's rounds, and the settings to change."""
    counts = step_report.rollout_metrics(groups, credited)
    right, wrong = int(counts["base_groups/all_right"]), int(counts["base_groups/all_wrong"])
    seen = (
        f"{rounds} rounds in a row gave nothing to train on; of {len(groups)} prompts {right} were all right, "
        f"{wrong} all wrong, {len(groups) - right - wrong} mixed"
    )
    if credited:
        dull = int(counts["state_groups/all_right"] + counts["state_groups/all_wrong"])
        seen += f"; {dull} of {dull + int(counts['state_groups/mixed'])} explored states were all right or all wrong"
    if wrong >= right:
        advice = "The task is too hard for this policy: warm it up longer with fr3e sft, choose easier problems"
    else:
        advice = "The policy already solves these problems: choose harder ones"
    return (
        f"{seen}. {advice}, raise rollout.rollouts_per_prompt (now {config.rollout.rollouts_per_prompt}) or "
        f"rollout.temperature (now {config.rollout.temperature:g}), or raise rollout.max_rounds_without_signal"
    )
