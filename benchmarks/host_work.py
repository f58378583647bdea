"""Seconds of the host's work in one step of long rollouts: ``python benchmarks/host_work.py [--processes N]``.

8,192 rollouts of 16,384 tokens are a step of a large run; ``--rows`` sets another number. As many of them are made as a
chunk of the decoder has lanes, and at least 512. Each figure is multiplied by what is left out: what is measured grows
in proportion. Beyond 16 processes, slots and rows of a micro-batch are as many as processes. The tokenizer is a
byte-level BPE that is trained on the pages of this project. CPU seconds of all threads, wall seconds, and what texts, a
file or a checkpoint take. With ``--processes N`` the figures are those of the busiest process of N. Parts of a step, in
its order:

  harvest    rollouts from the decoder's chunks; who reads one first copies its tokens (every process, all rollouts)
  grade      texts of the responses that this process grades
  compare    digests of tokens and batch, by which several processes prove that they go on alike: two shares of all
  metrics    counts of rollouts; means over the entropies and advantages of this process's share of them
  advantages advantage of each response (every process, all)
  plan       rows and micro-batches, from lengths alone (every process, all)
  pack       arrays of the micro-batches: the rows of this process's devices
  scores     log-probs from the rows of this process's devices to their branches, checks and gaps
  store      texts of the responses for their records, records as JSON, compressed, written: this process's part

and of a checkpoint that holds half of the step's rollouts as the partial batch:

  save       content, checksum and JSON
  load       and back
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from fr3e_jax.cluster.processes import Processes
from fr3e_jax.configuration.schema import LossConfig
from fr3e_jax.data.tokenizer import TextCodec
from fr3e_jax.learning.experience import TrainingBranch, TrainingTrunk, sampled_branch
from fr3e_jax.learning.finiteness import check_scores
from fr3e_jax.learning.micro_batch_shapes import chosen_shapes
from fr3e_jax.learning.mini_batches import MiniBatch, counted_here, fill, read_spans
from fr3e_jax.learning.packing import pack
from fr3e_jax.learning.row_planner import plan_rows
from fr3e_jax.learning.scoring import gap_metrics
from fr3e_jax.loop.expansion import PromptGroup
from fr3e_jax.loop.step_report import batch_metrics, entropies_of, moments, rollout_metrics
from fr3e_jax.problem import Problem
from fr3e_jax.programs.decode_steps import Emitted
from fr3e_jax.rollouts.requests import Rollout
from fr3e_jax.rollouts.sampled_tokens import SampledTokens
from fr3e_jax.runs.checkpoint_content import checksum_of_json, content_of
from fr3e_jax.runs.rollout_parts import Part
from fr3e_jax.runs.rollout_store import RolloutRecord, write_rollouts
from fr3e_jax.runs.run_directory import RunDirectory
from fr3e_jax.session.session import GARBAGE_THRESHOLDS

ROLLOUTS, TOKENS = 8_192, 16_384
GROUP = 16  # rollouts of a prompt
PROMPT = 200  # its tokens
CHUNK = 64  # steps of the decoder between two looks of the host
LANES = 8  # of a slot; there are as many slots as shards (configs/fr3e_qwen2.5_7b.yaml)
POSITIONS, SHARDS = 36_864, 16  # of a micro-batch on a shard, and shards at least (the same recipe on 64 chips)
PAGES = Path(__file__).parents[1] / "docs"


def codec() -> TextCodec:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    pages = sorted(str(page) for page in PAGES.rglob("*.md"))
    tokenizer.train(pages, trainers.BpeTrainer(vocab_size=16_000, special_tokens=["<end>"], show_progress=False))
    return TextCodec(PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>"))


def responses(codec: TextCodec, count: int) -> list[np.ndarray]:
    """Stretches of the pages' tokens, each from another place."""
    ids = np.asarray(codec.encode("\n".join(page.read_text() for page in sorted(PAGES.rglob("*.md")))), np.int32)
    ids = np.concatenate([ids, ids[:TOKENS]])
    return [ids[start : start + TOKENS] for start in np.linspace(0, len(ids) - TOKENS, count).astype(int)]


