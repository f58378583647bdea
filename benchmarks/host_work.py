"""Seconds of the host's work in one step of long rollouts: ``python benchmarks/host_work.py [--rollouts N]``.

8,192 rollouts of 16,384 tokens are a step of a large run. By default a sixteenth of them is made and each figure is
multiplied by 16; what is measured grows in proportion. The tokenizer is a byte-level BPE that is trained on the pages
of this project. CPU seconds of all threads, wall seconds, and what a checkpoint or a file takes on disk. With
``--processes N``, ``decode`` and ``store`` are the work of one process of N, which stores its part of the rollouts:

  decode   texts of the responses for their records; grading makes them once more, on all processes together
  store    records as JSON, compressed, written (`write_rollouts`)
  save     half of the step's rollouts as the partial batch of a checkpoint: content, checksum and JSON
  load     and back
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from fr3e_jax.data.tokenizer import TextCodec
from fr3e_jax.learning.experience import TrainingBranch, TrainingTrunk
from fr3e_jax.runs.checkpoint_content import checksum_of_json, content_of
from fr3e_jax.runs.rollout_parts import Part
from fr3e_jax.runs.rollout_store import RolloutRecord, write_rollouts
from fr3e_jax.runs.run_directory import RunDirectory

ROLLOUTS, TOKENS = 8_192, 16_384
GROUP = 16  # rollouts of a prompt
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


def record(rng: np.random.Generator, number: int, ids: np.ndarray, text: str) -> RolloutRecord:
    """Most tokens are nearly certain, as a language model's are."""
    certain = rng.random(TOKENS) < 0.8
    noise = lambda: rng.exponential(np.where(certain, 0.01, 0.8)).astype(np.float32)
    fields = {"step": 1, "kind": "base", "prompt_position": number // GROUP, "problem_id": f"train/{number // GROUP}"}
    fields |= {"prompt_ids": ids[:200], "reward": 1.0, "finished": True, "base": number % GROUP, "gold": "1"}
    return RolloutRecord(
        id=f"1/{number}",
        token_ids=ids,
        logprobs=-noise(),
        entropies=noise(),
        response=text,
        prompt=text[:800],
        **fields,
    )


def trunks(records: list[RolloutRecord]) -> list[TrainingTrunk]:
    branches = [TrainingBranch(200, r.token_ids, r.logprobs, r.entropies) for r in records]
    groups = [branches[start : start + GROUP] for start in range(0, len(branches), GROUP)]
    return [TrainingTrunk(group[0].token_ids[:200], group, 1, 200) for group in groups]


def measured(name: str, scale: float, function: Callable[[], Any], mega_bytes: Callable[[Any], float]) -> Any:
    wall, cpu = time.perf_counter(), time.process_time()
    result = function()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{name:<8}{cpu * scale:>12.1f}{wall * scale:>12.1f}{mega_bytes(result) * scale:>12,.0f}", flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=ROLLOUTS // 16)
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    count = arguments.rollouts
    part = Part(0, arguments.processes)
    scale, own, rng = ROLLOUTS / count, codec(), np.random.default_rng(0)
    ids = responses(own, count)
    own.decode(ids[0])  # tables are made once a run
    print(
        f"{count} rollouts of {TOKENS:,} tokens; figures times {scale:g}\n{'':<8}{'CPU s':>12}{'wall s':>12}{'MB':>12}"
    )
    mine = part.of([TOKENS] * count)
    texts = measured("decode", scale, lambda: [own.decode(ids[n], special_tokens=True) for n in mine], _megabytes)
    records = [record(rng, n, ids[n], texts[n] if n in mine else "") for n in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        write = lambda: write_rollouts(RunDirectory(Path(folder)), 1, (records[n] for n in mine), part=part)
        measured("store", scale, write, lambda path: path.stat().st_size / 1e6)
    partial = trunks(records[: count // 2])
    saved = measured("save", scale, lambda: _saved(partial), lambda text: len(text) / 1e6)
    measured("load", scale, lambda: _loaded(saved), lambda _: 0.0)


def _megabytes(texts: list[str]) -> float:
    return sum(map(len, texts)) / 1e6


def _saved(partial: list[TrainingTrunk]) -> str:
    return json.dumps(content_of({"partial_batch": [trunk.to_json() for trunk in partial]}, {}))


def _loaded(text: str) -> list[TrainingTrunk]:
    content = json.loads(text)
    assert content.pop("checksum") == checksum_of_json(content)
    return [TrainingTrunk.from_json(trunk) for trunk in content["host"]["partial_batch"]]


if __name__ == "__main__":
    main()
