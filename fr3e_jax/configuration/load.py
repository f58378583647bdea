"""From a recipe and overrides to a checked ``Config``."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ConfigDict, TypeAdapter, ValidationError

from fr3e_jax.configuration.check import check
from fr3e_jax.configuration.recipe import Layer, flatten, read_recipe, unknown_setting
from fr3e_jax.configuration.sampler_rules import correct_by_default
from fr3e_jax.configuration.schema import Config
from fr3e_jax.configuration.settings import COMMAND_LINE, ConfigError, sections, setting_value, settings
from fr3e_jax.shipped_files import find_recipe
from fr3e_jax.stores.copies import fetched_file
from fr3e_jax.stores.objects import is_remote

OVERRIDES = "overrides"  # of a Python program, in messages


Overrides = Mapping[str, Any] | Sequence[str | Mapping[str, Any]]
"""Settings by name, flat or in sections; or texts as on the command line, and such mappings among them."""


def load_config(recipe: str | Path, overrides: Overrides = (), *, training: bool = True) -> Config:
    """The checked settings: defaults, then included files, then the recipe, then overrides; later ones win.

    Args:
        recipe: YAML file, its address in an object store, or the name of a recipe that comes with the package:
            ``demo``, ``methods/grpo``.
        overrides: ``{"section.field": value}``, or ``section.field=value`` in a list; there values are YAML, except
            that text settings take the value as it stands.
        training: also refuse settings with which reinforcement learning cannot learn.

    Raises:
        ConfigError: one line with the place, the mistake and the nearest valid choice.
    """
    return next(load_variants(recipe, [overrides], training=training))


def load_variants(recipe: str | Path, variants: Iterable[Overrides], *, training: bool = True) -> Iterator[Config]:
    """The checked settings of a recipe for each list of overrides, as `load_config` has them; the file is read once."""
    layers = read_recipe(_recipe_file(recipe))
    for overrides in variants:
        yield _merged([*layers, *override_layers(overrides)], training=training)


def _recipe_file(recipe: str | Path) -> Path:
    if not is_remote(recipe):
        return find_recipe(recipe)
    try:
        return fetched_file(str(recipe))
    except OSError as error:
        raise ConfigError(f"{recipe} cannot be read: {error}") from error


def default_config(overrides: Overrides = ()) -> Config:
    """The default settings with overrides, as `load_config` without a recipe; not for training.

    Raises:
        ConfigError: see `load_config`.
    """
    return _merged(override_layers(overrides), training=False)


def _merged(layers: Sequence[Layer], *, training: bool) -> Config:
    origins = {path: layer.source for layer in layers for path in layer.values}
    config = Config()
    for layer in layers:
        for path, value in layer.values.items():
            section, _, name = path.rpartition(".")
            setattr(setting_value(config, section) if section else config, name, _typed(path, value, layer.source))
    correct_by_default(config, origins)
    check(config, origins, training=training)
    return config


def listed(overrides: Overrides) -> list[str | Mapping[str, Any]]:
    """The overrides as a list, also a single one."""
    return [overrides] if isinstance(overrides, str | Mapping) else list(overrides)


def override_layers(overrides: Overrides) -> list[Layer]:
    """A layer for each override.

    Raises:
        ConfigError: one is neither a text nor a mapping, or names no setting.
    """
    layers = []
    for override in listed(overrides):
        if isinstance(override, Mapping):
            layers.append(Layer(COMMAND_LINE, flatten(_plain(override), OVERRIDES)))
        elif isinstance(override, str):
            layers.append(parse_override(override))
        else:
            raise ConfigError(
                f"{OVERRIDES}: {override!r} is neither key=value nor a mapping; expected {{'explore.num_anchors': 2}}"
            )
    return layers


def _plain(value: Any) -> Any:
    """A value in the types of YAML: paths as texts, tuples as lists, scalars of NumPy as numbers."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value.tolist() if hasattr(value, "tolist") else value


def _typed(path: str, value: Any, source: str) -> Any:
    """The value in the type of its setting."""
    setting, given = settings()[path], value
    is_list = typing.get_origin(setting.kind) is list
    if is_list and isinstance(value, str | int | float) and "," not in str(value) and value != "":
        value = [value]
    if (typing.get_args(setting.kind)[0] if is_list else setting.kind) in (int, float):
        value = [*map(_as_typed, value)] if isinstance(value, list) else _as_typed(value)
    try:
        return _adapter(path).validate_python(value)
    except ValidationError as error:
        raise ConfigError(f"{source}: {setting.refuse(given)}") from error


@cache
def _adapter(path: str) -> TypeAdapter:
    return TypeAdapter(settings()[path].kind, config=ConfigDict(coerce_numbers_to_str=True))


@cache
def parse_override(text: str) -> Layer:
    """One ``section.field=value`` of the command line."""
    path, equals, value = text.partition("=")
    path = path.strip()
    if not equals or not path:
        raise ConfigError(f"{COMMAND_LINE}: {text!r} is not key=value, for example explore.num_anchors=2")
    if path not in settings() and path not in sections():
        raise ConfigError(f"{COMMAND_LINE}: {unknown_setting(path)}")
    if path in settings() and settings()[path].kind is str:
        return Layer(COMMAND_LINE, {path: _unquote(value)})
    if path in settings() and settings()[path].kind in (int, float) and _misread_by_yaml(value):
        return Layer(COMMAND_LINE, {path: int(value) if value.strip().lstrip("+-").isdecimal() else value.strip()})
    try:
        content: Any = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={value}"]), resolve=False)
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{COMMAND_LINE}: cannot read the value of {text!r}: {error}") from error
    if path in sections():
        return Layer(COMMAND_LINE, flatten(_nest(path, content["value"]), COMMAND_LINE))
    return Layer(COMMAND_LINE, {path: content["value"]})


def _misread_by_yaml(text: str) -> bool:
    """true if YAML reads this number in another way: 010 is 8 to it, and 1:30 is 90."""
    return re.fullmatch(r"[-+]?(0\d+|\d+(:\d+)+)", text.strip()) is not None


def _as_typed(value: Any) -> Any:
    """A number with the minus sign of a keyboard in place of typesetting's dashes: ``1e\u22124`` is ``1e-4``."""
    if isinstance(value, bool):
        return None  # a switch is no number
    if not isinstance(value, str):
        return value
    return value.translate(dict.fromkeys(map(ord, "\u2212\u2013\u2014\u2010\u2011"), "-"))


def _unquote(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def _nest(path: str, value: Any) -> dict[str, Any]:
    for name in reversed(path.split(".")):
        value = {name: value}
    return value
