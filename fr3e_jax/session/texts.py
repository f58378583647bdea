"""Text to tokens and back: questions in their template, and responses as the verifier reads them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fr3e_jax.data.templates import Template
from fr3e_jax.data.tokenizer import TextCodec
from fr3e_jax.rollouts.requests import Rollout


@dataclass(frozen=True)
class Texts:
    """The tokenizer of a run and the template of its prompts."""

    codec: TextCodec
    template: Template

    def encode(self, text: str) -> np.ndarray:
        """Token ids of a text, int32 ``[T]``."""
        return np.asarray(self.codec.encode(text), np.int32)

    def prompt_text(self, question: str) -> str:
        """The question in the template of ``data.template``, as the policy gets it."""
        return self.template.render(question, self.codec.render_chat)

    def prompt_ids(self, question: str) -> np.ndarray:
        """Token ids of ``prompt_text(question)``, int32 ``[T]``."""
        return np.asarray(self.codec.encode_prompt(self.prompt_text(question)), np.int32)

    def of_record(
        self, gold: str, prompt_ids: np.ndarray, rollout: Rollout, prefix: np.ndarray | None = None
    ) -> dict[str, str]:
        """The texts of a stored rollout: ``prefix`` are the response's tokens before the rollout's own."""
        return RecordTexts(self).of(gold, prompt_ids, rollout, prefix)

    def response_text(self, token_ids: np.ndarray, finished: bool) -> str:
        """The text of a whole response without its stop token; other special tokens stay visible to the verifier."""
        # An environment may end a response with a turn, which no stop token need end.
        stopped = finished and len(token_ids) and int(token_ids[-1]) in self.codec.stop_ids
        return self.codec.decode(token_ids[:-1] if stopped else token_ids, special_tokens=True)


class RecordTexts:
    """The texts of stored rollouts, one after the other: the prompt and the prefix of neighbours are made once."""

    def __init__(self, texts: Texts):
        self._texts = texts
        self._made: dict[str, tuple[np.ndarray, str]] = {}  # the last tokens of each field, and their text

    def of(
        self, gold: str, prompt_ids: np.ndarray, rollout: Rollout, prefix: np.ndarray | None = None
    ) -> dict[str, str]:
        """The same as `Texts.of_record`."""
        return {
            "gold": gold,
            "prompt": self._once("prompt", prompt_ids),
            "prefix": "" if prefix is None else self._once("prefix", prefix),
            "response": self._texts.response_text(rollout.token_ids, rollout.finished),
        }

    def _once(self, field: str, ids: np.ndarray) -> str:
        last = self._made.get(field)
        if last is None or last[0] is not ids:
            last = self._made[field] = ids, self._texts.codec.decode(ids, special_tokens=True)
        return last[1]
