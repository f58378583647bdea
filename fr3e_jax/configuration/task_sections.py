"""Settings of the embedded tasks, whose problems follow from them and a seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fr3e_jax.configuration.options import option


@dataclass
class OrderConfig:
    """The embedded procedural task: evaluate a flat expression, one reduction per line."""

    num_operands: int = option(5, "operands of an RL or evaluation prompt", ge=2, le=16)
    sft_min_operands: int = option(3, "shortest expression of the supervised curriculum", ge=2, le=16)
    sft_valid_share: float = option(
        -1.0,
        "share of a demonstration's lines that reduce a valid operator, where there is an invalid one as well; "
        "-1: every operator is as likely",
        ge=-1,
        le=1,
    )
    verifier: Literal["answer", "strict"] = option(
        "answer", "answer: right last digit and right number of steps; strict: every step a precedence-valid reduction"
    )


@dataclass
class LockConfig:
    """The embedded task *Lock*: open a combination lock by guesses, each answered by a hint for every digit."""

    digits: int = option(3, "digits of a combination", ge=1, le=8)


@dataclass
class CharCountConfig:
    """The embedded task *Char count*: how many times a letter occurs in a dashed word."""

    letters: list[int] = option([5, 20], "letters of the shortest and of the longest word", ge=1, le=64)


@dataclass
class MazeConfig:
    """The embedded task *Maze*: walk through a perfect maze."""

    side: int = option(9, "squares of a side, walls included; an odd number", ge=7, le=63)