def sampled(codec: TextCodec, count: int, slots: int) -> list[Rollout]:
    """Rollouts from chunks of the decoder; most tokens are nearly certain, as a language model's are."""
    rng, lanes, waves, tokens = np.random.default_rng(0), slots * LANES, [], SampledTokens(slots, LANES)
    ids = responses(codec, count)
    for n in range(0, count, lanes):
        scale = np.where(rng.random((lanes, TOKENS), np.float32) < 0.8, np.float32(0.01), np.float32(0.8))
        noise = [scale * rng.standard_exponential(scale.shape, np.float32) for _ in range(3)]
        figures = (
            each.reshape(slots, LANES, -1, CHUNK) for each in (np.stack(ids[n : n + lanes]), -noise[0], *noise[1:])
        )
        waves.append([np.ascontiguousarray(np.moveaxis(each, 2, 0)) for each in figures])
    return measured("harvest", lambda: [one for wave in waves for one in _harvested(tokens, wave)])


def _harvested(tokens: SampledTokens, wave: list[np.ndarray]) -> list[Rollout]:
    """The rollouts of all lanes, whose tokens arrive a chunk at a time; arrays ``[chunks, slots, lanes, CHUNK]``."""
    counts = np.full(tokens.generated.shape, CHUNK, np.int32)
    every = counts > 0
    tokens.start(every)
    for chunk in zip(*wave, strict=True):
        tokens.take(Emitted(counts, ~every, 0 * counts, *chunk), every)
    return tokens.cut(every, every, tokens.generated.reshape(-1))


