"""The same numbers as `transformers`' own Qwen2 and Qwen3, in both directions. Run by `make test-parity`; needs torch.

Tolerances: 1e-4 for the whole model, 1e-5 for a module, in float32; never to be relaxed.
"""

from __future__ import annotations

import dataclasses
import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fr3e_jax.policy.architecture import PUBLISHED
from fr3e_jax.policy.config_file import from_hf_config, read_architecture, retyped, to_hf_config
from fr3e_jax.policy.huggingface import load_params, save_params, stored_shapes
from fr3e_jax.policy.network import bind, build_network
from fr3e_jax.policy.rotary import rotary, rotary_frequencies, rotation
from fr3e_jax.policy.router_sums import Balance, balance_loss
from fr3e_jax.policy.rows import Rows, row_pass, run_trunks
from fr3e_jax.programs.row_scorer import RowScorer

WARM_STARTS = Path(__file__).resolve().parents[2] / "warm_starts"
SHIPPED = sorted(path.parent.name for path in WARM_STARTS.glob("*/config.json"))
# Windows of 4 positions in a whole sequence of 9; the layer that the test of modules looks at, the second, has one.
_SOME = {"sliding_window": 4, "query_pre_attn_scalar": 24}
_GEMMA2 = {"layer_types": ["full_attention", "sliding_attention"]}
_GEMMA3 = {"num_hidden_layers": 3, "layer_types": ["full_attention", "sliding_attention", "sliding_attention"]}
_LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
# A dense layer and two with experts, of which the test of modules looks at one.
_EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "num_hidden_layers": 3}
FAMILIES = {
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {}),
    "qwen3-biased": ("Qwen3", {"attention_bias": True}),
    "qwen3-moe": ("Qwen3Moe", _EXPERTS | {"norm_topk_prob": True, "mlp_only_layers": [2]}),
    "qwen3-moe-stepped": ("Qwen3Moe", _EXPERTS | {"decoder_sparse_step": 2, "num_experts_per_tok": 3}),
    "llama": ("Llama", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5} | _LLAMA3}),
    "gemma2": ("Gemma2", _SOME | _GEMMA2 | {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0}),
    "gemma3": (
        "Gemma3",
        _SOME | _GEMMA3 | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "rope_theta": 1e3},
    ),
}
HEADS = [(4, 4), (8, 2), (4, 1)]  # one query head per key/value head, four, all on one
WHOLE = dict(rtol=1e-4, atol=1e-4)
MODULE = dict(rtol=1e-5, atol=1e-5)

families = pytest.mark.parametrize(("family", "settings"), FAMILIES.values(), ids=FAMILIES)
# Two of the three kinds of heads for each family: one with tied embeddings, one without.
layouts = pytest.mark.parametrize(
    ("family", "settings", "heads", "tied"),
    [(*FAMILIES[name], HEADS[(n + tied) % 3], tied) for n, name in enumerate(FAMILIES) for tied in (True, False)],
    ids=[f"{name}-{tied}" for name in FAMILIES for tied in ("tied", "untied")],
)


def ours(directory):
    """(architecture, graphdef, params) of a directory."""
    architecture = read_architecture(directory)
    graphdef, abstract, _ = build_network(architecture)
    return architecture, graphdef, load_params(directory, architecture, abstract)


@partial(jax.jit, static_argnums=0)
def our_logits(graphdef, params, ids):
    return bind(graphdef, params).logits(run_trunks(graphdef, params, ids).hidden)


def their_logits(model, ids):
    import torch

    with torch.no_grad():
        return model(torch.tensor(np.asarray(ids))).logits.float().numpy()


def token_ids(vocab_size, shape=(2, 9)):
    return np.random.default_rng(0).integers(0, vocab_size, shape)


def settings_of(settings, heads, tied):
    return settings | {"num_attention_heads": heads[0], "num_key_value_heads": heads[1], "tie_word_embeddings": tied}


