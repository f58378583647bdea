"""Held-out evaluation: one greedy answer and some samples per problem."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from fr3e_jax.configuration.schema import Config
from fr3e_jax.data.task import Problem
from fr3e_jax.loop.checkpoints import Checkpointer
from fr3e_jax.loop.experience import SUCCESS
from fr3e_jax.loop.rollouts import Branch, Rollout, Sampling, TrunkRequest
from fr3e_jax.loop.run_directory import RunDirectory, write_json_atomic
from fr3e_jax.loop.session import EVALUATION, Session, open_session, settings_at_fault
from fr3e_jax.objectives import avg_at_k, pass_at_k
from fr3e_jax.policy.network import Params


def best_metric(config: Config) -> str:
    """The metric by which checkpoints are ranked."""
    return f"avg@{config.evaluation.samples}"


def held_out_problems(session: Session) -> list[tuple[int, Problem]]:
    """The first ``evaluation.prompts`` problems of the test split whose prompts are short enough."""
    problems, cap = session.task.problems("test"), session.config.data.max_prompt_tokens
    chosen = []
    for index in range(len(problems)):
        if len(chosen) == session.config.evaluation.prompts:
            break
        if len(session.codec.encode(problems[index].prompt)) <= cap:
            chosen.append((index, problems[index]))
    if not chosen:
        raise ValueError(
            f"task {session.task.name!r} has no held-out problem of at most data.max_prompt_tokens={cap} tokens; "
            "raise it, or give data.eval_path"
        )
    return chosen


def evaluate(session: Session, params: Params) -> dict[str, float]:
    """``avg@k``, ``pass@k``, ``greedy`` and mean length on the held-out problems.

    The sampling noise is the same at every evaluation of a run, so that differences are the weights'.
    """
    e = session.config.evaluation
    with settings_at_fault():
        problems = held_out_problems(session)
    requests = [_request(session, index, problem) for index, problem in problems]
    results, _ = session.engine.sample(params, requests)
    session.engine.take_counts()  # evaluation is not part of the training budget
    rewards = np.array([_grades(session, problem, row) for (_, problem), row in zip(problems, results, strict=True)])
    greedy, samples = rewards[:, 0], rewards[:, 1:]
    correct = (samples >= SUCCESS).sum(axis=1)
    metrics = {f"avg@{e.samples}": float(avg_at_k(samples).mean())}
    metrics |= {f"pass@{k}": float(pass_at_k(e.samples, correct, k).mean()) for k in e.pass_at}
    metrics["greedy"] = float(greedy.mean())
    metrics["length/mean"] = float(np.mean([len(r.token_ids) for row in results for r in row[1:]]))
    metrics["prompts"] = len(problems)
    return metrics


def _request(session: Session, index: int, problem: Problem) -> TrunkRequest:
    e, ids = session.config.evaluation, session.encode(problem.prompt)
    drawn = Sampling(e.temperature, e.top_p, 0, session.codec.stop_ids)
    kinds = [Sampling(0.0, stop_ids=session.codec.stop_ids), *[drawn] * e.samples]
    cap = session.config.rollout.max_response_tokens
    return TrunkRequest(ids, [Branch(len(ids), (EVALUATION, 0, index, m), cap, how) for m, how in enumerate(kinds)])


def _grades(session: Session, problem: Problem, rollouts: list[Rollout]) -> list[float]:
    return [session.grade(problem, np.zeros(0, np.int32), rollout) for rollout in rollouts]


def load_run_params(session: Session, run_dir: Path) -> tuple[Params, int]:
    """Weights of a run's newest checkpoint, and its step; nothing in the run is changed, it may be going on."""
    run = RunDirectory.existing(run_dir)
    if not run.checkpoints.is_dir():
        raise FileNotFoundError(f"{run.checkpoints} does not exist; expected the checkpoints of a run of train or sft")
    with Checkpointer(run.checkpoints, keep_last=1, keep_best=0, best_metric="", read_only=True) as checkpoints:
        step = checkpoints.latest_step()
        if step is None:
            raise FileNotFoundError(f"{run.checkpoints} holds no checkpoint yet; expected at least one complete step")
        arrays, _ = checkpoints.restore(step, {"params": session.sharded_abstract_params()}, partial=True)
    return arrays["params"], step


def evaluate_run(config: Config, run_dir: Path | None) -> int:
    """``fr3e eval``: the configured model, or a run's newest checkpoint; prints JSON, saves it in the run."""
    session = open_session(config)
    with settings_at_fault():
        params, step = (session.fresh_params(), 0) if run_dir is None else load_run_params(session, run_dir)
    metrics = evaluate(session, params)
    if run_dir is not None:
        write_json_atomic(Path(run_dir) / f"evaluation_step_{step:06d}.json", metrics)
    json.dump(metrics, sys.stdout, indent=2)
    print()
    return 0
