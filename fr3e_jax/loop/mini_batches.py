"""What an optimizer step works on: the learner's arrays, and mini-batches of trunks, packed into rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fr3e_jax.loop.experience import TrainingTrunk, count_rollouts, split_full_batch
from fr3e_jax.loop.packing import MicroBatch, pack
from fr3e_jax.loop.session import SHUFFLE, Session
from fr3e_jax.policy.network import Params
from fr3e_jax.programs.train import TrainPrograms

Logprobs = list[list[np.ndarray]]  # ``[trunk][branch] -> [T]``


@dataclass
class Learner:
    """Weights and optimizer state; both are donated to each update and replaced by its result."""

    programs: TrainPrograms
    params: Params
    optimizer_state: object
    updates: int = 0  # optimizer steps so far

    def arrays(self) -> dict:
        return {"params": self.params, "optimizer": self.optimizer_state}


@dataclass
class MiniBatch:
    """Trunks that share an optimizer step, packed."""

    members: list[int]  # their numbers in the full batch
    trunks: list[TrainingTrunk]
    micros: list[MicroBatch]


def split_mini_batches(
    members: list[tuple[int, TrainingTrunk]], rollouts: int
) -> Iterator[list[tuple[int, TrainingTrunk]]]:
    """Whole trunks until ``rollouts`` rollouts are together; less than half of that at the end joins the last one.

    A rest of one or two trunks would otherwise get an optimizer step as large as any other.
    """
    while members:
        taken, rest = split_full_batch([trunk for _, trunk in members], rollouts)
        cut = len(taken) if 2 * count_rollouts(rest) >= rollouts else len(members)
        yield members[:cut]
        members = members[cut:]


def mini_batches(
    session: Session, step: int, epoch: int, batch: list[TrainingTrunk]
) -> Iterator[list[tuple[int, TrainingTrunk]]]:
    """A full batch in the order of ``epoch``, cut by `split_mini_batches`; trunks with their numbers in it."""
    order = session.generator(SHUFFLE, step, epoch).permutation(len(batch))
    return split_mini_batches([(int(i), batch[i]) for i in order], session.config.training.mini_batch_rollouts)


def pack_mini_batch(
    session: Session, learner: Learner, members: list[tuple[int, TrainingTrunk]], old: Logprobs | None = None
) -> MiniBatch:
    """``old``: of the full batch; None: they come with the scoring pass (`fr3e_jax.loop.scoring`)."""
    numbers, trunks = [number for number, _ in members], [trunk for _, trunk in members]
    micros = pack(
        trunks,
        **row_options(session, learner),
        aggregation=session.config.loss.aggregation,
        old_logprobs=old and (lambda trunk, branch: old[numbers[trunk]][branch]),
    )
    return MiniBatch(numbers, trunks, micros)


def row_options(session: Session, learner: Learner) -> dict[str, int]:
    """How `pack` is to cut a batch."""
    tokens = session.config.training.micro_batch_tokens
    return {"tokens": tokens, "shards": learner.programs.shards, "pad_id": session.codec.pad_id}


def loss_temperature(session: Session) -> float:
    """Of the distribution that trains: the sampling temperature, 1 where decoding is greedy."""
    return session.config.rollout.temperature or 1.0
