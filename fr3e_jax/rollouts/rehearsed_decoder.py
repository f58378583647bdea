"""A decoder that draws lengths in place of tokens: what the engine needs to rehearse its schedule without a device."""

from __future__ import annotations

from typing import Any

import numpy as np

from fr3e_jax.policy.network import Params
from fr3e_jax.policy.rows import Trunks
from fr3e_jax.programs.decode_steps import Emitted, Interruptions
from fr3e_jax.programs.decoder_programs import DecoderPrograms
from fr3e_jax.programs.decoder_state import DecodeState, LaneSettings
from fr3e_jax.rollouts.expected_lengths import rest_of


class RehearsedDecoder(DecoderPrograms):
    """The programs of ``programs``, for use within `fr3e_jax.programs.rehearsal.rehearsing`.

    Tokens are 0, log-probs 0, entropies random numbers in [0, 1). A branch ends as one of ``lengths`` does, cut to
    whole responses longer than those that the branch begins with, or at its limit.

    Args:
      programs: of the run.
      lengths: tokens of whole responses, from which each response is drawn.
      cap: the limit on a whole response; a lower limit of a branch says how many tokens came before it.
      resumes: lanes pause for tools or an environment, and all rings are aligned when they go on.
      seed: of the draws.
    """

    def __init__(
        self, programs: DecoderPrograms, lengths: np.ndarray, cap: int, *, resumes: bool = False, seed: int = 0
    ):
        vars(self).update(vars(programs))  # the same programs: what is compiled for one is there for the other
        self._lengths, self._cap, self._random = np.sort(lengths), cap, np.random.default_rng(seed)
        self._left = self._stops = np.zeros((0, 0), np.int64)
        self._resumes = resumes

    def empty_state(self, like: Trunks, **sizes: int) -> DecodeState:
        """A decoder with every lane idle."""
        shape = sizes["slots"], sizes["lanes"]
        self._left, self._stops = np.zeros(shape, np.int64), np.zeros(shape, bool)
        return super().empty_state(like, **sizes)

    def fill_lanes(self, state: Any, base_key: np.ndarray, new: np.ndarray, settings: LaneSettings) -> DecodeState:
        """Start a branch of a drawn length in every lane where ``new`` is true."""
        limits = np.asarray(settings.limit)
        for place in zip(*np.nonzero(new), strict=True):
            limit = int(limits[place])
            length = rest_of(self._lengths, self._cap, limit, self._random.random())
            self._left[place], self._stops[place] = min(length, limit), length < limit
        return super().fill_lanes(state, base_key, new, settings)

    def decode_chunk(
        self,
        params: Params,
        state: DecodeState,
        *,
        steps: int,
        patience: int,
        filtered: bool,
        interruptions: Interruptions | None = None,
    ) -> tuple[DecodeState, Emitted]:
        """As many steps as until ``patience`` lanes have ended; the emitted arrays are NumPy's."""
        if self._resumes:  # no lane pauses here, but the run may need it before any chunk
            self.resize(state, capacity=state.capacity)
        options = {"patience": patience, "filtered": filtered, "interruptions": interruptions}
        state, _ = super().decode_chunk(params, state, steps=steps, **options)
        ends = np.sort(self._left[self._left > 0])
        taken = min(steps, int(ends[min(patience, len(ends)) - 1])) if len(ends) else 0
        step = np.arange(steps)[:, None, None]
        emitted = step < np.minimum(self._left, taken)
        stopped = emitted & (step == self._left - 1) & self._stops
        self._left = np.maximum(self._left - taken, 0)
        zeros = np.zeros(emitted.shape, np.float32)
        entropies = self._random.random(emitted.shape, np.float32)
        routes = np.zeros((*emitted.shape, self.routes), self.routes_type) if self.routes else None
        return state, Emitted(emitted, np.zeros(emitted.shape, np.int32), zeros, entropies, zeros, stopped, routes)

    def fetch_routes(self, trunks: Trunks) -> tuple[Trunks, np.ndarray | None]:
        """As if all tokens had passed expert 0."""
        routes = trunks.routes
        return trunks._replace(routes=None), None if routes is None else np.zeros(routes.shape, routes.dtype)

    def fetch(self, emitted: Emitted) -> Emitted:
        """The chunk's tokens, which are on the host."""
        return emitted
