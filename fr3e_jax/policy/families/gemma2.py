"""Gemma 2. Sizes from config.json of the released models (Gemma Team 2024, arXiv:2408.00118, table 1)."""

from __future__ import annotations

from fr3e_jax.policy.families.family import Family

GEMMA_NORMS = {
    "attention_norm": "input_layernorm",
    "attention_post_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_post_norm": "post_feedforward_layernorm",
}


def _sizes(layers: int, hidden: int, heads: int, head_dim: int, mlp: int, query_scalar: float = 0.0) -> dict:
    return dict(
        vocab_size=256000,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=heads // 2,
        head_dim=head_dim,
        intermediate_size=mlp,
        rope_theta=1e4,
        windows=(4096, 0),
        query_scalar=query_scalar or head_dim,
        attention_softcap=50.0,
        final_softcap=30.0,
        max_position_embeddings=8192,
    )


GEMMA2 = Family(
    model_type="gemma2",
    title="Gemma 2",
    causal_lm="Gemma2ForCausalLM",
    unit_offset=True,
    scaled_embedding=True,
    activation="gelu_pytorch_tanh",
    window_period=2,
    norms=GEMMA_NORMS,
    activation_key="hidden_activation",
    keys={
        "query_pre_attn_scalar": "query_scalar",
        "attn_logit_softcapping": "attention_softcap",
        "final_logit_softcapping": "final_softcap",
    },
    defaults={
        "head_dim": 256,
        "num_key_value_heads": 4,
        "tie_word_embeddings": True,
        "max_position_embeddings": 8192,
        "sliding_window": 4096,
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    published={
        "gemma-2-2b": _sizes(26, 2304, 8, 256, 9216),
        "gemma-2-9b": _sizes(42, 3584, 16, 256, 14336),
        "gemma-2-27b": _sizes(46, 4608, 32, 128, 36864, query_scalar=144),
    },
)
