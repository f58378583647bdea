"""Interventions of ``fr3e intervene``: both sides of a replaced token, rolled out. (Deng et al. 2025, eq. 5, 6.)

Each response is one cached trunk. Its replacements are read from the hidden states of that trunk, and both sides of
every replacement branch from it: the original side after the token, the other side before it, with the substitute as a
given token. So no position of a prompt or a response passes through the network a second time.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fr3e_jax.cluster.membership import across_processes
from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.error_conversion import as_config_error
from fr3e_jax.configuration.schema import Config
from fr3e_jax.loop.evaluate import HeldOut, held_out_problems
from fr3e_jax.loop.rollout_entries import Entry, records_of
from fr3e_jax.objectives.intervention import intervention, read_group, replaceable
from fr3e_jax.policy.network import Params
from fr3e_jax.problem import Problem
from fr3e_jax.rollouts.noise import CHOICE, SAMPLE, Noise
from fr3e_jax.rollouts.requests import Branch, Rollout, TrunkRequest
from fr3e_jax.rollouts.tool_calls import answered_calls
from fr3e_jax.runs import rollout_store
from fr3e_jax.runs.compilation import compilations
from fr3e_jax.runs.console import Console
from fr3e_jax.runs.run_directory import RunDirectory
from fr3e_jax.session.grading import Grading, GradingFailed
from fr3e_jax.session.run_weights import load_run_params, refused_weights
from fr3e_jax.session.session import Session, open_session
from fr3e_jax.studies.analysis.bootstrap import interval_of_mean
from fr3e_jax.studies.analysis.figure import Figure, Finding, Series, TextTable
from fr3e_jax.verdict import Verdict

ORIGINAL, SUBSTITUTED = 0, 1  # the sides of a replacement
STEM = "intervene"


@dataclass(frozen=True)
class InterventionPlan:
    """The tokens to replace.

    Attributes:
      groups: name of each group as the user wrote it, with its group and share
        (`fr3e_jax.objectives.intervention.read_group`).
      problems, responses: held-out problems, and responses sampled for each.
      tokens: tokens of each response that are replaced, at most, for each group.
      rollouts: k, continuations of each side.
    """

    groups: dict[str, tuple[str, float]]
    problems: int
    responses: int
    tokens: int
    rollouts: int


@dataclass
class SampledResponse:
    """A sampled response with its verdict and the tokens that are replaced in it."""

    held_out: HeldOut
    sample: int
    rollout: Rollout
    verdict: Verdict
    positions: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)  # by group

    @property
    def chosen(self) -> list[int]:
        """The positions of all groups, each once."""
        return sorted({int(position) for positions in self.positions.values() for position in positions})


@dataclass(frozen=True)
class Replacement:
    """One replaced token: both sides' rollouts and verdicts, ``[k]`` each."""

    response: SampledResponse
    position: int
    substitute: int
    logprob: float
    candidates: int
    rollouts: tuple[Sequence[Rollout], Sequence[Rollout]]
    verdicts: tuple[Sequence[Verdict], Sequence[Verdict]]

    def accuracy(self, side: int) -> np.ndarray:
        """1 for each right continuation of a side, else 0."""
        return np.array([verdict.right for verdict in self.verdicts[side]], np.float64)


def read_groups(text: str) -> dict[str, tuple[str, float]]:
    """The groups of ``entropy:top20%,random`` by their names as given.

    Raises:
      ConfigError: one of them is no group, or there is none.
    """
    try:
        groups = {name: read_group(name) for name in text.split(",") if name}
    except ValueError as error:
        raise ConfigError(f"--tokens: {error}") from error
    if not groups:
        raise ConfigError("--tokens is empty; expected groups such as entropy:top20%,entropy:bottom20%")
    return groups


