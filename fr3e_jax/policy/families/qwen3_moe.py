"""Qwen3's mixtures of experts. Sizes from config.json of the released hybrid models (Qwen3's technical report)."""

from __future__ import annotations

from fr3e_jax.policy.families.family import Family


def _sizes(layers: int, hidden: int, heads: int, mlp: int, expert: int) -> dict:
    return dict(
        vocab_size=151936,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=4,
        head_dim=128,
        intermediate_size=mlp,  # of dense layers, of which the released models have none
        num_experts=128,
        experts_per_token=8,
        expert_size=expert,
        norm_topk_prob=True,
        tie_word_embeddings=False,
        max_position_embeddings=40960,
    )


QWEN3_MOE = Family(
    model_type="qwen3_moe",
    title="Qwen3 with experts",
    causal_lm="Qwen3MoeForCausalLM",
    qk_norm=True,
    routed_experts=True,
    constants={"use_sliding_window": False},
    defaults={
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": False,
        "decoder_sparse_step": 1,
    },
    published={
        "qwen3-30b-a3b": _sizes(48, 2048, 32, 6144, 768),
        "qwen3-235b-a22b": _sizes(94, 4096, 64, 12288, 1536),
    },
)
