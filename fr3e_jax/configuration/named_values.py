"""Settings that are lists of ``NAME=VALUE``, for arguments that only other code knows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import yaml

from fr3e_jax.configuration.error_conversion import ConfigError


def named_values(options: Sequence[str], setting: str, expected: str, reserved: Collection[str] = ()) -> dict[str, Any]:
    """The arguments of ``options``, written as ``NAME=VALUE`` with the value in YAML.

    Args:
      options: the value of the setting.
      setting: its name, for messages.
      expected: completes the message of an error: "an argument of the function, such as size=3".
      reserved: names that the setting cannot give.

    Raises:
      ConfigError: an option has another form, or its name is reserved or there twice.
    """
    values: dict[str, Any] = {}
    for option in options:
        name, equals, text = option.partition("=")
        if not equals or not name.isidentifier() or name in (*reserved, *values):
            raise ConfigError(f"{setting} has {option!r}; expected NAME=VALUE with {expected}")
        try:
            values[name] = yaml.safe_load(text) if text else ""
        except yaml.YAMLError:
            values[name] = text
    return values
