"""The shapes of a run, declared before it: nothing else decides what is compiled.

Each trunk size, ring size and row shape is another set of programs. The engine pads caches to these sizes, the packer
fills rows of these shapes, and `fr3e compile` and `fr3e plan` compile for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fr3e_jax.programs.row_shape import RowShape
from fr3e_jax.programs.size_buckets import ring_size, size_bucket

LEAST_TRUNK = 16  # tokens


class LaneLayout(NamedTuple):
    """Trunk slots, and lanes of each."""

    slots: int
    lanes: int


@dataclass(frozen=True)
class Shapes:
    """Sizes of caches, decode chunks and micro-batches.

    A sequence that no declared size holds (a longer text of a study) gets the next usual size.

    Attributes:
      slots: trunks that are decoded side by side.
      lanes: branches of a slot.
      chunk: decode steps of a compiled call.
      smaller: layouts of calls that do not fill all lanes, the smallest first.
      prompt: positions of a prompt's trunk; 0: not declared.
      responses: positions of trunks that hold a prompt and a response, rising.
      rings: columns of rings, rising.
      promotable: branches of prompts may become trunks, so all calls on prompts keep hidden states.
      rows: micro-batches.
    """

    slots: int
    lanes: int
    chunk: int
    smaller: tuple[LaneLayout, ...] = ()
    prompt: int = 0
    responses: tuple[int, ...] = ()
    rings: tuple[int, ...] = ()
    promotable: bool = False
    rows: tuple[RowShape, ...] = ()

    @property
    def first_ring(self) -> int:
        """Columns of the rings with which a call begins."""
        return self.ring(min(self.chunk, self.rings[-1]), self.rings[-1])

    def layout(self, trunks: int, lanes: int) -> LaneLayout:
        """The first layout with a slot for each trunk, or with all slots, and with so many lanes of each."""
        slots = min(trunks, self.slots)
        fits = (layout for layout in self.smaller if layout.slots >= slots and layout.lanes >= lanes)
        return next(fits, LaneLayout(self.slots, self.lanes))

    def ring(self, tokens: int, longest: int) -> int:
        """Columns of rings that hold ``tokens`` tokens now, in a call whose longest branch may have ``longest``."""
        return _least(self.rings, tokens) or ring_size(tokens, longest)

    def trunk(self, tokens: int) -> int:
        """Positions of trunks of at most ``tokens`` tokens."""
        return _least((self.prompt, *self.responses), tokens) or size_bucket(tokens, LEAST_TRUNK)

    def promoted(self, tokens: int) -> int:
        """Positions of a trunk of ``tokens`` tokens that was a response: never the size of prompts alone."""
        return _least(self.responses, tokens) or size_bucket(tokens, LEAST_TRUNK)


def _least(sizes: Sequence[int], needed: int) -> int:
    """The first of rising ``sizes`` that holds ``needed``; 0: none does."""
    return next((size for size in sizes if size >= needed), 0)
