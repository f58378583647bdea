"""The rollout engine picks the greedy tokens of `transformers`' generate. Run by `make test-parity`; needs torch."""

from __future__ import annotations

import numpy as np
import pytest

from fr3e_jax.configuration import load_config
from fr3e_jax.policy.config_file import read_architecture
from fr3e_jax.policy.huggingface import load_params
from fr3e_jax.policy.network import build_network
from fr3e_jax.programs.decoder_programs import DecoderPrograms
from fr3e_jax.programs.mesh import make_mesh
from fr3e_jax.programs.shapes import Shapes
from fr3e_jax.programs.shardings import param_shardings
from fr3e_jax.rollouts.engine import RolloutEngine
from fr3e_jax.rollouts.requests import Branch, Sampling, TrunkRequest
from fr3e_jax.verbs.export import export_run

TOKENS = 64
PROMPT_LENGTHS = (1, 5, 12, 23)


_WINDOW = {"sliding_window": 6, "num_hidden_layers": 3, "eos_token_id": None}
FAMILIES = {
    "Qwen2": {},
    "Qwen3": {},
    "Qwen3Moe": {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "norm_topk_prob": True},
    "Llama": {},
    "Gemma2": _WINDOW | {"attn_logit_softcapping": 5.0},
    "Gemma3": _WINDOW | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
}


@pytest.fixture(params=FAMILIES)
def model(request, transformers_model):
    sizes = dict(num_attention_heads=8, vocab_size=97, tie_word_embeddings=False)
    return transformers_model(request.param, **sizes, **FAMILIES[request.param])


def their_tokens(model, prompt, stop_ids):
    import torch
    from transformers import GenerationConfig

    settings = GenerationConfig(
        do_sample=False, max_new_tokens=TOKENS, eos_token_id=list(stop_ids) or None, pad_token_id=0
    )
    ids = torch.tensor(prompt)[None]
    whole = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
    return whole[0, len(prompt) :].tolist()


def our_tokens(directory, prompts, stop_ids):
    """All prompts side by side: two slots, so that the later ones refill, chunks of 7 steps, no left padding."""
    architecture = read_architecture(directory)
    graphdef, abstract, axes = build_network(architecture)
    mesh = make_mesh()
    params = load_params(directory, architecture, abstract, param_shardings(mesh, abstract, axes, architecture))
    programs = DecoderPrograms(graphdef, architecture, mesh)
    engine = RolloutEngine(programs, Shapes(2, 2, 7), seed=0)
    greedy = Sampling(temperature=0.0, stop_ids=stop_ids)
    requests = [TrunkRequest(p, [Branch(len(p), (0, n), TOKENS, greedy)]) for n, p in enumerate(prompts)]
    rollouts, _ = engine.sample(params, requests)
    return [row[0].token_ids.tolist() for row in rollouts]


def test_greedy_generation_is_identical_for_64_tokens(model, tmp_path):
    model.save_pretrained(tmp_path)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 97, length).astype(np.int32) for length in PROMPT_LENGTHS]
    free = [their_tokens(model, prompt, ()) for prompt in prompts]
    assert all(len(tokens) == TOKENS for tokens in free)
    assert len(set(sum(free, []))) > 20, "a model that repeats itself compares nothing"
    assert our_tokens(tmp_path, prompts, ()) == free
    stop_ids = (free[0][20], free[1][40])
    stopped = [their_tokens(model, prompt, stop_ids) for prompt in prompts]
    assert 1 < len({len(tokens) for tokens in stopped}) and any(tokens[-1] in stop_ids for tokens in stopped)
    assert our_tokens(tmp_path, prompts, stop_ids) == stopped


def test_an_exported_run_is_the_same_model_in_transformers(finished_run, transformers_model, loaded_silently, tmp_path):
    import transformers

    config = load_config(finished_run / "config.yaml", training=False)
    assert export_run(config, finished_run, tmp_path / "model") == 0
    model = loaded_silently(transformers.AutoModelForCausalLM, tmp_path / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    prompts = [np.array(tokenizer(text)["input_ids"], np.int32) for text in ("17=", "3+4*2-5>", "0")]
    stops = (model.generation_config.eos_token_id,)
    for stop_ids in ((), stops):
        assert our_tokens(tmp_path / "model", prompts, stop_ids) == [their_tokens(model, p, stop_ids) for p in prompts]
