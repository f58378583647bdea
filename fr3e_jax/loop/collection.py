"""Full batches: rounds of prompts until enough rollouts train."""

from __future__ import annotations

from dataclasses import dataclass, field

from fr3e_jax.learning.experience import TrainingTrunk, count_rollouts, split_full_batch
from fr3e_jax.loop import agreement, step_report
from fr3e_jax.loop.expansion import Credited, PromptGroup
from fr3e_jax.loop.progress import Progress
from fr3e_jax.loop.rounds import Rounds
from fr3e_jax.loop.run_report import no_signal_message
from fr3e_jax.policy.network import Params


class NoSignal(RuntimeError):
    """Several rounds of prompts in a row gave nothing to train on."""


@dataclass
class Collected:
    """A full batch, and what the rounds that filled it sampled."""

    batch: list[TrainingTrunk] = field(default_factory=list)
    groups: list[PromptGroup] = field(default_factory=list)
    credited: list[Credited] = field(default_factory=list)
    returned: list[Credited] = field(default_factory=list)  # continuations of kept bases
    metrics: dict[str, float] = field(default_factory=dict)  # of kept bases, tools, grading, prompts


def collect(rounds: Rounds, progress: Progress, params: Params, step: int) -> Collected:
    """Run rounds of prompts until ``training.batch_rollouts`` rollouts are ready to train.

    The next step starts with the surplus (``training.surplus=carry``), or the surplus is dropped.

    Args:
      rounds: the parts of the run.
      progress: its partial batch, kept bases and yields change.
      params: the weights in the layout of rollouts.
      step: the step that trains on the batch; it keys all noise.

    Raises:
      NoSignal: too many rounds in a row gave nothing to train on.
    """
    config, found, ready, silent = rounds.session.config, Collected(), progress.carried, 0
    while (missing := config.training.batch_rollouts - count_rollouts(ready)) > 0:
        done = rounds.run(params, step, missing)
        for trunk in done.trunks:
            trunk.step = step
        found.returned += done.returned
        found.groups += done.groups
        found.credited += done.credited
        ready = ready + done.trunks
        silent = done.silent + (0 if done.trunks else silent)
        if silent >= config.rollout.max_rounds_without_signal:
            progress.carried = ready
            raise NoSignal(no_signal_message(config, found.groups, found.credited, silent))
    found.batch, rest = split_full_batch(ready, config.training.batch_rollouts)
    rounds.compare("full batch", agreement.of_batch, found.batch)
    progress.carried = rest if config.training.surplus == "carry" else []
    found.metrics = _metrics(rounds, progress, found)
    return found


def _metrics(rounds: Rounds, progress: Progress, found: Collected) -> dict[str, float]:
    session, metrics = rounds.session, progress.kept_bases.metrics(found.returned)
    metrics |= step_report.tool_metrics(session.sampler, found.groups, found.credited + found.returned)
    return metrics | step_report.grading_metrics(session.grader) | rounds.prompts.metrics()
