"""Requests to an OpenAI-compatible endpoint: time-outs, retries, a cache of answers on disk, counts of tokens."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import random
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fr3e_jax.configuration.judge_section import JudgeConfig
from fr3e_jax.rewards.verifier import NoVerdict

if TYPE_CHECKING:
    import httpx

MOST_TRIES = 6  # of a request, the first one included
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 120.0  # seconds before a retry; each is twice as long as the one before
TRIED_AGAIN = (408, 409, 425, 429)  # and 5xx
_LONGEST_SHOWN = 300  # characters of an error


class Endpoint:
    """The endpoint of a judge; `connect` comes before the first request of an event loop, and `close` after the last.

    Args:
      judge: its address and limits.
      key: what it knows the caller by; "": nothing is sent.

    Attributes:
      counts: calls, answers from the cache, retries and tokens since the start.
    """

    def __init__(self, judge: JudgeConfig, key: str = ""):
        self._judge, self._key = judge, key
        self._cache = Path(judge.cache).expanduser()
        self._under_way: dict[str, asyncio.Task[str]] = {}
        self._url = judge.base_url.rstrip("/").removesuffix("/chat/completions") + "/chat/completions"
        self.counts: Counter[str] = Counter()

    def connect(self) -> None:
        """Begin requests of another event loop."""
        import httpx  # only runs with a judge need it

        self._slots = asyncio.Semaphore(self._judge.max_concurrency)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=self._judge.max_concurrency)
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        self._client = httpx.AsyncClient(headers=headers, timeout=None, limits=limits)

    async def answer(self, body: Mapping[str, Any]) -> str:
        """The text of the answer to a request; equal requests are one call.

        Raises:
          NoVerdict: there is none.
        """
        content = json.dumps([self._url, body], sort_keys=True).encode()
        key = hashlib.blake2b(content, digest_size=20).hexdigest()
        file = self._cache / key[:2] / f"{key}.json"
        if key not in self._under_way:
            if (stored := _stored(file)) is None:
                self._under_way[key] = asyncio.ensure_future(self._call(body, file))
                self._under_way[key].add_done_callback(lambda _: self._under_way.pop(key))
                return await asyncio.shield(self._under_way[key])
            self.counts["cached"] += 1
            return stored
        self.counts["cached"] += 1
        return await asyncio.shield(self._under_way[key])

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _call(self, body: Mapping[str, Any], file: Path) -> str:
        """Ask, and again where that may help; store the answer."""
        for attempt in range(1, MOST_TRIES + 1):
            try:
                text, usage = await self._one_try(body)
                break
            except _Again as failure:
                if attempt == MOST_TRIES or failure.pause > LONGEST_PAUSE:
                    tries = f" ({attempt} tries)" if attempt > 1 else ""
                    raise NoVerdict(failure.outcome, f"{self._without_key(str(failure))}{tries}") from None
                pause = min(FIRST_PAUSE * 2 ** (attempt - 1), LONGEST_PAUSE) * random.uniform(0.5, 1.0)
                self.counts["retries"] += 1
                await asyncio.sleep(max(pause, failure.pause))
        self._count(usage)
        with contextlib.suppress(OSError):  # a full disk costs a second call, not the run
            _store(file, text)
        return text

    async def _one_try(self, body: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        import httpx

        async with self._slots:
            try:
                async with asyncio.timeout(self._judge.seconds):
                    response = await self._client.post(self._url, content=json.dumps(body))
            except TimeoutError:
                outlasted = f"gave no answer within judge.seconds={self._judge.seconds:g}"
                raise _Again("judge_timeout", outlasted) from None
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                said = str(error) or type(error).__name__
                raise _Again("judge_unreachable", f"at {self._url} cannot be reached: {said}") from None
            finally:
                self.counts["calls"] += 1
        return self._read(response)

    def _read(self, response: httpx.Response) -> tuple[str, Mapping[str, Any]]:
        """The text and the usage of an answer."""
        status, shown = response.status_code, _shown(response.text)
        if status in TRIED_AGAIN or status >= 500:
            raise _Again("judge_unreachable", f"answers HTTP {status}: {shown}", _seconds_to_wait(response))
        if status != 200:
            advice = "; set judge.key_variable to the name of the variable with the key" if status == 401 else ""
            if response.has_redirect_location:
                advice = f"; it redirects to {response.headers['location']}: set judge.base_url to that, up to /v1"
            raise NoVerdict("judge_unreachable", self._without_key(f"answers HTTP {status}: {shown}{advice}"))
        try:
            content = response.json()
            choice, usage = content["choices"][0], content.get("usage") or {}
            text = choice["message"].get("content")
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            raise _Again("judge_unparseable", f"answers what is no chat completion: {shown}") from None
        spent = text == "" and choice.get("finish_reason") == "length"
        if spent or not isinstance(text, str) or not isinstance(usage, Mapping):
            self._count(usage if isinstance(usage, Mapping) else {})
            advice = "; its thoughts took all tokens: raise max_tokens in judge.request" if spent else ""
            raise NoVerdict("judge_unparseable", f"answers without a text: {shown}{advice}")
        return text, usage

    def _count(self, usage: Mapping[str, Any]) -> None:
        names = ("prompt_tokens", "completion_tokens")
        self.counts.update({name: usage[name] for name in names if isinstance(usage.get(name), int)})

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "[key]") if self._key else text


class _Again(Exception):
    """A try that failed and may be made again, after ``pause`` seconds or later."""

    def __init__(self, outcome: str, text: str, pause: float = 0.0):
        super().__init__(text)
        self.outcome, self.pause = outcome, pause


def _shown(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]} ..."


def _seconds_to_wait(response: httpx.Response) -> float:
    """The header Retry-After; 0 if it has no number of seconds, as those of models do."""
    try:
        return max(0.0, float(response.headers["retry-after"]))
    except (KeyError, ValueError):
        return 0.0


def _stored(file: Path) -> str | None:
    """The stored answer; None if there is none that can be read."""
    try:
        text = json.loads(file.read_bytes())["answer"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return text if isinstance(text, str) else None


def _store(file: Path, answer: str) -> None:
    """Write an answer as a whole file, so that another process never reads a part."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent)
    with os.fdopen(handle, "w") as stream:
        json.dump({"answer": answer}, stream)
    os.replace(name, file)
