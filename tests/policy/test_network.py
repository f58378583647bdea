"""The network against its families written out in NumPy, fed with the file that `save_params` writes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from fr3e_jax.policy.head import even_chunk
from fr3e_jax.policy.huggingface import save_params
from fr3e_jax.policy.modules import product, rms_norm

SEQUENCES = [[3, 17, 0, 5, 5, 9, 11, 2], [8], [19, 4, 1]]


def softcapped(x: np.ndarray, bound: float) -> np.ndarray:
    return bound * np.tanh(x / bound) if bound else x


def written_out(weights: dict[str, np.ndarray], a, token_ids) -> np.ndarray:
    """Logits ``[length, V]`` in float64, from tensors named and laid out as Hugging Face does (``[out, in]``)."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    linear = lambda name, x: x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)

    gemma = a.model_type.startswith("gemma")

    def norm(name, x):
        return (gemma + w[f"{name}.weight"]) * x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + a.rms_norm_eps)

    def heads(name, x, rotate, theta):
        x = linear(f"{name}_proj", x).reshape(len(x), -1, a.head_dim)
        if f"{name}_norm.weight" in w:
            x = norm(f"{name}_norm", x)
        half = a.head_dim // 2
        angles = np.arange(len(x))[:, None] / theta ** (np.arange(half) / half)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        turned = np.concatenate(
            [x[..., :half] * cos - x[..., half:] * sin, x[..., half:] * cos + x[..., :half] * sin], axis=-1
        )
        return turned if rotate else x

    def gate(x):
        return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) if gemma else x / (1 + np.exp(-x))

    x = w["model.embed_tokens.weight"][token_ids] * (np.sqrt(a.hidden_size) if gemma else 1)
    after = lambda name, y: norm(name, y) if gemma else y
    before_mlp = "pre_feedforward_layernorm" if gemma else "post_attention_layernorm"
    for layer in range(a.num_layers):
        name = f"model.layers.{layer}"
        y = norm(f"{name}.input_layernorm", x)
        window = a.windows[layer % len(a.windows)] or len(x)
        local = a.local_rope_theta and a.windows[layer % len(a.windows)]
        theta = a.local_rope_theta if local else a.rope_theta
        q, k, v = (heads(f"{name}.self_attn.{part}", y, part != "v", theta) for part in "qkv")
        mixed = np.zeros_like(q)
        for h in range(a.num_heads):
            kv = h // (a.num_heads // a.num_kv_heads)
            scores = softcapped(q[:, h] @ k[:, kv].T / np.sqrt(a.query_scalar or a.head_dim), a.attention_softcap)
            seen = np.tril(np.ones_like(scores)) - np.tril(np.ones_like(scores), -window)
            scores = np.exp(np.where(seen, scores, -np.inf))
            mixed[:, h] = scores / scores.sum(axis=-1, keepdims=True) @ v[:, kv]
        x = x + after(f"{name}.post_attention_layernorm", linear(f"{name}.self_attn.o_proj", mixed.reshape(len(x), -1)))
        y = norm(f"{name}.{before_mlp}", x)
        mlp = lambda name, y: linear(
            f"{name}.down_proj", gate(linear(f"{name}.gate_proj", y)) * linear(f"{name}.up_proj", y)
        )
        if f"{name}.mlp.gate.weight" not in w:
            x = x + after(f"{name}.post_feedforward_layernorm", mlp(f"{name}.mlp", y))
            continue
        probabilities = np.exp(linear(f"{name}.mlp.gate", y))
        probabilities /= probabilities.sum(axis=-1, keepdims=True)
        for token, row in enumerate(probabilities):
            chosen = np.argsort(-row)[: a.experts_per_token]
            for expert in chosen:
                factor = row[expert] / (row[chosen].sum() if a.norm_topk_prob else 1)
                x[token] += factor * mlp(f"{name}.mlp.experts.{expert}", y[token])
    head = "model.embed_tokens" if a.tie_word_embeddings else "lm_head"
    return softcapped(linear(head, norm("model.norm", x)), a.final_softcap)


