"""Adapters read from and written to a directory as PEFT has them: adapter_config.json and adapter_model.safetensors.

PEFT stores ``lora_A [rank, in]`` and ``lora_B [out, rank]``; this network uses ``a [in, rank]`` and ``b [rank, out]``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fr3e_jax.hub import is_id
from fr3e_jax.policy.architecture import Architecture, UnsupportedModel
from fr3e_jax.policy.config_file import read_json_object
from fr3e_jax.policy.huggingface import at, host_tensor, load_array, misfits, put
from fr3e_jax.policy.lora import ADAPTER, LoraSettings, adapted_kernels
from fr3e_jax.policy.network import Params
from fr3e_jax.policy.tensor_files import TensorFiles
from fr3e_jax.policy.tensor_writer import StoredTensor, write_file

logger = logging.getLogger(__name__)

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_PARTS = {"a": "lora_A", "b": "lora_B"}
_REFUSED = {  # settings of PEFT that change what an adapter computes, with their meaning
    "use_dora": "magnitudes beside the product (DoRA)",
    "use_rslora": "a scale of alpha / sqrt(rank)",
    "use_qalora": "a pooled input (QALoRA)",
    "rank_pattern": "ranks that differ between projections",
    "alpha_pattern": "scales that differ between projections",
    "modules_to_save": "whole modules that were trained beside it",
    "layers_to_transform": "adapters in some layers only",
    "target_parameters": "adapters of parameters that are no projections",
    "trainable_token_indices": "trained rows of the embedding",
    "fan_in_fan_out": "kernels stored as [in, out]",
    "lora_bias": "biases of the adapters",
    "exclude_modules": "projections left out",
    "megatron_config": "layers of Megatron",
    "alora_invocation_tokens": "activation by tokens (aLoRA)",
    "layer_replication": "layers that are built several times",
    "arrow_config": "a choice of adapters by token (Arrow)",
}
_READ = {"peft_type", "r", "lora_alpha", "target_modules", "bias", "init_lora_weights", "lora_dropout"}
_WITHOUT_EFFECT = {  # on what a plain adapter computes
    *("task_type", "auto_mapping", "base_model_name_or_path", "revision", "inference_mode", "peft_version"),
    *("layers_pattern", "megatron_core", "qalora_group_size", "ensure_weight_tying", "runtime_config"),
    *("loftq_config", "eva_config", "corda_config", "lora_ga_config"),  # of initialisations, which are named
}
_CHANGES_BASE = ("pissa", "olora", "loftq", "corda", "eva", "orthogonal", "lora_ga")


def read_adapter_settings(directory: str | Path, param_dtype: str = "float32") -> LoraSettings:
    """The rank, scale and targets of the adapter in ``directory``; ``param_dtype``: type to hold it in.

    Raises:
      UnsupportedModel: one message with every setting that is not supported or missing.
      FileNotFoundError: there is no such directory or file.
    """
    path = Path(directory).expanduser() / CONFIG
    if not path.is_file():
        raise FileNotFoundError(
            f"no {CONFIG} in {directory}; expected an adapter as PEFT's save_pretrained or fr3e export --adapter "
            "writes it"
        )
    config = read_json_object(path)
    problems = [f"{name}={config[name]!r} ({meaning})" for name, meaning in _REFUSED.items() if config.get(name)]
    unknown = sorted(config.keys() - _REFUSED.keys() - _READ - _WITHOUT_EFFECT)
    problems += [f"{name}={config[name]!r} (an unknown setting)" for name in unknown if config[name]]
    if (kind := config.get("peft_type")) != "LORA":
        problems.insert(0, f"peft_type={kind!r} (expected 'LORA')")
    if config.get("bias", "none") != "none":
        problems.append(f"bias={config['bias']!r} (trained biases)")
    started = str(config.get("init_lora_weights", True)).lower()
    if started.startswith(_CHANGES_BASE):
        problems.append(f"init_lora_weights={started!r} (it changed the weights of its base)")
    rank, alpha, targets = config.get("r"), config.get("lora_alpha"), config.get("target_modules")
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        problems.append(f"r={rank!r} (expected a positive integer)")
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or alpha <= 0:
        problems.append(f"lora_alpha={alpha!r} (expected a positive number)")
    if not isinstance(targets, list) or not targets or not all(isinstance(name, str) for name in targets):
        problems.append(f"target_modules={targets!r} (expected a list of names)")
    if problems:
        raise UnsupportedModel(
            f"{path} has {'; '.join(problems)}; only plain LoRA is read: merge the adapter into its base with PEFT "
            "(merge_and_unload) and give the result as model.path"
        )
    if config.get("lora_dropout"):
        logger.warning("%s has lora_dropout=%s; training goes on without dropout", path, config["lora_dropout"])
    return LoraSettings(rank, float(alpha), tuple(name.rpartition(".")[2] for name in targets), param_dtype)


def _names(architecture: Architecture, lora: LoraSettings) -> Iterator[tuple[tuple, str]]:
    """(path, PEFT's name) of each array of the adapters."""
    for path, module in adapted_kernels(architecture, lora.targets):
        for factor, theirs in _PARTS.items():
            yield (*path, ADAPTER, factor), f"{_PREFIX}{module}.{theirs}.weight"


def load_adapters(
    directory: str | Path, architecture: Architecture, lora: LoraSettings, abstract: Params, shardings: Params
) -> Params:
    """Device arrays of the adapters in ``directory``.

    Args:
      directory: holds `CONFIG` and `WEIGHTS`.
      architecture, lora: of the network and of the adapters.
      abstract: shapes and types to convert to (`fr3e_jax.policy.lora.build_adapted_network`).
      shardings: of each array.

    Raises:
      UnsupportedModel: arrays are missing, unexpected, mis-shaped or mis-typed (one message names all); the file is
        missing or damaged.
    """
    directory = Path(directory).expanduser()
    if not (directory / WEIGHTS).is_file():
        raise UnsupportedModel(f"no {WEIGHTS} in {directory}: adapters in other formats are not read; save it as one")
    files, tensors = TensorFiles(directory, WEIGHTS), list(_names(architecture, lora))
    if problems := misfits(files, {name: at(abstract, path).shape[::-1] for path, name in tensors}):
        more = f"; and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise UnsupportedModel(f"{directory / WEIGHTS} does not fit the model: {'; '.join(problems[:8])}{more}")
    adapters: Params = {}
    for path, name in tensors:
        put(adapters, path, load_array(files, [name], True, at(abstract, path), at(shardings, path)))
    return adapters


def save_adapters(
    directory: Path, architecture: Architecture, lora: LoraSettings, adapters: Params, *, base: str, dtype: str
) -> None:
    """Write `CONFIG` and `WEIGHTS` into ``directory``, which exists.

    ``base``: the directory or id of the model that the adapters belong to; ``dtype``: type of the file.

    Raises:
      UnsupportedModel: a value is NaN or infinite, or too large for ``dtype``.
    """
    tensors = []
    for path, name in _names(architecture, lora):
        array = at(adapters, path)
        tensors.append(StoredTensor(name, array.shape[::-1], lambda array=array: host_tensor(array, True)))
    write_file(directory / WEIGHTS, tensors, np.dtype(dtype))
    base, _, revision = base.partition("@") if is_id(base) else (base, "", "")
    config: dict[str, Any] = {
        "base_model_name_or_path": base,
        "revision": revision or None,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": int(lora.alpha) if lora.alpha == int(lora.alpha) else lora.alpha,
        "lora_dropout": 0.0,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": lora.rank,
        "target_modules": list(lora.targets),
        "task_type": "CAUSAL_LM",
        "use_dora": False,
        "use_rslora": False,
    }
    (directory / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
