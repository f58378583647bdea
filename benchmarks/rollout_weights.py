"""Measure what the type of the rollouts' weights costs and saves: gap to the trainer, CPU seconds, bytes.

    .venv/bin/python benchmarks/rollout_weights.py configs/demo_fr3e.yaml

For each type it prints one JSON line. The gap is that of every sampled position: log-probs of the sampled tokens, and
KL(sampler ‖ trainer) over the whole vocabulary, both from one causal pass with either set of weights. Decoding is timed
in CPU seconds of the process, in turns, so that a busy machine slows all types alike.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fr3e_jax.configuration import load_config
from fr3e_jax.policy.network import Params, bind
from fr3e_jax.policy.rows import run_trunks
from fr3e_jax.programs.host_memory import keep_host_memory
from fr3e_jax.rollouts.requests import Branch, Rollout, Sampling, TrunkRequest
from fr3e_jax.session.session import open_session


@partial(jax.jit, static_argnums=0)
def _logprobs(graphdef: Any, params: Params, token_ids: jax.Array) -> jax.Array:
    """float32 log-probs ``[T, V]`` after each token of ``token_ids [1, T]``."""
    logits = bind(graphdef, params).logits(run_trunks(graphdef, params, token_ids).hidden[0])
    return jax.nn.log_softmax(logits.astype(jnp.float32))


class Sampler:
    """A session whose rollouts read weights of one type, and the requests of a round."""

    def __init__(self, kind: str, args: argparse.Namespace, params: Params | None):
        overrides = [f"rollout.param_dtype={kind}", "runtime.compilation_cache=", *args.overrides]
        self.kind, self.session = kind, open_session(load_config(args.recipe, overrides, training=False))
        self.params = self._start(args.sharpen) if params is None else params
        self.weights = self.session.sampler.weights.of(self.params)
        problems = self.session.task.problems("train")[: args.prompts]
        self.trunks = [self.session.texts.prompt_ids(problem.prompt) for problem in problems]
        self.cap, self.rollouts = self.session.config.rollout.max_response_tokens, args.rollouts
        self.seconds: list[float] = []

    def _start(self, sharpen: float) -> Params:
        fresh = self.session.model.fresh_params(self.session.config)
        return fresh | {"embedding": fresh["embedding"] * sharpen} if sharpen != 1 else fresh

    def round(self, number: int) -> list[list[Rollout]]:
        """Sample all prompts; without stop ids, so that each type decodes as many tokens."""
        way, count = Sampling(), range(self.rollouts)
        requests = [
            TrunkRequest(ids, [Branch(len(ids), (0, number, i, n), self.cap, way) for n in count])
            for i, ids in enumerate(self.trunks)
        ]
        started = time.process_time()
        found, _ = self.session.sampler.engine.sample(self.weights, requests)
        self.seconds.append(time.process_time() - started)
        return found

    def gap(self, found: list[list[Rollout]]) -> dict[str, float]:
        """Mean and largest |Δ log-prob|, mean KL and mean |Δ entropy|, in nats, and the share of equal top tokens."""
        parts: list[list[np.ndarray]] = []
        for ids, row in zip(self.trunks, found, strict=True):
            for rollout in row:
                parts.append(self._gap(np.concatenate([ids, rollout.token_ids]), len(ids)))
        moved, kl, entropies, entropy, same = map(np.concatenate, zip(*parts, strict=True))
        return {
            "tokens": len(moved),
            "logprob_gap_mean": float(np.abs(moved).mean()),
            "logprob_gap_max": float(np.abs(moved).max()),
            "kl": float(kl.mean()),
            "entropy_gap_mean": float(np.abs(entropies).mean()),
            "entropy": float(entropy.mean()),
            "same_top_token": float(same.mean()),
        }

    def _gap(self, ids: np.ndarray, start: int) -> list[np.ndarray]:
        network = self.session.model
        padded = np.zeros((1, -(-len(ids) // 64) * 64), np.int32)
        padded[0, : len(ids)] = ids
        sampler, trainer = (
            np.asarray(_logprobs(graphdef, params, padded))[start - 1 : len(ids) - 1]
            for graphdef, params in ((network.decoding_graphdef, self.weights), (network.graphdef, self.params))
        )
        taken = np.arange(len(sampler)), ids[start:]
        spread = lambda logprobs: -(np.exp(logprobs) * logprobs).sum(axis=-1)
        return [
            trainer[taken] - sampler[taken],
            (np.exp(sampler) * (sampler - trainer)).sum(axis=-1),
            spread(trainer) - spread(sampler),
            spread(trainer),
            sampler.argmax(axis=-1) == trainer.argmax(axis=-1),
        ]


def samplers(args: argparse.Namespace) -> Iterator[Sampler]:
    """One for each type, all of the same weights."""
    params = None
    for kind in args.types:
        made = Sampler(kind, args, params)
        params = made.params
        yield made


def measured(one: Sampler, found: list[list[Rollout]]) -> dict[str, Any]:
    tokens = sum(len(rollout.token_ids) for row in found for rollout in row)
    times = np.array(one.seconds[1:])  # the first call compiles
    return {
        "param_dtype": one.kind,
        "compute_dtype": one.session.config.model.compute_dtype,
        "weights_mb": round(sum(leaf.nbytes for leaf in jax.tree.leaves(one.weights)) / 1e6, 2),
        "cpu_us_per_token": round(1e6 * float(np.median(times)) / tokens, 2),
        "cpu_us_range": [round(1e6 * float(bound) / tokens, 2) for bound in (times.min(), times.max())],
    } | {name: float(f"{value:.4g}") for name, value in one.gap(found).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*", help="section.field=value")
    parser.add_argument("--types", nargs="+", default=["float32", "bfloat16", "int8"])
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--sharpen", type=float, default=1.0, help="factor on the embedding, for random weights")
    args = parser.parse_intermixed_args()
    keep_host_memory()
    all_types = list(samplers(args))
    for number in range(1 + args.runs):
        found = [one.round(number) for one in all_types]
    for one, rollouts in zip(all_types, found, strict=True):
        print(json.dumps(measured(one, rollouts)), flush=True)


if __name__ == "__main__":
    main()
