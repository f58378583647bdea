"""The shape of a micro-batch of trunk-and-branch rows; `fr3e_jax.policy.rows` draws the layout."""

from __future__ import annotations

from typing import NamedTuple


class RowShape(NamedTuple):
    """Rows, trunk positions and lanes of each, positions of a lane, lanes a token sees."""

    rows: int
    trunk_size: int
    lanes: int
    capacity: int
    window: int = 1

    @property
    def positions(self) -> int:
        """The positions of the micro-batch, padding counted."""
        return self.rows * (self.trunk_size + self.room)

    @property
    def room(self) -> int:
        """Positions of a row's lanes."""
        return self.lanes * self.capacity

    @property
    def trunk_lanes(self) -> int:
        """Lanes that the losses of trunk tokens need."""
        return -(-self.trunk_size // self.capacity)

    @property
    def longest_branch(self) -> int:
        """Tokens that a branch may have, wherever it begins."""
        return self.capacity if self.window == 1 else min((self.window - 1) * self.capacity + 1, self.room)

    def holds(self, fork: int, length: int) -> bool:
        """Return whether a row has room for a branch of ``length`` tokens that sees ``fork`` trunk positions."""
        return fork <= self.trunk_size and length <= self.longest_branch

    @property
    def row(self) -> RowShape:
        """The shape of one row alone."""
        return self._replace(rows=1)

    def work(self, key_cost: float) -> float:
        """Work of the micro-batch, in positions without attention; ``key_cost``: work to attend to one position."""
        keys = self.trunk_size + min(self.window, self.lanes) * self.capacity
        of_trunk = self.trunk_size * (1 + key_cost * self.trunk_size)
        return self.rows * (of_trunk + self.room * (1 + key_cost * keys))
