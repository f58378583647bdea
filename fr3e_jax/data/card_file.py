"""The file of a dataset card. Its keys are checked by hand, so that an error names the mistake and the nearest key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

import yaml
from omegaconf import OmegaConf

from fr3e_jax.configuration import ConfigError
from fr3e_jax.data.fields import FieldRule, parse_path
from fr3e_jax.data.formats import FORMATS

NAME = re.compile(r"[\w.-]+")  # of a card, which is the first part of problem ids
RESERVED = {"dataset", "golds", "level", "subject"}  # keys of Problem.extra that the loader sets itself
TEXTS = ("name", "title", "paper", "source", "licence", "note", "verifier")  # all but two are for readers of the file
WITHOUT_ANSWER = ("code", "judge", "none")  # verifiers of problems that need no answer
RULES = ("question", "answer", "solution", "level", "subject", "system", "tools")


@dataclass(frozen=True)
class SplitCard:
    """One split of a dataset.

    Attributes:
      files: paths or globs under ``data.root``; the first pattern that matches is read.
      format: ``auto`` (by suffix), ``jsonl``, ``json``, ``csv``, ``parquet`` or ``tfds``.
      builder, builder_split: a TFDS dataset, ``name[/config][:version]``, and its split.
      fields: the rules of question and answer, and optionally of solution, level, subject, system message and tools.
      extra: maps keys of ``Problem.extra`` to the dotted paths of their values.
      filters: maps dotted paths to the values that are kept.
    """

    files: tuple[str, ...] = ()
    format: str = "auto"
    builder: str = ""
    builder_split: str = ""
    fields: Mapping[str, FieldRule] = field(default_factory=dict)
    extra: Mapping[str, str] = field(default_factory=dict)
    filters: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Card:
    """A dataset: the verifier that grades it, and its splits. ``path`` is the card's own file."""

    path: Path
    name: str
    verifier: str
    splits: Mapping[str, SplitCard]


def read_card(path: Path) -> Card:
    """Read and check the card in a file.

    Raises:
      ConfigError: the file is not YAML, has an unknown key, lacks a key, or has a value of the wrong type.
    """
    try:
        content: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as YAML: {error}") from error
    shared = {entry.name for entry in fields(SplitCard)}
    _expect_keys(content, {*TEXTS, "splits", *shared}, required=("name", "verifier", "splits"), where=f"{path}: ")
    for key in TEXTS:
        _expect(content.get(key, ""), str, f"{path}: {key}", "a text")
    _expect(content["splits"], dict, f"{path}: splits", "a mapping from split to its files")
    if not NAME.fullmatch(content["name"]):
        raise ConfigError(f"{path}: name is {content['name']!r}; expected letters, digits, '_', '.' and '-' only")
    common = {key: content[key] for key in shared if key in content}
    splits = {
        str(name): _split(common, body, f"{path}: splits.{name}", content["verifier"])
        for name, body in content["splits"].items()
    }
    return Card(path, content["name"], content["verifier"], splits)


def _split(common: dict[str, Any], body: Any, where: str, verifier: str) -> SplitCard:
    """A split. Its own keys win over the card's; mappings (fields, extra, filters) are merged entry by entry."""
    body = {"files": body} if isinstance(body, str | list) else body
    _expect_keys(body, {entry.name for entry in fields(SplitCard)}, where=f"{where}.")
    merged = dict(common)
    for key, value in body.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merged[key] | value if both else value
    texts = {key: _expect(merged.get(key, ""), str, f"{where}.{key}", "a text") for key in ("builder", "builder_split")}
    split = SplitCard(
        files=_texts(merged.get("files", []), f"{where}.files"),
        format=_choice(merged.get("format", "auto"), FORMATS, f"{where}.format"),
        fields=_rules(merged.get("fields", {}), where, verifier),
        extra=_extra(merged.get("extra", {}), f"{where}.extra"),
        filters=_filters(merged.get("filters", {}), f"{where}.filters"),
        **texts,
    )
    if split.format == "tfds" and not (split.builder and split.builder_split):
        raise ConfigError(f"{where}: format is tfds, which needs builder and builder_split")
    if split.format != "tfds" and not split.files:
        raise ConfigError(f"{where} names no files; expected a path or a list of paths under data.root")
    return split


def _rules(content: Any, where: str, verifier: str) -> dict[str, FieldRule]:
    required = ("question",) if verifier in WITHOUT_ANSWER else ("question", "answer")
    _expect_keys(content, RULES, required, where=f"{where}.fields.")
    return {name: _rule(body, f"{where}.fields.{name}") for name, body in content.items()}


def _rule(body: Any, where: str) -> FieldRule:
    body = {"path": body} if isinstance(body, str) else body
    kinds = get_type_hints(FieldRule)
    _expect_keys(body, kinds, required=("path",), where=f"{where}.")
    for key, value in body.items():
        _expect(value, kinds[key], f"{where}.{key}", "a text" if kinds[key] is str else "true or false")
    _path(body["path"], f"{where}.path")
    try:
        re.compile(body.get("remove", ""))
    except re.error as error:
        message = f"{where}.remove is {body['remove']!r}, which is not a regular expression: {error}"
        raise ConfigError(message) from error
    return FieldRule(**body)


def _extra(content: Any, where: str) -> dict[str, str]:
    _expect(content, dict, where, "a mapping from key to the path of a field")
    for key, path in content.items():
        if key in RESERVED:
            raise ConfigError(f"{where}.{key}: the loader sets {key} itself; use another name")
        _path(path, f"{where}.{key}")
    return dict(content)


def _filters(content: Any, where: str) -> dict[str, tuple[Any, ...]]:
    _expect(content, dict, where, "a mapping from the path of a field to the list of values that are kept")
    for path, values in content.items():
        _path(path, where)
        _expect(values, list, f"{where}.{path}", "the list of values that are kept")
    return {path: tuple(values) for path, values in content.items()}


def _path(path: Any, where: str) -> None:
    _expect(path, str, where, "the path of a field")
    try:
        parse_path(path)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


def _texts(value: Any, where: str) -> tuple[str, ...]:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(text, str) and text for text in values):
        raise ConfigError(f"{where} is {value!r}; expected a path or a list of paths")
    return tuple(values)


def _choice(value: Any, choices: tuple[str, ...], where: str) -> str:
    if value not in choices:
        raise ConfigError(f"{where} is {value!r}; {nearest(str(value), choices)}")
    return value


def _expect(value: Any, kind: type, where: str, expected: str) -> Any:
    if not isinstance(value, kind):
        raise ConfigError(f"{where} is {value!r}; expected {expected}")
    return value


def _expect_keys(content: Any, allowed: Any, required: tuple[str, ...] = (), where: str = "") -> None:
    """Raise ConfigError unless ``content`` is a mapping with the required keys and no unknown ones."""
    owner = where.rstrip(".: ")
    if not isinstance(content, dict):
        raise ConfigError(f"{owner} is {content!r}; expected a mapping with {_list(allowed)}")
    for key in content:
        if key not in allowed:
            raise ConfigError(f"{where}{key} is not part of a dataset card; {nearest(str(key), allowed)}")
    for key in required:
        if not content.get(key):
            raise ConfigError(f"{owner} lacks {key}; a dataset card needs {', '.join(required)} there")


def nearest(name: str, choices: Any) -> str:
    nearest = difflib.get_close_matches(name, list(choices), n=1)
    return f"nearest: {nearest[0]}" if nearest else f"expected one of {_list(choices)}"


def _list(names: Any) -> str:
    return ", ".join(sorted(names))