@layouts
def test_a_model_that_transformers_saved_has_the_same_logits_here(
    family, settings, heads, tied, transformers_model, tmp_path
):
    model = transformers_model(family, **settings_of(settings, heads, tied))
    model.save_pretrained(tmp_path, max_shard_size="5GB" if tied else "10KB")
    assert (tmp_path / "model.safetensors.index.json").exists() != tied
    ids = token_ids(64)
    theirs = their_logits(model, ids)
    assert theirs.std() > 1
    _, graphdef, params = ours(tmp_path)
    np.testing.assert_allclose(our_logits(graphdef, params, ids), theirs, **WHOLE)


@layouts
def test_a_model_that_we_saved_has_the_same_logits_in_transformers(
    family, settings, heads, tied, transformers_model, loaded_silently, tiny_network, tmp_path
):
    """Loaded without a warning and without a key left over, and saved again bit for bit."""
    theirs = transformers_model(family, **settings_of(settings, heads, tied), head_dim=6)
    architecture = from_hf_config(theirs.config.to_dict())
    network = tiny_network(**dataclasses.asdict(architecture) | {"rope_scaling": architecture.rope_scaling})
    save_params(tmp_path, network.architecture, network.params, max_shard_bytes=10**9 if tied else 10_000)
    config = to_hf_config(network.architecture, dtype="float32", eos_token_id=3, pad_token_id=1)
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = loaded_silently(type(theirs), tmp_path)
    ids = token_ids(64)
    np.testing.assert_allclose(network.full_logits(ids.tolist()), their_logits(model, ids), **WHOLE)
    model.save_pretrained(tmp_path / "again")
    _, _, params = ours(tmp_path / "again")
    jax.tree.map(np.testing.assert_array_equal, params, network.params)


@families
def test_a_model_of_transformers_loaded_and_saved_here_is_the_same(
    family, settings, transformers_model, loaded_silently, tmp_path
):
    """Import, export, and back: the same weights under the same configuration, to the last bit."""
    model = transformers_model(family, **settings)
    model.save_pretrained(tmp_path)
    architecture, _, params = ours(tmp_path)
    save_params(tmp_path / "again", architecture, params, max_shard_bytes=10_000)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "again" / "config.json").write_text(json.dumps(retyped(config, architecture, "float32")))
    again = loaded_silently(type(model), tmp_path / "again")
    assert again.config.to_diff_dict() == model.config.to_diff_dict()
    np.testing.assert_array_equal(their_logits(again, token_ids(64)), their_logits(model, token_ids(64)))


@pytest.mark.parametrize("directory", SHIPPED)
def test_a_shipped_warm_start_has_the_same_logits(directory, transformers_model):
    import torch

    kind = type(transformers_model("Qwen2"))
    model = kind.from_pretrained(WARM_STARTS / directory, dtype=torch.float32).eval()
    ids = token_ids(model.config.vocab_size)
    _, graphdef, params = ours(WARM_STARTS / directory)
    np.testing.assert_allclose(our_logits(graphdef, params, ids), their_logits(model, ids), **WHOLE)


