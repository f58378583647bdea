"""Dense Qwen3. Sizes from config.json of the released hybrid models (Qwen3's technical report)."""

from __future__ import annotations

from fr3e_jax.policy.families.family import Family


def _sizes(layers: int, hidden: int, heads: int, mlp: int) -> dict:
    return dict(
        vocab_size=151936,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=8,
        head_dim=128,
        intermediate_size=mlp,
        tie_word_embeddings=hidden <= 2560,
        max_position_embeddings=40960,
    )


QWEN3 = Family(
    model_type="qwen3",
    title="dense Qwen3",
    causal_lm="Qwen3ForCausalLM",
    qk_norm=True,
    constants={"use_sliding_window": False},
    defaults={"head_dim": 128, "num_key_value_heads": 32},
    published={
        "qwen3-0.6b": _sizes(28, 1024, 16, 3072),
        "qwen3-1.7b": _sizes(28, 2048, 16, 6144),
        "qwen3-4b": _sizes(36, 2560, 32, 9728),
        "qwen3-8b": _sizes(36, 4096, 32, 12288),
        "qwen3-14b": _sizes(40, 5120, 40, 17408),
        "qwen3-32b": _sizes(64, 5120, 64, 25600),
    },
)
