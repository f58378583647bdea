"""The sizes of a Qwen2, Qwen2.5 or Qwen3 (dense) network, and those of the published models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class UnsupportedModel(ValueError):
    """A checkpoint needs a feature that this network lacks, or lacks a part that this network needs."""


@dataclass(frozen=True)
class Architecture:
    """Sizes of the network. ``head_dim * num_heads`` need not equal ``hidden_size``.

    ``model_type`` is Hugging Face's: ``"qwen2"`` (Qwen2, Qwen2.5, Qwen2.5-Math: biases on query, key and value) or
    ``"qwen3"`` (query and key normalised per head; with ``attention_bias`` biases on all four projections).

    Raises:
      UnsupportedModel: ``model_type`` is another one, or the sizes contradict one another.
    """

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
    model_type: str = "qwen2"
    attention_bias: bool = False

    def __post_init__(self) -> None:
        if self.model_type not in ("qwen2", "qwen3"):
            raise UnsupportedModel(f"model_type={self.model_type!r} is not supported; expected 'qwen2' or 'qwen3'")
        if self.attention_bias and self.model_type != "qwen3":
            raise UnsupportedModel("attention_bias=true is Qwen3's; Qwen2 has its fixed biases on query, key and value")
        if self.num_heads % self.num_kv_heads:
            raise UnsupportedModel(
                f"num_heads={self.num_heads} is not a multiple of num_kv_heads={self.num_kv_heads}: "
                "every key/value head must serve the same number of query heads"
            )
        if self.head_dim % 2 or self.head_dim < 2:
            raise UnsupportedModel(
                f"head_dim={self.head_dim} is odd or below 2; rotary position embedding needs an even size"
            )

    @property
    def heads_per_kv_head(self) -> int:
        return self.num_heads // self.num_kv_heads

    @property
    def qkv_bias(self) -> bool:
        """Biases on the query, key and value projections."""
        return self.model_type == "qwen2" or self.attention_bias

    @property
    def out_bias(self) -> bool:
        """A bias on the attention's output projection."""
        return self.attention_bias

    @property
    def qk_norm(self) -> bool:
        """RMSNorm of every query and key head before the rotary embedding."""
        return self.model_type == "qwen3"

    @property
    def num_parameters(self) -> int:
        d, attention, kv = self.hidden_size, self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        block = 2 * d * attention + 2 * d * kv + 3 * d * self.intermediate_size + 2 * d
        block += self.qkv_bias * (attention + 2 * kv) + self.out_bias * d + self.qk_norm * 2 * self.head_dim
        return self.vocab_size * d * (1 if self.tie_word_embeddings else 2) + self.num_layers * block + d

    @property
    def key_cost(self) -> float:
        """Operations to score one position and read its value, over those of a token with all weights."""
        return 2 * self.num_layers * self.num_heads * self.head_dim / self.num_parameters

    @property
    def position_cost(self) -> float:
        """Operations of a forward and backward pass over a position, without attention and recomputation."""
        return 6.0 * self.num_parameters


def _qwen2(
    layers: int, hidden: int, heads: int, kv: int, mlp: int, *, eps: float = 1e-6, **others: Any
) -> Architecture:
    small = hidden <= 2048  # these share embedding and head, and have no rows beyond the tokenizer's for sharding
    return Architecture(
        vocab_size=151936 if small else 152064,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv,
        head_dim=hidden // heads,
        intermediate_size=mlp,
        rms_norm_eps=eps,
        tie_word_embeddings=small,
        **others,
    )


def _qwen3(layers: int, hidden: int, heads: int, mlp: int) -> Architecture:
    return Architecture(
        vocab_size=151936,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=8,
        head_dim=128,
        intermediate_size=mlp,
        tie_word_embeddings=hidden <= 2560,
        max_position_embeddings=40960,
        model_type="qwen3",
    )


_LONG = dict(max_position_embeddings=131072)
_MATH = dict(max_position_embeddings=4096, rope_theta=1e4)

# From config.json of the released base models (Qwen3: hybrid models); technical reports of Qwen2.5 and Qwen3.
PUBLISHED: dict[str, Architecture] = {
    "qwen2.5-0.5b": _qwen2(24, 896, 14, 2, 4864),
    "qwen2.5-1.5b": _qwen2(28, 1536, 12, 2, 8960, **_LONG),
    "qwen2.5-3b": _qwen2(36, 2048, 16, 2, 11008),
    "qwen2.5-7b": _qwen2(28, 3584, 28, 4, 18944, **_LONG),
    "qwen2.5-14b": _qwen2(48, 5120, 40, 8, 13824, eps=1e-5, **_LONG),
    "qwen2.5-32b": _qwen2(64, 5120, 40, 8, 27648, eps=1e-5, **_LONG),
    "qwen2.5-72b": _qwen2(80, 8192, 64, 8, 29568, eps=1e-5, **_LONG),
    "qwen2.5-math-1.5b": _qwen2(28, 1536, 12, 2, 8960, **_MATH),
    "qwen2.5-math-7b": _qwen2(28, 3584, 28, 4, 18944, **_MATH),
    "qwen2.5-math-72b": _qwen2(80, 8192, 64, 8, 29568, eps=1e-5, **_MATH),
    "qwen3-0.6b": _qwen3(28, 1024, 16, 3072),
    "qwen3-1.7b": _qwen3(28, 2048, 16, 6144),
    "qwen3-4b": _qwen3(36, 2560, 32, 9728),
    "qwen3-8b": _qwen3(36, 4096, 32, 12288),
    "qwen3-14b": _qwen3(40, 5120, 40, 17408),
    "qwen3-32b": _qwen3(64, 5120, 64, 25600),
}