@families
def test_every_module_equals_that_of_transformers(family, settings, transformers_model, tmp_path):
    import torch

    model = transformers_model(family, **settings)
    model.save_pretrained(tmp_path)
    architecture, graphdef, params = ours(tmp_path)
    network = bind(graphdef, params)
    mine, theirs = network.layers[1], model.model.layers[1]
    x = np.random.default_rng(1).standard_normal((2, 7, 32)).astype(np.float32)
    lanes, x_torch, at = jnp.asarray(x[:, None]), torch.tensor(x), torch.arange(7)[None]
    turn = network.rotations(jnp.broadcast_to(jnp.arange(7), (2, 1, 7)))[mine.kind]
    window = architecture.window_of(1) or 7
    seen = np.tril(np.ones((7, 7), bool)) & ~np.tril(np.ones((7, 7), bool), -window)
    causal = jnp.broadcast_to(jnp.asarray(seen), (2, 1, 7, 7))
    mask = torch.where(torch.tensor(seen), 0.0, -torch.inf)[None, None]
    with torch.no_grad():
        kind = {"layer_type": "sliding_attention"} if family == "Gemma3" else {}
        angles = model.model.rotary_emb(x_torch, at, **kind)
        expected = {
            "norm": theirs.input_layernorm(x_torch),
            "mlp": theirs.mlp(x_torch),
            "second norm": theirs.post_attention_layernorm(x_torch),
            "attention": theirs.self_attn(x_torch, position_embeddings=angles, attention_mask=mask)[0],
            "block": theirs(x_torch, position_embeddings=angles, attention_mask=mask),
        }
    found = {
        "norm": mine.attention_norm(lanes),
        "mlp": mine.mlp(lanes)[0],
        "second norm": (mine.attention_post_norm or mine.mlp_norm)(lanes),
        "attention": mine.attention.causal(lanes, turn, causal)[0],
        "block": mine.causal(lanes, turn, causal)[0],
    }
    for name, value in expected.items():
        value = value[0] if isinstance(value, tuple) else value
        assert value.std() > 0.1
        np.testing.assert_allclose(found[name][:, 0], value.numpy(), **MODULE, err_msg=name)


