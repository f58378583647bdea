"""The shape of a Qwen2/2.5 network: what `config.json` of a Hugging Face directory says, and nothing else."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class UnsupportedModel(ValueError):
    """A checkpoint asks for something this network does not have, or lacks something that it needs."""


@dataclass(frozen=True)
class Architecture:
    """Sizes of the network. ``head_dim * num_heads`` need not equal ``hidden_size``."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rope_theta: float = 1e6
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = True
    max_position_embeddings: int = 32768

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise UnsupportedModel(
                f"num_heads={self.num_heads} is not a multiple of num_kv_heads={self.num_kv_heads}: "
                "every key/value head must serve the same number of query heads"
            )
        if self.head_dim % 2:
            raise UnsupportedModel(f"head_dim={self.head_dim} is odd; rotary position embedding needs an even size")

    @property
    def heads_per_kv_head(self) -> int:
        return self.num_heads // self.num_kv_heads

    @property
    def num_parameters(self) -> int:
        d, attention = self.hidden_size, self.num_heads * self.head_dim
        kv = self.num_kv_heads * self.head_dim
        block = 2 * d * attention + 2 * d * kv + attention + 2 * kv + 3 * d * self.intermediate_size + 2 * d
        return self.vocab_size * d * (1 if self.tie_word_embeddings else 2) + self.num_layers * block + d


def _published(layers: int, hidden: int, heads: int, kv: int, mlp: int, vocab: int, tied: bool) -> Architecture:
    return Architecture(
        vocab_size=vocab,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv,
        head_dim=hidden // heads,
        intermediate_size=mlp,
        tie_word_embeddings=tied,
    )


# Qwen2.5 technical report, table 1, and the config.json of the released checkpoints.
PUBLISHED: dict[str, Architecture] = {
    "qwen2.5-0.5b": _published(24, 896, 14, 2, 4864, 151936, True),
    "qwen2.5-1.5b": _published(28, 1536, 12, 2, 8960, 151936, True),
    "qwen2.5-3b": _published(36, 2048, 16, 2, 11008, 151936, True),
    "qwen2.5-7b": _published(28, 3584, 28, 4, 18944, 152064, False),
    "qwen2.5-14b": _published(48, 5120, 40, 8, 13824, 152064, False),
    "qwen2.5-32b": _published(64, 5120, 40, 8, 27648, 152064, False),
    "qwen2.5-72b": _published(80, 8192, 64, 8, 29568, 152064, False),
}


def from_hf_config(config: dict[str, Any]) -> Architecture:
    """Read a Hugging Face ``config.json``. Raises `UnsupportedModel` naming each setting the network does not have."""
    problems = []
    if config.get("model_type") != "qwen2":
        problems.append(f"model_type is {config.get('model_type')!r}; supported: 'qwen2' (Qwen2 and Qwen2.5)")
    rope = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling") or rope
    if scaling.get("rope_type", scaling.get("type", "default")) != "default":
        problems.append(f"rope scaling {scaling!r} is not supported")
    if config.get("use_sliding_window"):
        problems.append("use_sliding_window=true is not supported")
    if config.get("hidden_act", "silu") != "silu":
        problems.append(f"hidden_act={config['hidden_act']!r} is not supported, only 'silu'")
    if config.get("quantization_config"):
        problems.append("quantised weights are not supported")
    needed = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    if missing := [name for name in needed if name not in config]:
        problems.append(f"config.json lacks {', '.join(missing)}")
    if problems:
        raise UnsupportedModel("; ".join(problems))
    heads = config["num_attention_heads"]
    return Architecture(
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=config.get("num_key_value_heads", heads),
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        intermediate_size=config["intermediate_size"],
        rope_theta=float(config.get("rope_theta") or rope.get("rope_theta") or 10000.0),
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        max_position_embeddings=config.get("max_position_embeddings", 32768),
    )


def to_hf_config(architecture: Architecture, *, dtype: str, eos_token_id: int | None, pad_token_id: int | None) -> dict:
    """The ``config.json`` with which `transformers` builds the same network."""
    sizes = dataclasses.asdict(architecture)
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "vocab_size": sizes["vocab_size"],
        "hidden_size": sizes["hidden_size"],
        "num_hidden_layers": sizes["num_layers"],
        "num_attention_heads": sizes["num_heads"],
        "num_key_value_heads": sizes["num_kv_heads"],
        "head_dim": sizes["head_dim"],
        "intermediate_size": sizes["intermediate_size"],
        "rope_theta": sizes["rope_theta"],
        "rms_norm_eps": sizes["rms_norm_eps"],
        "tie_word_embeddings": sizes["tie_word_embeddings"],
        "max_position_embeddings": sizes["max_position_embeddings"],
        "attention_dropout": 0.0,
        "use_sliding_window": False,
        "bos_token_id": None,
        "eos_token_id": eos_token_id,
        "pad_token_id": pad_token_id,
        "torch_dtype": dtype,
    }


def read_architecture(directory: str | Path) -> Architecture:
    """The architecture of a Hugging Face directory; `UnsupportedModel` names the file when it cannot be used."""
    path = Path(directory) / "config.json"
    if not path.is_file():
        raise UnsupportedModel(f"{path} not found: model.path must name a Hugging Face directory with a config.json")
    try:
        return from_hf_config(json.loads(path.read_text()))
    except (UnsupportedModel, json.JSONDecodeError) as error:
        raise UnsupportedModel(f"{path}: {error}") from error
