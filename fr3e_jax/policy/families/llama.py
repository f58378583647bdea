"""Llama 3, 3.1, 3.2 (text) and 3.3. Sizes from config.json of the released models (Llama Team 2024, table 3)."""

from __future__ import annotations

from fr3e_jax.policy.families.family import Family
from fr3e_jax.policy.rotary import RopeScaling


def _sizes(layers: int, hidden: int, heads: int, mlp: int, *, factor: float = 0.0, tied: bool = False) -> dict:
    """``factor``: of the rotary frequencies; 0: Llama 3's context of 8,192 positions."""
    scaling = RopeScaling("llama3", factor, original_max_position_embeddings=8192) if factor else None
    return dict(
        vocab_size=128256,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=8,
        head_dim=hidden // heads,
        intermediate_size=mlp,
        rope_theta=5e5,
        rope_scaling=scaling,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
        max_position_embeddings=131072 if factor else 8192,
    )


LLAMA = Family(
    model_type="llama",
    title="Llama 3, 3.1, 3.2 (text), 3.3",
    causal_lm="LlamaForCausalLM",
    constants={"mlp_bias": False, "sliding_window": None},  # a window: Mistral under Llama's name
    defaults={"max_position_embeddings": 2048},
    published={
        "llama-3-8b": _sizes(32, 4096, 32, 14336),
        "llama-3-70b": _sizes(80, 8192, 64, 28672),
        "llama-3.1-8b": _sizes(32, 4096, 32, 14336, factor=8.0),
        "llama-3.1-70b": _sizes(80, 8192, 64, 28672, factor=8.0),
        "llama-3.2-1b": _sizes(16, 2048, 32, 8192, factor=32.0, tied=True),
        "llama-3.2-3b": _sizes(28, 3072, 24, 8192, factor=32.0, tied=True),
        "llama-3.3-70b": _sizes(80, 8192, 64, 28672, factor=8.0),
    },
)
