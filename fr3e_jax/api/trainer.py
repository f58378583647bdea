"""Training from Python: a recipe, a user's problems, rewards and callbacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fr3e_jax.configuration import ConfigError, load_config
from fr3e_jax.configuration.error_conversion import as_config_error
from fr3e_jax.configuration.evaluation_sets import best_metric
from fr3e_jax.configuration.load import Overrides, listed
from fr3e_jax.configuration.schema import Config
from fr3e_jax.data.python_task import AdaptedTask, MakeEnvironment, PythonTask, Rewards, Rows
from fr3e_jax.data.task import Task, load_task
from fr3e_jax.loop.callbacks import Callback, check_callbacks
from fr3e_jax.loop.train import train
from fr3e_jax.rewards.verifier import UserCodeError
from fr3e_jax.runs.checkpoints import Checkpointer
from fr3e_jax.runs.declared_metrics import is_score
from fr3e_jax.runs.metrics import read_metrics, recorded_scores
from fr3e_jax.runs.run_directory import RunDirectory
from fr3e_jax.studies.reports.run_page import PageAtTheEnd

if TYPE_CHECKING:
    from fr3e_jax.api.policy import Policy


class TrainingFailed(RuntimeError):
    """A run ended before its budget was spent; the message says at which step and why."""


@dataclass(frozen=True, repr=False)
class TrainingResult:
    """A run that has ended.

    Attributes:
      run_dir: its directory.
      state: ``finished``, or ``stopped`` by Ctrl-C, a signal or a callback; then it can be resumed.
      history: the metrics of each training step.
      evaluations: the held-out metrics, before the first step and after the last one included.
      best_checkpoint: the checkpoint with the best held-out score; None if none has a score.
    """

    run_dir: Path
    state: str
    history: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    best_checkpoint: Path | None

    def __repr__(self) -> str:
        """The result in five lines."""
        steps = len(self.history)
        rewards = [record["reward/mean"] for record in self.history if "reward/mean" in record]
        first, last = (self.evaluations[0], self.evaluations[-1]) if self.evaluations else ({}, {})
        shares = [f"{name} {first[name]:.1%} -> {last[name]:.1%}" for name in last if is_score(name) and name in first]
        lines = {
            "reward": f"{rewards[0]:.3f} -> {rewards[-1]:.3f}" if rewards else "of no step",
            "held-out": ", ".join(shares) or "not evaluated",
            "best": self.best_checkpoint or "no checkpoint has a score",
            "run": self.run_dir,
        }
        ending = f"{self.state} after {steps} step{'s' * (steps != 1)}"
        return "\n".join([ending, *(f"{name:<9} {value}" for name, value in lines.items())])

    def policy(self) -> Policy:
        """The policy after the last step."""
        from fr3e_jax.api.policy import load_policy

        return load_policy(self.run_dir)


class Trainer:
    """A training run from Python, with what `fr3e train` does.

    Args:
      recipe: a YAML file.
      reward: ``f(prompt, response, **columns) -> float`` in [0, 1], 1 for right; or a list of functions, or of
        ``(function, weight)``, whose weighted mean is the reward. The mean of each is the metric ``rewards/NAME``. A
        function gets the columns that it names. It runs in this process, and what it raises comes back as it is. None:
        the verifier of the recipe, or with ``problems`` exact equality with the row's ``gold`` or ``answer``.
      problems: rows with a ``prompt``, a text or a list of messages: a list of dicts, a file (JSONL, JSON, CSV,
        Parquet), a ``datasets.Dataset``, a Grain source. None: the task of the recipe.
      held_out: rows to evaluate on; None: every tenth of ``problems``, which then does not train.
      environment: a class, or another callable without arguments, whose objects have ``reset(problem, seed)`` and
        ``step(text)`` (docs/users/environments.md). Its steps give the rewards. None: the recipe's
        ``environment.kind``.
      callbacks: are told of steps, evaluations, checkpoints and the end; metrics that they return are recorded.
      overrides: settings, ``{"explore.num_anchors": 2}``, or a list of texts as on the command line.
      run_dir: the directory or address of a new run; None: ``runtime.run_dir``, or a new one in ``runtime.output_dir``.

    Raises:
      ConfigError: a setting is wrong, or a problem, a callback or the signature of a reward cannot be used.
    """

    def __init__(
        self,
        recipe: str | Path,
        *,
        reward: Rewards | None = None,
        problems: Rows | None = None,
        held_out: Rows | None = None,
        environment: MakeEnvironment | None = None,
        callbacks: Sequence[Callback] = (),
        overrides: Overrides = (),
        run_dir: str | Path | None = None,
    ):
        of_environment = [] if environment is None else ["environment.kind=task"]
        self.config: Config = load_config(recipe, [*listed(overrides), *of_environment])
        self.callbacks = tuple(callbacks)
        self.run_dir = run_dir
        if held_out is not None and problems is None:
            raise ConfigError("held_out is given without problems; expected both, or the recipe's own task (data.task)")
        if environment is not None and reward is not None:
            raise ConfigError(
                "reward and environment are both given; expected one: an environment's steps give rewards"
            )
        kind = self.config.environment.kind
        if reward is not None and self.config.environment.enabled:
            raise ConfigError(
                f"reward is given, and environment.kind={kind} gives the rewards; return the reward from step(), or "
                "override environment.kind=none"
            )
        judged = self.config.judge.enabled and self.config.judge.alone
        if reward is not None and judged:
            raise ConfigError(
                f"reward is given, and judge.model={self.config.judge.model} alone gives the rewards; override "
                "judge.weight=0.5 (or another share) to have both, or judge.model="
            )
        self._task: Task | None = None
        with as_config_error(TypeError, ValueError, OSError):
            check_callbacks(self.callbacks)
            if problems is not None:
                self._task = PythonTask(problems, held_out, reward, environment, judged=judged)
                self.config.data.task, self.config.data.verifier = PythonTask.name, ""
            elif reward is not None or environment is not None:
                self._task = AdaptedTask(load_task(self.config.data), reward, environment)
                if reward is not None:
                    self.config.data.verifier = ""

    def __repr__(self) -> str:
        task = self.config.data.task if self._task is None else self._task.name
        return f"Trainer({self.config.name!r}, task {task!r})"

    def train(self, resume: str | Path | None = None) -> TrainingResult:
        """Train to the end of the budget.

        Args:
          resume: the directory or address of a run to continue, with the same recipe, problems and overrides.

        Raises:
          ConfigError: a setting names something that cannot be used.
          TrainingFailed: the run ended before its budget was spent.
          Exception: whatever a reward or a callback raised, with its traceback.
        """
        ending = _Ending()
        page = [PageAtTheEnd(self.config.runtime.console)] if self.config.runtime.report else []
        run_dir = self.run_dir if resume is None else resume
        try:
            train(
                self.config,
                run_dir,
                resume is not None,
                task=self._task,
                callbacks=[ending, *page, *self.callbacks],
            )
        except UserCodeError as error:
            if error.__cause__ is None:
                raise
            error.__cause__.add_note(str(error))
            raise error.__cause__ from None
        if ending.run_dir is None or ending.state == "failed":
            raise TrainingFailed(f"{ending.run_dir}: {ending.reason}")
        records = read_metrics(RunDirectory(ending.run_dir).metrics)
        return TrainingResult(
            run_dir=ending.run_dir,
            state=ending.state,
            history=[record for record in records if record["kind"] == "train"],
            evaluations=[record for record in records if record["kind"] == "eval"],
            best_checkpoint=_best_checkpoint(self.config, ending.run_dir),
        )


class _Ending(Callback):
    """Notes where the run was and how it ended."""

    def __init__(self) -> None:
        self.run_dir: Path | None = None
        self.state, self.reason = "failed", "the run ended before its first step"

    def on_start(self, run_dir: Path, step: int) -> None:
        self.run_dir = run_dir

    def on_end(self, state: str, reason: str) -> None:
        self.state, self.reason = state, reason


def _best_checkpoint(config: Config, run_dir: Path) -> Path | None:
    run = RunDirectory(run_dir)
    scores = recorded_scores(run.metrics, best_metric(config.evaluation, config.data.eval))
    with Checkpointer(run.checkpoints, scores=scores, read_only=True) as checkpoints:
        step = checkpoints.best_step()
    return None if step is None else run.checkpoints / str(step)
