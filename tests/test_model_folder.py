"""A path that names no model with safetensors costs a line that says what it is and what to set."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fr3e_jax.configuration import ConfigError, load_config
from fr3e_jax.policy.architecture import UnsupportedModel
from fr3e_jax.policy.tensor_files import TensorFiles
from fr3e_jax.session.session import open_texts

MODEL = Path(__file__).resolve().parents[1] / "warm_starts" / "order"
TOKENIZER, CONFIG, WEIGHTS = ("tokenizer.json", "tokenizer_config.json"), "config.json", "model.safetensors"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"
FOLDERS = {  # files that are copied of a model, others, and a part of the line
    "an adapter": (
        (),
        {"adapter_config.json": {"base_model_name_or_path": "me/base"}},
        "adapter: set model.lora.path=",
    ),
    "its base": (
        (),
        {"adapter_config.json": {"base_model_name_or_path": "me/base"}},
        "model.path to its base, me/base",
    ),
    "an adapter with a tokenizer": (TOKENIZER, {"adapter_config.json": []}, "it is a LoRA adapter"),
    "an adapter with a configuration": ((*TOKENIZER, CONFIG), {"adapter_config.json": {}}, "it is a LoRA adapter"),
    "a GGUF file": ((), {"model-q4.gguf": b"GGUF"}, "GGUF files, quantised for llama.cpp (model-q4.gguf): name the"),
    "a run": (
        (),
        {"config.yaml": b"", "metrics.jsonl": b""},
        "it is a training run: write its model with `fr3e export",
    ),
    "the hub's cache": ((), {"models--me--base/refs/main": b""}, "set model.path=me/base"),
    "models below": ((), {"checkpoint-5/config.json": {}}, "further down: set model.path="),
    "nothing": ((), {}, "it is empty"),
    "weights alone": ((WEIGHTS,), {}, "it holds weights alone: copy the config.json"),
    "a tokenizer alone": (TOKENIZER, {}, "it holds a tokenizer alone: name the model as model.path"),
    "pickles": (
        (*TOKENIZER, CONFIG),
        {"pytorch_model.bin": b""},
        "PyTorch's pickles (pytorch_model.bin): load it with",
    ),
    "something else": ((), {"notes.txt": b""}, "it holds notes.txt"),
    "a pointer": ((*TOKENIZER, CONFIG), {WEIGHTS: POINTER}, f"{WEIGHTS} is Git's pointer to a large file; fetch the"),
    "a pointer to a tokenizer": ((CONFIG, TOKENIZER[1]), {TOKENIZER[0]: POINTER}, "tokenizer.json is Git's pointer"),
    "a pointer to a configuration": (TOKENIZER, {CONFIG: POINTER}, "config.json is Git's pointer"),
    "a wrong list of layers": (
        TOKENIZER,
        {CONFIG: "layer_types"},
        "layer_types has 1 entries and num_hidden_layers is 3",
    ),
}


def complaint(path) -> str:
    config = load_config("demo", [f"model.path='{path}'"], training=False)
    with pytest.raises((ConfigError, UnsupportedModel)) as refused:
        open_texts(config)
        TensorFiles(path)
    return str(refused.value)


@pytest.mark.parametrize("case", FOLDERS)
def test_a_folder_that_is_no_model_is_named_with_the_way_out(tmp_path, case):
    copied, others, expected = FOLDERS[case]
    for name in copied:
        shutil.copy(MODEL / name, tmp_path)
    for name, content in others.items():
        if content == "layer_types":
            content = json.loads((MODEL / CONFIG).read_text()) | {"layer_types": ["full_attention"]}
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    line = complaint(tmp_path / "models--me--base" if case == "the hub's cache" else tmp_path)
    assert expected in line and "\n" not in line and "set model.tokenizer" not in line


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("warm_starts/oder", "nearest: model.path=warm_starts/order"),
        (MODEL / WEIGHTS, f"it is a file: model.path={MODEL}"),
        ("https://huggingface.co/me/base/tree/main", "the id is model.path=me/base"),
        ("huggingface.co/me/base", "the id is model.path=me/base"),
        ("me/base/", "the id is model.path=me/base"),
        (f"{MODEL} ", f"without the spaces: model.path={MODEL}"),
    ],
)
def test_a_name_that_is_nearly_that_of_a_model_is_corrected(name, expected):
    line = complaint(name)
    assert "is no directory; expected a Hugging Face directory" in line and line.endswith(expected)
