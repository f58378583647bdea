"""The embedded procedural task *Order*: evaluate a flat expression, one reduction per line.

The prompt ``3+4*2-5>`` has the response ``3+8-5>1-5>6`` and the stop token (modulo 10). All problems are computed on
access from (seed, stream, index). The split of an expression depends only on a hash of its text. So expressions of the
development and test splits appear in no training prompt and no demonstration prompt, for any seed and length.
"""

from __future__ import annotations

import numpy as np

from fr3e_jax.data.procedural import ProceduralTask
from fr3e_jax.data.task import Demonstration
from fr3e_jax.rewards.order_verifier import LINE_END, OrderVerifier, evaluate, is_valid, reduce_at

MODULUS = 10  # of the arithmetic: operands and results are single digits


class OrderTask(ProceduralTask):
    """*Order* with the settings ``data.order``; see ``fr3e_jax.data.task.Task``."""

    name = section = "order"
    person, development = b"order test split", 4  # all splits have expressions for every number of operands

    def sample(self, rng: np.random.Generator, **options: int) -> tuple[str, str]:
        num_operands = options.get("num_operands", self.config.num_operands)
        operands = rng.integers(MODULUS, size=num_operands).tolist()
        operators = ["+-*"[i] for i in rng.integers(3, size=num_operands - 1).tolist()] + [""]
        expression = "".join(f"{a}{operator}" for a, operator in zip(operands, operators, strict=True))
        return expression + LINE_END, evaluate(expression, MODULUS)

    def key(self, prompt: str, gold: str) -> str:
        return prompt.removesuffix(LINE_END)

    def demonstrated(self, rng: np.random.Generator, step_fraction: float) -> Demonstration:
        """A solution that reduces a random operator in each line, whatever its precedence.

        Demonstrations teach arithmetic, copying and the format. They do not teach the order of operations, which
        reinforcement learning has to find, so their last digit is often wrong. While ``step_fraction < 1`` the number
        of operands is uniform from ``sft_min_operands`` to ``num_operands``; later it is ``num_operands``.

        Every operator is as likely, or with ``sft_valid_share`` that share of the lines reduces a valid one. A low
        share makes demonstrations that seldom succeed, and so a warm start that seldom does.
        """
        shortest = self.config.sft_min_operands if step_fraction < 1 else self.config.num_operands
        num_operands = int(rng.integers(shortest, self.config.num_operands + 1))
        prompt, _ = self.draw(rng, "train", num_operands=num_operands)
        lines = [prompt.removesuffix(LINE_END)]
        while len(lines[-1]) > 1:
            lines.append(reduce_at(lines[-1], self._operator(rng, lines[-1]), MODULUS))
        return Demonstration(prompt, LINE_END.join(lines[1:]))

    def _operator(self, rng: np.random.Generator, expression: str) -> int:
        """The position of the operator that a demonstration reduces next."""
        positions, share = list(range(1, len(expression), 2)), self.config.sft_valid_share
        if share >= 0:
            valid = [position for position in positions if is_valid(expression, position)]
            invalid = [position for position in positions if position not in valid]
            positions = valid if not invalid or rng.random() < share else invalid
        return int(positions[int(rng.integers(len(positions)))])

    def verifier(self) -> OrderVerifier:
        return OrderVerifier(self.config.verifier, MODULUS)
