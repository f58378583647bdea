"""The identity of a run: settings, its network, and fingerprints of its data, its tokenizer and the user's code.

A checkpoint holds it, so that a resumed run can tell what has changed (`fr3e_jax.session.checkpoint_changes`). Files
may move: their content counts.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fr3e_jax.configuration.recipe import CODE, TEXTS
from fr3e_jax.configuration.schema import Config
from fr3e_jax.configuration.settings import setting_value
from fr3e_jax.data.character_tokenizer import CHARACTERS
from fr3e_jax.data.task import Task, held_out_split
from fr3e_jax.data.templates import is_file
from fr3e_jax.data.tokenizer import FILES, TextCodec
from fr3e_jax.policy.architecture import Architecture
from fr3e_jax.problem import Problem
from fr3e_jax.user_code import parse_reference

HASHED_PROBLEMS = 20_000  # of a split; of a longer one, so many evenly spaced problems
HASHED_COMPUTED_PROBLEMS = 1_000  # of a split whose problems are computed on access
HASHED_DEMONSTRATIONS = 2_000  # the first; every second one as at the end of a curriculum


def identity(
    config: Config,
    task: Task,
    codec: TextCodec,
    architecture: Architecture,
    *,
    demonstrations: bool = False,
    base: str = "",
    teacher: str = "",
) -> dict[str, Any]:
    """JSON content for the host state of a checkpoint.

    Args:
      config: all of its settings count but for the section ``runtime``.
      task: the problems to train on and to evaluate on.
      codec: the tokenizer.
      architecture: the network, which config.json of ``model.path`` may describe otherwise at the next start.
      demonstrations: the run trains on demonstrations, so they count, too.
      base: a hash of the weights below the adapters, which no checkpoint holds; "": there are none.
      teacher: a hash of the teacher's weights; "": there is none.
    """
    settings = {name: value for name, value in dataclasses.asdict(config).items() if name != "runtime"}
    evaluates = config.data.task != "datasets" or config.data.eval  # a run that never evaluates may name no cards
    held_out = held_out_split(task, config.evaluation.split) if evaluates else []
    content = {
        "settings": json.loads(json.dumps(settings)),
        "training_data": fingerprint(task.problems("train")),
        "held_out_data": held_out_fingerprints(held_out, config.data.eval),
        "tokenizer": tokenizer_fingerprint(codec),
        "network": network_fields(architecture),
        "files": user_files(config),
    }
    if base:
        content["base_weights"] = base
    if teacher:
        content["teacher_weights"] = teacher
    if demonstrations:
        content["demonstrations"] = _of_demonstrations(task)
    return content


def network_fields(architecture: Architecture) -> dict[str, Any]:
    """The fields that decide what the network computes, as JSON content: all but the longest context."""
    fields = dataclasses.asdict(architecture)
    del fields["max_position_embeddings"]
    return json.loads(json.dumps(fields))


def fingerprint(problems: Sequence[Problem]) -> str:
    """The number of problems and a hash of their content.

    All of them are hashed, or `HASHED_PROBLEMS` evenly spaced ones; fewer if each is computed on access.
    """
    count = len(problems)
    most = HASHED_PROBLEMS if isinstance(problems, list | tuple) else HASHED_COMPUTED_PROBLEMS
    indices = range(count) if count <= most else np.linspace(0, count - 1, most).astype(int).tolist()
    return f"{count} problems, {_digest(_content(problems[index]) for index in indices)}"


def _content(problem: Problem) -> bytes:
    # Values that JSON lacks count by their type alone: their text could hold an address in memory.
    extra = json.dumps(dict(problem.extra), sort_keys=True, default=lambda value: type(value).__name__)
    return repr((problem.id, problem.prompt, problem.gold, extra)).encode("utf-8", "surrogatepass")


def held_out_fingerprints(problems: Sequence[Problem], sets: Sequence[str]) -> dict[str, str]:
    """A `fingerprint` for each of several sets, by the split in the problems' ids; else one, under an empty name."""
    if len(sets) <= 1:
        return {"": fingerprint(problems)}
    members: dict[str, list[Problem]] = {}
    for problem in problems:
        members.setdefault(problem.id.rpartition("/")[0], []).append(problem)
    return {name: fingerprint(problems_of_set) for name, problems_of_set in members.items()}


def tokenizer_fingerprint(codec: TextCodec) -> str:
    """The number of tokens and a hash of the tokenizer's files and the stop ids in them."""
    files = {name: codec.source / name for name in FILES} if codec.source else {}
    content = [name.encode() + b"\0" + path.read_bytes() for name, path in files.items() if path.is_file()]
    return f"{len(codec)} tokens, {_digest([*(content or [CHARACTERS.encode()]), repr(codec.stops_in_files).encode()])}"


def user_files(config: Config) -> dict[str, str]:
    """SHA-256, shortened, of the user's file that each setting names, such as a task, a verifier or a template."""
    named = {setting: setting_value(config, setting) for setting in CODE}
    files = {name: _source_file(parse_reference(text, name).source) for name, text in named.items() if ":" in text}
    files |= {name: Path(text).expanduser() for name in TEXTS if (text := setting_value(config, name))}
    if is_file(config.data.template):
        files["data.template"] = Path(config.data.template).expanduser()
    return {name: _digest([file.read_bytes()]) for name, file in files.items() if file}


def _source_file(source: str) -> Path | None:
    if source.endswith(".py"):
        return Path(source)
    spec = importlib.util.find_spec(source)
    return Path(spec.origin) if spec and spec.origin and Path(spec.origin).is_file() else None


def _of_demonstrations(task: Task) -> str:
    shown = (task.demonstration(index, float(index % 2)) for index in range(HASHED_DEMONSTRATIONS))
    texts = (repr((each.prompt, each.response)).encode("utf-8", "surrogatepass") for each in shown)
    return f"the first {HASHED_DEMONSTRATIONS}, {_digest(texts)}"


def _digest(parts: Iterator[bytes] | Sequence[bytes]) -> str:
    digest = hashlib.sha256()
    for chunk in parts:
        digest.update(chunk)
    return digest.hexdigest()[:16]
