"""Operations of FR3E's and the tree's step, ours and the peer's, counted from shapes: what fewer operations allow.

    .venv/bin/python benchmarks/step_operations.py

The sizes are those of ``tiny_fr3e`` and ``tiny_tree`` in `step.py`, on the harness's model of 8.7 M parameters, with
full responses and without padding. A product of [m, k] and [k, n] has 2mkn operations; a gradient takes three times the
operations of its forward pass. The peer flattens each rollout and computes all scores of a row. Ours passes a trunk
once. Its rows score whole trunks and three lanes; *least* counts only scores that a token sees. Both sample the same
tokens from forked caches.
"""

from __future__ import annotations

from pathlib import Path

from step import Work, works

LAYERS, WIDTH, HEADS_WIDTH, KEYS_WIDTH, MLP, VOCABULARY = 6, 256, 256, 128, 1408, 4096
KERNELS = LAYERS * WIDTH * (2 * HEADS_WIDTH + 2 * KEYS_WIDTH + 3 * MLP)  # parameters of all layers that multiply
HEAD = WIDTH * VOCABULARY
PAIR = LAYERS * 4 * HEADS_WIDTH  # of a query and a key: the score, and the value times its weight
LANES_SEEN, LANE = 3, 128  # `fr3e_jax.learning.micro_batch_shapes`


def forward(positions: float, scored: float, pairs: float) -> float:
    """Operations of a forward pass."""
    return 2 * positions * KERNELS + 2 * scored * HEAD + pairs * PAIR


def operations(work: Work) -> tuple[float, float, float, float]:
    """Operations of the peer's update, of sampling, of our update as rows compute it, and of the least update."""
    prompt, cap, bases = work.words, work.tokens, work.prompts * work.generations
    trunks = bases if work.tree else 2 * work.prompts
    anchors = [rank * (cap + 1) // (work.anchors + 1) for rank in range(1, work.anchors + 1)]
    # The branches of a trunk: the positions before one, and its own.
    branches = [(prompt + anchor, cap - anchor) for anchor in anchors for _ in range(work.branches)]
    of_branches = sum(new for _, new in branches)
    seen_by_branches = sum(new * fork + new * (new + 1) / 2 for fork, new in branches)
    whole, trained = prompt + cap, trunks * (of_branches + work.tree * cap)
    rows = trunks * (len(branches) + work.tree)
    peer = 3 * forward(rows * whole, trained, rows * whole**2)
    base_pairs = cap * prompt + cap * (cap + 1) / 2
    sampled = bases * cap + trunks * of_branches
    sampling = forward(work.prompts * prompt + sampled, sampled, bases * base_pairs + trunks * seen_by_branches)
    pairs_of_rows = trunks * (whole**2 + of_branches * (whole + LANES_SEEN * LANE))
    as_rows = 3 * forward(trunks * (whole + of_branches), trained, pairs_of_rows)
    needed = whole if work.tree else max(fork for fork, _ in branches)  # of a trunk that does not train itself
    least_pairs = trunks * (needed * (needed + 1) / 2 + seen_by_branches)
    return peer, sampling, as_rows, 3 * forward(trunks * (needed + of_branches), trained, least_pairs)


def main() -> None:
    print("TFLOP: peer's update, sampling, our update, least update; ratio of the step, with the least update")
    for name in ("tiny_fr3e", "tiny_tree"):
        peer, sampling, rows, least = counts = operations(works(Path())[name])
        ratios = [(peer + sampling) / (ours + sampling) for ours in (rows, least)]
        print(f"{name}:", *(f"{count / 1e12:.2f}" for count in counts), *(f"{ratio:.2f}x" for ratio in ratios))


if __name__ == "__main__":
    main()
