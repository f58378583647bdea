"""Requests as branches of trunks; answers, and the store of earlier ones, from whose tokens one may branch."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fr3e_jax.configuration import Config
from fr3e_jax.conversation import question_of
from fr3e_jax.data.templates import TEMPLATES, Template
from fr3e_jax.programs.decode_steps import Likeliest
from fr3e_jax.rollouts.noise import SAMPLE, STATE
from fr3e_jax.rollouts.requests import Branch, Sampling
from fr3e_jax.serving.answer_text import AnswerText
from fr3e_jax.serving.bodies import Body, BranchBody, ChatBody, CompletionBody, RequestError
from fr3e_jax.serving.decoder import Continuation, Piece
from fr3e_jax.session.texts import Texts

_COMPLETION_TOKENS = 16  # without max_tokens, as the OpenAI API has it
_STORED_REQUESTS, _STORED_TOKENS = 4_000, 2_000_000  # of earlier answers and their prompts


class Limits(NamedTuple):
    """Limits of requests.

    Attributes:
      context: tokens of a prompt and its answer.
      answers: of a request.
      queue: answers that wait for a lane.
      body_bytes: of a request.
      key: that requests must bring; "": none.
    """

    context: int
    answers: int = 128
    queue: int = 1024
    body_bytes: int = 1 << 20
    key: str = ""


class Beginning(NamedTuple):
    """The tokens before an answer's own: a prompt, and those that a branch retains of an earlier answer.

    Attributes:
      rest: the earlier answer's other tokens, which the trunk has, too: all its branches share the trunk.
    """

    prompt_ids: np.ndarray
    prompt: str
    retained: list[int] = []
    rest: list[int] = []

    @property
    def trunk(self) -> np.ndarray:
        return np.concatenate([self.prompt_ids, np.asarray([*self.retained, *self.rest], np.int32)])


class NewTokens(NamedTuple):
    """The text that a piece added to an answer, and the figures of its tokens."""

    text: str
    token_ids: list[int]
    entropies: list[float]
    likeliest: Likeliest | None


@dataclass
class ServedAnswer:
    """One answer under way; ``index``: in its request; ``finish``: ``stop``, ``length``, or "" while it goes on."""

    index: int
    beginning: Beginning
    continuation: Continuation
    text: AnswerText
    stop_token_ids: frozenset[int]
    finish: str = ""
    token_ids: list[int] = field(default_factory=list)
    parts: list[NewTokens] = field(default_factory=list)
    prompt_likeliest: Likeliest | None = None

    def take(self, piece: Piece) -> NewTokens:
        """Add a piece, up to the token that stops the answer."""
        if piece.prompt is not None:
            self.prompt_likeliest = piece.prompt
        ids, finish = piece.token_ids, piece.finish
        if hit := [i for i, token in enumerate(ids) if token in self.stop_token_ids][:1]:
            ids, finish = ids[: hit[0] + 1], "stop"
        before = len(self.text.token_ids)
        text = self.text.add(ids[:-1] if finish == "stop" else ids, last=bool(finish))
        if self.text.stopped:
            ids, finish = ids[: len(self.text.token_ids) - before], "stop"
        likeliest = piece.likeliest and Likeliest(*(column[: len(ids)] for column in piece.likeliest))
        new = NewTokens(text, ids, piece.entropies[: len(ids)], likeliest)
        self.finish = finish
        self.token_ids += ids
        self.parts.append(new)
        return new

    def total(self) -> NewTokens:
        """All that its pieces have added."""
        scored = [addition.likeliest for addition in self.parts if addition.likeliest is not None]
        return NewTokens(
            "".join(addition.text for addition in self.parts),
            self.token_ids,
            [entropy for addition in self.parts for entropy in addition.entropies],
            Likeliest(*map(np.concatenate, zip(*scored, strict=True))) if scored else None,
        )


@dataclass
class Exchange:
    """A request and its answers.

    Attributes:
      id: names its answers in ``/v1/branches``.
      count: of likeliest tokens to show at each place; None: no log-probs.
      echo: the prompt is shown before each answer.
    """

    id: str
    model: str
    seed: int
    answers: list[ServedAnswer]
    count: int | None
    chat: bool = False
    echo: bool = False
    created: int = field(default_factory=lambda: int(time.time()))

    def usage(self) -> dict[str, int]:
        prompts = {id(answer.beginning): len(answer.continuation.prefix) for answer in self.answers}
        read, written = sum(prompts.values()), sum(len(answer.token_ids) for answer in self.answers)
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


class _Earlier(NamedTuple):
    beginning: Beginning
    token_ids: list[int]  # of the answer, retained ones included
    finished: bool


class Exchanges:
    """Opens requests as exchanges, and keeps the answers of closed ones.

    Args:
      texts: tokenizer and template.
      config: for what a request leaves open.
      names: of the model; the first one stands in answers.
      limits: of a request.
    """

    def __init__(self, texts: Texts, config: Config, names: Sequence[str], limits: Limits) -> None:
        self.codec, self.names, self.limits = texts.codec, names, limits
        self._rollout, self._template = config.rollout, chat_template(texts)
        self._earlier: OrderedDict[str, list[_Earlier]] = OrderedDict()
        self._stored_tokens = 0

    def open(self, body: Body) -> Exchange:
        """The exchange that a body begins.

        Raises:
          Refused: the model or the earlier answer is unknown, or the request is beyond a limit.
        """
        if body.model is not None and body.model not in self.names:
            message = f"there is no model {body.model!r}; this server has {self.names[0]!r}"
            raise RequestError(message, "model", status=404, code="model_not_found")
        cap, count, echo, purpose = body.max_tokens, body.logprobs, False, SAMPLE
        if isinstance(body, ChatBody):
            kind, beginnings = "chatcmpl", [self._of_messages(body)]
            cap = cap if body.max_completion_tokens is None else body.max_completion_tokens
            if body.top_logprobs and not body.logprobs:
                raise RequestError("top_logprobs needs logprobs=true", "top_logprobs")
            count = (body.top_logprobs or 0) if body.logprobs else None
        elif isinstance(body, CompletionBody):
            kind, beginnings, echo = "cmpl", list(self._prompts(body.prompt)), bool(body.echo)
            cap = _COMPLETION_TOKENS if cap is None else cap
        else:
            assert isinstance(body, BranchBody)
            kind, beginnings, purpose = "br", [self._retained(body)], STATE
        n = body.n or 1
        if len(beginnings) * n > self.limits.answers:
            message = f"the request asks for {len(beginnings) * n} answers; the server gives {self.limits.answers}"
            raise RequestError(message, "n")
        seed = secrets.randbelow(2**31) if body.seed is None else body.seed
        exchange = Exchange(f"{kind}-{secrets.token_hex(12)}", self.names[0], seed, [], count, kind == "chatcmpl", echo)
        for i, beginning in enumerate(beginnings):
            for m in range(n):
                stream = (SAMPLE, 0, i, m) if purpose == SAMPLE else (STATE, 0, 0, 0, 0, m)
                exchange.answers.append(self._answer(exchange, body, beginning, stream, cap))
        return exchange

    def close(self, exchange: Exchange) -> None:
        """Keep the answers for branches; the oldest are dropped."""
        self._earlier[exchange.id] = answers = [
            _Earlier(
                answer.beginning._replace(retained=[], rest=[]),
                [*answer.beginning.retained, *answer.token_ids],
                answer.finish == "stop",
            )
            for answer in exchange.answers
        ]
        self._stored_tokens += _tokens(answers)
        while len(self._earlier) > _STORED_REQUESTS or self._stored_tokens > _STORED_TOKENS:
            self._stored_tokens -= _tokens(self._earlier.popitem(last=False)[1])

    # -- parts -------------------------------------------------------------------------------------------------------

    def _answer(
        self, exchange: Exchange, body: Body, beginning: Beginning, stream: tuple[int, ...], cap: int | None
    ) -> ServedAnswer:
        fork, context = len(beginning.prompt_ids) + len(beginning.retained), self.limits.context
        if cap == 0 and not exchange.echo:
            raise RequestError("max_tokens is 0; expected 1 or more, or echo=true, which scores a prompt", "max_tokens")
        cap = max(context - fork, 0) if cap is None else cap
        if fork + cap > context or not cap + exchange.echo:
            raise RequestError(
                f"{fork} tokens are before the answer, which may have {cap}; the server takes {context} together",
                "max_tokens",
                code="context_length_exceeded",
            )
        sampling = Sampling(
            self._rollout.temperature if body.temperature is None else body.temperature,
            self._rollout.top_p if body.top_p is None else body.top_p,
            max(body.top_k or 0, 0),
            self.codec.stop_ids,
        )
        branch, scores = Branch(fork, stream, max(cap, 1), sampling), exchange.count is not None
        continuation = Continuation(beginning.trunk, branch, exchange.seed, cap, scores, scores and exchange.echo)
        text = AnswerText(self.codec, [*self.codec.stop_texts, *body.stop_texts], beginning.retained)
        return ServedAnswer(len(exchange.answers), beginning, continuation, text, frozenset(body.stop_token_ids or ()))

    def _retained(self, body: BranchBody) -> Beginning:
        if body.id not in self._earlier:
            message = f"there is no answer {body.id!r}; it is unfinished, or so old that the server has dropped it"
            raise RequestError(message, "id", status=404, code="answer_not_found")
        answers = self._earlier[body.id]
        if body.choice >= len(answers):
            raise RequestError(f"choice is {body.choice}; {body.id} has {len(answers)}", "choice")
        beginning, token_ids, finished = answers[body.choice]
        if body.token > (last := len(token_ids) - finished):
            raise RequestError(f"token is {body.token}; one can branch at 0 to {last} of this answer", "token")
        return beginning._replace(retained=token_ids[: body.token], rest=token_ids[body.token :])

    def _of_messages(self, body: ChatBody) -> Beginning:
        try:
            text = self._template.render(question_of(body.messages), self.codec.render_chat)
        except ValueError as error:
            raise RequestError(f"messages: {error}", "messages") from error
        return Beginning(self._encoded(text, "messages"), text)

    def _prompts(self, prompt: str | list) -> Iterator[Beginning]:
        is_list = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
        for single in prompt if is_list else [prompt]:
            if isinstance(single, str):
                yield Beginning(self._encoded(single, "prompt"), single)
                continue
            if late := [token for token in single if token >= self.codec.rows]:
                raise RequestError(f"prompt has the token id {late[0]}; they are below {self.codec.rows}", "prompt")
            if not single:
                raise RequestError("prompt is empty", "prompt")
            yield Beginning(np.asarray(single, np.int32), self.codec.decode(single, special_tokens=True))

    def _encoded(self, text: str, name: str) -> np.ndarray:
        try:
            ids = self.codec.encode_prompt(text)
        except ValueError as error:
            raise RequestError(f"{name}: {error}", name) from error
        if not ids:
            raise RequestError(f"{name} has no token", name)
        return np.asarray(ids, np.int32)


def chat_template(texts: Texts) -> Template:
    """The template of messages: that of the settings; in place of the plain one the tokenizer's own, if it has one."""
    has_chat = getattr(texts.codec.tokenizer, "chat_template", None) is not None
    return TEMPLATES["chat"] if texts.template.name == "plain" and has_chat else texts.template


def _tokens(answers: Sequence[_Earlier]) -> int:
    return sum(len(answer.beginning.prompt_ids) + len(answer.token_ids) for answer in answers)
