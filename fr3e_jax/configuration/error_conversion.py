"""Errors of what settings name, as errors of the settings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fr3e_jax.configuration.settings import ConfigError


@contextlib.contextmanager
def as_config_error(*kinds: type[Exception]) -> Iterator[None]:
    """Raise errors of ``kinds`` (by default ``OSError`` and ``ValueError``) as `ConfigError`: one line for the user.

    Put it around the reading of what settings name (files, models, tasks, meshes, texts, verifiers) and nothing else:
    there such an error carries a message for the user. Elsewhere it is a bug and keeps its traceback.
    """
    caught = kinds or (OSError, ValueError)
    try:
        yield
    except caught as error:
        raise ConfigError(str(error)) from error