def record(number: int, own: Rollout, text: str) -> RolloutRecord:
    fields = {"step": 1, "kind": "base", "prompt_position": number // GROUP, "problem_id": f"train/{number // GROUP}"}
    fields |= {"prompt_ids": own.token_ids[:PROMPT], "reward": 1.0, "finished": True, "base": number % GROUP}
    return RolloutRecord(
        id=f"1/{number}",
        token_ids=np.asarray(own.token_ids),
        logprobs=own.logprobs,
        entropies=own.entropies,
        response=text,
        prompt=text[:800],
        gold="1",
        **fields,
    )


def prompt_groups(rollouts: list[Rollout]) -> list[PromptGroup]:
    return [
        PromptGroup(n, Problem(f"train/{n}", "", ""), own[0].token_ids[:PROMPT], own, np.arange(len(own)) % 2.0)
        for n, own in enumerate(rollouts[start : start + GROUP] for start in range(0, len(rollouts), GROUP))
    ]


def trunks(groups: list[PromptGroup]) -> list[TrainingTrunk]:
    """Training trunks, as First Return makes them."""

    def branch(own: Rollout, reward: float) -> TrainingBranch:
        return sampled_branch(own, PROMPT, 2 * reward - 1, reward=reward)

    return [TrainingTrunk(one.prompt_ids, list(map(branch, one.rollouts, one.rewards)), 1, PROMPT) for one in groups]


def measured(name: str, function: Callable[[], Any], mega_bytes: Callable[[Any], float] | None = None) -> Any:
    """Run a part; add its CPU seconds to `SECONDS` and print them."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = function()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    SECONDS[name] = cpu * SCALE[0]
    size = f"{mega_bytes(result) * SCALE[0]:>12,.0f}" if mega_bytes else ""
    print(f"{name:<12}{cpu * SCALE[0]:>12.1f}{wall * SCALE[0]:>12.1f}{size}", flush=True)
    return result


SECONDS: dict[str, float] = {}
SCALE = [1.0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=ROLLOUTS)
    parser.add_argument("--rollouts", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    processes = arguments.processes
    shards = max(SHARDS, processes)
    count = arguments.rollouts or max(512, shards * LANES)
    if count % (shards * LANES):
        parser.error(f"--rollouts {count}; expected a multiple of the {shards * LANES} lanes")
    gc.set_threshold(*GARBAGE_THRESHOLDS)  # as a run does
    SCALE[0], own = arguments.rows / count, codec()
    own.decode(own.encode("tables are made once a run"))
    print(
        f"{count} rollouts of {TOKENS:,} tokens, the busiest of {processes} processes; figures times {SCALE[0]:g}\n"
        f"{'':<12}{'CPU s':>12}{'wall s':>12}{'MB':>12}"
    )
    rollouts = sampled(own, count, shards)
    decoded = lambda numbers: {n: own.decode(rollouts[n].token_ids, special_tokens=True) for n in numbers}
    measured("grade", lambda: decoded(range(0, count, processes)), _megabytes)
    groups = prompt_groups(rollouts)
    measured("metrics", lambda: (rollout_metrics(groups, []), moments(entropies_of(groups)[::processes])))
    batch = measured("advantages", lambda: trunks(groups))
    measured("compare", lambda: compared(batch, rollouts, Processes(0, processes)) if processes > 1 else None)
    advantages = [branch.advantages for trunk in batch for branch in trunk.branches]
    measured("metrics 2", lambda: (batch_metrics(batch, 1), moments(advantages[::processes])))
    update(batch, processes, shards)
    store(own, rollouts, Part(0, processes))
    print(f"{'sum':<12}{sum(SECONDS.values()):>12.1f}")
    saved = measured("save", lambda: _saved(batch[: len(batch) // 2]), lambda text: len(text) / 1e6)
    measured("load", lambda: _loaded(saved))


def compared(batch: list[TrainingTrunk], rollouts: list[Rollout], processes: Processes) -> list[dict[str, str]]:
    """What `Processes.exchange` computes of a step's verdicts and of its full batch."""
    branches = [branch for trunk in batch for branch in trunk.branches]
    decisions = [
        [own.token_ids for own in rollouts],
        [trunk.token_ids for trunk in batch],
        np.array([branch.fork for branch in branches]),
        [branch.token_ids for branch in branches],
        [branch.advantages for branch in branches],
    ]
    return [processes._digests(decision) for decision in decisions]


def update(batch: list[TrainingTrunk], processes: int, shards: int) -> None:
    """What an update does on the host, with the sampler's log-probs in place of the device's."""
    forks = [[branch.fork for branch in trunk.branches] for trunk in batch]
    lengths = [[len(branch.token_ids) for branch in trunk.branches] for trunk in batch]
    shapes = chosen_shapes([(forks[:8], lengths[:8])], (PROMPT, TOKENS), tokens=shards * POSITIONS, shards=shards)
    rows = {"shapes": shapes, "shards": shards}
    measured("plan", lambda: plan_rows(forks, lengths, **rows))
    own = lambda rows: np.arange(rows) < max(rows // processes, 1)
    micros = measured("plan, pack", lambda: pack(batch, pad_id=0, own_rows=own, **rows))
    SECONDS["plan, pack"] -= SECONDS["plan"]
    part = MiniBatch(list(range(len(batch))), batch, micros)
    fill([part], "old_logprobs", [[branch.sampler_logprobs for branch in trunk.branches] for trunk in batch])
    arrays = [micro.batch.old_logprobs for micro in part.micros]
    read = [[None] * len(trunk.branches) for trunk in batch]

    def scores() -> None:
        read_spans(part, arrays, read, everywhere=False)
        counted = counted_here([part], own, read)
        check_scores(batch, {"the policy's log-probs": counted})
        gap_metrics(LossConfig(), batch, counted, 1)

    measured("scores", scores)


def store(own: TextCodec, rollouts: list[Rollout], part: Part) -> None:
    def text(n: int) -> str:
        return own.decode(rollouts[n].token_ids, special_tokens=True)

    with tempfile.TemporaryDirectory() as folder:
        records = (record(n, rollouts[n], text(n)) for n in part.of([TOKENS] * len(rollouts)))
        write = lambda: write_rollouts(RunDirectory(Path(folder)), 1, records, part=part)
        measured("store", write, lambda path: path.stat().st_size / 1e6)


def _megabytes(texts: dict[int, str]) -> float:
    return sum(map(len, texts.values())) / 1e6


def _saved(partial: list[TrainingTrunk]) -> str:
    return json.dumps(content_of({"partial_batch": [trunk.to_json() for trunk in partial]}, {}))


def _loaded(text: str) -> list[TrainingTrunk]:
    content = json.loads(text)
    assert content.pop("checksum") == checksum_of_json(content)
    return [TrainingTrunk.from_json(trunk) for trunk in content["host"]["partial_batch"]]


if __name__ == "__main__":
    main()
