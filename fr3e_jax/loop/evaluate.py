"""Held-out evaluation: one greedy answer per problem, and some samples or none."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.error_conversion import as_config_error
from fr3e_jax.configuration.evaluation_sets import set_settings
from fr3e_jax.configuration.schema import Config, EvaluationConfig
from fr3e_jax.data.task import held_out_split
from fr3e_jax.loop.grading import Grading, rewards_of
from fr3e_jax.loop.prompts import summary_of
from fr3e_jax.loop.rollout_entries import Entry, of_part, records_of
from fr3e_jax.objectives.pass_at_k import avg_at_k, pass_at_k
from fr3e_jax.policy.network import Params
from fr3e_jax.problem import Problem
from fr3e_jax.programs.reshard import NonFiniteWeights
from fr3e_jax.rollouts.noise import EVALUATION
from fr3e_jax.rollouts.requests import Branch, NonFiniteLogits, Rollout, Sampling, TrunkRequest
from fr3e_jax.runs.checkpoint_damage import DamagedCheckpoint
from fr3e_jax.runs.checkpoints import Checkpointer
from fr3e_jax.runs.rollout_parts import WHOLE, Part
from fr3e_jax.runs.rollout_store import RolloutRecord
from fr3e_jax.runs.run_directory import RunDirectory
from fr3e_jax.session.session import Session
from fr3e_jax.verdict import Verdict


def best_metric(config: Config) -> str:
    """The name of the metric that ranks checkpoints: of `set_metric`, or ``avg`` if sets differ in their samples."""
    plans = set_settings(config).values()
    return "avg" if any(e.samples != config.evaluation.samples for e in plans) else set_metric(config.evaluation)


def set_metric(settings: EvaluationConfig) -> str:
    """The name of the accuracy of one set: that of its samples, or of its greedy answers if it takes no samples."""
    return f"avg@{settings.samples}" if settings.samples else "greedy"


@dataclass(frozen=True)
class HeldOut:
    """A held-out problem: ``index`` in the test split names its noise, ``benchmark`` names its set."""

    index: int
    problem: Problem
    prompt_ids: np.ndarray
    benchmark: str
    settings: EvaluationConfig


def settings_of(plans: Mapping[str, EvaluationConfig], usual: EvaluationConfig, problem: Problem) -> EvaluationConfig:
    """The settings of a problem's set: of its split if ``plans`` names that, else of its card, else the usual ones."""
    card, split = problem.extra.get("dataset", ""), problem.id.rpartition("/")[0]
    return plans.get(split) or plans.get(card) or usual


def benchmark_names(problems: Sequence[Problem]) -> Callable[[Problem], str]:
    """A function that names a problem's set: its card, or ``card/split`` if several splits of it are evaluated."""
    sets = {(problem.extra.get("dataset", ""), problem.id.rpartition("/")[0]) for problem in problems}
    splits = Counter(card for card, _ in sets)

    def name(problem: Problem) -> str:
        card = problem.extra.get("dataset", "")
        return problem.id.rpartition("/")[0] if splits[card] > 1 else card

    return name


class Selection(NamedTuple):
    """The held-out problems of an evaluation, and those that it had to skip."""

    chosen: list[HeldOut]
    too_long: int
    unspeakable: list[str]  # a line for each problem that cannot be encoded


def held_out_problems(session: Session) -> Selection:
    """The first ``prompts`` problems of each set of ``evaluation.split`` whose prompts can be used.

    ``prompts`` is that of ``evaluation``, or of the set's entry in ``evaluation.sets``.

    Raises:
      ValueError: a set has no such problem.
    """
    problems = held_out_split(session.task, session.config.evaluation.split)
    data = session.config.data
    chosen: list[HeldOut] = []
    counts: Counter[str] = Counter()
    too_long: Counter[str] = Counter()
    unspeakable: dict[str, list[str]] = {}
    several = len(data.eval) > 1  # a single set ends when it is full: the split may be very long
    name_of = benchmark_names(problems if several else ())
    plans, usual = set_settings(session.config), session.config.evaluation
    for index in range(len(problems)):
        problem = problems[index]
        benchmark = name_of(problem)
        settings = settings_of(plans, usual, problem)
        if counts[benchmark] == settings.prompts:
            if several:
                continue
            break
        try:
            prompt_ids = session.texts.prompt_ids(problem.prompt)
        except ValueError as error:
            unspeakable.setdefault(benchmark, []).append(f"problem {problem.id!r}: {error}")
            continue
        if len(prompt_ids) <= data.max_prompt_tokens:
            chosen.append(HeldOut(index, problem, prompt_ids, benchmark, settings))
            counts[benchmark] += 1
        else:
            too_long[benchmark] += 1
    complaints = [line for lines in unspeakable.values() for line in lines]
    if not chosen or (empty := (set(too_long) | set(unspeakable)) - set(counts)):
        where = f"the set {sorted(empty)[0]}" if chosen else f"task {session.task.name!r}"
        lines = unspeakable.get(sorted(empty)[0], []) if chosen else complaints
        unencoded = f" ({len(lines)} cannot be encoded; the first is {lines[0]})" if lines else ""
        raise ValueError(
            f"{where} has no held-out problem of at most data.max_prompt_tokens={data.max_prompt_tokens} tokens"
            f"{unencoded}; raise it, or name other held-out problems (data.eval, data.eval_path)"
        )
    return Selection(chosen, too_long.total(), complaints)


