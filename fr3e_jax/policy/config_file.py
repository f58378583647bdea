"""`config.json` of a Hugging Face directory: read into an `Architecture`, or refused by name; and written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fr3e_jax import json_object
from fr3e_jax.json_object import shown
from fr3e_jax.model_folder import description
from fr3e_jax.policy.architecture import Architecture, UnsupportedModel
from fr3e_jax.policy.families import FAMILIES
from fr3e_jax.policy.families.family import Family
from fr3e_jax.policy.rope_settings import is_number, read_rope, written_rope

_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
_MOST = {  # far beyond any published network; what is larger is a mistake, and would cost hours or all the memory
    "vocab_size": 10**8,
    "hidden_size": 10**6,
    "num_hidden_layers": 10**3,
    "num_attention_heads": 10**4,
    "intermediate_size": 10**7,
    "num_key_value_heads": 10**4,
    "head_dim": 10**4,
    "max_position_embeddings": 10**9,
    "sliding_window": 10**9,
    "sliding_window_pattern": 10**3,
    "num_experts": 10**4,
    "num_experts_per_tok": 10**3,
    "moe_intermediate_size": 10**7,
    "decoder_sparse_step": 10**3,
}
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_intermediate_size")
_EXPERT_SIZES = {  # keys of families with routed experts -> fields of `Architecture`
    "num_experts": "num_experts",
    "num_experts_per_tok": "experts_per_token",
    "moe_intermediate_size": "expert_size",
}
_REFUSED = {  # settings that change the network when they are set, with their meaning
    "use_bidirectional_attention": "attention to later tokens",
    "is_encoder_decoder": "an encoder",
    "add_cross_attention": "attention to another sequence",
    "quantization_config": "quantised weights",
    "dual_chunk_attention_config": "dual chunk attention",
    "use_mrope": "multimodal rotary positions",
    "auto_map": "a network in code of its own, which is never run",
}
_WAYS_OUT = {  # model types that are refused, with what to do
    "gemma3": "Gemma 3 with images: save its text part first, in six lines of docs/users/models.md",
    "gemma": "Gemma 1: take Gemma 2 or 3",
    "qwen2_moe": "Qwen2 with experts has one that all tokens pass: take Qwen3-30B-A3B",
    "mllama": "Llama 3.2 with images: take Llama 3.1, or 3.2 of 1B or 3B",
    "llama4": "Llama 4 is a mixture of experts with attention in chunks: take Llama 3",
    "llama4_text": "Llama 4 is a mixture of experts with attention in chunks: take Llama 3",
}


def from_hf_config(config: dict[str, Any]) -> Architecture:
    """Read a Hugging Face ``config.json``.

    Raises:
      UnsupportedModel: one message with every setting that the network does not have or that is missing.
    """
    model_type = config.get("model_type")
    is_known = isinstance(model_type, str) and model_type in FAMILIES
    family = FAMILIES[model_type] if is_known else FAMILIES["qwen2"]  # whose rules tell what else is wrong
    nullable = {*family.keys, *family.constants, "num_key_value_heads"}  # null differs from an absent key
    values = {name: value for name, value in config.items() if value is not None or name in nullable}
    if family.routed_experts and "num_local_experts" in values:  # as transformers 5 names it
        values = {"num_experts": values["num_local_experts"]} | values
    filled = dict(family.defaults) | values
    rope = read_rope(values, family)
    problems = [] if is_known else [_unknown(model_type)]
    if problems := [*problems, *_network_problems(filled, family), *rope.problems, *_size_problems(filled, family)]:
        raise UnsupportedModel("; ".join(problems))
    heads, positions = filled["num_attention_heads"], filled.get("max_position_embeddings") or 32768
    if rope.scaling and rope.scaling.kind == "yarn":
        positions = max(positions, int(rope.scaling.factor * rope.scaling.original_max_position_embeddings))
    return Architecture(
        vocab_size=filled["vocab_size"],
        hidden_size=filled["hidden_size"],
        num_layers=filled["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=filled.get("num_key_value_heads") or heads,
        head_dim=filled.get("head_dim") or filled["hidden_size"] // heads,
        intermediate_size=filled["intermediate_size"],
        rope_theta=rope.theta,
        rms_norm_eps=float(filled.get("rms_norm_eps") or 1e-6),
        tie_word_embeddings=bool(filled.get("tie_word_embeddings", False)),
        max_position_embeddings=positions,
        model_type=family.model_type,
        attention_bias=not family.qkv_bias and bool(filled.get("attention_bias", False)),
        rope_scaling=rope.scaling,
        windows=_windows(filled, family),
        local_rope_theta=rope.local_theta,
        **{field: float(filled[name] or 0.0) for name, field in family.keys.items()},
        **(_experts(filled) if family.routed_experts else {}),
    )


def _unknown(model_type: Any) -> str:
    named = [f"{name!r} ({family.title})" for name, family in FAMILIES.items()]
    way_out = _WAYS_OUT.get(model_type) if isinstance(model_type, str) else None
    supported = way_out or f"supported are {', '.join(named[:-1])} and {named[-1]}"
    return f"model_type={shown(model_type)} is not supported ({supported})"


def _experts(config: dict[str, Any]) -> dict[str, Any]:
    """The fields of `Architecture` that describe experts."""
    step, named = config["decoder_sparse_step"], config.get("mlp_only_layers") or []
    dense = [layer for layer in range(config["num_hidden_layers"]) if layer in named or (layer + 1) % step]
    sizes = {field: config[name] for name, field in _EXPERT_SIZES.items()}
    return sizes | {"norm_topk_prob": bool(config["norm_topk_prob"]), "dense_layers": tuple(dense)}


def _expert_problems(config: dict[str, Any], family: Family) -> list[str]:
    experts = [f"{name}={shown(config[name])}" for name in _EXPERTS if config.get(name)]
    if not family.routed_experts:
        return [f"{', '.join(experts)} is not supported (mixture of experts)"] if experts else []
    problems = []
    if config.get("num_local_experts", config["num_experts"]) != config["num_experts"]:
        problems.append(f"{experts[0]} and {experts[1]} contradict one another")
    layers = config.get("mlp_only_layers") or []
    if not isinstance(layers, list) or any(type(layer) is not int for layer in layers):
        problems.append(f"mlp_only_layers={shown(layers)} is not a list of layers")
    if type(config["norm_topk_prob"]) is not bool:
        problems.append(f"norm_topk_prob={shown(config['norm_topk_prob'])} is neither true nor false")
    count, chosen = config["num_experts"], config["num_experts_per_tok"]
    if type(count) is int and type(chosen) is int and chosen > count >= 1:
        problems.append(f"num_experts_per_tok={chosen} is more than num_experts={count}")
    return problems


def _windows(config: dict[str, Any], family: Family) -> tuple[int, ...]:
    if not family.window_period:
        return (0,)
    types = config.get("layer_types")
    if types is None:
        period = config.get("sliding_window_pattern") or family.window_period
        types = ["sliding_attention"] * (period - 1) + ["full_attention"]
    return tuple(config["sliding_window"] if kind == "sliding_attention" else 0 for kind in types)


def _network_problems(config: dict[str, Any], family: Family) -> list[str]:
    problems = _expert_problems(config, family)
    if (activation := config.get(family.activation_key, family.activation)) != family.activation:
        problems.append(f"{family.activation_key}={shown(activation)} is not supported (only {family.activation})")
    for name, meaning in _REFUSED.items():
        if config.get(name):
            problems.append(f"{name}={shown(config[name])} is not supported ({meaning})")
    for name in dict.fromkeys(name for other in FAMILIES.values() for name in other.keys):
        if name not in family.keys and config.get(name):
            problems.append(f"{name}={shown(config[name])} is not supported (not in this family)")
    for name, constant in family.constants.items():
        if (value := config.get(name, constant)) != constant:
            problems.append(f"{name}={shown(value)} is not supported (only {shown(constant)} in this family)")
    if config.get("is_causal", True) is not True:
        problems.append(f"is_causal={shown(config['is_causal'])} is not supported (attention to later tokens)")
    problems += _layer_problems(config, family)
    for name in ("tie_word_embeddings", "attention_bias"):
        if config.get(name) not in (None, True, False):
            problems.append(f"{name}={shown(config[name])} is neither true nor false")
    return problems


def _layer_problems(config: dict[str, Any], family: Family) -> list[str]:
    layers = config.get("layer_types")
    if layers is None:
        return []
    if not isinstance(layers, list):
        return [f"layer_types={shown(layers)} is not a list"]
    kinds = ["full_attention", *(["sliding_attention"] if family.window_period else [])]
    if other := sorted({layer if isinstance(layer, str) else shown(layer) for layer in layers} - set(kinds)):
        return [f"layer_types with {', '.join(other)} are not supported (only {' and '.join(kinds)})"]
    if len(layers) != config.get("num_hidden_layers"):
        num_layers = config.get("num_hidden_layers")
        return [f"layer_types has {len(layers)} entries and num_hidden_layers is {shown(num_layers)}"]
    return []


def _size_problems(config: dict[str, Any], family: Family) -> list[str]:
    problems = []
    if missing := [name for name in _SIZES if config.get(name) is None]:
        problems.append(f"it lacks {', '.join(missing)}")
    for name, most in _MOST.items():
        value = config.get(name)
        if value is not None and (type(value) is not int or not 1 <= value <= most):
            problems.append(f"{name}={shown(value)} is not a whole number from 1 to {most}")
    for name in ("rms_norm_eps", "rope_local_base_freq", *family.keys):
        if config.get(name) is not None and not is_number(config[name]):
            problems.append(f"{name}={shown(config[name])} is not a number above 0")
    width, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if not problems and not config.get("head_dim") and width % heads:
        problems.append(f"hidden_size={width} is not a multiple of num_attention_heads={heads}, and head_dim is absent")
    return problems


def to_hf_config(architecture: Architecture, *, dtype: str, eos_token_id: int | None, pad_token_id: int | None) -> dict:
    """The ``config.json`` with which `transformers` 4 and 5 build the same network."""
    a, family = architecture, architecture.family
    config = {
        "architectures": [family.causal_lm],
        "model_type": a.model_type,
        family.activation_key: family.activation,
        "vocab_size": a.vocab_size,
        "hidden_size": a.hidden_size,
        "num_hidden_layers": a.num_layers,
        "num_attention_heads": a.num_heads,
        "num_key_value_heads": a.num_kv_heads,
        "head_dim": a.head_dim,
        "intermediate_size": a.intermediate_size,
        "rms_norm_eps": a.rms_norm_eps,
        "tie_word_embeddings": a.tie_word_embeddings,
        "max_position_embeddings": a.max_position_embeddings,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": eos_token_id,
        "pad_token_id": pad_token_id,
        "torch_dtype": dtype,
    }
    config |= written_rope(a.rope_theta, a.rope_scaling, a.local_rope_theta)
    config |= family.constants | {
        name: _typed(getattr(a, field), family.defaults[name]) for name, field in family.keys.items()
    }
    if family.window_period:

        def kind(layer):
            return "sliding_attention" if a.window_of(layer) else "full_attention"

        config |= {"layer_types": [kind(layer) for layer in range(a.num_layers)]}
        config |= {"sliding_window": a.sliding_window} if a.sliding_window else {}
    if family.routed_experts:
        config |= {name: getattr(a, field) for name, field in _EXPERT_SIZES.items()}
        config |= {"norm_topk_prob": a.norm_topk_prob, "decoder_sparse_step": 1, "mlp_only_layers": [*a.dense_layers]}
    return config if family.qkv_bias else config | {"attention_bias": a.attention_bias}


def _typed(value: float, default: float | None) -> int | float | None:
    """As transformers types it: null for 0, and a whole number as an integer where the default is one."""
    return (int(value) if isinstance(default, int) and value == int(value) else value) or None


def retyped(config: dict[str, Any], architecture: Architecture, dtype: str) -> dict[str, Any]:
    """``config`` of the same network with its weights stored as ``dtype`` and its positions; all other fields stay."""
    # transformers 4 reads torch_dtype and the rotary embedding at the top, 5 also dtype and rope_parameters.
    named = {"torch_dtype": dtype} | ({"dtype": dtype} if "dtype" in config else {})
    a = architecture
    if from_hf_config(config).max_position_embeddings != a.max_position_embeddings:
        named["max_position_embeddings"] = a.max_position_embeddings
    return config | named | written_rope(a.rope_theta, a.rope_scaling, a.local_rope_theta)


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
      UnsupportedModel: see `json_object.read_json_object`.
    """
    try:
        return json_object.read_json_object(path)
    except ValueError as error:
        raise UnsupportedModel(str(error)) from error


def read_architecture(directory: str | Path) -> Architecture:
    """The architecture of a Hugging Face directory.

    Raises:
      UnsupportedModel: config.json is missing, damaged or not supported; the message names the file.
    """
    path = Path(directory) / "config.json"
    if not path.is_file():
        raise UnsupportedModel(
            f"{path} not found: model.path must name a Hugging Face directory with a config.json; "
            + description(path.parent)
        )
    config = read_json_object(path)
    try:
        return from_hf_config(config)
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{path}: {error}") from error
