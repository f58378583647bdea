"""The programs that a run will call, found by its own loop: rounds, packing and updates without a device.

The loop runs as in training, with lengths and verdicts drawn at random. Only the programs are traced in place of being
called (`fr3e_jax.programs.rehearsal`). So the sizes that come out are those that the run would choose for responses of
these lengths. They are a forecast: other lengths may lead to other sizes.
"""

from __future__ import annotations

import contextlib
import copy
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from fr3e_jax.cluster.processes import Processes
from fr3e_jax.configuration.schema import Config
from fr3e_jax.learning.learner import Learner, abstract_learner, restored_learner
from fr3e_jax.learning.row_forecast import planned_menu
from fr3e_jax.learning.update import update_policy
from fr3e_jax.loop.collection import NoSignal, collect
from fr3e_jax.loop.evaluate import evaluate
from fr3e_jax.loop.grading import ResponseGrader
from fr3e_jax.loop.kept_bases import KeptBases
from fr3e_jax.loop.progress import Progress
from fr3e_jax.loop.prompts import PromptFeed
from fr3e_jax.loop.round_size import Yield
from fr3e_jax.loop.rounds import Rounds
from fr3e_jax.problem import Problem
from fr3e_jax.programs.critic_programs import CriticPrograms
from fr3e_jax.programs.rehearsal import Rehearsal, pretended, rehearsing
from fr3e_jax.programs.train_programs import TrainPrograms
from fr3e_jax.rollouts.engine import RolloutEngine, go_on
from fr3e_jax.rollouts.expected_lengths import expected_lengths
from fr3e_jax.rollouts.rehearsed_calls import RehearsedTools
from fr3e_jax.rollouts.rehearsed_decoder import RehearsedDecoder
from fr3e_jax.rollouts.requests import Rollout
from fr3e_jax.runs.ledger import TokenLedger
from fr3e_jax.session.sampler import Sampler
from fr3e_jax.session.session import Session
from fr3e_jax.verdict import Verdict

SUCCESS = 0.25  # share of right responses to a prompt that is not beyond the policy


@dataclass(frozen=True)
class Forecast:
    """What to rehearse: steps, the start's evaluation, and how responses turn out."""

    lengths: np.ndarray  # tokens of whole responses, to draw from
    steps: int = 3
    evaluation: bool = True
    success: float = SUCCESS


class Programs(NamedTuple):
    """The training programs of a run."""

    policy: TrainPrograms
    critic: CriticPrograms | None = None


def expected(config: Config, steps: int = 3) -> Forecast:
    """The forecast of a recipe, from ``rollout.expected_tokens``."""
    rollout = config.rollout
    return Forecast(expected_lengths(rollout.expected_tokens, rollout.max_response_tokens), steps)


class _Known:
    """A verdict that is there at once."""

    def __init__(self, verdict: Verdict):
        self._verdict = verdict

    def done(self) -> bool:
        return True

    def result(self) -> Verdict:
        return self._verdict


class _DrawnVerdicts(ResponseGrader):
    """Grades at random: every other problem is beyond the policy, as its responses are all wrong."""

    def __init__(self, success: float):
        self.processes, self._wait_seconds = Processes(), 0.0
        self._success, self._random = success, np.random.default_rng(1)
        self._prompts: dict[str, bool] = {}

    def submit(self, problem: Problem, prefix: np.ndarray, rollout: Rollout) -> Any:
        within_reach = self._prompts.setdefault(problem.id, len(self._prompts) % 2 == 0)
        right = within_reach and self._random.random() < self._success
        return _Known(Verdict(float(right), "right" if right else "wrong"))

    def take_outcomes(self) -> Counter[str]:
        return Counter()


class _AnsweredSampler(Sampler):
    """A sampler whose rollouts have a tool's answer of one token in their middle, so that ARPO branches there."""

    def _sample(self, params, requests, select, ended, going_on):
        choose = select and (lambda index, rollouts, wait: select(index, [_answered(r) for r in rollouts], wait))
        results, promoted = super()._sample(params, requests, choose, ended, going_on)
        return [[_answered(rollout) for rollout in row] for row in results], promoted


def _answered(rollout: Rollout) -> Rollout:
    length = len(rollout.token_ids)
    return replace(rollout, tool_written=np.arange(length) == length // 2)


def rehearse(session: Session, forecast: Forecast, programs: Programs) -> Rehearsal:
    """The programs of the first steps of a run, in the order of their first call.

    Args:
      session: of the run; nothing of it changes.
      forecast: what to rehearse.
      programs: the training programs of the run.
    """
    own = _on_its_own(session, forecast)
    config = own.config
    with rehearsing() as rehearsal:
        learner = _pretended_learner(config, programs)
        learner.menu = planned_menu(own.learning, programs.policy.shards)
        if forecast.evaluation:
            evaluate(own, learner.params, note=lambda line: None)
        feed = PromptFeed(own.task.problems("train"), own.texts, config.data, config.rollout.prompts_per_round)
        progress, ledger = Progress(KeptBases(own.config.returns)), TokenLedger()
        rounds = Rounds(own, feed, KeptBases(own.config.returns), Yield(), ledger, _NoConsole())
        with contextlib.suppress(NoSignal):
            for step in range(1, forecast.steps + 1):
                found = collect(rounds, progress, own.sampler.weights.of(learner.params), step)
                own.sampler.weights.release()
                update_policy(own.learning, learner, step, found.batch, ledger)
    return rehearsal


class _NoConsole:
    """A console that shows nothing."""

    def stage(self, name: str) -> None:
        """Show no stage."""

    def note(self, text: str) -> None:
        """Show no line."""


def _on_its_own(session: Session, forecast: Forecast) -> Session:
    """The session with a decoder, weights, tools and a grader that do nothing."""
    config = copy.deepcopy(session.config)
    sampler, cap = session.sampler, config.rollout.max_response_tokens
    engine: RolloutEngine = copy.copy(sampler.engine)
    tools = sampler.toolbox and RehearsedTools(sampler.toolbox)
    engine.programs = RehearsedDecoder(sampler.engine.programs, forecast.lengths, cap, resumes=tools is not None)
    engine.stop_here = go_on
    engine.take_counts()
    kind = _AnsweredSampler if config.tools.branching else Sampler
    own = kind(engine, copy.copy(sampler.weights), tools)
    own.weights.release()
    return replace(session, config=config, sampler=own, grader=_DrawnVerdicts(forecast.success))


def _pretended_learner(config: Config, programs: Programs) -> Learner:
    held = abstract_learner(*programs, reference=config.kl.coefficient > 0)
    learner = restored_learner(*programs, pretended(held), 0)
    programs.policy.init_optimizer(learner.params)
    if programs.critic is not None:
        programs.critic.init_optimizer(programs.critic.initial_params(programs.policy.whole(learner.params)))
    return learner
