"""Does bisection find the token that loses a wrong answer? At fixed weights, on *Order* with the strict verifier.

    .venv/bin/python benchmarks/pivots.py --operands 5 --model warm_starts/order --longest 24
    .venv/bin/python benchmarks/pivots.py --operands 7 --model warm_starts/order_long --longest 47

V at a token is the share of continuations from before it that are right. The *pivot* of a wrong answer is the token
with the largest fall of V, from 64 continuations at every token. Bisection halves the answer, log2(T) times: it goes on
in the later half if at least half of the prompt's own success is left at the middle, by n continuations. The others are
the token of highest entropy, of lowest log-prob, and a random one. Prompts are development problems with mixed samples.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import fr3e_jax as fr3e
from fr3e_jax.configuration import load_config
from fr3e_jax.data.order_task import OrderTask

ROOT = Path(__file__).resolve().parent.parent
_ORACLE, _SAMPLES, _LEAST_VALUE = 64, 16, 0.05


class Values:
    """Values of the states of wrong answers, and the tokens spent on them."""

    def __init__(self, args: argparse.Namespace):
        settings = [f"data.order.num_operands={args.operands}", "data.order.verifier=strict"]
        self.task = OrderTask(load_config(ROOT / "configs" / "demo_fr3e.yaml", settings).data)
        self.verify, self.tokens = self.task.verifier(), 0
        self.policy = fr3e.load_policy(args.model, overrides=[f"rollout.max_response_tokens={args.longest}"])

    def right(self, problem, answer) -> float:
        return float(self.verify(problem, answer.text, answer.finished))

    def at(self, problem, answer, places, count: int, seed: int) -> list[float]:
        """V before each of the tokens ``places`` (rising), from ``count`` continuations."""
        states = self.policy.branch(answer, at=list(places), n=count, seed=seed)
        self.tokens += sum(len(one.token_ids) - state.fork for state in states for one in state)
        return [float(np.mean([self.right(problem, one) for one in state])) for state in states]

    def bisected(self, problem, answer, start: float, count: int, seed: int) -> int:
        """The token before which half of ``start`` is left, and behind which it is not."""
        low, high = 0, len(answer.token_ids)
        while high - low > 1:
            middle = (low + high) // 2
            (value,) = self.at(problem, answer, [middle], count, seed + middle)
            low, high = (middle, high) if value >= start / 2 else (low, middle)
        return low


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operands", type=int, default=5)
    parser.add_argument("--model", default=str(ROOT / "warm_starts" / "order"))
    parser.add_argument("--longest", type=int, default=24, help="longest answer, tokens")
    parser.add_argument("--answers", type=int, default=60)
    args = parser.parse_args()
    values, random = Values(args), np.random.default_rng(0)
    hits: dict[str, list[bool]] = {}
    spent: dict[str, int] = {}
    done = 0
    for number, problem in enumerate(values.task.problems("development")):
        samples = values.policy.sample([problem.prompt], n=_SAMPLES, seed=number)
        rewards = np.array([values.right(problem, one) for one in samples])
        if not 0 < rewards.mean() < 1:
            continue
        answer = samples[int(np.flatnonzero(rewards == 0)[0])]
        length = len(answer.token_ids)
        known = values.at(problem, answer, range(length), _ORACLE, 10_000 + number)
        if known[0] < _LEAST_VALUE:
            continue
        pivot = int(np.argmin(np.diff([*known, 0.0])))
        found = {
            "highest entropy": int(np.argmax(answer.entropies)),
            "lowest log-prob": int(np.argmin(answer.logprobs)),
        }
        found["random"] = int(random.integers(length))
        for count in (8, 16):
            before = values.tokens
            name = f"bisection, n={count}"
            found[name] = values.bisected(problem, answer, float(rewards.mean()), count, 20_000 + 50 * number)
            spent[name] = spent.get(name, 0) + values.tokens - before
        for name, place in found.items():
            hits.setdefault(name, []).append(place == pivot)
        done += 1
        if done == args.answers:
            break
    for name, row in hits.items():
        share = np.mean(row)
        error = 1.96 * np.sqrt(share * (1 - share) / done)
        print(f"{name}: {share:.0%} ± {error:.0%} of {done} pivots, {spent.get(name, 0) / done:.0f} tokens an answer")


if __name__ == "__main__":
    main()
