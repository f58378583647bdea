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
        return {
            "gold": gold,
            "prompt": self.codec.decode(prompt_ids, special_tokens=True),
            "prefix": "" if prefix is None else self.codec.decode(prefix, special_tokens=True),
            "response": self.response_text(rollout.token_ids, rollout.finished),
        }

    def response_text(self, token_ids: np.ndarray, finished: bool) -> str:
        """The text of a whole response without its stop token; other special tokens stay visible to the verifier."""
        ids = token_ids[:-1] if finished else token_ids
        return self.codec.decode(ids, special_tokens=True)
