"""The sizes of a network of one of the families (`fr3e_jax.policy.families`), and those of the published models."""

from __future__ import annotations

from dataclasses import dataclass

from fr3e_jax.policy.families import FAMILIES
from fr3e_jax.policy.families.family import Family
from fr3e_jax.policy.rotary import RopeScaling


class UnsupportedModel(ValueError):
    """A checkpoint needs a feature that this network lacks, or lacks a part that this network needs."""


@dataclass(frozen=True)
class Architecture:
    """Sizes of the network. ``head_dim * num_heads`` need not equal ``hidden_size``.

    ``model_type`` is Hugging Face's, and names the family. With ``attention_bias`` all four projections of attention
    have biases. ``windows`` are the positions that the layers attend to, their own included, in turn (0: all), so
    ``(4096, 0)`` has a window in every second layer. `config_file` refuses options that the family does not have.

    Raises:
      UnsupportedModel: the heads do not divide, or their size is odd.
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
    rope_scaling: RopeScaling | None = None  # not of layers with a window where these have a base of their own
    windows: tuple[int, ...] = (0,)
    local_rope_theta: float = 0.0  # rotary base of the layers with a window; 0: that of the others
    query_scalar: float = 0.0  # scores are divided by its root; 0: head_dim
    attention_softcap: float = 0.0  # bound c of scores, c tanh(score / c); 0: none
    final_softcap: float = 0.0  # the same of logits
    num_experts: int = 0  # of each sparse layer; 0: all layers are dense
    experts_per_token: int = 0
    expert_size: int = 0  # columns of an expert's gate
    norm_topk_prob: bool = False  # the probabilities of a token's experts sum to 1
    dense_layers: tuple[int, ...] = ()  # layers without experts, where others have them

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise UnsupportedModel(
                f"num_heads={self.num_heads} is not a multiple of num_kv_heads={self.num_kv_heads}: "
                "every key/value head must serve the same number of query heads; set model.num_kv_heads to a divisor"
            )
        if self.head_dim % 2 or self.head_dim < 2:
            raise UnsupportedModel(
                f"head_dim={self.head_dim} is odd or below 2; rotary position embedding needs an even size: set "
                "model.hidden_size to a multiple of twice model.num_heads"
            )
        self._settle()

    def _settle(self) -> None:
        """Write defaults out, and ``windows`` as its shortest period, so that equal networks are equal."""
        layers = [self.windows[layer % len(self.windows)] for layer in range(self.num_layers)]
        periods = range(1, len(self.windows) + 1)
        shortest = next(n for n in periods if all(layers[i] == layers[i % n] for i in range(self.num_layers)))
        settled: dict[str, object] = {"windows": tuple(layers[:shortest])}
        if "query_scalar" in self.family.keys.values():
            settled["query_scalar"] = self.query_scalar or float(self.head_dim)
        settled["dense_layers"] = tuple(sorted({layer for layer in self.dense_layers if 0 <= layer < self.num_layers}))
        for name, value in settled.items():
            object.__setattr__(self, name, value)

    @property
    def family(self) -> Family:
        return FAMILIES[self.model_type]

    @property
    def qkv_bias(self) -> bool:
        """Biases on the query, key and value projections."""
        return self.family.qkv_bias or self.attention_bias

    @property
    def sliding_window(self) -> int:
        """Positions that a layer with a window attends to, its own included; 0: no layer has a window."""
        return max(self.windows)

    @property
    def kinds(self) -> tuple[int, ...]:
        """The windows that occur among the layers, each once. Layers of a kind share angles and masks."""
        return tuple(dict.fromkeys(self.windows))

    def window_of(self, layer: int) -> int:
        """Positions that a layer attends to, its own included; 0: all."""
        return self.windows[layer % len(self.windows)]

    def rope(self, window: int) -> tuple[float, RopeScaling | None]:
        """Base and scaling of the rotary embedding of the layers with this window."""
        return (
            (self.local_rope_theta, None) if window and self.local_rope_theta else (self.rope_theta, self.rope_scaling)
        )

    def is_sparse(self, layer: int) -> bool:
        """True if the layer's MLP is a choice of experts."""
        return bool(self.num_experts) and layer not in self.dense_layers

    @property
    def sparse_layers(self) -> int:
        """Number of layers with experts."""
        return sum(map(self.is_sparse, range(self.num_layers)))

    @property
    def routes_per_token(self) -> int:
        """Experts that a token passes in all layers."""
        return self.sparse_layers * self.experts_per_token

    @property
    def num_parameters(self) -> int:
        return self._parameters(self.num_experts)

    @property
    def active_parameters(self) -> int:
        """Parameters that a token passes: of the experts only those that are chosen."""
        return self._parameters(self.experts_per_token)

    def _parameters(self, experts: int) -> int:
        d, attention, kv = self.hidden_size, self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        block = 2 * d * attention + 2 * d * kv + len(self.family.norms) * d
        block += (
            self.qkv_bias * (attention + 2 * kv) + self.attention_bias * d + self.family.qk_norm * 2 * self.head_dim
        )
        dense, routed = 3 * d * self.intermediate_size, 3 * d * self.expert_size * experts + d * self.num_experts
        blocks = self.num_layers * block + self.sparse_layers * routed + (self.num_layers - self.sparse_layers) * dense
        return self.vocab_size * d * (1 if self.tie_word_embeddings else 2) + blocks + d

    @property
    def key_cost(self) -> float:
        """Operations to score one position and read its value, over those of a token with all its weights."""
        return 2 * self.num_layers * self.num_heads * self.head_dim / self.active_parameters


PUBLISHED: dict[str, Architecture] = {
    name: Architecture(model_type=family.model_type, **sizes)
    for family in FAMILIES.values()
    for name, sizes in family.published.items()
}
