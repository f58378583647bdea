"""A judge as a verifier: a language model behind an endpoint scores responses, alone or beside another verifier.

Requests run on an event loop in a thread of this process, so that judging overlaps decoding. A judge that fails gives
no reward: `NoVerdict` leaves the response out of baselines and losses.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections import Counter
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from typing import Any

from fr3e_jax.configuration.judge_section import JUDGE, JudgeConfig
from fr3e_jax.configuration.named_values import named_values
from fr3e_jax.problem import Problem
from fr3e_jax.rewards.grader import UNUSABLE, Grader, Pending
from fr3e_jax.rewards.judge_endpoint import Endpoint
from fr3e_jax.rewards.judge_texts import check_columns, filled, prompt_text, response_format, reward_of
from fr3e_jax.rewards.verifier import NoVerdict
from fr3e_jax.verdict import FAULTS, Verdict

UNREAD = ("no_answer", "string_only", "refused")  # outcomes of a verifier that has read no answer


class Judge:
    """A verifier that asks a language model.

    Args:
      settings: the section ``judge`` of a recipe.
      verifier: gives the other share of the reward, or decides whether the judge is asked; None: the judge is alone.

    Raises:
      ValueError: the prompt, a field of requests or the key is missing or unreadable.
    """

    def __init__(self, settings: JudgeConfig, verifier: Grader | None = None):
        self._settings, self._verifier = settings, verifier
        self.template = prompt_text(settings)
        self._fields = _request_fields(settings)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._endpoint = Endpoint(settings, _key(settings))
        self._lock = threading.Lock()
        self._taken: Counter[str] = Counter()  # counts of the endpoint that were handed out
        self._results: dict[str, list[float]] = {JUDGE: []} | ({} if verifier is None else {"verifier": []})

    def __call__(self, problem: Problem, response: str, finished: bool) -> Future[Verdict]:
        try:
            pending = None if self._verifier is None else self._verifier.submit(problem, response, finished)
        except UNUSABLE as error:  # it cannot be used, which is no fault of one response
            unusable: Future[Verdict] = Future()
            unusable.set_exception(error)
            return unusable
        return self._start(self._verdict(problem, response, pending))

    def take_counts(self) -> Counter[str]:
        """Calls, cached answers, retries and tokens since the last call."""
        total = self._endpoint.counts.copy()
        counts, self._taken = total - self._taken, total
        return counts

    def take_sums(self) -> dict[str, tuple[float, int]]:
        """The sum of the rewards of the judge, and of the verifier beside it, since the last call, and their number."""
        with self._lock:
            taken = {name: (math.fsum(values), len(values)) for name, values in self._results.items()}
            for values in self._results.values():
                values.clear()
        return taken

    def close(self) -> None:
        """Give up the requests under way, and end the thread. Later requests start another one."""
        if self._verifier is not None:
            self._verifier.close()
        if self._loop is None:
            return
        asyncio.run_coroutine_threadsafe(_end_others(self._endpoint), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = None

    def _start(self, request: Coroutine[Any, Any, Verdict]) -> Future[Verdict]:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name=JUDGE, daemon=True)
            self._endpoint.connect()
            self._thread.start()
        return asyncio.run_coroutine_threadsafe(request, self._loop)

    async def _verdict(self, problem: Problem, response: str, pending: Pending | None) -> Verdict:
        settings, verified = self._settings, None
        if pending is not None:
            verified = await pending.awaited()
            if verified.outcome in FAULTS:
                raise NoVerdict(verified.outcome, f"was not asked, as the verifier {self._verifier.first_failure}")
            if not settings.weight and verified.outcome not in UNREAD:
                return verified
        message = {"role": "user", "content": filled(self.template, problem, response)}
        answer = await self._endpoint.answer({**self._fields, "messages": [message]})
        try:
            reward = reward_of(answer, settings)
        except ValueError as error:
            raise NoVerdict("judge_unparseable", str(error)) from None
        with self._lock:
            self._results[JUDGE].append(reward)
            if verified is not None:
                self._results["verifier"].append(verified.reward)
        if 0 < settings.weight < 1:
            reward = settings.weight * reward + (1 - settings.weight) * verified.reward
        return Verdict(reward, "right" if reward >= settings.right_from else "wrong")


async def _end_others(endpoint: Endpoint) -> None:
    """Cancel all other requests of this loop, and close the connections."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await endpoint.close()


def _request_fields(settings: JudgeConfig) -> dict[str, Any]:
    """The fields of a request but its messages."""
    fields: dict[str, Any] = {"model": settings.model}
    if not settings.pattern:
        fields["response_format"] = response_format(settings)
    expected = "a field of a chat completion that is not there twice or set otherwise, such as reasoning_effort=low"
    return fields | named_values(settings.request, "judge.request", expected, (*fields, "messages", "stream", "n"))


def _key(settings: JudgeConfig) -> str:
    if not settings.key_variable:
        return ""
    key = os.environ.get(settings.key_variable, "").strip()
    if not key:  # the name may be a key by mistake, so it is not shown
        raise ValueError(
            "judge.key_variable names an environment variable that is not set; export it, with the key, in the shell "
            "that starts the run"
        )
    if not (key.isascii() and key.isprintable()):
        raise ValueError("the environment variable that judge.key_variable names holds no key: it has odd characters")
    return key


def check_by_asking(grader: Grader, judge: Judge, settings: JudgeConfig, problems: Sequence[Problem]) -> None:
    """Ask the judge once, about a first problem and its gold answer, so that a bad endpoint ends no run later.

    Raises:
      ValueError: it does not answer, or not with a score; or its prompt names a column that the problem lacks.
    """
    if not len(problems):
        return
    problem = problems[0]
    check_columns(judge.template, problem, f"judge.prompt={settings.prompt}")
    if failure := grader.probe(problem, problem.gold):
        raise ValueError(
            f"judge.model={settings.model} at judge.base_url={settings.base_url} failed on a first call: the judge "
            f"{failure.partition(chr(10))[0]}"
        )
    judge.take_counts()  # metrics are those of the run
    judge.take_sums()
