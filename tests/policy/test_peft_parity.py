"""PEFT reads our adapters and we read PEFT's, with equal logits. Run by `make test-parity`; needs torch and peft."""

from __future__ import annotations

import os

import jax
import numpy as np
import pytest

from fr3e_jax.configuration.lora_section import TARGETS
from fr3e_jax.policy.adapter_files import load_adapters, read_adapter_settings, save_adapters
from fr3e_jax.policy.config_file import read_architecture
from fr3e_jax.policy.huggingface import load_params
from fr3e_jax.policy.lora import Adapted, LoraSettings, build_adapted_network, joined
from fr3e_jax.policy.network import bind
from fr3e_jax.policy.rows import run_trunks

# PEFT asks transformers under a name that transformers has given up.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

WHOLE = dict(rtol=1e-4, atol=1e-4)
IDS = np.random.default_rng(0).integers(0, 64, (2, 9))

if not os.environ.get("FR3E_REQUIRE_TORCH"):
    pytest.importorskip("peft", reason="peft is in no requirements file; `make test-parity` installs it")


@pytest.fixture(params=["Qwen2", "Qwen3"])
def base(request, transformers_model, tmp_path):
    """A model of `transformers`, and the directory that it is saved in."""
    model = transformers_model(request.param)
    model.save_pretrained(tmp_path / "base")
    return model, tmp_path / "base"


def logits_of(model):
    import torch

    with torch.no_grad():
        return model(torch.tensor(IDS)).logits.float().numpy()


def our_logits(directory, lora, adapters):
    architecture = read_architecture(directory)
    graphdef, abstract, _ = build_adapted_network(architecture, lora)
    params = joined(Adapted(load_params(directory, architecture, abstract.base), adapters))
    run = lambda params: bind(graphdef, params).logits(run_trunks(graphdef, params, IDS).hidden)
    return np.asarray(jax.jit(run)(params))


@pytest.mark.parametrize("targets", [TARGETS, ("q_proj", "down_proj")], ids=["all", "two"])
def test_peft_gives_the_logits_of_our_adapters_beside_and_merged(base, tmp_path, targets):
    import peft

    model, directory = base
    before = logits_of(model)
    architecture, lora = read_architecture(directory), LoraSettings(4, 8.0, targets)
    abstract = build_adapted_network(architecture, lora)[1].adapters
    rng = np.random.default_rng(3)
    adapters = jax.tree.map(lambda x: (0.3 * rng.standard_normal(x.shape)).astype(np.float32), abstract)
    (tmp_path / "adapter").mkdir()
    save_adapters(tmp_path / "adapter", architecture, lora, adapters, base=str(directory), dtype="float32")
    loaded = peft.PeftModel.from_pretrained(model, tmp_path / "adapter").eval()
    ours = our_logits(directory, lora, adapters)
    assert np.abs(ours - before).max() > 1
    np.testing.assert_allclose(ours, logits_of(loaded), **WHOLE)
    np.testing.assert_allclose(ours, logits_of(loaded.merge_and_unload()), **WHOLE)


def test_an_adapter_that_peft_saved_has_the_same_logits_here(base, tmp_path):
    import peft
    import torch

    model, directory = base
    settings = peft.LoraConfig(r=4, lora_alpha=12, target_modules="all-linear", task_type="CAUSAL_LM")
    theirs = peft.get_peft_model(model, settings).eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    theirs.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    lora = read_adapter_settings(tmp_path / "adapter")
    assert (lora.rank, lora.alpha, set(lora.targets)) == (4, 12.0, set(TARGETS))
    architecture = read_architecture(directory)
    abstract = build_adapted_network(architecture, lora)[1].adapters
    everywhere = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shardings = jax.tree.map(lambda _: everywhere, abstract)
    adapters = load_adapters(tmp_path / "adapter", architecture, lora, abstract, shardings)
    np.testing.assert_allclose(our_logits(directory, lora, adapters), logits_of(theirs), **WHOLE)
