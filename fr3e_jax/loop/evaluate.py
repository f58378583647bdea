"""Held-out evaluation: one greedy answer per problem, and some samples or none."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fr3e_jax.configuration.error_conversion import as_config_error
from fr3e_jax.configuration.evaluation_sets import best_metric, set_metric, set_settings
from fr3e_jax.configuration.schema import EvaluationConfig
from fr3e_jax.data.task import held_out_split
from fr3e_jax.loop.rollout_entries import Entry
from fr3e_jax.objectives.pass_at_k import avg_at_k, pass_at_k
from fr3e_jax.policy.network import Params
from fr3e_jax.problem import Problem
from fr3e_jax.rollouts.noise import EVALUATION
from fr3e_jax.rollouts.requests import Branch, Rollout, Sampling, TrunkRequest
from fr3e_jax.session.grading import Grading, rewards_of
from fr3e_jax.session.session import Session
from fr3e_jax.verdict import FAULTS, Verdict

MOST_SHOWN = 5  # dropped prompts that are named at once


@dataclass(frozen=True)
class HeldOut:
    """A held-out problem: ``index`` in the test split names its noise, ``benchmark`` names its set."""

    index: int
    problem: Problem
    prompt_ids: np.ndarray
    benchmark: str
    settings: EvaluationConfig

    def entry(
        self,
        step: int,
        sample: int,
        rollout: Rollout,
        verdict: Verdict,
        prefix: np.ndarray | None = None,
        **fields: Any,
    ) -> Entry:
        """A response to it as it is stored; ``fields`` are further ones of its record."""
        fields |= {
            "step": step,
            "prompt_position": self.index,
            "problem_id": self.problem.id,
            "prompt_ids": self.prompt_ids,
            "reward": verdict.reward,
            "outcome": verdict.outcome,
            "base": sample,
            "kept": False,
            "benchmark": self.benchmark,
        }
        return Entry(fields, rollout, self.problem.gold, prefix)


class Selection(NamedTuple):
    """The held-out problems of an evaluation, and those that it had to skip."""

    chosen: list[HeldOut]
    too_long: int
    unspeakable: list[str]  # a line for each problem that cannot be encoded


def _card_and_split(problem: Problem) -> tuple[str, str]:
    return problem.extra.get("dataset", ""), problem.id.rpartition("/")[0]


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
    # A set is named by its card, or by card/split if several splits of the card are evaluated.
    splits = Counter(card for card, _ in {_card_and_split(problem) for problem in problems}) if several else Counter()
    plans, usual = set_settings(session.config.evaluation, session.config.data.eval), session.config.evaluation
    for index in range(len(problems)):
        problem = problems[index]
        card, split = _card_and_split(problem)
        benchmark = split if splits[card] > 1 else card
        settings = plans.get(split) or plans.get(card) or usual
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
            f"{unencoded}; raise it, or name other held-out problems (data.eval)"
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

    def entries(self, step: int) -> Iterator[Entry]:
        """The responses as they are stored; ``step``: training steps that the weights have seen."""
        for held_out, rollouts, verdicts in zip(self.problems, self.rollouts, self.verdicts, strict=True):
            for sample, (rollout, verdict) in enumerate(zip(rollouts, verdicts, strict=True)):
                name = f"eval/{step}/{held_out.index}/{sample}"
                yield held_out.entry(step, sample, rollout, verdict, id=name, kind="eval")


def summary_of(complaints: Sequence[str]) -> list[str]:
    """Lines for the console: how many held-out prompts are dropped, and the first few."""
    if not complaints:
        return []
    more = [f"  and {len(complaints) - MOST_SHOWN} more"] if len(complaints) > MOST_SHOWN else []
    head = f"{len(complaints)} prompts of the held-out data cannot be encoded and are dropped:"
    return [head, *(f"  {line}" for line in complaints[:MOST_SHOWN]), *more]


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
    for line in summary_of(unspeakable) if session.processes.first else ():
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
    for index, held_out in enumerate(problems):
        members.setdefault(held_out.benchmark, []).append(index)
    each = {
        name: _scores(
            problems[indices[0]].settings, *(np.array([rows[i] for i in indices]) for rows in (rewards, right, lengths))
        )
        for name, indices in members.items()
    }
    shared = [key for key in next(iter(each.values())) if all(key in scores for scores in each.values())]
    metrics = {key: float(np.mean([scores[key] for scores in each.values()])) for key in shared}
    if (best := best_metric(session.config.evaluation, session.config.data.eval)) == "avg":
        metrics[best] = float(
            np.mean([each[name][set_metric(problems[indices[0]].settings)] for name, indices in members.items()])
        )
    metrics |= session.grader.take_reward_means() | session.grader.take_judge_counts()
    metrics |= {
        "prompts": len(problems),
        "prompts_too_long": too_long,
        "prompts_unspeakable": len(unspeakable),
        "no_answer": outcomes["no_answer"] / answers,
        "not_graded": sum(outcomes[fault] for fault in FAULTS),
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
