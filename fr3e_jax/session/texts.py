"""Text to tokens and back: questions in their template, and responses as the verifier reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

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
            "prompt": self._decoded(prompt_ids),
            "prefix": "" if prefix is None else self._decoded(prefix),
            "response": self.response_text(rollout.token_ids, rollout.finished),
        }

    def _decoded(self, ids: np.ndarray) -> str:
        return self._decoded_bytes(np.asarray(ids, np.int32).tobytes())

    @cached_property
    def _decoded_bytes(self) -> Callable[[bytes], str]:
        """The text of int32 token ids. Neighbouring records share their prompt and prefix, so the last ones stay."""
        return lru_cache(4)(lambda ids: self.codec.decode(np.frombuffer(ids, np.int32), special_tokens=True))

    def response_text(self, token_ids: np.ndarray, finished: bool) -> str:
        """The text of a whole response without its stop token or text; other special tokens stay visible."""
        decode = partial(self.codec.decode, special_tokens=True)
        if not finished or not len(token_ids):
            return decode(token_ids)
        before = decode(token_ids[:-1])
        if int(token_ids[-1]) in self.codec.stop_ids:
            return before
        text = decode(token_ids)
        # The last token completes a stop text. It need not: an environment may end a response with a turn.
        places = (text.find(stop, max(0, len(before) - len(stop))) for stop in self.codec.stop_texts)
        return text[: min((place for place in places if place >= 0), default=len(text))]