_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("head_dim", "theta", "scaling"),
    [
        (8, 1e4, {}),
        (128, 1e6, {}),
        (128, 1e6, {"rope_type": "linear", "factor": 8.0}),
        (64, 5e5, {"rope_type": "llama3"} | _LLAMA3 | {"factor": 32.0, "original_max_position_embeddings": 8192}),
        (128, 1e6, _YARN),
        (128, 1e4, _YARN | {"beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.5}),
    ],
)
def test_rotary_embedding_equals_that_of_transformers_at_all_positions(head_dim, theta, scaling, transformers_model):
    import torch
    from transformers.models.qwen2.modeling_qwen2 import apply_rotary_pos_emb

    rope = {"rope_type": "default", "rope_theta": theta} | scaling
    model = transformers_model("Qwen2", head_dim=head_dim, rope_parameters=rope)
    scale = from_hf_config(model.config.to_dict()).rope_scaling
    assert (scale is None) == (not scaling)
    # torch's powers are within a bit of the exact ones; which are off by one depends on the processor.
    frequencies, inv_freq = rotary_frequencies(head_dim, theta, scale), model.model.rotary_emb.inv_freq
    np.testing.assert_array_max_ulp(frequencies, inv_freq.numpy(), maxulp=4 if scaling else 2)
    assert (frequencies == inv_freq.numpy()).mean() > (0.75 if scaling else 0.95)
    inv_freq.copy_(torch.tensor(frequencies))
    positions = np.array([0, 1, 2, 3, 17, 100, 511, 4095, 32767, 131071])
    query, key = np.random.default_rng(2).standard_normal((2, 1, 3, len(positions), head_dim)).astype(np.float32)
    cos, sin = model.model.rotary_emb(torch.tensor(query), torch.tensor(positions)[None])
    theirs = apply_rotary_pos_emb(torch.tensor(query), torch.tensor(key), cos, sin)
    for vector, wanted in zip((query, key), theirs, strict=True):
        lanes = jnp.asarray(np.moveaxis(vector, 1, 2)[:, None])  # [B, N, T, heads, D]
        found = rotary(lanes, rotation(jnp.asarray(positions)[None, None], lanes.shape[-1], theta, scale))
        np.testing.assert_allclose(np.moveaxis(np.asarray(found)[:, 0], 2, 1), wanted.numpy(), **MODULE)


@families
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_of_rows_equal_those_of_transformers(family, settings, temperature, transformers_model, tmp_path):
    """Three branches of one trunk, forks inside it and at its end, against their flattened sequences."""
    import torch

    model = transformers_model(family, **settings)
    model.save_pretrained(tmp_path)
    _, graphdef, params = ours(tmp_path)
    trunk, branch_ids = token_ids(64, (1, 10)), token_ids(64, (1, 3, 6))
    forks = [4, 10, 1]
    zeros = np.zeros((1, 3, 6), np.int32)
    fork, offset = zeros + np.array(forks)[None, :, None], zeros + np.arange(6)
    segments = np.array([1, 2, 3])[None, :, None] + zeros
    geometry = (trunk, trunk * 0 + 1, np.arange(10)[None], branch_ids, segments, zeros, fork, offset)
    rows = Rows(*(jnp.asarray(x, jnp.int32) for x in geometry))
    found, entropies = RowScorer(graphdef, chunk=5).score(params, rows, jnp.float32(temperature))
    for branch, at in enumerate(forks):
        sequence = np.concatenate([trunk[0, :at], branch_ids[0, branch]])
        logits = torch.tensor(their_logits(model, sequence[None])[0, at - 1 : -1])
        logprobs = torch.log_softmax(logits / temperature, -1)
        wanted = logprobs[torch.arange(6), torch.tensor(branch_ids[0, branch])].numpy()
        np.testing.assert_allclose(found[0, branch], wanted, **WHOLE)
        np.testing.assert_allclose(
            entropies[0, branch], torch.distributions.Categorical(logits=logits).entropy().numpy(), **WHOLE
        )


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_have_the_names_and_shapes_of_transformers(name, transformers_model):
    """Two layers, on torch's meta device: nothing is allocated, there or here."""
    import torch
    import transformers

    architecture = dataclasses.replace(PUBLISHED[name], num_layers=2)
    written = to_hf_config(architecture, dtype="bfloat16", eos_token_id=None, pad_token_id=None)
    config = transformers.AutoConfig.for_model(**written)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    theirs = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for name in [name for name in theirs if ".experts." in name]:  # files hold the experts one by one
        count, columns, width = theirs.pop(name)
        parts = {"gate": columns // 2, "up": columns // 2} if name.endswith("gate_up_proj") else {"down": columns}
        stem = name.rpartition(".")[0]
        theirs |= {
            f"{stem}.{n}.{part}_proj.weight": (size, width) for n in range(count) for part, size in parts.items()
        }
    if architecture.tie_word_embeddings:
        assert theirs.pop("lm_head.weight") == theirs["model.embed_tokens.weight"]
    assert stored_shapes(architecture, build_network(architecture)[1]) == theirs
    assert sum(p.numel() for p in model.parameters()) == architecture.num_parameters
    assert from_hf_config(json.loads(config.to_json_string(use_diff=False))) == architecture


@pytest.mark.parametrize("family", ["qwen3-moe", "qwen3-moe-stepped"])
def test_loss_for_balanced_experts_equals_that_of_transformers(family, transformers_model, tmp_path):
    """Over the tokens of an attention mask, which is that of the tokens that train."""
    import torch
    from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

    name, settings = FAMILIES[family]
    model = transformers_model(name, **settings)
    model.save_pretrained(tmp_path)
    architecture, graphdef, params = ours(tmp_path)
    ids, counted = token_ids(64, (3, 12)), np.arange(11) < np.array([11, 6, 2])[:, None]
    with torch.no_grad():
        logits = model(torch.tensor(ids), output_router_logits=True).router_logits
    assert len(logits) == architecture.sparse_layers
    mask = torch.tensor(np.pad(counted, ((0, 0), (1, 0))))
    theirs = load_balancing_loss_func(tuple(logits), architecture.num_experts, architecture.experts_per_token, mask)
    first, lanes = np.ones((3, 1), np.int32), np.ones((3, 1, 11), np.int32)
    geometry = (ids[:, :1], first, first * 0, ids[:, None, 1:], lanes, lanes * 0, lanes, lanes * np.arange(11))
    rows = Rows(*(jnp.asarray(x, jnp.int32) for x in geometry))
    sums = jax.jit(lambda params: row_pass(graphdef, params, rows, counted=jnp.asarray(counted[:, None]))[1])(params)
    mine = balance_loss(sums, Balance(1.0, counted.sum()), counted.sum())
    assert abs(mine - architecture.experts_per_token) > 1e-2
    np.testing.assert_allclose(mine, theirs.numpy(), **MODULE)
