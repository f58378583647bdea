"""The training loop, in the order of the method (FR3E; with explore off, GRPO++ and its relatives).

prompts -> First Return -> rewards -> rejection and refill -> anchors -> explore -> rewards -> values -> advantages ->
full batch (`fr3e_jax.loop.collection.collect`) -> mini-batch updates -> metrics, checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fr3e_jax.cluster.membership import across_processes
from fr3e_jax.configuration.schema import Config, KlConfig
from fr3e_jax.data.task import Task
from fr3e_jax.learning.update import update_policy
from fr3e_jax.loop.callbacks import Callback
from fr3e_jax.loop.collection import collect, collect_ahead
from fr3e_jax.loop.run import TrainingRun
from fr3e_jax.loop.state import TrainingState
from fr3e_jax.runs.console import say
from fr3e_jax.runs.ledger import TokenLedger
from fr3e_jax.session.opening import opened_run
from fr3e_jax.session.session import open_session
from fr3e_jax.stores.reading import Place


def train_steps(run: TrainingRun) -> None:
    """Train to the end of the budget.

    Raises:
      Stopped: the run is asked to stop; the last finished step is saved, and one that is sampled is given up.
    """
    state = run.state
    if not state.step:
        run.evaluate_start()
    elif run.evaluation_due():
        state.evaluated = state.evaluated or run.evaluate()  # a signal had interrupted it
        run.opened.checkpoints.rank(state.step, state.evaluated)
    for state.step in run.steps_left():
        with run.step() as record:
            if run.config.mesh.sampler_devices:
                batch, update = collect_ahead(run.session, state, run.console)
                record.rollouts(batch)
                record.metrics(update.finish())
            else:
                batch = collect(run.session, state, run.console)
                record.rollouts(batch)
                learning, learner = run.session.learning, state.learner
                record.metrics(update_policy(learning, learner, state.step, batch.trunks, state.ledger))
            if run.config.kl.coefficient:
                record.metrics({"kl/reset": float(reset_reference(run.config.kl, state, batch.mean_reward))})
        if run.evaluation_due():
            state.evaluated = run.evaluate()
        if run.checkpoint_due():
            run.save()
    run.finish()


def reset_reference(kl: KlConfig, state: TrainingState, reward: float | None) -> bool:
    """Reset the reference to the policy if that is due; return whether it was. ``reward``: the step's mean."""
    due = state.resets.due(kl, state.step, reward)
    if due:
        state.learner.reset_reference()
        state.learner.restart_optimizer()
    return due


@across_processes
def train(
    config: Config,
    run_dir: Place | None = None,
    resume: bool = False,
    *,
    task: Task | None = None,
    callbacks: Sequence[Callback] = (),
) -> int:
    """``fr3e train``: open a run, take its steps, and return the exit code.

    With ``resume``, the run in ``run_dir`` continues exactly from its last checkpoint.

    Args:
      config: the settings.
      run_dir: the directory of the run, or its address in an object store; None: a new one, as the settings say.
      resume: whether the run continues.
      task: the problems and their verifier; None: those that ``data.task`` names.
      callbacks: are told what happens.
    """
    if run_dir is not None:
        config = replace(config, runtime=replace(config.runtime, run_dir=str(run_dir)))  # the caller's stays
    ledger = TokenLedger()
    say("opening the model, its data and the verifier", config.runtime.console)
    session = open_session(config, task, keeps_routes=True)
    code = 1
    with opened_run(session, "train", run_dir, resume) as opened:
        code = TrainingRun(opened, ledger, callbacks).carry_out(train_steps)
    return code or int(opened.mirror.has_failed)
