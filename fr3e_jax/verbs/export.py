"""A run's weights as a Hugging Face directory, for ``fr3e export`` and the end of ``fr3e sft`` and ``fr3e rft``."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jax

from fr3e_jax import __version__
from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.error_conversion import as_config_error
from fr3e_jax.configuration.schema import Config
from fr3e_jax.data.tokenizer import GENERATION_CONFIG, TextCodec
from fr3e_jax.hub import model_directory
from fr3e_jax.loop.evaluate import read_run_params
from fr3e_jax.policy.adapter_files import save_adapters
from fr3e_jax.policy.architecture import Architecture
from fr3e_jax.policy.config_file import read_json_object, retyped, to_hf_config
from fr3e_jax.policy.huggingface import MAX_SHARD_BYTES, save_params
from fr3e_jax.policy.network import Params, build_network
from fr3e_jax.programs.mesh import make_mesh
from fr3e_jax.programs.weight_check import fault_of_weights
from fr3e_jax.session.model import Model, configured_architecture, model_on
from fr3e_jax.session.session import Session
from fr3e_jax.verbs.model_directory import check_replaceable, replaced_directory

_CHECKED_TOKENS = 8  # in the pass that tests the weights


def export_run(
    config: Config,
    run_dir: Path,
    directory: Path,
    *,
    dtype: str = "",
    max_shard_bytes: int = MAX_SHARD_BYTES,
    step: int | None = None,
    adapter: bool = False,
) -> int:
    """``fr3e export``: write a run's checkpoint as a Hugging Face directory; return the exit code.

    Adapters are merged into their base.

    Args:
      config: the run's saved settings; neither its task nor its mesh is needed.
      run_dir: the run's directory.
      directory: new, empty, or an earlier export.
      dtype: type of the weights, ``"float32"``, ``"bfloat16"`` or ``"float16"``; empty: the run's own, without loss.
      max_shard_bytes: largest size of a weight file.
      step: which checkpoint; None: the newest.
      adapter: write the adapters alone, as PEFT reads them.

    Raises:
      ConfigError: there is no such checkpoint, no adapter where one is asked for, or ``directory`` holds something
        other than an earlier export; or the weights give NaN.
    """
    model = config.model
    with as_config_error():
        check_replaceable(directory)
        codec = TextCodec.load(model.tokenizer or model.path, model=model.path)
        architecture = configured_architecture(config, len(codec))
        devices = jax.devices()[: math.gcd(jax.device_count(), architecture.hidden_size)]  # any number works
        found = model_on(make_mesh(devices=devices), config, architecture)
        if adapter:
            _check_adapter(found, config, run_dir)
        base = found.base_fingerprint()
        params, step = read_run_params(run_dir, found.sharded_abstract_params(), step, base=base)
        whole, graphdef = found.whole(params), build_network(architecture, param_dtype=model.param_dtype)[0]
        if fault := fault_of_weights(graphdef, whole, [codec.stop_ids[0]] * _CHECKED_TOKENS):
            raise ConfigError(
                f"the weights of step {step} of {run_dir} cannot be used: {fault}; export an earlier checkpoint "
                "(--step) or another run"
            )
        stored = model.lora.param_dtype if adapter else model.param_dtype
        record = {"run": str(run_dir), "step": step, "dtype": dtype or stored}
        if adapter:
            with replaced_directory(directory, {"fr3e_jax": __version__} | record) as filled:
                where = {"base": model.path, "dtype": record["dtype"]}
                save_adapters(filled, architecture, found.network.lora, params, **where)
        else:
            write_model(directory, architecture, whole, codec, model.path, record, max_shard_bytes)
    size = sum(file.stat().st_size for file in Path(directory).expanduser().iterdir())
    print(f"step {step} of {run_dir} as {record['dtype']}: {directory} ({size / 1e6:,.1f} MB)")
    return 0


def _check_adapter(found: Model, config: Config, run_dir: Path) -> None:
    """Refuse to export adapters that a run does not have, or whose base nobody else has."""
    if found.network.lora is None:
        raise ConfigError(f"--adapter: {run_dir} trained all weights (model.lora.rank=0); leave it out to export them")
    if not config.model.path:
        raise ConfigError(
            f"--adapter: the base of {run_dir} are random weights of seed {config.seed}, which no directory holds; "
            "leave it out to export the merged model"
        )


def save_model(session: Session, params: Params, directory: Path, dtype: str) -> None:
    """Write these weights with the session's architecture and tokenizer as a Hugging Face directory."""
    record = {"run": session.config.name, "dtype": dtype}
    write_model(directory, session.model.architecture, params, session.texts.codec, session.config.model.path, record)


def _still_there(source: str) -> Path | None:
    """The directory that a run started from; None if it started from none, or the directory is gone."""
    try:
        return model_directory(source) if source else None
    except FileNotFoundError:
        return None


def write_model(
    directory: Path,
    architecture: Architecture,
    params: Params,
    codec: TextCodec,
    source: str,
    record: dict[str, Any],
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Write weights, config.json, generation_config.json and the tokenizer's files, all or nothing.

    Args:
      directory: new, empty, or an earlier export.
      architecture: the network of the weights.
      params: the weights.
      codec: the tokenizer.
      source: the Hugging Face directory or id that the run started from, whose other settings are kept if it is still
        there; or empty.
      record: notes for the record in the directory; ``record["dtype"]`` is the type of the weights.
      max_shard_bytes: largest size of a weight file.
    """
    found = _still_there(source)
    config = _config(architecture, codec, _read(found, "config.json"), record["dtype"])
    generation = _generation_config(codec, _read(found, GENERATION_CONFIG) or _read(codec.source, GENERATION_CONFIG))
    with replaced_directory(directory, {"fr3e_jax": __version__} | record) as filled:
        save_params(filled, architecture, params, dtype=record["dtype"], max_shard_bytes=max_shard_bytes)
        codec.save(filled)
        for name, content in (("config.json", config), (GENERATION_CONFIG, generation)):
            (filled / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _read(directory: Path | None, name: str) -> dict[str, Any]:
    return read_json_object(directory / name) if directory and (directory / name).is_file() else {}


def _config(architecture: Architecture, codec: TextCodec, source: dict[str, Any], dtype: str) -> dict[str, Any]:
    if source:
        return retyped(source, architecture, dtype)
    return to_hf_config(architecture, dtype=dtype, eos_token_id=codec.stop_ids[0], pad_token_id=codec.pad_id)


def _generation_config(codec: TextCodec, source: dict[str, Any]) -> dict[str, Any]:
    """The source's generation settings, with the run's stop tokens."""
    listed = source.get("eos_token_id")
    listed = listed if isinstance(listed, list) else [listed]
    if set(listed) != set(codec.stop_ids):
        listed = list(codec.stop_ids)
    stops = {"eos_token_id": listed if len(listed) > 1 else listed[0]}
    padding = {} if source.get("pad_token_id") is not None else {"pad_token_id": codec.pad_id}
    return source | stops | padding
