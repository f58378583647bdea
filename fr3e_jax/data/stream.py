"""The endless, resumable stream of prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fr3e_jax.data.mixture import Mixture
from fr3e_jax.data.shuffle import shuffled_indices
from fr3e_jax.problem import Problem

MAX_DROPPED_IN_A_ROW = 10_000
MAX_REMEMBERED = 2**20  # problems that are remembered to be unusable
SAVED = ("position", "dropped_too_long", "dropped_unspeakable")


@dataclass(frozen=True)
class Prompt:
    """A problem as the policy reads it.

    Attributes:
      position: its place in the stream, which is unique and names the noise of its rollouts.
      problem: the problem.
      token_ids: the encoded prompt, template included.
    """

    position: int
    problem: Problem
    token_ids: Sequence[int]


class PromptStream:
    """Draws problems without end, reshuffled each epoch; the order does not depend on how many are taken at a time.

    Prompts of more than ``max_prompt_tokens`` tokens are skipped and counted, never cut; so are prompts that cannot be
    encoded.

    Args:
      problems: any sequence; it is indexed, never copied. A ``Mixture`` is drawn in its shares.
      seed: seed of the order.
      encode: maps a problem's prompt to token ids, or raises ValueError. It is called once for each prompt that is
        drawn, and once altogether for a prompt that is dropped (for the first million of them).
      max_prompt_tokens: the longest prompt that is handed out.
    """

    def __init__(
        self, problems: Sequence[Problem], seed: int, encode: Callable[[str], Sequence[int]], max_prompt_tokens: int
    ):
        self.position = 0  # of the next problem to look at
        self.dropped_too_long = 0
        self.dropped_unspeakable = 0
        self.complaints: list[str] = []  # of the last call: a line for each prompt that cannot be encoded
        self._problems = problems
        self._order = problems.order(seed) if isinstance(problems, Mixture) else shuffled_indices(len(problems), seed)
        self._encode = encode
        self._max_prompt_tokens = max_prompt_tokens
        self._unusable: dict[int, int | str] = {}  # index of a problem to its prompt's length, or to the error

    def take(self, count: int) -> list[Prompt]:
        """The next ``count`` prompts; ``complaints`` are then those of this call.

        Raises:
          ValueError: every prompt of a whole epoch, or 10,000 in a row, was dropped.
        """
        self.complaints = []
        return [self._next() for _ in range(count)]

    def state_dict(self) -> dict[str, int]:
        """Position and counts after the prompts handed out, for a checkpoint."""
        return {name: getattr(self, name) for name in SAVED}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue after the prompts that were handed out when the state was taken."""
        vars(self).update({name: state[name] for name in SAVED})

    def metrics(self) -> dict[str, float]:
        """The numbers of prompts dropped since the start of the run."""
        return {f"data/{name}": getattr(self, name) for name in SAVED[1:]}

    def problem_at(self, position: int) -> Problem:
        """The problem at this position of the stream."""
        return self._problems[self._order[position]]

    def _next(self) -> Prompt:
        lengths: list[int] = []
        errors: list[str] = []
        while len(lengths) + len(errors) < min(len(self._problems), MAX_DROPPED_IN_A_ROW):
            position, index = self.position, int(self._order[self.position])
            encoded: Sequence[int] | int | str = self._unusable.get(index) or self._encoded(index)
            self.position += 1
            if not isinstance(encoded, int | str):
                return Prompt(position, self._problems[index], encoded)
            if len(self._unusable) < MAX_REMEMBERED:
                self._unusable[index] = encoded
            if isinstance(encoded, int):
                self.dropped_too_long += 1
                lengths.append(encoded)
            else:
                self.dropped_unspeakable += 1
                errors.append(f"problem {self._problems[index].id!r}: {encoded}")
                self.complaints.append(f"draw {position} of the training data is dropped: {errors[-1]}")
        raise ValueError(_nothing_left(lengths, errors, self._max_prompt_tokens))

    def _encoded(self, index: int) -> Sequence[int] | int | str:
        """The token ids of a problem's prompt; their number if they are too many; the error if there are none."""
        try:
            token_ids = self._encode(self._problems[index].prompt)
        except ValueError as error:
            return str(error)
        return token_ids if len(token_ids) <= self._max_prompt_tokens else len(token_ids)


def _nothing_left(lengths: Sequence[int], errors: Sequence[str], longest: int) -> str:
    parts = []
    if lengths:
        parts.append(
            f"{len(lengths)} prompts in a row are longer than data.max_prompt_tokens={longest}; the shortest of them "
            f"has {min(lengths)} tokens: raise data.max_prompt_tokens"
        )
    if errors:
        parts.append(f"{len(errors)} prompts in a row cannot be encoded; the first of them is {errors[0]}")
    return "; ".join(parts)
