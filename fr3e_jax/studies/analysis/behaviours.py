"""The words and patterns that count as exploratory reasoning, from a file that users replace."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from fr3e_jax.configuration import ConfigError

BEHAVIOURS = Path(__file__).with_name("behaviours.yaml")


@dataclass(frozen=True)
class Behaviours:
    """Pivotal words by kind, patterns of reflective sentences, and the end of a sentence."""

    pivotal: Mapping[str, frozenset[str]]
    reflective: tuple[re.Pattern[str], ...]
    sentence_end: re.Pattern[str]

    @classmethod
    def load(cls, path: Path | None = None) -> Behaviours:
        """The behaviours of a file; of the package without one.

        Raises:
          ConfigError: the file cannot be read, or is not of the form of ``behaviours.yaml``.
        """
        path = path or BEHAVIOURS
        try:
            content = yaml.safe_load(path.read_bytes())
            pivotal = {
                str(kind): frozenset(word.lower() for word in words) for kind, words in content["pivotal"].items()
            }
            reflective = tuple(re.compile(pattern, re.IGNORECASE) for pattern in content["reflective"])
            return cls(pivotal, reflective, re.compile(content["sentence_end"]))
        except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError, re.error) as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise ConfigError(
                f"{path} cannot be read as behaviours ({reason}); expected pivotal (kind: [words]), reflective "
                f"([patterns]) and sentence_end (a pattern), as in {BEHAVIOURS.name}"
            ) from error

    def kind_of(self, token: str) -> str | None:
        """The kind of a pivotal token; None if it is not one."""
        word = token.strip(" \t\r\n.,;:!?()\"'*").lower()
        return next((kind for kind, words in self.pivotal.items() if word in words), None)

    def is_reflective(self, sentence: str) -> bool:
        """Return whether a sentence is a reflective action."""
        return any(pattern.search(sentence) for pattern in self.reflective)
