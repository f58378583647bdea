"""Lane steps of a batch with a long tail of lengths: rounds of prompts one after another, and one stream of prompts.

    .venv/bin/python benchmarks/lane_steps.py              # by the schedule alone, some seconds
    .venv/bin/python benchmarks/lane_steps.py --engine     # also on the CPU engine, about a minute

A lane step is a decode step of a lane, idle or not. Lengths are exponential with a mean of an eighth of the cap, and
cut at it. *Rounds*: each round has as many rollouts as there are lanes and waits for its longest one. *Stream*: all
prompts in one call, so that lanes go on to the next prompts. *Fitted*: one call, in the layout that the engine chooses
for it by the caps of responses (`rollout.lane_layout`). *Expected*: one call, in the layout that it chooses by the
expected mean (`rollout.expected_tokens`); *rounds expected*: the same for each round. The engine samples from random
weights of a tiny network whose stop token comes about once in 22 tokens; it must give the same tokens in every way.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from fr3e_jax.rollouts.expected_lengths import ExpectedLengths
from fr3e_jax.rollouts.layout import Layout, fitted_layout, lane_steps

CAP, CHUNK = 1024, 16
SLOTS, LANES = 16, 16
ROLLOUTS = 16  # of a prompt
PROMPT = 24


def simulation(rounds: int, seed: int) -> dict[str, int]:
    """Lane steps of a batch of ``rounds`` rounds, by way of sampling."""
    prompts = SLOTS * LANES // ROLLOUTS
    drawn = np.random.default_rng(seed).exponential(CAP / 8, (rounds * prompts, ROLLOUTS))
    lengths = np.minimum(CAP, 1 + drawn.astype(int)).tolist()
    limits, full = [[CAP] * ROLLOUTS] * len(lengths), Layout(SLOTS, LANES)
    chosen = lambda rows, expected: fitted_layout(full, rows, PROMPT, CAP, 1, expected, CHUNK)
    parts = [slice(start, start + prompts) for start in range(0, len(lengths), prompts)]
    mean = ExpectedLengths(CAP // 8, CAP)
    return {
        "rounds": sum(lane_steps(limits[part], lengths[part], full, CHUNK) for part in parts),
        "stream": lane_steps(limits, lengths, full, CHUNK),
        "fitted": lane_steps(limits, lengths, chosen(limits, None), CHUNK),
        "expected": lane_steps(limits, lengths, chosen(limits, mean), CHUNK),
        "rounds expected": sum(
            lane_steps(limits[part], lengths[part], chosen(limits[part], mean), CHUNK) for part in parts
        ),
        "useful": sum(map(sum, lengths)),
    }


def on_the_engine(rounds: int) -> dict[str, tuple[int, float]]:
    """Lane steps and CPU seconds of the engine, by way of sampling; raises if tokens differ."""
    from fr3e_jax.configuration.load import load_config
    from fr3e_jax.rollouts.engine import RolloutEngine
    from fr3e_jax.rollouts.requests import Branch, Sampling, TrunkRequest
    from fr3e_jax.session.session import open_session

    slots, lanes, cap = 16, 16, 176
    config = load_config("configs/demo.yaml", ["model.path=", "model.hidden_size=32", "model.num_layers=2"])
    session = open_session(config)
    params = session.sampler.weights.of(session.model.fresh_params(config))
    how = Sampling(stop_ids=(2,))
    requests = [
        TrunkRequest(
            np.full(PROMPT, 3 + i % 9, np.int32), [Branch(PROMPT, (0, 1, i, m), cap, how) for m in range(lanes)]
        )
        for i in range(rounds * slots)
    ]
    found, tokens, together = {}, {}, len(requests)
    ways = {"rounds": slots, "stream": together, "fitted": together, "expected": together, "rounds expected": slots}
    for name, size in ways.items():
        for _ in range(2):  # the first time compiles
            engine = RolloutEngine(
                session.sampler.engine.programs,
                trunk_slots=slots,
                lanes_per_trunk=lanes,
                chunk=CHUNK,
                seed=0,
                fitted=name not in ("rounds", "stream"),
                expected=ExpectedLengths(cap // 8, cap) if "expected" in name else None,
            )
            start, rows = time.process_time(), []
            for first in range(0, len(requests), size):
                rows += engine.sample(params, requests[first : first + size])[0]
            found[name] = engine.take_counts().lane_steps, time.process_time() - start
        tokens[name] = [rollout.token_ids.tolist() for row in rows for rollout in row]
        lengths = [len(ids) for ids in tokens[name]]
        print(
            f"  {name}: {len(lengths)} responses of {np.mean(lengths):.1f} tokens (cap {cap}), longest {max(lengths)}"
        )
    assert all(own == tokens["rounds"] for own in tokens.values()), "the ways sampled other tokens"
    return found | {"useful": (sum(lengths), 0.0)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", action="store_true", help="also sample on the CPU engine")
    parser.add_argument("--seeds", type=int, default=5, help="simulated batches of each size")
    parser.add_argument("--rounds", type=int, default=6, help="rounds of the engine's batch")
    args = parser.parse_args()
    print(f"simulated: {SLOTS} slots x {LANES} lanes, {ROLLOUTS} rollouts a prompt, mean/cap 1/8; ratios to rounds")
    for rounds in (1, 2, 4, 8):
        batches = [simulation(rounds, seed) for seed in range(args.seeds)]
        ratio = lambda name, batches=batches: np.median([batch[name] / batch["rounds"] for batch in batches])
        print(
            f"  batch of {rounds} rounds: stream {ratio('stream'):.2f}  fitted {ratio('fitted'):.2f}  "
            f"expected {ratio('expected'):.2f}  rounds expected {ratio('rounds expected'):.2f}  "
            f"(all lanes always busy: {ratio('useful'):.2f})"
        )
    if args.engine:
        print(f"on the engine: 16 slots x 16 lanes, a batch of {args.rounds} rounds")
        found = on_the_engine(args.rounds)
        for name, (steps, seconds) in found.items():
            print(f"  {name}: {steps} lane steps, {steps / found['rounds'][0]:.2f} of rounds; {seconds:.2f} CPU s")


if __name__ == "__main__":
    main()
