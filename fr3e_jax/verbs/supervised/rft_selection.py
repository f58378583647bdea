"""The selection of filtered responses that rejection-sampling fine-tuning trains on. (Deng et al. 2025, 4.4.1.)"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from fr3e_jax.learning.experience import TrainingBranch, TrainingTrunk
from fr3e_jax.learning.learner import Learner
from fr3e_jax.learning.mini_batches import row_options
from fr3e_jax.learning.packing import pack
from fr3e_jax.learning.setup import LearningSetup
from fr3e_jax.rollouts.noise import CHOICE
from fr3e_jax.verbs.supervised.rft_responses import DROPPED, GradedResponse


def select_responses(
    setup: LearningSetup, learner: Learner, iteration: int, responses: Sequence[GradedResponse]
) -> tuple[list[GradedResponse], dict[str, float]]:
    """Select right responses by ``rft.select`` and wrong ones at random; return them in their order, and metrics.

    Both kinds have passed the filters: the noise is to be wrong, not malformed.
    """
    rft, generator = setup.config.rft, setup.noise.generator(CHOICE, iteration)
    right = [n for n, r in enumerate(responses) if r.right and not r.dropped]
    wrong = [n for n, r in enumerate(responses) if r.verdict.graded and not r.right and not r.dropped]
    count = min(len(right), rft.responses) if rft.responses else len(right)
    metrics = {}
    if rft.select == "random":
        chosen = generator.permutation(right)[:count]
    else:
        candidates = [responses[n] for n in right]
        diversity = (
            np.array([r.entropy for r in candidates])
            if rft.select == "entropy"
            else mean_branching_factors(setup, learner, candidates)
        )
        order = np.argsort(-diversity, kind="stable")[:count]  # ties: the first sampled
        chosen = np.array(right, int)[order]
        if len(right):
            metrics[f"rft/{rft.select}_right"] = float(diversity.mean())
            metrics[f"rft/{rft.select}_selected"] = float(diversity[order].mean())
    noise = round(len(chosen) * rft.negative_share / (1 - rft.negative_share))
    negatives = generator.permutation(wrong)[:noise]
    taken = sorted(map(int, [*chosen, *negatives]))
    counts = Counter(r.dropped for r in responses)
    metrics |= {
        "reward/mean": float(np.mean([r.verdict.reward for r in responses if r.verdict.graded] or 0.0)),
        "length/mean": float(np.mean([len(r.rollout.token_ids) for r in responses])),
        "entropy/sampled": float(np.mean([r.entropy for r in responses])),
        "rft/sampled": len(responses),
        "rft/right": sum(r.right for r in responses),
        "rft/usable_right": len(right),
        "rft/usable_wrong": len(wrong),
        "rft/selected_right": len(chosen),
        "rft/selected_wrong": len(negatives),
    }
    return [responses[n] for n in taken], metrics | {f"rft/dropped_{reason}": counts[reason] for reason in DROPPED}


def mean_branching_factors(setup: LearningSetup, learner: Learner, responses: Sequence[GradedResponse]) -> np.ndarray:
    """Mean rollout branching factor of each response, ``[n]``, over its sampled tokens. (Deng et al. 2025, 2.2.)"""
    means = np.zeros(len(responses))
    trunks, numbers = training_trunks(responses, 0)
    for micro in pack(trunks, **row_options(setup, learner)):
        factors = learner.programs.branching(learner.params, micro.batch.rows)
        for span in micro.spans:
            n = numbers[span.trunk][span.branch]
            rollout = responses[n].rollout
            means[n] = factors[span.where][rollout.sampled & ~np.isnan(rollout.logprobs)].mean()
    return means


def training_trunks(responses: Sequence[GradedResponse], step: int) -> tuple[list[TrainingTrunk], list[list[int]]]:
    """Each prompt as a trunk with its responses as branches; and each branch's index in ``responses``."""
    numbers: dict[int, list[int]] = {}
    for n, response in enumerate(responses):
        numbers.setdefault(response.prompt.position, []).append(n)
    trunks = []
    for members in numbers.values():
        prompt = responses[members[0]].prompt.token_ids
        branches = [_branch(len(prompt), responses[n]) for n in members]
        trunks.append(TrainingTrunk(prompt, branches, step, prompt_tokens=len(prompt)))
    return trunks, list(numbers.values())


def _branch(fork: int, response: GradedResponse) -> TrainingBranch:
    rollout = response.rollout
    nothing = np.zeros(len(rollout.token_ids), np.float32)  # cross-entropy reads no advantage and no old log-prob
    verdict = response.verdict
    return TrainingBranch(
        *(fork, rollout.token_ids, nothing, nothing),
        reward=verdict.reward,
        right=verdict.right,
        loss_mask=rollout.loss_mask,
    )
