"""Hugging Face directories, written all or nothing by ``fr3e export`` and at the end of ``fr3e sft`` and ``fr3e rft``.

An export replaces nothing but an earlier export.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fr3e_jax import __version__
from fr3e_jax.data.tokenizer import GENERATION_CONFIG, TextCodec
from fr3e_jax.hub import model_directory
from fr3e_jax.policy.architecture import Architecture
from fr3e_jax.policy.config_file import read_json_object, retyped, to_hf_config
from fr3e_jax.policy.huggingface import MAX_SHARD_BYTES, save_params
from fr3e_jax.policy.network import Params
from fr3e_jax.runs.run_directory import write_json_atomic
from fr3e_jax.session.session import Session

RECORD = "fr3e_export.json"  # lists the files of an export, which a later export may replace
CARD = "README.md"  # replaced only as long as nobody has changed it


def check_replaceable(directory: str | Path) -> Path:
    """``directory`` as an absolute path without links.

    Raises:
      FileExistsError: it is a file, or holds something that no export wrote.
    """
    target = Path(directory).expanduser().resolve()
    if not target.exists():
        return target
    if not target.is_dir():
        raise FileExistsError(f"{target} is a file; expected a directory to write a model into")
    names = {path.name for path in target.iterdir()}
    if not names:
        return target
    instead = "expected a new or empty directory, or an earlier export, which is replaced: name another, or empty it"
    written = _recorded_files(target)
    if not written:
        raise FileExistsError(f"{target} is not empty and was not written by fr3e (it has no {RECORD}); {instead}")
    if foreign := sorted(names - written - {RECORD}):
        raise FileExistsError(f"{target} holds {', '.join(foreign)}, which no export wrote; {instead}")
    return target


def _recorded_files(target: Path) -> set[str]:
    try:
        record = json.loads((target / RECORD).read_text(encoding="utf-8"))
        files = set(record["files"])
    except (OSError, ValueError, KeyError, TypeError):  # no record, or not a record of fr3e
        return set()
    return files if record.get("card") == _digest(target / CARD) else files - {CARD}


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""


@contextlib.contextmanager
def replaced_directory(directory: str | Path, record: dict[str, Any]) -> Iterator[Path]:
    """An empty directory to fill; it becomes ``directory`` when the block ends, and vanishes when the block raises.

    Args:
      directory: new, empty, or an earlier export.
      record: notes to save besides the list of its files.

    Raises:
      FileExistsError: see `check_replaceable`; checked again at the end, when hours may have passed.
    """
    target = check_replaceable(directory)
    # The names beside the target are fixed: the next writer overwrites the remains of a killed one.
    filled, former = target.with_name(f".{target.name}.tmp"), target.with_name(f".{target.name}.former")
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove(filled)
    filled.mkdir()
    try:
        yield filled
        files = sorted(path.name for path in filled.iterdir())
        notes = record | {"card": _digest(filled / CARD), "files": files}
        write_json_atomic(filled / RECORD, {"fr3e_jax": __version__} | notes)
        check_replaceable(target)
        _exchange(filled, target, former)
    finally:
        _remove(filled)


def _exchange(filled: Path, target: Path, former: Path) -> None:
    if target.exists():
        _remove(former)
        os.rename(target, former)
    try:
        os.rename(filled, target)
    except OSError:
        if former.exists():
            os.rename(former, target)
        raise
    _remove(former)


def _remove(directory: Path) -> None:
    if directory.exists():
        shutil.rmtree(directory)


def save_model(session: Session, params: Params, directory: Path) -> None:
    """Write these weights with the session's architecture and tokenizer as a Hugging Face directory."""
    record = {"run": session.config.name, "dtype": session.config.model.param_dtype}
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
    *,
    card: str = "",
) -> None:
    """Write weights, config.json, generation_config.json, the tokenizer's files and a model card, all or nothing.

    Args:
      directory: new, empty, or an earlier export.
      architecture: the network of the weights.
      params: the weights.
      codec: the tokenizer.
      source: the Hugging Face directory or id that the run started from, whose other settings are kept if it is still
        there; or empty.
      record: notes for the record in the directory; ``record["dtype"]`` is the type of the weights.
      card: the text of README.md; empty: none.
    """
    names = _still_there(source)
    config = _config(architecture, codec, _read(names, "config.json"), record["dtype"])
    generation = _generation_config(codec, _read(names, GENERATION_CONFIG) or _read(codec.source, GENERATION_CONFIG))
    with replaced_directory(directory, record) as filled:
        save_params(filled, architecture, params, dtype=record["dtype"], max_shard_bytes=MAX_SHARD_BYTES)
        codec.save(filled)
        for name, content in (("config.json", config), (GENERATION_CONFIG, generation)):
            (filled / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        if card:
            (filled / CARD).write_text(card, encoding="utf-8")


def _read(directory: Path | None, name: str) -> dict[str, Any]:
    return read_json_object(directory / name) if directory and (directory / name).is_file() else {}


def _config(architecture: Architecture, codec: TextCodec, source: dict[str, Any], dtype: str) -> dict[str, Any]:
    if source:
        return retyped(source, architecture, dtype)
    return to_hf_config(architecture, dtype=dtype, eos_token_id=codec.stop_ids[0], pad_token_id=codec.pad_id)


def _generation_config(codec: TextCodec, source: dict[str, Any]) -> dict[str, Any]:
    """The source's generation settings, with the run's stop tokens and texts."""
    listed = source.get("eos_token_id")
    listed = listed if isinstance(listed, list) else [listed]
    if set(listed) != set(codec.stop_ids):
        listed = list(codec.stop_ids)
    stops: dict[str, Any] = {"eos_token_id": listed if len(listed) > 1 else listed[0]}
    if codec.stop_texts:
        stops["stop_strings"] = list(codec.stop_texts)
    padding = {} if source.get("pad_token_id") is not None else {"pad_token_id": codec.pad_id}
    return source | stops | padding
