"""Logits equal those of `transformers`' own Qwen2, in both directions. Needs torch, which is not a requirement."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not in requirements-dev.txt; pip install torch to compare")

import transformers  # noqa: E402

from fr3e_jax.policy.architecture import read_architecture  # noqa: E402
from fr3e_jax.policy.huggingface import load_params, save_params  # noqa: E402
from fr3e_jax.policy.network import bind, build_network  # noqa: E402
from fr3e_jax.policy.rows import run_trunks  # noqa: E402

WARM_STARTS = Path(__file__).resolve().parents[2] / "warm_starts"
SHIPPED = sorted(path.parent.name for path in WARM_STARTS.glob("*/config.json")) or [
    pytest.param("", marks=pytest.mark.skip(reason=f"no warm start is shipped in {WARM_STARTS.name}/"))
]
HEADS = [(4, 2), (4, 1), (4, 4)]
TIED = [True, False]


def our_logits(directory, ids):
    architecture = read_architecture(directory)
    graphdef, abstract, _ = build_network(architecture)
    params = load_params(directory, architecture, abstract)
    hidden = run_trunks(graphdef, params, jnp.asarray(ids)).hidden
    return np.asarray(bind(graphdef, params).logits(hidden))


def their_logits(model, ids):
    with torch.no_grad():
        return model(torch.tensor(ids)).logits.float().numpy()


def token_ids(vocab_size):
    return np.random.default_rng(0).integers(0, vocab_size, (2, 9))


@pytest.mark.parametrize("tied", TIED)
@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
def test_a_model_that_transformers_saved_has_the_same_logits_here(heads, kv_heads, tied, tmp_path):
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=20,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=48,
        tie_word_embeddings=tied,
    )
    model = transformers.Qwen2ForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:  # biases and norms leave their initial 0 and 1
                parameter.add_(0.2 * torch.randn_like(parameter))
            else:
                parameter.mul_(15 if "embed" in name or "head" in name else 8)
    model.save_pretrained(tmp_path)
    theirs = their_logits(model, token_ids(20))
    assert theirs.std() > 1
    np.testing.assert_allclose(our_logits(tmp_path, token_ids(20)), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tied", TIED)
@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
def test_a_model_that_we_saved_has_the_same_logits_in_transformers(heads, kv_heads, tied, tiny_network, tmp_path):
    network = tiny_network(num_heads=heads, num_kv_heads=kv_heads, head_dim=6, tie_word_embeddings=tied)
    save_params(tmp_path, network.architecture, network.params, eos_token_id=3, pad_token_id=1)
    model = transformers.Qwen2ForCausalLM.from_pretrained(tmp_path).eval()
    ids = token_ids(20)
    ours = np.stack(network.full_logits(ids.tolist()))
    np.testing.assert_allclose(ours, their_logits(model, ids), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("directory", SHIPPED)
def test_a_shipped_warm_start_has_the_same_logits(directory):
    model = transformers.Qwen2ForCausalLM.from_pretrained(WARM_STARTS / directory, dtype=torch.float32).eval()
    ids = token_ids(model.config.vocab_size)
    np.testing.assert_allclose(our_logits(WARM_STARTS / directory, ids), their_logits(model, ids), rtol=1e-4, atol=1e-4)
