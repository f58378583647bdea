"""The JSON object in a file of a model directory, or one line that names the file.

It imports `fr3e_jax.model_folder` only, and lies beside the rooms: weights and tokenizers are read in different ones.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fr3e_jax.model_folder import POINTER, is_pointer

_SHOWN = 80  # characters of a value in a message


def shown(value: Any) -> str:
    """A value as JSON, cut if it is long."""
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
      ValueError: the file is no JSON, is nested too deeply, or holds something else; the message names the file.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # not UTF-8, or not JSON
        if is_pointer(path):
            raise ValueError(f"{path} {POINTER}") from None
        raise ValueError(f"{path} is not JSON ({error}); copy it again") from error
    except RecursionError:
        raise ValueError(f"{path} is not JSON that can be read (it is nested too deeply); copy it again") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}; expected a JSON object")
    return content
