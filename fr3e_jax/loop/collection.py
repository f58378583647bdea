"""Full batches: rounds under one set of weights, of fresh prompts or of kept bases, until enough rollouts train.

A round of fresh prompts is First Return and then Explore; a round of kept bases continues earlier successes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from fr3e_jax.configuration.error_conversion import as_config_error
from fr3e_jax.data.stream import Prompt
from fr3e_jax.learning.dispatch import Dispatched
from fr3e_jax.learning.experience import TrainingTrunk, count_rollouts, split_full_batch
from fr3e_jax.learning.update import dispatch_update
from fr3e_jax.loop import step_report
from fr3e_jax.loop.expansion import Credited, PromptGroup, mean_reward
from fr3e_jax.loop.explore import assign_advantages, explored_trunks, place_anchors, roll_out_states
from fr3e_jax.loop.first_return import base_trunks, first_return
from fr3e_jax.loop.kept_bases import credit_visits
from fr3e_jax.loop.run_report import no_signal_message
from fr3e_jax.loop.state import TrainingState
from fr3e_jax.policy.network import Params
from fr3e_jax.runs.console import Console
from fr3e_jax.runs.ledger import TokenLedger
from fr3e_jax.session.session import Session


class NoSignal(RuntimeError):
    """Several rounds in a row gave nothing to train on."""


@dataclass(frozen=True)
class StepStages:
    """The stages of a step: shown and timed."""

    display: Console
    ledger: TokenLedger

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """A block that is one stage."""
        self.display.stage(name)
        with self.ledger.stage(name.replace(" ", "_")):
            yield


@dataclass
class Batch:
    """The trunks that train in a step, and what its rounds sampled."""

    trunks: list[TrainingTrunk]  # ready to train; after the last round, the full batch
    groups: list[PromptGroup] = field(default_factory=list)
    explored: list[Credited] = field(default_factory=list)
    returned: list[Credited] = field(default_factory=list)  # continuations of kept bases
    silent_rounds: int = 0  # the last ones, in a row, that gave nothing to train on
    metrics: dict[str, float] = field(default_factory=dict)  # of kept bases, tools, grading, prompts

    @property
    def mean_reward(self) -> float | None:
        """The mean reward of fresh prompts; None without any that is graded."""
        return mean_reward(self.groups)


def collect(session: Session, state: TrainingState, display: Console) -> Batch:
    """Run rounds until ``training.batch_rollouts`` rollouts are ready to train.

    The next step starts with the surplus (``training.surplus=carry``), or the surplus is dropped.

    Args:
      session: the parts of the run.
      state: its step keys all noise; its prompts, kept bases, carried trunks and counts change.
      display: is told of stages and dropped prompts.

    Raises:
      NoSignal: too many rounds in a row gave nothing to train on.
      Stopped: the run is asked to stop; ``state`` is then that of no step.
    """
    batch = Batch(state.carried)
    batch.trunks, surplus = sample_full_batch(session, state, display, batch)
    _end_of_sampling(session, state, batch, [], surplus)
    return batch


def collect_ahead(session: Session, state: TrainingState, display: Console) -> tuple[Batch, Dispatched[dict]]:
    """Sample the next full batch with the weights before the update, while the batch that waits trains.

    The first step samples its own batch before. The trunks that wait are carried, so that a checkpoint has them.

    Args: as of `collect`.

    Returns:
      The batch that trains, with all that the step sampled; and its update, which may not be finished.

    Raises:
      NoSignal: there is no batch to train on.
      Stopped: the run is asked to stop before the update begins; it then waits for the end of the step.
    """
    engine, batch = session.sampler.engine, Batch(state.carried)
    trained, batch.trunks = sample_full_batch(session, state, display, batch)
    update = Dispatched(dispatch_update(session.learning, state.learner, state.step, trained, state.ledger))
    stop_here, engine.stop_here = engine.stop_here, update.go_on
    try:
        waiting, batch.trunks = sample_full_batch(session, state, display, batch)
    except NoSignal:  # this step is whole; the next one asks for the rest of its batch again
        waiting, batch.trunks = batch.trunks, []
    finally:
        engine.stop_here = stop_here
    _end_of_sampling(session, state, batch, waiting, batch.trunks)
    batch.trunks = trained
    return batch, update


def sample_full_batch(
    session: Session, state: TrainingState, display: Console, batch: Batch
) -> tuple[list[TrainingTrunk], list[TrainingTrunk]]:
    """Add rounds to ``batch`` until its trunks hold a full batch; return that, and the surplus; raises as `collect`."""
    training, stages = session.config.training, StepStages(display, state.ledger)
    policy = rollout_weights(session, state)
    while (missing := training.batch_rollouts - count_rollouts(batch.trunks)) > 0:
        run_round(session, state, policy, stages, batch, missing)
        if batch.silent_rounds >= session.config.rollout.max_rounds_without_signal:
            raise NoSignal(no_signal_message(session.config, batch.groups, batch.explored, batch.silent_rounds))
    full, surplus = split_full_batch(batch.trunks, training.batch_rollouts)
    branches = [branch for trunk in full for branch in trunk.branches]
    # All decisions up to here follow from the prompts and from the sampled tokens, which `Grading` compares.
    session.processes.agree(
        f"step {state.step}, full batch",
        trunk_ids=[trunk.token_ids for trunk in full],
        forks=np.array([branch.fork for branch in branches]),
        branch_ids=[branch.token_ids for branch in branches],
        branch_advantages=[branch.advantages for branch in branches],
    )
    return full, surplus


def _end_of_sampling(
    session: Session,
    state: TrainingState,
    batch: Batch,
    waiting: list[TrainingTrunk],
    surplus: list[TrainingTrunk],
) -> None:
    """Carry what waits to the next step, and the surplus if that is to be carried."""
    carried = waiting + (surplus if session.config.training.surplus == "carry" else [])
    state.carried = [trunk.copy() for trunk in carried]
    batch.metrics = _metrics(session, state, batch)
    session.sampler.weights.release()


def rollout_weights(session: Session, state: TrainingState) -> Params:
    """The weights in the layout and type of rollouts; they are copied at most once for each set of weights."""
    weights, params = session.sampler.weights, state.learner.params
    if not weights.copies:
        return weights.of(params)
    with state.ledger.stage("reshard"):
        return weights.of(params)


def run_round(
    session: Session, state: TrainingState, policy: Params, stages: StepStages, batch: Batch, missing: int = 0
) -> None:
    """Return to kept bases where that is due; else First Return, then Explore. ``batch`` gets what the round gives.

    ``missing``: rollouts that the batch lacks.
    """
    if state.kept_bases.due():
        return_to_kept_bases(session, state, policy, stages, batch)
    else:
        return_and_explore(session, state, policy, stages, batch, missing)
    state.ledger.count_decoding(session.sampler.engine.take_counts())


def return_and_explore(
    session: Session, state: TrainingState, policy: Params, stages: StepStages, batch: Batch, missing: int
) -> None:
    """First Return for the next prompts, and Explore from the bases that it chose.

    Rounds of prompts that the batch needs for certain are sampled as one stream: a long response then keeps one lane,
    and the others go on to the next prompts. The prompts and their tokens are those of one round after another.
    """
    config, explore, step = session.config, session.config.explore, state.step
    with stages.stage("first return"):
        prompts, rounds = _next_prompts(session, state, stages, missing)
        replayed, counts = state.replay.successes_of(prompts), state.success_rates.rollouts(prompts, config.rollout)
        groups = first_return(session, policy, step, prompts, replayed, counts)  # sampled, graded, degenerate rejected
        session.grader.check((o for group in groups for o in group.outcomes), "of a round of prompts")
        accepted = [group for group in groups if group.kept]
        trunks = base_trunks(config, step, accepted) if explore.train_base or not explore.enabled else []
    credited: list[Credited] = []
    if explore.enabled:
        with stages.stage("explore"):
            anchored = place_anchors(session, step, accepted)
            explored = roll_out_states(session, policy, step, anchored)  # sampled and graded
            taught = bool(config.teacher.path)
            credited = assign_advantages(explore, config.advantage, explored, taught=taught)
            trunks += explored_trunks(explore, step, credited, taught=taught)
    silent = _silent_rounds(groups, trunks, rounds)
    trunks = [trunk for trunk in trunks if trunk.branches]  # an estimator may leave a whole group out of training
    batch.silent_rounds = silent + (0 if trunks else batch.silent_rounds)
    rollouts = sum(len(group.rollouts) for group in groups)
    sampling_rounds = rollouts / (len(groups) * config.rollout.rollouts_per_prompt)
    state.kept_bases.add(step, groups, sampling_rounds)
    state.replay.observe(step, groups)
    if config.rollout.allocation != "uniform":
        state.success_rates.observe(groups)
    for group in groups:
        group.trunks.clear()  # no later stage reads the caches of these weights
    batch.groups += groups
    batch.explored += credited
    batch.trunks = batch.trunks + trunks


def return_to_kept_bases(
    session: Session, state: TrainingState, policy: Params, stages: StepStages, batch: Batch
) -> None:
    """Continue kept bases from their depths."""
    config, step = session.config, state.step
    with stages.stage("return"):
        anchored = state.kept_bases.visit(step, state.prompts, session.texts, session.noise)
        explored = roll_out_states(session, policy, step, anchored, config.returns.rollouts)
        outcomes = (
            outcome for visited in explored for state_outcomes in visited.outcomes for outcome in state_outcomes
        )
        session.grader.check(outcomes, "of a round of returns")
        state.kept_bases.learn(explored)
        credited = credit_visits(explored, config.advantage, taught=bool(config.teacher.path))
        trunks = explored_trunks(config.explore, step, credited)
    batch.silent_rounds = 0 if trunks else batch.silent_rounds + 1
    batch.returned += credited
    batch.trunks = batch.trunks + trunks


def _next_prompts(session: Session, state: TrainingState, stages: StepStages, missing: int) -> tuple[list[Prompt], int]:
    """The prompts to sample now, and how many rounds they are; ``missing``: rollouts that the batch lacks."""
    config, rollout = session.config, session.config.rollout
    # Explore keeps caches until the round ends; kept bases decide anew after each round.
    single = config.explore.enabled or config.returns.size
    rounds = 1 if single else certain_rounds(missing, rollout.prompts_per_round * rollout.rollouts_per_prompt)
    count = rounds * rollout.prompts_per_round
    prompts = state.replay.prompts(state.step, count, state.prompts, session.texts, session.noise)
    with as_config_error():
        prompts += state.prompts.take(count - len(prompts))
    for line in state.prompts.complaints:
        stages.display.note(line)
    session.processes.agree(
        f"step {state.step}, prompts",
        prompts=[[prompt.position, prompt.problem.id] for prompt in prompts],
        prompt_ids=[prompt.token_ids for prompt in prompts],
    )
    return prompts, rounds


def certain_rounds(missing: int, of_a_round: int) -> int:
    """Rounds of so many rollouts that a batch needs even if every rollout trains; one stream of prompts samples them.

    ``missing``: rollouts that the batch lacks, at least 1.
    """
    return -(-missing // of_a_round)


def _silent_rounds(groups: list[PromptGroup], trunks: list[TrainingTrunk], rounds: int) -> int:
    """The number of the last rounds that gave nothing to train on.

    Rounds of one stream count as if each had been sampled alone; their trunks are one for each prompt that is kept.
    """
    if rounds == 1:
        return int(not count_rollouts(trunks))
    silent, per_round, trained = 0, len(groups) // rounds, iter(trunks)
    for start in range(0, len(groups), per_round):
        members = [next(trained) for group in groups[start : start + per_round] if group.kept]
        silent = 0 if count_rollouts(members) else silent + 1
    return silent


def _metrics(session: Session, state: TrainingState, batch: Batch) -> dict[str, float]:
    metrics = state.kept_bases.metrics(batch.returned) | state.replay.metrics()
    metrics |= step_report.tool_metrics(session.sampler, batch.groups, batch.explored + batch.returned)
    return metrics | step_report.grading_metrics(session.grader) | state.prompts.metrics()
