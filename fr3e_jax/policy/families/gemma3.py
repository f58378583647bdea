"""Gemma 3, text alone. Sizes from the text part of config.json of the released models (Gemma Team 2025, table 1)."""

from __future__ import annotations

from typing import Any

from fr3e_jax.policy.families.family import Family
from fr3e_jax.policy.families.gemma2 import GEMMA_NORMS
from fr3e_jax.policy.rotary import RopeScaling


def _sizes(layers: int, hidden: int, heads: int, kv: int, mlp: int, **others: Any) -> dict:
    sizes = dict(
        vocab_size=262208,  # with the tokens of images
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv,
        head_dim=256,
        intermediate_size=mlp,
        rope_theta=1e6,
        rope_scaling=RopeScaling("linear", 8.0),
        local_rope_theta=1e4,
        windows=(1024, 1024, 1024, 1024, 1024, 0),
        query_scalar=256.0,
        max_position_embeddings=131072,
    )
    return sizes | others


GEMMA3 = Family(
    model_type="gemma3_text",
    title="Gemma 3, text",
    causal_lm="Gemma3ForCausalLM",
    qk_norm=True,
    unit_offset=True,
    scaled_embedding=True,
    activation="gelu_pytorch_tanh",
    window_period=6,
    local_rope=True,
    norms=GEMMA_NORMS,
    activation_key="hidden_activation",
    keys={"query_pre_attn_scalar": "query_scalar", "final_logit_softcapping": "final_softcap"},
    defaults={
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "tie_word_embeddings": True,
        "max_position_embeddings": 131072,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "sliding_window": 4096,
        "query_pre_attn_scalar": 256,
        "final_logit_softcapping": None,
    },
    published={
        "gemma-3-1b": _sizes(
            26,
            1152,
            4,
            1,
            6912,
            vocab_size=262144,
            windows=(512, 512, 512, 512, 512, 0),
            rope_scaling=None,
            max_position_embeddings=32768,
        ),
        "gemma-3-4b": _sizes(34, 2560, 8, 4, 10240),
        "gemma-3-12b": _sizes(48, 3840, 16, 8, 15360),
        "gemma-3-27b": _sizes(62, 5376, 32, 16, 21504, head_dim=128, query_scalar=168.0),
    },
)
