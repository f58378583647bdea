"""`config.json` of a Hugging Face directory: read into an `Architecture`, or refused by name; and written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fr3e_jax import json_object
from fr3e_jax.policy.architecture import Architecture, UnsupportedModel

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
}
_SHOWN = 80  # characters of a value in a message
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_intermediate_size")
_REFUSED = {  # settings that change the network when they are set, with their meaning
    "use_sliding_window": "attention over a sliding window",
    "quantization_config": "quantised weights",
    "dual_chunk_attention_config": "dual chunk attention",
    "use_mrope": "multimodal rotary positions",
    "auto_map": "a network in code of its own, which is never run",
}
_DEFAULT_THETA = 10000.0  # of transformers, where config.json has none


def from_hf_config(config: dict[str, Any]) -> Architecture:
    """Read a Hugging Face ``config.json``.

    Raises:
      UnsupportedModel: one message with every setting that the network does not have or that is missing.
    """
    if problems := [*_network_problems(config), *_rope_problems(config), *_size_problems(config)]:
        raise UnsupportedModel("; ".join(problems))
    model_type, heads = config["model_type"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or (128 if model_type == "qwen3" else config["hidden_size"] // heads)
    return Architecture(
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=head_dim,
        intermediate_size=config["intermediate_size"],
        rope_theta=next(iter(_thetas(config)), _DEFAULT_THETA),
        rms_norm_eps=float(config.get("rms_norm_eps") or 1e-6),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        max_position_embeddings=config.get("max_position_embeddings") or 32768,
        model_type=model_type,
        attention_bias=model_type == "qwen3" and bool(config.get("attention_bias", False)),
    )


def _network_problems(config: dict[str, Any]) -> list[str]:
    problems = []
    if (model_type := config.get("model_type")) not in ("qwen2", "qwen3"):
        supported = "supported are 'qwen2' (Qwen2, Qwen2.5, Qwen2.5-Math) and 'qwen3' (dense Qwen3)"
        problems.append(f"model_type={_shown(model_type)} is not supported ({supported})")
    if experts := [f"{name}={_shown(config[name])}" for name in _EXPERTS if config.get(name)]:
        problems.append(f"{', '.join(experts)} is not supported (mixture of experts)")
    if (activation := config.get("hidden_act", "silu")) != "silu":
        problems.append(f"hidden_act={_shown(activation)} is not supported (only silu)")
    for name, meaning in _REFUSED.items():
        if config.get(name):
            problems.append(f"{name}={_shown(config[name])} is not supported ({meaning})")
    layers = config.get("layer_types") or []
    if not isinstance(layers, list):
        problems.append(f"layer_types={_shown(layers)} is not a list")
    elif other := sorted({layer if isinstance(layer, str) else _shown(layer) for layer in layers} - {"full_attention"}):
        problems.append(f"layer_types with {', '.join(other)} are not supported (only full_attention)")
    for name in ("tie_word_embeddings", "attention_bias"):
        if config.get(name) not in (None, True, False):
            problems.append(f"{name}={_shown(config[name])} is neither true nor false")
    return problems


def _shown(value: Any) -> str:
    """A value as JSON, cut if it is long."""
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _rope_problems(config: dict[str, Any]) -> list[str]:
    problems = []
    for name in ("rope_scaling", "rope_parameters"):
        rope = config.get(name) or {}
        if not isinstance(rope, dict):
            problems.append(f"{name}={_shown(rope)} is not a JSON object")
            continue
        kinds = [rope[key] for key in ("rope_type", "type") if key in rope]
        # Without a type, any key but the base is a scaling whose kind some version of transformers guessed.
        bare = not kinds and bool(rope.keys() - {"rope_theta"})
        scaled = any(kind != "default" for kind in kinds)
        if scaled or bare or rope.get("partial_rotary_factor", 1.0) != 1.0:
            problems.append(f"{name}={_shown(rope)} is not supported (rope scaling)")
    if config.get("partial_rotary_factor", 1.0) != 1.0:
        problems.append(f"partial_rotary_factor={_shown(config['partial_rotary_factor'])} is not supported")
    if len(thetas := _thetas(config)) > 1:
        problems.append(f"rope_theta is given twice with different values, {' and '.join(map(str, thetas))}")
    return problems


def _thetas(config: dict[str, Any]) -> list[float]:
    """The distinct values of rope_theta: at the top (transformers 4), in rope_parameters (transformers 5)."""
    places = [config, config.get("rope_parameters"), config.get("rope_scaling")]
    found = [place.get("rope_theta") for place in places if isinstance(place, dict)]
    return list(dict.fromkeys(float(theta) for theta in found if _is_number(theta)))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e300


def _size_problems(config: dict[str, Any]) -> list[str]:
    problems = []
    if missing := [name for name in _SIZES if config.get(name) is None]:
        problems.append(f"it lacks {', '.join(missing)}")
    for name, most in _MOST.items():
        value = config.get(name)
        if value is not None and (type(value) is not int or not 1 <= value <= most):
            problems.append(f"{name}={_shown(value)} is not a whole number from 1 to {most}")
    for place in (config, config.get("rope_parameters"), config.get("rope_scaling")):
        for name in ("rope_theta", "rms_norm_eps") if isinstance(place, dict) else ():
            if place.get(name) is not None and not _is_number(place[name]):
                problems.append(f"{name}={_shown(place[name])} is not a number above 0")
    width, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if not problems and not config.get("head_dim") and config.get("model_type") == "qwen2" and width % heads:
        problems.append(f"hidden_size={width} is not a multiple of num_attention_heads={heads}, and head_dim is absent")
    return problems


def to_hf_config(architecture: Architecture, *, dtype: str, eos_token_id: int | None, pad_token_id: int | None) -> dict:
    """The ``config.json`` with which `transformers` 4 and 5 build the same network."""
    a = architecture
    config = {
        "architectures": [{"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}[a.model_type]],
        "model_type": a.model_type,
        "hidden_act": "silu",
        "vocab_size": a.vocab_size,
        "hidden_size": a.hidden_size,
        "num_hidden_layers": a.num_layers,
        "num_attention_heads": a.num_heads,
        "num_key_value_heads": a.num_kv_heads,
        "head_dim": a.head_dim,
        "intermediate_size": a.intermediate_size,
        "rope_theta": a.rope_theta,
        "rms_norm_eps": a.rms_norm_eps,
        "tie_word_embeddings": a.tie_word_embeddings,
        "max_position_embeddings": a.max_position_embeddings,
        "attention_dropout": 0.0,
        "use_sliding_window": False,
        "bos_token_id": None,
        "eos_token_id": eos_token_id,
        "pad_token_id": pad_token_id,
        "torch_dtype": dtype,
    }
    return config | ({"attention_bias": a.attention_bias} if a.model_type == "qwen3" else {})


def retyped(config: dict[str, Any], architecture: Architecture, dtype: str) -> dict[str, Any]:
    """``config`` of the same network with its weights stored as ``dtype``; all other fields stay."""
    # transformers 4 reads torch_dtype and a rope_theta at the top, 5 also dtype and rope_parameters.
    named = {"torch_dtype": dtype} | ({"dtype": dtype} if "dtype" in config else {})
    return config | named | {"rope_theta": architecture.rope_theta}


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
        raise UnsupportedModel(f"{path} not found: model.path must name a Hugging Face directory with a config.json")
    config = read_json_object(path)
    try:
        return from_hf_config(config)
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{path}: {error}") from error
