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
    ``(4096, 0)`` has a window in every second layer.

    Raises:
      UnsupportedModel: there is no such family, or the sizes contradict one another or the family.
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
        if self.model_type not in FAMILIES:
            names = [f"'{name}'" for name in FAMILIES]
            expected = f"{', '.join(names[:-1])} or {names[-1]}"
            raise UnsupportedModel(f"model_type={self.model_type!r} is not supported; expected {expected}")
        if self.attention_bias and self.family.qkv_bias:
            raise UnsupportedModel(
                f"attention_bias=true: {self.family.title} have their fixed biases on query, key and value"
            )
        if self.num_heads % self.num_kv_heads:
            raise UnsupportedModel(
                f"num_heads={self.num_heads} is not a multiple of num_kv_heads={self.num_kv_heads}: "
                "every key/value head must serve the same number of query heads"
            )
        if self.head_dim % 2 or self.head_dim < 2:
            raise UnsupportedModel(
                f"head_dim={self.head_dim} is odd or below 2; rotary position embedding needs an even size"
            )
        self._check_options()
        self._check_experts()
        self._settle_windows()

    def _check_options(self) -> None:
        allowed = set(self.family.keys.values()) | ({"local_rope_theta"} if self.family.local_rope else set())
        for name in ("query_scalar", "attention_softcap", "final_softcap", "local_rope_theta"):
            value = getattr(self, name)
            if value and name not in allowed:
                raise UnsupportedModel(f"{name}={value}: {self.family.title} have no such option")
        if "query_scalar" in allowed and not self.query_scalar:
            object.__setattr__(self, "query_scalar", float(self.head_dim))

    def _check_experts(self) -> None:
        experts = dict(num_experts=self.num_experts, experts_per_token=self.experts_per_token)
        experts |= dict(expert_size=self.expert_size)
        if not self.family.routed_experts:
            named: dict[str, object] = {**experts, "dense_layers": self.dense_layers}
            if settings := [f"{name}={value}" for name, value in named.items() if value]:
                raise UnsupportedModel(f"{settings[0]}: {self.family.title} have no experts")
            return
        if missing := [name for name, value in experts.items() if value < 1]:
            raise UnsupportedModel(f"{missing[0]}={experts[missing[0]]}: {self.family.title} need at least 1")
        if self.experts_per_token > self.num_experts:
            raise UnsupportedModel(
                f"experts_per_token={self.experts_per_token} is more than num_experts={self.num_experts}"
            )
        dense = tuple(sorted({layer for layer in self.dense_layers if 0 <= layer < self.num_layers}))
        object.__setattr__(self, "dense_layers", dense)

    def _settle_windows(self) -> None:
        """Write ``windows`` as its shortest period, so that equal networks are equal."""
        layers = [self.windows[layer % len(self.windows)] for layer in range(self.num_layers)]
        if min(layers) < 0 or len({window for window in layers if window}) > 1:
            raise UnsupportedModel(f"windows={self.windows}: expected one size of at least 1 and 0, which is no window")
        if max(layers) and not self.family.window_period:
            raise UnsupportedModel(f"windows={self.windows}: {self.family.title} have no layers with a window")
        periods = range(1, len(self.windows) + 1)
        shortest = next(n for n in periods if all(layers[i] == layers[i % n] for i in range(self.num_layers)))
        object.__setattr__(self, "windows", tuple(layers[:shortest]))

    @property
    def family(self) -> Family:
        return FAMILIES[self.model_type]

    @property
    def heads_per_kv_head(self) -> int:
        return self.num_heads // self.num_kv_heads

    @property
    def qkv_bias(self) -> bool:
        """Biases on the query, key and value projections."""
        return self.family.qkv_bias or self.attention_bias

    @property
    def out_bias(self) -> bool:
        """A bias on the attention's output projection."""
        return self.attention_bias

    @property
    def qk_norm(self) -> bool:
        """RMSNorm of every query and key head before the rotary embedding."""
        return self.family.qk_norm

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
        block += self.qkv_bias * (attention + 2 * kv) + self.out_bias * d + self.qk_norm * 2 * self.head_dim
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
