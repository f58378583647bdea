"""The routes: requests come in as bodies, their branches go to the decoder, and its pieces come back as answers.

The event loop owns the sockets, the decoder's thread the device. Between them are the decoder's inbox and one queue
for each request. The queue never blocks the decoder: a slow reader holds tokens, and no lane.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from fr3e_jax.serving.answers import Exchange, Exchanges
from fr3e_jax.serving.bodies import Body, BranchBody, ChatBody, CompletionBody, RequestError, read_body
from fr3e_jax.serving.decoder import Continuation, Piece, ServingDecoder
from fr3e_jax.serving.wire_formats import Formats, usage_event

_BODY_SECONDS = 60.0  # in which a body must have come
Pieces = asyncio.Queue[tuple[Continuation, Piece]]


class Server:
    """The application's state and its routes.

    Args:
      exchanges: opens and keeps requests.
      decoder: makes the decoder that posts to the function it gets.
      stopping: whether the server is asked to stop: new requests are then refused.
    """

    def __init__(
        self,
        exchanges: Exchanges,
        decoder: Callable[[Callable[[list[tuple[Continuation, Piece]]], None]], ServingDecoder],
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._exchanges, self._limits, self._stopping = exchanges, exchanges.limits, stopping
        self._formats = Formats(exchanges.codec)
        self._queues: dict[Continuation, Pieces] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self.decoder = decoder(self._post)

    def application(self) -> Starlette:
        """The ASGI application."""
        routes = [
            Route("/health", self._health),
            Route("/v1/models", self._guarded(self._models)),
            Route("/v1/models/{name:path}", self._guarded(self._models)),
            Route("/v1/completions", self._guarded(self._sampling(CompletionBody)), methods=["POST"]),
            Route("/v1/chat/completions", self._guarded(self._sampling(ChatBody)), methods=["POST"]),
            Route("/v1/branches", self._guarded(self._sampling(BranchBody)), methods=["POST"]),
        ]
        handlers: dict[Any, Any] = {404: _no_route, 405: _no_method, Exception: _failed}
        return Starlette(routes=routes, lifespan=self._lifespan, exception_handlers=handlers)

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        self.decoder.start()
        yield
        await asyncio.to_thread(self.decoder.close)

    # -- between the threads -----------------------------------------------------------------------------------------

    def _post(self, pieces: list[tuple[Continuation, Piece]]) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop has ended before the decoder
            self._loop.call_soon_threadsafe(self._deliver, pieces)

    def _deliver(self, pieces: list[tuple[Continuation, Piece]]) -> None:
        for continuation, piece in pieces:
            if queue := self._queues.get(continuation):
                queue.put_nowait((continuation, piece))

    async def _parts(self, exchange: Exchange, pieces: Pieces) -> AsyncIterator[tuple[Any, Any]]:
        """Answers with their new tokens, until all have ended."""
        by_branch = {answer.continuation: answer for answer in exchange.answers}
        while by_branch:
            continuation, piece = await pieces.get()
            if (answer := by_branch.get(continuation)) is None:
                continue
            if piece.error:
                raise RequestError(piece.error, status=500, code="decoder_failed")
            yield answer, answer.take(piece)
            if answer.finish:
                del by_branch[continuation]
                if not piece.finish:
                    self.decoder.cancel([continuation])  # a stop text has ended it, of which the decoder knows nothing

    @contextlib.contextmanager
    def _under_way(self, exchange: Exchange):
        """The queue of an exchange whose branches the decoder has; they end with the block."""
        continuations, pieces = [answer.continuation for answer in exchange.answers], Pieces()
        self._queues.update(dict.fromkeys(continuations, pieces))
        self.decoder.submit(continuations)
        try:
            yield pieces
        finally:
            for continuation in continuations:
                del self._queues[continuation]
            if unfinished := [answer.continuation for answer in exchange.answers if not answer.finish]:
                self.decoder.cancel(unfinished)

    # -- routes ------------------------------------------------------------------------------------------------------

    def _guarded(self, route: Callable) -> Callable:
        """A route behind the key; what is refused becomes an error."""

        async def answer(request: Request) -> Response:
            try:
                if self._limits.key:
                    sent = request.headers.get("authorization", "").removeprefix("Bearer ")
                    if not hmac.compare_digest(sent.encode(), self._limits.key.encode()):
                        message = "the key is missing or wrong; send the header Authorization: Bearer KEY"
                        raise RequestError(message, status=401, code="invalid_api_key")
                return await route(request)
            except RequestError as error:
                return _refusal(error)
            except ClientDisconnect:
                return Response(status_code=499)  # nobody reads it

        return answer

    async def _health(self, request: Request) -> Response:
        decoder, stopping = self.decoder, self._stopping()
        counts = {"active": decoder.active, "waiting": decoder.waiting, "sampled_tokens": decoder.sampled_tokens}
        counts["prefilled_tokens"] = decoder.prefilled
        return _json({"status": "stopping" if stopping else "ok", **counts}, 503 if stopping else 200)

    async def _models(self, request: Request) -> Response:
        name, names = request.path_params.get("name"), self._exchanges.names
        if name is not None and name not in names:
            raise RequestError(f"there is no model {name!r}; it is {names[0]!r}", status=404, code="model_not_found")
        context = self._exchanges.limits.context
        model = {"id": name or names[0], "object": "model", "created": 0, "owned_by": "fr3e", "max_model_len": context}
        return _json(model if name else {"object": "list", "data": [model]})

    def _sampling(self, kind: type[Body]) -> Callable:
        async def sampled(request: Request) -> Response:
            body = read_body(kind, await self._content(request))
            if self._stopping():
                raise RequestError("the server is stopping", status=503, code="stopping")
            exchange = self._exchanges.open(body)
            self._check_queue(len(exchange.answers))
            if body.stream:
                return StreamingResponse(self._events(exchange, body), headers=_EVENTS)
            return await self._unstreamed(request, exchange, body)

        return sampled

    async def _content(self, request: Request) -> bytes:
        """The body's bytes."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip()
        if kind != "application/json":  # so that no page in a browser can ask without the browser's asking us first
            raise RequestError(f"the content type is {kind or 'missing'}; expected application/json", status=415)
        content, most = bytearray(), self._limits.body_bytes
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                async for block in request.stream():
                    content += block
                    if len(content) > most:
                        raise RequestError(f"the body is larger than {most} bytes", status=413, code="body_too_large")
        except TimeoutError:
            raise RequestError(
                f"the body did not come within {_BODY_SECONDS:.0f} s", status=408, code="timeout"
            ) from None
        return bytes(content)

    def _check_queue(self, count: int) -> None:
        waiting, most = self.decoder.waiting, self._limits.queue
        if count > most:
            raise RequestError(f"the request asks for {count} answers; the queue takes {most}", "n")
        if waiting + count > most:
            raise RequestError(f"{waiting} answers wait, and {most} may; try again", status=429, code="queue_full")

    async def _unstreamed(self, request: Request, exchange: Exchange, body: Body) -> Response:
        async def collected() -> None:
            async for _ in self._parts(exchange, pieces):
                pass

        async def gone() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass

        with self._under_way(exchange) as pieces:
            tasks = [asyncio.create_task(collected()), asyncio.create_task(gone())]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
            if tasks[0] not in done:
                raise ClientDisconnect
            tasks[0].result()
        self._exchanges.close(exchange)
        return _json(self._formats.response(exchange, body.return_token_ids))

    async def _events(self, exchange: Exchange, body: Body) -> AsyncIterator[bytes]:
        def event(content: Any) -> bytes:
            return b"data: " + orjson.dumps(content) + b"\n\n"

        with self._under_way(exchange) as pieces:
            try:
                async for answer, new in self._parts(exchange, pieces):
                    yield event(self._formats.event(exchange, answer, new, body.return_token_ids))
            except RequestError as error:  # the status is sent; clients of the OpenAI API read this as an error
                yield event(error.body())
                return
        self._exchanges.close(exchange)
        if body.stream_options and body.stream_options.include_usage:
            yield event(usage_event(exchange))
        yield b"data: [DONE]\n\n"


_EVENTS = {  # with which proxies hand on each event
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


def _json(content: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status_code=status, media_type="application/json")


def _refusal(error: RequestError) -> Response:
    response = _json(error.body(), error.status)
    if error.status in (429, 503):
        response.headers["retry-after"] = "1"
    if error.status == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response


async def _no_route(request: Request, error: Exception) -> Response:
    expected = ", ".join(route.path for route in request.app.routes if "{" not in route.path)
    message = f"there is no route {request.url.path}; expected one of {expected}"
    return _refusal(RequestError(message, status=404, code="no_route"))


async def _no_method(request: Request, error: Exception) -> Response:
    message = f"{request.url.path} does not take {request.method}"
    return _refusal(RequestError(message, status=405, code="no_method"))


async def _failed(request: Request, error: Exception) -> Response:
    return _refusal(RequestError(f"{type(error).__name__}: {error}"[:500], status=500, code="failed"))