@across_processes
def intervene(
    config: Config, run_dir: Path | None, plan: InterventionPlan, folder: Path, results: list[Finding]
) -> int:
    """Replace tokens, write the rollouts into ``folder``, append the findings to ``results``; return the exit code.

    Raises:
      ConfigError: the weights or the problems cannot be used, or no token can be replaced.
    """
    session = open_session(config)
    with as_config_error():
        params, step = load_run_params(session, run_dir)
    shown = config.runtime.console if session.processes.first else "none"
    console = Console(shown, stream=sys.stderr, compiled=compilations)
    session.sampler.report = console.progress
    try:
        with session.grader, refused_weights(config.model, run_dir, step), console:
            weights = session.sampler.weights.of(params)
            console.stage("sampling responses")
            responses = _responses(session, weights, plan)
            longest = config.rollout.max_response_tokens
            choose(responses, plan, Noise(config.seed), session.texts.codec.stop_ids, longest)
            if not any(response.chosen for response in responses):
                raise ConfigError(
                    "no token can be replaced: all chosen responses are a stop token alone, or tools wrote them; "
                    "sample more responses (--responses), or name another group (--tokens)"
                )
            console.stage("continuing both sides of each replacement")
            session.sampler.engine.take_counts()
            replacements = list(replaced(session, weights, responses, plan.rollouts))
            outcomes = (
                verdict.outcome for replacement in replacements for side in replacement.verdicts for verdict in side
            )
            session.grader.check(outcomes, "after replacements")
    except GradingFailed as error:
        print(f"fr3e: {error}", file=sys.stderr)
        return 1
    counts = session.sampler.engine.take_counts()
    if session.processes.first:
        decode = session.texts.codec.decode
        records = records_of(_entries(replacements, responses, step), session.texts)
        rollout_store.write_rollouts(RunDirectory(folder), step, records, stem=STEM)
        note = (
            f"{len(replacements)} replacements in {len(responses)} responses to {plan.problems} held-out problems, "
            f"{plan.rollouts} continuations of each side; {counts.prefill_positions:,} prefix positions computed, "
            f"{counts.reused_prefix_positions:,} read from their cache"
        )
        results += findings(replacements, plan, note)
        results.append(_examples(replacements, decode, note))
    return 0


def _responses(session: Session, weights: Params, plan: InterventionPlan) -> list[SampledResponse]:
    """Sampled and graded responses to the first problems, at the temperature of rollouts."""
    with as_config_error():
        problems = held_out_problems(session).chosen[: plan.problems]
    cap, sampling = session.config.rollout.max_response_tokens, session.sampling()
    requests = [
        TrunkRequest(
            problem.prompt_ids,
            [
                Branch(len(problem.prompt_ids), (SAMPLE, 0, problem.index, n), cap, sampling)
                for n in range(plan.responses)
            ],
        )
        for problem in problems
    ]
    grading = Grading(session.grader, lambda index, _: (problems[index].problem, np.zeros(0, np.int32)))
    rollouts, _ = session.sampler.sample(weights, requests, ended=grading.ended)
    verdicts = grading.verdicts(range(len(problems)))
    return [
        SampledResponse(problem, n, rollout, verdict)
        for problem, row, graded in zip(problems, rollouts, verdicts, strict=True)
        for n, (rollout, verdict) in enumerate(zip(row, graded, strict=True))
    ]


def choose(
    responses: Sequence[SampledResponse], plan: InterventionPlan, noise: Noise, stop_ids: Sequence[int], longest: int
) -> None:
    """Set the ``positions`` of each response: of each group, up to ``plan.tokens`` of its tokens, drawn by chance.

    A stop token cannot be replaced, and neither can a token that a tool wrote, the last one of a stop text, or one at
    the cap of ``longest`` tokens, after which nothing can follow.
    """
    rollouts = [response.rollout for response in responses]
    allowed = [
        rollout.sampled
        & ~np.isin(rollout.token_ids, stop_ids)
        & (np.arange(1, len(rollout.token_ids) + 1) < min(longest, len(rollout.token_ids) + (not rollout.finished)))
        for rollout in rollouts
    ]
    entropies, logprobs = (
        [np.asarray(getattr(rollout, name)) for rollout in rollouts] for name in ("entropies", "logprobs")
    )
    for i, (name, (group, share)) in enumerate(plan.groups.items()):
        rows = replaceable(group, share, entropies, logprobs, allowed)
        for index, (response, positions) in enumerate(zip(responses, rows, strict=True)):
            drawn = noise.generator(CHOICE, i, index).permutation(positions)[: plan.tokens]
            response.positions[name] = np.sort(drawn)


