"""Text to tokens and back: questions in their template, and responses as the verifier reads them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fr3e_jax.data.templates import Template
from fr3e_jax.data.tokenizer import TextCodec


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
        return self.encode(self.prompt_text(question))

    def response_text(self, token_ids: np.ndarray, finished: bool) -> str:
        """The text of a whole response without its stop token; other special tokens stay visible to the verifier."""
        ids = token_ids[:-1] if finished else token_ids
        return self.codec.decode(ids, special_tokens=True)