@dataclass(frozen=True)
class Evaluation:
    """Held-out metrics, and the responses behind them."""

    metrics: dict[str, float]
    problems: Sequence[HeldOut]
    rollouts: Sequence[Sequence[Rollout]]
    """Of each problem, the greedy answer first."""
    verdicts: Sequence[Sequence[Verdict]]

    def entries(self, step: int, part: Part = WHOLE) -> list[Entry]:
        """The responses in one ``part``, as they are stored; ``step``: training steps that the weights have seen."""
        return of_part(list(self._entries(step)), part)

    def records(self, step: int) -> Iterator[RolloutRecord]:
        """The records of all responses, as token ids alone."""
        return records_of(self.entries(step), None)

    def _entries(self, step: int) -> Iterator[Entry]:
        for held_out, rollouts, verdicts in zip(self.problems, self.rollouts, self.verdicts, strict=True):
            for number, (rollout, verdict) in enumerate(zip(rollouts, verdicts, strict=True)):
                fields = {
                    "id": f"eval/{step}/{held_out.index}/{number}",
                    "step": step,
                    "kind": "eval",
                    "prompt_position": held_out.index,
                    "problem_id": held_out.problem.id,
                    "prompt_ids": held_out.prompt_ids,
                    "reward": verdict.reward,
                    "outcome": verdict.outcome,
                    "base": number,
                    "kept": False,
                    "benchmark": held_out.benchmark,
                }
                yield Entry(fields, rollout, held_out.problem.gold)


def _to_stderr(line: str) -> None:
    print(f"fr3e: {line}", file=sys.stderr)


def evaluate(session: Session, params: Params, note: Callable[[str], None] = _to_stderr) -> Evaluation:
    """Sample and grade the held-out problems; the metrics are ``avg@k``, ``pass@k``, ``greedy``, length, and counts.

    With several benchmarks each has its own metrics (``aime24/avg@16``), and the plain names hold the mean over
    benchmarks, of the metrics that all of them have. With different numbers of samples (``evaluation.sets``), ``avg``
    is the mean over benchmarks of each one's avg@k, or of its ``greedy`` if it takes no samples. The sampling noise is
    the same at every evaluation of a run, so that only the weights make a difference. ``note`` gets lines about
    problems that cannot be encoded.

    Raises:
      ConfigError: see `held_out_problems`; or the verifier cannot be used.
    """
    with as_config_error():
        problems, too_long, unspeakable = held_out_problems(session)
    for line in summary_of(unspeakable, "held-out data") if session.processes.first else ():
        note(line)
    nothing = np.zeros(0, np.int32)
    grading = Grading(session.grader, lambda index, _: (problems[index].problem, nothing))
    requests = [_request(session, held_out) for held_out in problems]
    weights = session.sampler.weights.of(params)
    results = session.sampler.sample_uncounted(weights, requests, grading.ended)  # not part of the training budget
    graded = grading.verdicts(range(len(problems)))
    session.grader.check((verdict.outcome for row in graded for verdict in row), "of an evaluation")
    rewards, right = [rewards_of(row) for row in graded], [[verdict.right for verdict in row] for row in graded]
    lengths = [[len(rollout.token_ids) for rollout in row] for row in results]
    answers = sum(map(len, rewards))
    outcomes = session.grader.take_outcomes()
    session.grader.take_wait_seconds()  # a training step does not count this waiting
    members: dict[str, list[int]] = {}
    for number, one in enumerate(problems):
        members.setdefault(one.benchmark, []).append(number)
    each = {
        name: _scores(
            problems[own[0]].settings, *(np.array([rows[i] for i in own]) for rows in (rewards, right, lengths))
        )
        for name, own in members.items()
    }
    shared = [key for key in next(iter(each.values())) if all(key in scores for scores in each.values())]
    metrics = {key: float(np.mean([scores[key] for scores in each.values()])) for key in shared}
    if (best := best_metric(session.config)) == "avg":
        metrics[best] = float(
            np.mean([each[name][set_metric(problems[own[0]].settings)] for name, own in members.items()])
        )
    metrics |= {
        "prompts": len(problems),
        "prompts_too_long": too_long,
        "prompts_unspeakable": len(unspeakable),
        "no_answer": outcomes["no_answer"] / answers,
        "not_graded": outcomes["timeout"] + outcomes["worker_died"] + outcomes["error"],
    }
    if session.sampler.toolbox is not None:
        metrics |= session.sampler.toolbox.held_out_metrics([rollout for row in results for rollout in row])
    if len(each) > 1:
        metrics |= {f"{name}/{key}": value for name, scores in each.items() for key, value in scores.items()}
    return Evaluation(metrics, problems, results, graded)