def replaced(session: Session, weights: Params, responses: Sequence[SampledResponse], k: int) -> Iterator[Replacement]:
    """The replacements of all responses, as many responses at a time as the decoder has slots for trunks."""
    engine = session.sampler.engine
    chosen = [response for response in responses if response.chosen]
    for start in range(0, len(chosen), engine.slots):
        yield from _of_some(session, weights, chosen[start : start + engine.slots], k)


def _of_some(session: Session, weights: Params, responses: Sequence[SampledResponse], k: int) -> Iterator[Replacement]:
    engine, cap, sampling = session.sampler.engine, session.config.rollout.max_response_tokens, session.sampling()
    trunks = engine.prefill(weights, [np.concatenate([r.held_out.prompt_ids, r.rollout.token_ids]) for r in responses])
    positions = [(row, position) for row, response in enumerate(responses) for position in response.chosen]
    starts = [len(response.held_out.prompt_ids) for response in responses]
    others = engine.programs.alternatives(
        weights,
        trunks[0].batch,
        np.array([row for row, _ in positions]),
        np.array([starts[row] + position for row, position in positions]),
        np.array([responses[row].rollout.token_ids[position] for row, position in positions]),
    )
    branches: list[list[Branch]] = [[] for _ in responses]
    closing: set[tuple[int, int]] = set()  # branches whose substitute ends the response
    for i, (row, position) in enumerate(positions):
        response = responses[row]
        for side in (ORIGINAL, SUBSTITUTED):
            # The original side leaves after the token, the other one before it, with the substitute given.
            fork, forced = position + 1 - side, (int(others.token_ids[i]),) * side
            prefix = response.rollout.head(fork)
            ends = bool(forced) and _ends(session, prefix, forced[0])
            most = 1 if ends else cap - fork
            closing |= {(row, len(branches[row]) + m) for m in range(k) if ends}
            for m in range(k):
                stream = (SAMPLE, 1, response.held_out.index, response.sample, 2 * position + side, m)
                branches[row].append(Branch(starts[row] + fork, stream, most, sampling, prefix, forced))
    requests = [TrunkRequest(trunk, of_trunk) for trunk, of_trunk in zip(trunks, branches, strict=True)]

    def case(row: int, branch: int) -> tuple[Problem, np.ndarray]:
        """The problem, and the tokens before a branch."""
        response = responses[row]
        return response.held_out.problem, response.rollout.token_ids[: branches[row][branch].fork - starts[row]]

    def closed(row: int, branch: int, rollout: Rollout) -> Rollout:
        """The rollout, which has ended if its substitute is a stop token or completes a stop text."""
        return dataclasses.replace(rollout, finished=True) if (row, branch) in closing else rollout

    def graded(ended: Sequence[tuple[int, int, Rollout]]) -> None:
        grading.ended([(row, branch, closed(row, branch, rollout)) for row, branch, rollout in ended])

    grading = Grading(session.grader, case)
    sampled, _ = session.sampler.sample(weights, requests, ended=graded)
    # Both follow the order of `branches`: k continuations of each side of each position.
    rollouts = [closed(row, n, rollout) for row, of_row in enumerate(sampled) for n, rollout in enumerate(of_row)]
    verdicts = [verdict for of_row in grading.verdicts(range(len(requests))) for verdict in of_row]
    for i, (row, position) in enumerate(positions):
        original, substituted = (slice(n * k, (n + 1) * k) for n in (2 * i, 2 * i + 1))
        yield Replacement(
            responses[row],
            position,
            int(others.token_ids[i]),
            float(others.logprobs[i]),
            int(others.candidates[i]),
            (rollouts[original], rollouts[substituted]),
            (verdicts[original], verdicts[substituted]),
        )


def _ends(session: Session, before: Rollout, token: int) -> bool:
    """Whether ``token`` after ``before`` ends a response: a stop token does, and the last one of a stop text."""
    sampler = session.sampler
    tables = [each.calls for each in (sampler.toolbox, sampler.stops) if each is not None]
    since_answers = [*answered_calls(before)[1], token]
    return token in session.texts.codec.stop_ids or any(table.run(since_answers) == table.stop for table in tables)


