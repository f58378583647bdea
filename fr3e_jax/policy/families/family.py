"""A family of networks: what they have beyond their sizes, and how their files name it.

Each module of this folder declares one family as a `Family`. Everything else follows from it: the network's parameters,
config.json, the names of tensors, the published sizes (docs/developers/families.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Activation = Literal["silu", "gelu_pytorch_tanh"]


@dataclass(frozen=True, eq=False)
class Family:
    """The networks of one ``model_type`` of Hugging Face.

    All are decoders of grouped-query attention and a gated MLP, each after an RMSNorm and added to its input. The
    options of the network come first, then the files, then the sizes.
    """

    model_type: str
    title: str  # of its models, in messages
    causal_lm: str  # the class of transformers
    qkv_bias: bool = False  # always; any family but this one may have ``attention_bias`` in config.json
    qk_norm: bool = False  # RMSNorm of every query and key head before the rotary embedding
    unit_offset: bool = False  # RMSNorm multiplies by 1 + scale
    scaled_embedding: bool = False  # embeddings are multiplied by sqrt(hidden_size)
    activation: Activation = "silu"  # of the gated MLP
    routed_experts: bool = False  # layers whose MLP is a choice of experts
    window_period: int = 0  # every so many layers one attends to all positions, the others to a window; 0: all do
    local_rope: bool = False  # layers with a window have a rotary base of their own, without scaling

    norms: Mapping[str, str] = field(
        default_factory=lambda: {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    )  # of a block -> Hugging Face's name; with ``attention_post_norm`` and ``mlp_post_norm``, of what a block adds
    activation_key: str = "hidden_act"  # of config.json
    keys: Mapping[str, str] = field(default_factory=dict)  # of config.json -> field of `Architecture`
    constants: Mapping[str, Any] = field(default_factory=dict)  # keys of config.json with the only supported value
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of transformers, for keys that config.json lacks

    published: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # name -> fields of `Architecture`

    @property
    def post_norms(self) -> bool:
        """RMSNorm of what attention and MLP add."""
        return "attention_post_norm" in self.norms
