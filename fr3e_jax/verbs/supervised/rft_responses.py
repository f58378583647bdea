"""Responses of rejection-sampling fine-tuning: sampled, cut after the answer, graded and filtered."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fr3e_jax.configuration.schema import RftConfig
from fr3e_jax.data.stream import Prompt
from fr3e_jax.loop.first_return import base_requests
from fr3e_jax.loop.rollout_entries import Entry
from fr3e_jax.objectives.redundancy import n_gram_redundancy
from fr3e_jax.policy.network import Params
from fr3e_jax.rewards.extraction import closed_boxes
from fr3e_jax.rollouts.requests import Rollout
from fr3e_jax.session.grading import Grading
from fr3e_jax.session.session import Session
from fr3e_jax.session.texts import Texts
from fr3e_jax.verdict import Verdict

# Outcomes of a response whose answer the verifier could read.
READ = ("right", "wrong", "restated", "other_form", "string_only")
DROPPED = ("unfinished", "no_answer", "no_digit", "redundant")  # reasons, in the order of the filters


@dataclass
class GradedResponse:
    """A graded response in the form that would train."""

    prompt: Prompt
    response_index: int  # index among the responses to its prompt
    rollout: Rollout  # log-prob and entropy of an appended stop token are NaN
    verdict: Verdict
    dropped: str = ""  # the filter that it failed, one of `DROPPED`; empty: none

    @property
    def right(self) -> bool:
        """true if the verifier accepted the answer."""
        return self.verdict.right

    @property
    def entropy(self) -> float:
        """Mean entropy of the sampled tokens, in nats."""
        return float(np.nanmean(self.rollout.entropies[self.rollout.sampled]))


def sample_responses(session: Session, params: Params, iteration: int, prompts: list[Prompt]) -> list[GradedResponse]:
    """Sample, cut, grade and filter ``rollout.rollouts_per_prompt`` responses to each prompt, prompt by prompt.

    Responses are cut before grading, so that the verdict is on the tokens that would train.
    """
    cut: dict[tuple[int, int], Rollout] = {}
    nothing = np.zeros(0, np.int32)
    grading = Grading(session.grader, lambda index, _: (prompts[index].problem, nothing))

    def ended(rollouts: Sequence[tuple[int, int, Rollout]]) -> None:
        for index, branch, rollout in rollouts:
            cut[index, branch] = cut_after_answer(session.texts, rollout)
        grading.ended([(index, branch, cut[index, branch]) for index, branch, _ in rollouts])

    session.sampler.sample(params, base_requests(session, iteration, prompts), ended=ended)
    responses = []
    for index, verdicts in enumerate(grading.verdicts(range(len(prompts)))):
        for n, verdict in enumerate(verdicts):
            response = GradedResponse(prompts[index], n, cut[index, n], verdict)
            response.dropped = reason_to_drop(session.config.rft, session.texts, response)
            responses.append(response)
    return responses


def cut_after_answer(texts: Texts, rollout: Rollout) -> Rollout:
    """The response up to the token that closes its first box, and a stop token. (Deng et al. 2025, 4.4.1, truncation.)

    A rollout without a closed box, or that ends there already, is returned as it is. Token ids never go through text:
    the text only determines how many of them stay.
    """
    decode, ids = texts.codec.decode, rollout.token_ids[: len(rollout.token_ids) - rollout.finished]
    text = decode(ids)
    boxes = closed_boxes(text)
    if not boxes:
        return rollout
    end = boxes[0][2]
    while text[end : end + 1] == "}":  # closing braces of the box and of commands around it
        end += 1
    count = bisect.bisect_left(range(len(ids)), end, key=lambda n: len(decode(ids[:n])))
    if count == len(ids) and rollout.finished:
        return rollout
    unknown = np.full(1, np.nan, np.float32)
    stop = Rollout(np.array(texts.codec.stop_ids[:1], np.int32), unknown, unknown, unknown, finished=True)
    return rollout.head(count).then(stop)


def reason_to_drop(rft: RftConfig, texts: Texts, response: GradedResponse) -> str:
    """The first filter that the response fails, one of `DROPPED`, or "". (Deng et al. 2025, 4.4.1.)

    The verifier decides on "answer box presence": whether the answer has the form that the prompt asked for. A digit is
    expected where the gold answer has one.
    """
    rollout, gold = response.rollout, response.prompt.problem.gold
    if not rollout.finished:
        return "unfinished"
    if response.verdict.outcome not in READ:
        return "no_answer"
    if any(map(str.isdigit, gold)) and not any(map(str.isdigit, texts.response_text(rollout.token_ids, True))):
        return "no_digit"
    if n_gram_redundancy(np.asarray(rollout.token_ids)) > rft.max_redundancy:
        return "redundant"
    return ""


def response_entries(step: int, responses: Sequence[GradedResponse], selected: Sequence[GradedResponse]) -> list[Entry]:
    """The responses as they are stored; ``kept`` marks the ``selected`` ones."""
    selected_keys = {(response.prompt.position, response.response_index) for response in selected}

    def entry(r: GradedResponse) -> Entry:
        fields = {
            "id": f"{step}/{r.prompt.position}/{r.response_index}",
            "step": step,
            "kind": "base",
            "prompt_position": r.prompt.position,
            "problem_id": r.prompt.problem.id,
            "prompt_ids": r.prompt.token_ids,
            "reward": r.verdict.reward,
            "outcome": r.verdict.outcome,
            "base": r.response_index,
            "kept": (r.prompt.position, r.response_index) in selected_keys,
        }
        return Entry(fields, r.rollout, r.prompt.problem.gold)

    return [entry(r) for r in responses]
