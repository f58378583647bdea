"""The guard between the training loop and a verifier: a verifier that hangs, crashes or lies does not harm the run.

A verdict that the verifier gives at once is taken in ``submit``. A ``Job`` goes to a worker process
(``fr3e_jax.rewards.pool``) while the caller goes on, so that grading overlaps decoding.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import threading
import traceback
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any

from fr3e_jax.configuration.schema import RewardsConfig
from fr3e_jax.problem import Problem
from fr3e_jax.rewards.pool import Pool
from fr3e_jax.rewards.verifier import NoVerdict, UserCodeError, Verifier, checked_verdict, unusable
from fr3e_jax.rewards.workers import OWN, Reply, load_only
from fr3e_jax.verdict import UNGRADED, Job, Outcome, Verdict

logger = logging.getLogger(__name__)

ERRORS_SHOWN = 3  # with their tracebacks; the rest is counted
TIMEOUTS_REMEMBERED = 2  # a time-out may be the machine's fault once
VERDICTS_REMEMBERED = 100_000  # by gold and given answer
LONGEST_FAILURE = 2000  # characters shown of one error
LONGEST_KEY = 64  # characters
CACHED = ("right", "wrong", "restated", "other_form", "no_answer", "refused", "string_only")


class VerifierError(RuntimeError):
    """No worker can run the verifier: it cannot be imported, fails its own canaries, or the pool is gone."""


UNUSABLE = (TypeError, ValueError, VerifierError)
"""Errors of an unusable verifier; the user gets to read their messages."""


class Pending:
    """A verdict, given already or still to come; a future for each would halve the rate of quick verdicts."""

    __slots__ = ("_source",)

    def __init__(self, source: Verdict | Future[Verdict]):
        self._source = source

    def done(self) -> bool:
        """Return whether ``result()`` returns without waiting."""
        return isinstance(self._source, Verdict) or self._source.done()

    async def awaited(self) -> Verdict:
        """`result()` for a coroutine, without a thread that waits."""
        if isinstance(self._source, Verdict):
            return self._source
        return await asyncio.shield(asyncio.wrap_future(self._source))

    def result(self) -> Verdict:
        """Wait for the verdict and return it.

        Raises:
          TypeError, ValueError: the verifier returned something else than a finite number in [0, 1] or a ``Verdict``.
          VerifierError: no worker can run the verifier.
        """
        return self._source if isinstance(self._source, Verdict) else self._source.result()


class Grader:
    """A verifier made safe: one broken case cannot end a run, nor delay it beyond the backstop of its deadline.

    A verifier that raises gives reward 0 and the outcome "error"; the first few errors are logged with the problem's
    id. Equal jobs that are pending run once. Verdicts are remembered by function and arguments, a time-out only after
    the second one. Processes start when they are first needed, and again after ``close``.

    Args:
      verifier: see ``fr3e_jax.rewards.verifier``.
      settings: the section ``rewards`` of a recipe.
      judge: names what gives the rewards, in messages.

    Raises:
      ValueError: one of the user's functions that the verifier names (``job_functions``) cannot be loaded.
    """

    def __init__(self, verifier: Verifier, settings: RewardsConfig | None = None, judge: str = "verifier"):
        self.verifier, self.judge = verifier, judge
        self._failures: Counter[bool] = Counter()  # of the verifier itself, and responses without a verdict
        self.first_failure = ""  # of the verifier: the problem's id, and the traceback if there is one
        self._settings = settings or RewardsConfig()
        self._outcomes: Counter[str] = Counter()
        self._cache: OrderedDict[Hashable, Verdict] = OrderedDict()
        self._timeouts: Counter[Hashable] = Counter()
        self._in_flight: dict[Hashable, Future[Reply]] = {}
        self._lock = threading.Lock()  # of all of the above, which the pool's thread touches
        self._pool: Pool | None = None
        self._close_pool: Callable[[], object] | None = None
        functions = tuple(getattr(verifier, "job_functions", ()))
        if functions:
            self._start_early([function for function in functions if not function.startswith(OWN)])

    def __enter__(self) -> Grader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def submit(self, problem: Problem, response: str, finished: bool) -> Pending:
        """Start to grade a response, without waiting for a worker; ``fr3e_jax.rewards.verifier`` has the arguments.

        Raises:
          TypeError, ValueError: the verifier returned something else than a finite number in [0, 1], a ``Verdict`` or
            a ``Job`` that can be sent to a worker.
          VerifierError: the worker pool has broken down.
          UserCodeError: a reward of a Python program raised.
        """
        try:
            result = self.verifier(problem, response, finished)
        except UserCodeError:
            raise
        except Exception as error:
            verdict = self._error(problem.id, error)
        else:
            if isinstance(result, Job):
                return self._submit_job(problem.id, result)
            if isinstance(result, Future):
                return self._await(problem.id, result)
            if isinstance(result, Verdict):
                verdict = checked_verdict(result.reward, result.outcome, problem.id)
            else:
                verdict = checked_verdict(result, None, problem.id)
        return self._counted(verdict)

    def record_verdict(self, problem_id: str, verdict: Verdict, failure: str = "") -> Pending:
        """Count a verdict that the caller has already, as an environment gives it.

        ``failure``: why it is one of a judge that failed, in a line; more of it may stand below.

        Raises:
          TypeError, ValueError: its reward is no finite number in [0, 1].
        """
        if failure:
            line, *below = failure.splitlines()
            return self._counted(self._failed("\n".join([f"failed {line}; the reward is 0", *below])))
        return self._counted(checked_verdict(verdict.reward, verdict.outcome, problem_id))

    def probe(self, problem: Problem, response: str) -> str:
        """Grade one finished response and forget it; the failure if the verifier raised or the judge failed, else "".

        Raises:
          TypeError, ValueError, VerifierError: see `submit`.
        """
        self._failures.update({False: ERRORS_SHOWN, True: ERRORS_SHOWN})  # the caller shows it
        verdict = self.submit(problem, response, True).result()
        failure, self.first_failure = self.first_failure, ""
        self._failures.clear()
        self.take_outcomes()
        return failure if verdict.outcome in ("error", *UNGRADED) else ""

    def take_outcomes(self) -> Counter[str]:
        """The count of each outcome among the verdicts given since the last call."""
        with self._lock:
            taken, self._outcomes = self._outcomes, Counter()
        return taken

    def close(self) -> None:
        """End all worker processes; pending verdicts become ``VerifierError``. Safe to call twice."""
        if self._close_pool is not None:
            self._close_pool()
        self._pool = None
        getattr(self.verifier, "close", lambda: None)()

    def _start_early(self, functions: Sequence[str]) -> None:
        """Start the pool, so that functions are imported while the run starts; raise if the user's own cannot be."""
        for function in functions:
            reply: Future[Reply] = Future()
            self._open_pool().enqueue(load_only(function, reply.set_result))
            if reply.result().kind == "broken":
                self.close()
                raise ValueError(reply.result().text.partition("\n")[0])
        self._open_pool()

    def _open_pool(self) -> Pool:
        if self._pool is None:
            functions = tuple(getattr(self.verifier, "job_functions", ()))
            self._pool = Pool(self._settings, functions)
            self._close_pool = weakref.finalize(self, self._pool.close)
        return self._pool

    def _counted(self, verdict: Verdict) -> Pending:
        with self._lock:
            self._outcomes[verdict.outcome] += 1
        return Pending(verdict)

    def _error(self, problem_id: str, cause: Exception | str) -> Verdict:
        text = cause if isinstance(cause, str) else "".join(traceback.format_exception(cause))
        return self._failed(f"raised on problem {problem_id}; its reward is 0:\n{text.strip()}")

    def _failed(self, text: str, outcome: Outcome = "error") -> Verdict:
        """The verdict on a response of which there is none; ``text`` completes "the verifier ...".

        The first failure is remembered, and the first few are logged, with control characters made visible.
        """
        if len(text) > LONGEST_FAILURE:
            text = f"{text[: LONGEST_FAILURE // 2]} ... {text[-LONGEST_FAILURE // 2 :]}"
        text = "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in text)
        with self._lock:
            self.first_failure = self.first_failure or text
            self._failures[outcome == "error"] += 1
            shown = self._failures[outcome == "error"] <= ERRORS_SHOWN
        if shown:
            logger.warning("the %s %s", self.judge, text)
        return Verdict(0.0, outcome)

    def _submit_job(self, problem_id: str, job: Job) -> Pending:
        key = _key(job)
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                self._outcomes[self._cache[key].outcome] += 1
                return Pending(self._cache[key])
            under_way = self._in_flight.get(key)
            source: Future[Reply] = under_way or Future()
            if key is not None:
                self._in_flight[key] = source
        pending = self._await(problem_id, source)
        if under_way is not None:
            return pending
        try:
            self._open_pool().submit(job, lambda reply: self._deliver(key, source, reply))
        except (TypeError, RuntimeError) as error:
            with self._lock:
                self._in_flight.pop(key, None)
            raise error if isinstance(error, TypeError) else VerifierError(str(error)) from error
        return pending

    def _await(self, problem_id: str, source: Future[Any]) -> Pending:
        """The verdict of a future `Reply`, for which several responses may wait, or of a verifier's future.

        Where that raises `NoVerdict`, it is one without a reward.
        """
        future: Future[Verdict] = Future()

        def hand_out(done: Future[Any]) -> None:
            try:
                result = done.result()
                verdict = self._verdict(problem_id, result) if isinstance(result, Reply) else result
                verdict = checked_verdict(verdict.reward, verdict.outcome, problem_id)
            except NoVerdict as failure:
                verdict = self._failed(f"{failure} (problem {problem_id}, {failure.outcome})", failure.outcome)
            except CancelledError:
                return future.set_exception(VerifierError(f"the {self.judge} was closed"))
            except (TypeError, ValueError, VerifierError, UserCodeError) as error:
                return future.set_exception(error)
            except Exception as error:
                verdict = self._error(problem_id, error)
            future.set_result(self._counted(verdict).result())

        source.add_done_callback(hand_out)
        return Pending(future)

    def _deliver(self, key: Hashable, source: Future[Reply], reply: Reply) -> None:
        """On the pool's thread: remember the verdict, and hand the reply to each response that waits for it."""
        with self._lock:
            self._in_flight.pop(key, None)  # from here on nothing waits for it anew
            if key is not None:
                self._remember(key, reply)
        source.set_result(reply)

    def _verdict(self, problem_id: str, reply: Reply) -> Verdict | Reply:
        """The verdict of a job that failed, or the reply as it is, for the check of its reward and outcome."""
        if reply.kind == "raised":
            return self._error(problem_id, reply.text)
        if reply.kind == "unusable":
            raise unusable(TypeError, reply.text, problem_id)
        if reply.kind == "broken":
            raise VerifierError(reply.text)
        if reply.kind == "verdict":
            return reply
        late = "was not done at its deadline (rewards.deadline_seconds)"
        why = late if reply.kind == "timeout" else "ended its worker"
        return self._failed(f"{why} on problem {problem_id}; its reward is 0", reply.kind)

    def _remember(self, key: Hashable, reply: Reply) -> None:
        verdict = Verdict(0.0, "timeout")
        if reply.kind == "timeout":
            self._timeouts[key] += 1
            if self._timeouts[key] < TIMEOUTS_REMEMBERED:
                return
            del self._timeouts[key]
        else:
            with contextlib.suppress(TypeError, ValueError):
                verdict = checked_verdict(reply.reward, reply.outcome, "")
            if reply.kind != "verdict" or verdict.outcome not in CACHED:
                return
        self._cache[key] = verdict
        while len(self._cache) > VERDICTS_REMEMBERED:
            self._cache.popitem(last=False)


def _key(job: Job) -> Hashable:
    """The key of a verdict in the cache; None for jobs that run each time."""
    if not job.cacheable:
        return None
    key = (job.function, tuple(map(_short, job.arguments)))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _short(argument: object) -> object:
    """The argument; a long text by its hash, as 100,000 texts would take hundreds of megabytes."""
    if isinstance(argument, str) and len(argument) > LONGEST_KEY:
        return hashlib.blake2b(argument.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return argument