def _scores(e: EvaluationConfig, rewards: np.ndarray, right: np.ndarray, lengths: np.ndarray) -> dict[str, float]:
    """Metrics of one benchmark from rewards, verdicts and lengths ``[problems, 1 + samples]``, the greedy answer first.

    pass@k counts right answers; the means are of rewards, which a verifier may grade. Without samples, the mean length
    is that of the greedy answers.
    """
    correct = right[:, 1:].sum(axis=1)
    scores = {f"avg@{e.samples}": avg_at_k(rewards[:, 1:]).mean()} if e.samples else {}
    scores |= {f"pass@{k}": pass_at_k(e.samples, correct, k).mean() for k in e.pass_at}
    scores |= {"greedy": rewards[:, 0].mean(), "length/mean": lengths[:, min(e.samples, 1) :].mean()}
    return {name: float(value) for name, value in scores.items()}


def _request(session: Session, held_out: HeldOut) -> TrunkRequest:
    e, ids, index = held_out.settings, held_out.prompt_ids, held_out.index
    sampled = Sampling(e.temperature, e.top_p, 0, session.texts.codec.stop_ids)
    kinds = [Sampling(0.0, stop_ids=session.texts.codec.stop_ids), *[sampled] * e.samples]
    cap = session.config.rollout.max_response_tokens
    branches = [Branch(len(ids), (EVALUATION, 0, index, m), cap, how) for m, how in enumerate(kinds)]
    return TrunkRequest(ids, branches, held_out.problem)


def load_run_params(session: Session, run_dir: Path | None) -> tuple[Params, int]:
    """Weights and step of a run's newest checkpoint; without a run, the weights that a run would start from, and 0.

    Nothing in the run is changed, because the run may still be training.
    """
    if run_dir is None:
        return session.model.fresh_params(session.config), 0
    model = session.model
    return read_run_params(run_dir, model.sharded_abstract_params(), base=model.base_fingerprint())


def read_run_params(run_dir: Path, abstract: Params, step: int | None = None, *, base: str = "") -> tuple[Params, int]:
    """Weights of a run's checkpoint, in the layout of ``abstract``, and the checkpoint's step.

    Args:
      run_dir: the run's directory.
      abstract: shapes, types and shardings of the weights.
      step: which checkpoint; None: the newest.
      base: a hash of the weights below the adapters (`fr3e_jax.session.model.Model.base_fingerprint`).

    Raises:
      FileNotFoundError: there is no run, no checkpoint, or none of that step.
      ValueError: the checkpoint is damaged, its weights have other shapes than ``abstract``, or its adapters belong to
        another base.
    """
    run = RunDirectory.existing(run_dir)
    if not run.checkpoints.is_dir():
        raise FileNotFoundError(f"{run.checkpoints} does not exist; expected the checkpoints of a run of train or sft")
    with Checkpointer(run.checkpoints, keep_last=1, keep_best=0, best_metric="", read_only=True) as checkpoints:
        step = checkpoints.latest_step() if step is None else step
        if step is None:
            raise FileNotFoundError(f"{run.checkpoints} holds no checkpoint yet; expected at least one complete step")
        try:
            arrays, host = checkpoints.restore(step, {"params": abstract}, partial=True)
        except DamagedCheckpoint as error:
            raise DamagedCheckpoint(
                f"{error}; the steps there are {checkpoints.all_steps()}; fr3e train --resume moves damaged ones away "
                "and goes on from a whole one"
            ) from error
    trained_on = host.get("identity", {}).get("base_weights", base)
    if trained_on != base:
        raise ValueError(
            f"the adapters of step {step} of {run_dir} were trained on other base weights ({trained_on}) than those "
            f"that model.path now gives ({base}); put the former weights back, or name them with model.path"
        )
    return arrays["params"], step


@contextlib.contextmanager
def refused_weights(config: Config, run_dir: Path | None, step: int) -> Iterator[None]:
    """Raise `NonFiniteLogits` and `NonFiniteWeights` as a `ConfigError` that names the weights.

    They are those of a run's ``step``, or of the model.
    """
    try:
        yield
    except (NonFiniteLogits, NonFiniteWeights) as error:
        if run_dir is not None:
            found, advice = f"the weights of step {step} of {run_dir}", "use an earlier checkpoint or another run"
        else:
            found, advice = f"the weights of model.path={config.model.path}", "use other weights"
        wider = "" if config.model.compute_dtype == "float32" else ", or set model.compute_dtype=float32"
        raise ConfigError(f"{found} cannot be used: {error}; {advice}{wider}") from error