EXPERTS = dict(model_type="qwen3_moe", num_experts=5, experts_per_token=2, expert_size=12)
FAMILIES = {
    "qwen2": {},
    "qwen2 untied": {"tie_word_embeddings": False},
    "qwen3": {"model_type": "qwen3"},
    "qwen3 wide heads, biased": {"model_type": "qwen3", "attention_bias": True, "head_dim": 12, "num_kv_heads": 1},
    "qwen3 with experts": EXPERTS | {"norm_topk_prob": True},
    "qwen3 with experts, and a dense layer": EXPERTS | {"dense_layers": (0,), "tie_word_embeddings": False},
    "llama": {"model_type": "llama", "tie_word_embeddings": False},
    "gemma2": {"model_type": "gemma2", "windows": (3, 0), "query_scalar": 12.0, "attention_softcap": 2.0},
    "gemma2 bounded": {"model_type": "gemma2", "windows": (3,), "final_softcap": 4.0},
    "gemma3": {"model_type": "gemma3_text", "windows": (3, 0), "local_rope_theta": 50.0},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_the_family_written_out_in_float64(family, tiny_network, tmp_path):
    network = tiny_network(**FAMILIES[family])
    save_params(tmp_path, network.architecture, network.params)
    weights = load_file(tmp_path / "model.safetensors")
    for sequence, logits in zip(SEQUENCES, network.full_logits(SEQUENCES), strict=True):
        np.testing.assert_allclose(logits, written_out(weights, network.architecture, sequence), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_has_an_axis_name_for_each_dimension(family, tiny_network):
    network = tiny_network(**FAMILIES[family])

    def check(leaf, axes):
        assert len(axes) == len(leaf.shape)
        assert set(axes) <= {"vocab", "embed", "heads", "kv_heads", "mlp", "experts", "expert_embed", None}
        return leaf

    jax.tree.map(check, network.abstract, network.axes)
    attention = network.axes["layers"][1]["attention"]
    assert attention["query"]["kernel"] == ("embed", "heads") and attention["out"]["kernel"] == ("heads", "embed")
    assert network.axes.get("head") == (None if network.architecture.tie_word_embeddings else ("embed", "vocab"))


def test_bfloat16_compute_stays_near_float32_and_keeps_float32_logits(tiny, tiny_network):
    half = tiny_network(compute_dtype="bfloat16")
    (logits,), (exact,) = half.full_logits(SEQUENCES[:1]), tiny.full_logits(SEQUENCES[:1])
    assert logits.dtype == np.float32
    error = np.abs(logits - exact).max()
    assert 0 < error < 0.03 * np.abs(exact).max()  # 8 bits of precision through two layers


# Elsewhere every norm's scale is 1 or random and its input well scaled; here also a row of zeros and tiny values.
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-6), ("bfloat16", 2e-2)])
@pytest.mark.parametrize("shape", [(5, 8), (2, 1, 7, 3, 16)])
def test_rms_norm_and_its_gradient_equal_the_formula(dtype, tolerance, shape):
    random = np.random.default_rng(0)
    x, scale, slope = (random.standard_normal(s) for s in (shape, shape[-1:], shape))
    x.reshape(-1, shape[-1])[0], x.reshape(-1, shape[-1])[1] = 0.0, x.reshape(-1, shape[-1])[1] * 1e-4
    x, scale, slope = (np.asarray(jnp.asarray(v, dtype).astype("float32"), np.float64) for v in (x, scale, slope))
    epsilon, size = 1e-6, shape[-1]
    inverse = 1 / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + epsilon)
    along = np.sum(slope * scale * x, axis=-1, keepdims=True) / size
    expected = ((slope * scale - x * along * inverse**2) * inverse, (slope * x * inverse).reshape(-1, size).sum(axis=0))
    out, pull = jax.vjp(lambda x, scale: rms_norm(x, scale, epsilon), jnp.asarray(x, dtype), jnp.asarray(scale, dtype))
    np.testing.assert_allclose(np.asarray(out, np.float64), x * inverse * scale, rtol=tolerance, atol=tolerance)
    for ours, theirs in zip(pull(jnp.asarray(slope, dtype)), expected, strict=True):
        assert ours.dtype == dtype
        largest = np.abs(theirs).max(axis=-1, keepdims=True)  # of each row: those of zeros have slopes of 1,000
        assert (np.abs(np.asarray(ours, np.float64) - theirs) <= tolerance * largest).all()


def test_chunks_of_the_head_are_even_and_as_few_as_possible():
    for tokens in range(1, 60):
        for chunk in range(1, 70):
            size, count = even_chunk(chunk, tokens), -(-tokens // chunk)
            assert size <= chunk and -(-tokens // size) == count
            assert count * size - tokens < count, "less than one token of each chunk is empty"
            assert even_chunk(chunk, count * size) == size, "the same for tokens padded to whole chunks"


def test_rms_norm_of_a_mean_that_overflows_is_nan():
    """Divided by an infinite root the activations would be 0: all tokens equally probable, and every gradient 0."""
    x = jnp.stack([jnp.full(4, 1e25), jnp.full(4, 1e15)])
    found = rms_norm(x, jnp.ones(4), 1e-6)
    assert np.isnan(found[0]).all()
    np.testing.assert_allclose(found[1], np.ones(4), rtol=1e-6)


def test_few_rows_times_a_large_kernel_on_cpu_take_no_ynnpack_product_and_equal_the_plain_one():
    x, kernel = (jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate([(8, 256), (256, 512)]))
    compiled = jax.jit(product).lower(x, kernel).compile()
    assert "ynn_fusion" not in compiled.as_text()
    np.testing.assert_allclose(compiled(x, kernel), np.asarray(x) @ np.asarray(kernel), rtol=1e-4, atol=1e-4)
