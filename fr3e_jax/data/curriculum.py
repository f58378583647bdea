"""A stream of prompts that are drawn by how often they are solved: pools by difficulty, and rest for what is solved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fr3e_jax.configuration.curriculum_section import CurriculumConfig
from fr3e_jax.data.shuffle import shuffled_indices
from fr3e_jax.data.stream import PromptStream
from fr3e_jax.problem import Problem

MOST_PROBLEMS = 200_000  # whose success is remembered
FOREVER = 2**31 - 1
REMEMBERED = ("last", "streaks", "rest_until", "rates", "waiting")


class CurriculumStream(PromptStream):
    """Draws each problem once, shuffled, and from then on by success; the state is a function of draws and verdicts.

    Each draw is of the pool that lacks most of its share, and in it of the problem that was drawn longest ago. A
    problem whose verdict is still to come is passed over, so a round has no problem twice unless there are too few. If
    all problems rest, they are drawn as if none did.

    Raises:
      ValueError: there are too many problems to remember.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        seed: int,
        encode: Callable[[str], Sequence[int]],
        max_prompt_tokens: int,
        curriculum: CurriculumConfig,
    ):
        super().__init__(problems, seed, encode, max_prompt_tokens)
        count = len(problems)
        if count > MOST_PROBLEMS:
            raise ValueError(
                f"data.curriculum remembers {MOST_PROBLEMS:,} problems at most, and there are {count:,}; set "
                f"data.train_problems={MOST_PROBLEMS}, or fewer"
            )
        self._settings = curriculum
        self._first_pass = shuffled_indices(count, seed)
        self.drawn: list[int] = []  # the index of the problem at each position
        self.taken = np.zeros(len(curriculum.bounds) + 1, int)  # draws from each pool
        self.last = np.full(count, -1)  # the position at which each problem was drawn last
        self.streaks = np.zeros(count, int)  # times in a row that it was solved
        self.rest_until = np.zeros(count, int)  # the epoch in which it is drawn again
        self.rates = np.full(count, -1.0)  # its running success rate; -1: not known
        self.waiting = np.zeros(count, bool)  # drawn, and not observed since

    def problem_at(self, position: int) -> Problem:
        return self._problems[self.drawn[position]]

    def observe(self, position: int, rate: float | None, solved: bool) -> None:
        """Take over how often the problem at a position was solved.

        Args:
          position: where it was drawn.
          rate: its running success rate; None: there is no verdict.
          solved: whether all of its rollouts were right.
        """
        index = self.drawn[position]
        self.waiting[index] = False
        if rate is None:
            return
        self.rates[index] = rate
        self.streaks[index] = self.streaks[index] + 1 if solved else 0
        if self._settings.retire_after and self.streaks[index] >= self._settings.retire_after:
            self.rest_until[index] = self._epoch + 1 + self._settings.retire_epochs
            self.streaks[index] = 0

    def state_dict(self) -> dict[str, Any]:
        arrays = {name: getattr(self, name).tolist() for name in REMEMBERED}
        return super().state_dict() | arrays | {"drawn": list(self.drawn), "taken": self.taken.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if len(state["taken"]) != len(self.taken):
            raise ValueError(
                f"data.curriculum has {len(self.taken)} pools, and {len(state['taken'])} in the run to resume; set "
                "data.curriculum.bounds and data.curriculum.shares as they were"
            )
        self.drawn, self.taken = list(state["drawn"]), np.array(state["taken"])
        vars(self).update({name: np.array(state[name]) for name in REMEMBERED})

    def metrics(self) -> dict[str, float]:
        """Dropped prompts, and the problems of each pool, those that rest, and those without a verdict."""
        usable, known = self.rest_until < FOREVER, self.rates >= 0
        resting = usable & (self.rest_until > self._epoch)
        awake, pools = usable & known & ~resting, self._pools()
        sizes = {f"curriculum/pool_{n}": int(np.sum(awake & (pools == n))) for n in range(len(self.taken))}
        unknown = int(np.sum(usable & ~known))
        return super().metrics() | sizes | {"curriculum/retired": int(resting.sum()), "curriculum/unknown": unknown}

    @property
    def _epoch(self) -> int:
        return self.position // len(self._problems)

    def _pools(self) -> np.ndarray:
        """The pool of each problem; one without a verdict is among the hardest."""
        return np.searchsorted(self._settings.bounds, self.rates, side="right")

    def _draw(self) -> int:
        index = int(self._first_pass[self.position]) if self.position < len(self._problems) else self._by_success()
        self.last[index], self.waiting[index] = self.position, True
        self.drawn.append(index)
        return index

    def _by_success(self) -> int:
        usable = self.rest_until < FOREVER
        pools, free = self._pools(), usable & ~self.waiting
        awake = free & (self.rest_until <= self._epoch)
        candidates = next((mask for mask in (awake, free, usable) if mask.any()), np.ones(len(usable), bool))
        if candidates is awake:
            shares = np.array(self._settings.shares or [1.0] * len(self.taken))
            present = np.unique(pools[awake])
            pool = present[np.argmin((2 * self.taken[present] + 1) / shares[present])]  # Webster's rule
            self.taken[pool] += 1
            candidates = awake & (pools == pool)
        indices = np.flatnonzero(candidates)
        return int(indices[np.argmin(self.last[indices])])

    def _encoded(self, index: int) -> Sequence[int] | int | str:
        encoded = super()._encoded(index)
        if isinstance(encoded, int | str):
            self.rest_until[index] = FOREVER  # it cannot be a prompt
        return encoded
