"""Answers as the OpenAI API writes them, whole or in parts of a stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fr3e_jax.data.tokenizer import TextCodec
from fr3e_jax.programs.decode_steps import Likeliest
from fr3e_jax.serving.answers import Exchange, NewTokens, ServedAnswer

_LEAST_LOGPROB = -9999.0  # JSON has no infinity; the OpenAI API writes this


class Formats:
    """Writes exchanges; ``codec`` spells single tokens."""

    def __init__(self, codec: TextCodec) -> None:
        self._bytes = codec.token_bytes(codec.rows)

    def response(self, exchange: Exchange, token_ids: bool) -> dict[str, Any]:
        """The response that is no stream; ``token_ids``: with the ids of all tokens."""
        choices = []
        for answer in exchange.answers:
            choice = {"index": answer.index, "finish_reason": answer.finish or None}
            new = answer.total()
            if exchange.chat:
                message = {"role": "assistant", "content": new.text, "refusal": None}
                choice |= {"message": message, "logprobs": self._logprobs(exchange, answer, new, first=True)}
            else:
                choice |= self._text_choice(exchange, answer, new, first=True)
            choices.append(choice | ({"token_ids": new.token_ids} if token_ids else {}))
        kind = "chat.completion" if exchange.chat else "text_completion"
        return _head(exchange, kind) | {"choices": choices, "usage": exchange.usage()}

    def event(self, exchange: Exchange, answer: ServedAnswer, new: NewTokens, token_ids: bool) -> dict[str, Any]:
        """The event of a stream for new tokens of an answer."""
        first = answer.parts[0] is new
        choice: dict[str, Any] = {"index": answer.index, "finish_reason": answer.finish or None}
        if exchange.chat:
            role = {"role": "assistant"} if first else {}
            logprobs = self._logprobs(exchange, answer, new, first)
            choice |= {"delta": {**role, "content": new.text}, "logprobs": logprobs}
        else:
            choice |= self._text_choice(exchange, answer, new, first)
        choice |= {"token_ids": new.token_ids} if token_ids else {}
        return _stream_head(exchange) | {"choices": [choice]}

    def _text_choice(self, exchange: Exchange, answer: ServedAnswer, new: NewTokens, first: bool) -> dict[str, Any]:
        echo = answer.beginning.prompt if exchange.echo and first else ""
        return {"text": echo + new.text, "logprobs": self._logprobs(exchange, answer, new, first)}

    def _logprobs(self, exchange: Exchange, answer: ServedAnswer, new: NewTokens, first: bool) -> dict[str, Any] | None:
        """Log-probs of new tokens, at the first of them also of an echoed prompt; None: nobody asks for them."""
        if exchange.count is None:
            return None
        places = list(self._places(new.token_ids, new.likeliest, exchange.count))
        entropies: list[float | None] = list(new.entropies)
        if exchange.chat:
            content = [
                self._entry(token, logprob) | {"top_logprobs": [self._entry(*token_id) for token_id in top]}
                for token, logprob, top in places
            ]
            return {"content": content, "refusal": None, "entropies": entropies}
        tokens = [self._spelled(token) for token, _, _ in places]
        logprobs: list[float | None] = [logprob for _, logprob, _ in places]
        tops = [self._by_text(*item) for item in places]
        if first and exchange.echo:
            ids = answer.continuation.prefix.tolist()
            before = list(self._places(ids[1:], answer.prompt_likeliest, exchange.count))
            tokens = [self._spelled(token) for token in ids] + tokens
            logprobs = [None, *(logprob for _, logprob, _ in before), *logprobs]
            tops = [None, *(self._by_text(*item) for item in before), *tops]
            entropies = [None] * len(ids) + entropies
        done = len(answer.token_ids) - len(new.token_ids)
        start = sum(len(self._spelled(token)) for token in answer.token_ids[:done])
        start += len(answer.beginning.prompt) if exchange.echo and not first else 0
        offsets = np.cumsum([start, *map(len, tokens)])[:-1].tolist()
        return {
            "tokens": tokens,
            "token_logprobs": logprobs,
            "top_logprobs": tops,
            "text_offset": offsets,
            "entropies": entropies,
        }

    def _places(
        self, token_ids: list[int], likeliest: Likeliest | None, count: int
    ) -> Iterator[tuple[int, float, list[tuple[int, float]]]]:
        """Of each token its id, its log-prob, and the likeliest tokens there with theirs."""
        if likeliest is None:
            return
        top_ids = likeliest.token_ids[:, :count].tolist()
        logprobs, top_logprobs = (np.maximum(x, _LEAST_LOGPROB) for x in (likeliest.own_logprobs, likeliest.logprobs))
        top = [list(zip(*row, strict=True)) for row in zip(top_ids, top_logprobs[:, :count].tolist(), strict=True)]
        yield from zip(token_ids, logprobs.tolist(), top, strict=True)

    def _by_text(self, token: int, logprob: float, top: list[tuple[int, float]]) -> dict[str, float]:
        """The likeliest tokens by their texts, and the one that stands there; of equal texts the likelier token's."""
        by_text: dict[str, float] = {}
        for token_id, its in [*top, (token, logprob)]:
            by_text.setdefault(self._spelled(token_id), its)
        return by_text

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        return {"token": self._spelled(token), "logprob": logprob, "bytes": list(self._bytes[token])}

    def _spelled(self, token: int) -> str:
        """The token's text; of a part of a character its bytes, as the OpenAI API writes them."""
        try:
            return self._bytes[token].decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in self._bytes[token])


def usage_event(exchange: Exchange) -> dict[str, Any]:
    """The last event of a stream whose client asks for the usage."""
    return _stream_head(exchange) | {"choices": [], "usage": exchange.usage()}


def _stream_head(exchange: Exchange) -> dict[str, Any]:
    return _head(exchange, "chat.completion.chunk" if exchange.chat else "text_completion")


def _head(exchange: Exchange, kind: str) -> dict[str, Any]:
    head = {"id": exchange.id, "object": kind, "created": exchange.created, "model": exchange.model}
    head["seed"] = exchange.seed
    return head | ({"kept": exchange.answers[0].text.retained} if exchange.id.startswith("br-") else {})
