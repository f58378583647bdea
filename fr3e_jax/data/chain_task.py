"""The embedded procedural task *Chain*: apply a chain of operations to a list of digits, one per line.

``fr3e_jax.rewards.chain_verifier`` has the operations and the format. Ambiguous operations share no skill: each has a
reading of its own that counts, and a policy learns each for itself. Plain operations make long answers without further
decisions. All problems are computed on access from (seed, stream, index). The split of a prompt depends only on a hash
of its text, so no development or test prompt is a training or demonstration prompt.
"""

from __future__ import annotations

import numpy as np

from fr3e_jax.configuration.schema import ChainConfig, DataConfig
from fr3e_jax.data.procedural import ProceduralTask, generator, split_by_hash
from fr3e_jax.data.task import Demonstration, Split
from fr3e_jax.rewards.chain_verifier import AMBIGUOUS, LINE_END, PLAIN, ChainVerifier, readings, steps_of

DIGITS = 4  # of the list


class ChainTask(ProceduralTask):
    """*Chain* with the settings ``data.chain``; see ``fr3e_jax.data.task.Task``."""

    name = "chain"

    def __init__(self, config: DataConfig):
        chain = config.chain
        for name, value in (("ambiguous", chain.ambiguous), ("sft_min_length", chain.sft_min_length)):
            if value > chain.length:
                raise ValueError(
                    f"data.chain.{name} is {value}, more than data.chain.length ({chain.length}); "
                    "lower the first or raise the second"
                )
        super().__init__(chain, config.seed)

    def draw(self, rng: np.random.Generator, split: Split) -> tuple[str, str]:
        return _draw(rng, self.config, self.config.length, split)

    def demonstration(self, index: int, step_fraction: float) -> Demonstration:
        """A solution that reads each ambiguous operation the right way with probability ``sft_right_share``.

        Each use is drawn on its own. So demonstrations teach both readings of all operations, copying and the format,
        and not which reading counts. While ``step_fraction < 1`` the length is uniform from ``sft_min_length`` to
        ``length``; later it is ``length``. Shorter ones have as many ambiguous operations as fit.
        """
        rng = generator(self.seed, "demonstrations", index)
        shortest = self.config.sft_min_length if step_fraction < 1 else self.config.length
        length = int(rng.integers(shortest, self.config.length + 1))
        prompt = _draw(rng, self.config, length, "train")[0]
        digits, steps = steps_of(prompt)
        lines = []
        for step in steps:
            lists = readings(step[-1], digits)
            digits = lists[0] if rng.random() < self.config.sft_right_share else lists[-1]
            lines.append(step + digits)
        return Demonstration(prompt=prompt, response=LINE_END.join(lines))

    def verifier(self) -> ChainVerifier:
        return ChainVerifier(self.config.verifier)


def split_of(prompt: str) -> Split:
    """The split of a prompt by a hash of its text: one in 16 each for test and development, the rest to train."""
    return split_by_hash(prompt, b"chain test split", development=1)


def _draw(rng: np.random.Generator, config: ChainConfig, length: int, split: Split) -> tuple[str, str]:
    """A random prompt of the wanted split and its last list, by rejection sampling.

    The readings of each ambiguous operation differ on the list that it meets, so that each is a decision.
    """
    while True:
        digits = first = "".join(map(str, rng.integers(10, size=DIGITS)))
        ambiguous = set(rng.permutation(length)[: config.ambiguous].tolist())
        steps = ""
        for step in range(length):
            able = list(PLAIN)
            if step in ambiguous:
                able = [operation for operation in AMBIGUOUS if len(set(readings(operation, digits))) == 2]
            operation = able[int(rng.integers(len(able)))]
            steps += f"{length - 1 - step:02d}{operation}"
            digits = readings(operation, digits)[0]
        prompt = first + steps + LINE_END
        if split_of(prompt) == split:
            return prompt, digits
