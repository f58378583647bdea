"""The sizes of a run's caches: rings of lanes, and trunks. Each pair of sizes is another decoding program."""

from __future__ import annotations

from dataclasses import dataclass

from fr3e_jax.configuration.schema import Config
from fr3e_jax.programs.size_buckets import ring_size, size_bucket

LEAST_TRUNK = 16  # tokens
_TILE = 128  # positions; of such a size are the largest trunks
_STEP = 4  # from one size of a short list to the next
_SHORT = 256  # up to so many tokens, all trunks that hold a response have one size: a longer one costs little


@dataclass(frozen=True)
class CacheSizes:
    """The sizes that caches may have.

    Attributes:
      most: at most so many sizes of rings, and of trunks that hold a response; 0: rings of every power of two; trunks
        of one size where no sequence is longer than 256 tokens, else of two in every power of two.
      prompt, response: the most tokens of a prompt and of a response; 0: not known.
    """

    most: int = 0
    prompt: int = 0
    response: int = 0

    def ring(self, tokens: int, longest: int) -> int:
        """Columns of rings that hold ``tokens`` tokens now, in a call whose longest branch may have ``longest``."""
        if not self.most:
            return ring_size(tokens, longest)
        return self._of_few(tokens, ring_size(self.response, self.response))

    def trunk(self, tokens: int) -> int:
        """Positions of trunks of at most ``tokens`` tokens."""
        prompts, longest = size_bucket(self.prompt, LEAST_TRUNK), self.prompt + self.response
        if self.most:
            return prompts if tokens <= prompts else self._of_few(tokens, -(-longest // _TILE) * _TILE)
        one = -(-longest // LEAST_TRUNK) * LEAST_TRUNK
        return one if prompts < tokens <= one <= _SHORT else size_bucket(tokens, LEAST_TRUNK)

    def promoted(self, tokens: int) -> int:
        """Positions of trunks of at most ``tokens`` tokens that were responses: never the size of prompts alone."""
        prompts = size_bucket(self.prompt, LEAST_TRUNK)
        few = self.most or prompts + 1 <= self.prompt + self.response <= _SHORT
        return self.trunk(max(tokens, prompts + 1) if few else tokens)

    def _of_few(self, tokens: int, largest: int) -> int:
        """The least of the ``most`` sizes below ``largest`` that holds ``tokens``, or what a longer one needs."""
        sizes = [-(-largest // _STEP**n // LEAST_TRUNK) * LEAST_TRUNK for n in range(self.most)]
        return min((size for size in sizes if size >= max(tokens, LEAST_TRUNK)), default=size_bucket(tokens))


ANY = CacheSizes()
"""For lengths that are not known."""


def configured_sizes(config: Config) -> CacheSizes:
    """The sizes of a run's caches."""
    return CacheSizes(config.rollout.cache_sizes, config.data.max_prompt_tokens, config.rollout.max_response_tokens)
