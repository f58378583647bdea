"""Qwen2, Qwen2.5 and Qwen2.5-Math. Sizes from config.json of the released base models (Qwen2.5's technical report)."""

from __future__ import annotations

from typing import Any

from fr3e_jax.policy.families.family import Family


def _sizes(layers: int, hidden: int, heads: int, kv: int, mlp: int, *, eps: float = 1e-6, **others: Any) -> dict:
    small = hidden <= 2048  # these share embedding and head, and have no rows beyond the tokenizer's for sharding
    return dict(
        vocab_size=151936 if small else 152064,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv,
        head_dim=hidden // heads,
        intermediate_size=mlp,
        rms_norm_eps=eps,
        tie_word_embeddings=small,
        **others,
    )


_LONG = dict(max_position_embeddings=131072)
_MATH = dict(max_position_embeddings=4096, rope_theta=1e4)

QWEN2 = Family(
    model_type="qwen2",
    title="Qwen2, Qwen2.5, Qwen2.5-Math",
    causal_lm="Qwen2ForCausalLM",
    qkv_bias=True,
    constants={"use_sliding_window": False},
    defaults={"num_key_value_heads": 32},
    published={
        "qwen2.5-0.5b": _sizes(24, 896, 14, 2, 4864),
        "qwen2.5-1.5b": _sizes(28, 1536, 12, 2, 8960, **_LONG),
        "qwen2.5-3b": _sizes(36, 2048, 16, 2, 11008),
        "qwen2.5-7b": _sizes(28, 3584, 28, 4, 18944, **_LONG),
        "qwen2.5-14b": _sizes(48, 5120, 40, 8, 13824, eps=1e-5, **_LONG),
        "qwen2.5-32b": _sizes(64, 5120, 40, 8, 27648, eps=1e-5, **_LONG),
        "qwen2.5-72b": _sizes(80, 8192, 64, 8, 29568, eps=1e-5, **_LONG),
        "qwen2.5-math-1.5b": _sizes(28, 1536, 12, 2, 8960, **_MATH),
        "qwen2.5-math-7b": _sizes(28, 3584, 28, 4, 18944, **_MATH),
        "qwen2.5-math-72b": _sizes(80, 8192, 64, 8, 29568, eps=1e-5, **_MATH),
    },
)
