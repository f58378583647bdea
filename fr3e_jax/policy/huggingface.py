"""Weights in and out of a Hugging Face directory (``config.json`` + ``model.safetensors``)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy before safetensors reads it)
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fr3e_jax.policy.architecture import Architecture, UnsupportedModel, to_hf_config
from fr3e_jax.policy.network import Params

_BLOCK_NAMES = {
    ("attention_norm", "scale"): "input_layernorm.weight",
    ("attention", "query", "kernel"): "self_attn.q_proj.weight",
    ("attention", "query", "bias"): "self_attn.q_proj.bias",
    ("attention", "key", "kernel"): "self_attn.k_proj.weight",
    ("attention", "key", "bias"): "self_attn.k_proj.bias",
    ("attention", "value", "kernel"): "self_attn.v_proj.weight",
    ("attention", "value", "bias"): "self_attn.v_proj.bias",
    ("attention", "out", "kernel"): "self_attn.o_proj.weight",
    ("mlp_norm", "scale"): "post_attention_layernorm.weight",
    ("gate", "kernel"): "mlp.gate_proj.weight",
    ("up", "kernel"): "mlp.up_proj.weight",
    ("down", "kernel"): "mlp.down_proj.weight",
}


def parameter_names(architecture: Architecture) -> Iterator[tuple[tuple, str, bool]]:
    """(path in ``params``, Hugging Face name, whether it is stored transposed) of every parameter."""
    yield ("embedding",), "model.embed_tokens.weight", False
    for layer in range(architecture.num_layers):
        for path, name in _BLOCK_NAMES.items():
            yield ("layers", layer, *path), f"model.layers.{layer}.{name}", path[-1] == "kernel"
    yield ("norm", "scale"), "model.norm.weight", False
    if not architecture.tie_word_embeddings:
        yield ("head",), "lm_head.weight", True


def _leaf(tree: Any, path: tuple) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _put(tree: dict, path: tuple, value: Any) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = value


def load_params(directory: str | Path, architecture: Architecture, abstract: Params) -> Params:
    """Host arrays of the checkpoint in ``directory``, cast to the types of ``abstract``.

    Raises:
      UnsupportedModel: one message with all missing, unexpected and mis-shaped tensors, or a file that is damaged.
    """
    files = sorted(Path(directory).glob("*.safetensors"))
    if not files:
        raise UnsupportedModel(f"no *.safetensors file in {directory}: weights in other formats are not read")
    where: dict[str, Path] = {}
    for file in files:
        try:
            with safe_open(file, "numpy") as tensors:
                where.update(dict.fromkeys(tensors.keys(), file))
        except SafetensorError as error:
            raise UnsupportedModel(f"{file} is not a complete safetensors file ({error}); copy it again") from error
    params: Params = {}
    problems, expected = [], set()
    for path, name, transposed in parameter_names(architecture):
        expected.add(name)
        if name not in where:
            problems.append(f"missing {name}")
            continue
        with safe_open(where[name], "numpy") as tensors:
            array = tensors.get_tensor(name)
        leaf = _leaf(abstract, path)
        stored_shape = leaf.shape[::-1] if transposed else leaf.shape
        if array.shape != stored_shape:
            problems.append(f"{name} has shape {array.shape}, the configuration asks for {stored_shape}")
        _put(params, path, np.ascontiguousarray(array.T if transposed else array).astype(leaf.dtype))
    ignored = {"lm_head.weight"} if architecture.tie_word_embeddings else set()
    problems += [f"unexpected {name}" for name in sorted(set(where) - expected - ignored)]
    if problems:
        raise UnsupportedModel(f"{directory} does not fit its config.json: {'; '.join(problems)}")
    return params


def save_params(
    directory: str | Path,
    architecture: Architecture,
    params: Params,
    *,
    eos_token_id: int | None,
    pad_token_id: int | None,
    dtype: str = "float32",
) -> None:
    """Write ``model.safetensors``, ``config.json`` and ``generation_config.json``; `transformers` loads the result."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for path, name, transposed in parameter_names(architecture):
        array = np.asarray(_leaf(params, path))
        # safetensors writes the memory as it lies, so a transposed view must be made contiguous first.
        tensors[name] = np.ascontiguousarray(array.T if transposed else array).astype(np.dtype(dtype))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    config = to_hf_config(architecture, dtype=dtype, eos_token_id=eos_token_id, pad_token_id=pad_token_id)
    generation = {"eos_token_id": eos_token_id, "pad_token_id": pad_token_id}
    for name, content in (("config.json", config), ("generation_config.json", generation)):
        (directory / name).write_text(json.dumps(content, indent=2) + "\n")