def findings(replacements: Sequence[Replacement], plan: InterventionPlan, note: str) -> list[Finding]:
    """I_t of each group: its mean and the mean of its size, with 95 % bootstrap intervals over problems."""
    rows: list[dict[str, Any]] = []
    for name in plan.groups:
        members = [r for r in replacements if r.position in r.response.positions[name]]
        row: dict[str, Any] = {"tokens": name, "replaced": len(members)}
        rows.append(row)
        if not members:
            continue
        sides = [np.stack([r.accuracy(side) for r in members]) for side in (ORIGINAL, SUBSTITUTED)]
        row["accuracy after the token"], row["accuracy after its substitute"] = (float(side.mean()) for side in sides)
        effects = intervention(*sides)
        problems = np.array([r.response.held_out.index for r in members])
        for effect, values in (("I_t", effects), ("|I_t|", np.abs(effects))):
            of_problems = [float(values[problems == problem].mean()) for problem in np.unique(problems)]
            ends = interval_of_mean(of_problems) or (None, None)
            row |= {f"mean {effect}": float(np.mean(of_problems))}
            row |= {f"{end} end of {effect}": value for end, value in zip(("lower", "upper"), ends, strict=True)}
    measured = [row for row in rows if row["replaced"]]
    columns = list(measured[0])
    shared = {
        "title": "Accuracy lost when a token is replaced by its likeliest alternative",
        "source": "Deng et al. 2025, eq. 6, figures 5b and 6b",
        "note": f"means of problems; 95 % bootstrap intervals over problems. {note}",
    }
    series = [
        Series(name, *([row[key] for row in measured] for key in ("tokens", f"mean {effect}", *ends)))
        for name, effect in (("mean I_t", "I_t"), ("mean size of I_t", "|I_t|"))
        for ends in [(f"lower end of {effect}", f"upper end of {effect}")]
    ]
    label = "I_t (share of right answers)"
    return [
        Figure(name="interventions", kind="bars", x_label="tokens", y_label=label, series=series, **shared),
        TextTable(
            name="intervention_groups",
            columns=columns,
            cells=[[row.get(column) for column in columns] for row in rows],
            **shared,
        ),
    ]


def _examples(replacements: Sequence[Replacement], decode, note: str) -> TextTable:
    """The replacements with the largest effects."""
    effects = [float(r.accuracy(ORIGINAL).mean() - r.accuracy(SUBSTITUTED).mean()) for r in replacements]
    rows = []
    for index in np.argsort(-np.abs(effects), kind="stable")[:50]:
        r = replacements[index]
        ids = r.response.rollout.token_ids
        rows.append(
            [
                r.response.held_out.problem.id,
                decode(ids[: r.position]),
                decode([ids[r.position]]),
                float(np.exp(r.response.rollout.logprobs[r.position])),
                decode([r.substitute]),
                float(np.exp(r.logprob)),
                float(r.response.rollout.entropies[r.position]),
                r.candidates,
                effects[index],
            ]
        )
    columns = ["problem", "before", "token", "its probability", "substitute", "its probability (substitute)"]
    columns += ["entropy", "candidates within 95 %", "I_t"]
    return TextTable(
        name="intervention_tokens",
        title="Replacements with the largest effects",
        columns=columns,
        cells=rows,
        source="Deng et al. 2025, eq. 6",
        note=note,
    )


def _entries(replacements: Sequence[Replacement], responses: Sequence[SampledResponse], step: int) -> Iterator[Entry]:
    """The responses as base rollouts, then the continuations: state 0 is the original side, 1 the substituted one."""

    def name(response: SampledResponse) -> str:
        return f"{STEM}/{step}/{response.held_out.index}/{response.sample}"

    for r in responses:
        fields = {"id": name(r), "kind": "base", "anchors": r.chosen}
        yield r.held_out.entry(step, r.sample, r.rollout, r.verdict, **fields)
    for replacement in replacements:
        response, position = replacement.response, replacement.position
        for side in (ORIGINAL, SUBSTITUTED):
            fork, prefix = position + 1 - side, response.rollout.token_ids[: position + 1 - side]
            state = {"kind": "state", "parent": name(response), "state": side, "fork": fork}
            sampled = zip(replacement.rollouts[side], replacement.verdicts[side], strict=True)
            for m, (rollout, verdict) in enumerate(sampled):
                fields = state | {"id": f"{name(response)}/{position}/{side}/{m}", "branch": m}
                yield response.held_out.entry(step, response.sample, rollout, verdict, prefix, **fields)
