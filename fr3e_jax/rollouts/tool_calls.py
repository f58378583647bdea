"""Calls of tools: found in the tokens of a response, run beside the decoder, answered in tokens.

Code-integrated reasoning: decoding of a rollout stops at the end of a call, the tool's answer is appended, and decoding
goes on (ToRL, arXiv:2503.23383, section 2). Answers are encoded once and never decoded and encoded again. They count
towards the cap on a response and carry no loss. With several processes, each runs its share of the calls and sends the
answers to the others.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np

from fr3e_jax.cluster.processes import Processes
from fr3e_jax.configuration.schema import ToolsConfig
from fr3e_jax.data.tokenizer import TextCodec
from fr3e_jax.programs.decoder_programs import DecoderPrograms
from fr3e_jax.rollouts.requests import Key, Rollout, TrunkRequest
from fr3e_jax.tools.answer import Answer
from fr3e_jax.tools.automaton import call_table
from fr3e_jax.tools.tool import Tool, load_tool

_CUT = "..."
_unbounded = contextlib.nullcontext()


class Running(NamedTuple):
    """A call that was started."""

    answer: Future[Answer]
    begun: float  # time.monotonic() of its start


class Toolbox:
    """The tool of a run, ready to be called.

    Args:
      tool: the tool.
      config: its limits.
      codec: the policy's tokenizer.
      vocabulary: size of the policy's vocabulary; may be larger than the tokenizer's.
      programs: the decoder's programs; they keep the table that recognises calls on the devices.
      processes: the processes that share the calls.
    """

    def __init__(
        self,
        tool: Tool,
        config: ToolsConfig,
        codec: TextCodec,
        vocabulary: int,
        programs: DecoderPrograms,
        processes: Processes,
    ):
        self.tool, self.config, self.codec, self.processes = tool, config, codec, processes
        texts = codec.token_texts()
        unused = [""] * (vocabulary - len(texts))
        self.calls = call_table(tool.begin, tool.end, texts + unused, codec.stop_ids)
        self.table = programs.on_all_devices(self.calls.next)
        self.counts: Counter[str] = Counter()
        self._slots = threading.BoundedSemaphore(min(os.cpu_count() or 1, 16)) if tool.deadline is None else _unbounded
        if not self.encoded(Answer("", "answered")).size:
            raise ValueError(
                f"the tokenizer can spell nothing of {tool.before!r} and {tool.after!r}, which stand around a tool's "
                "answer: an empty answer would leave no token; set tools.result to a text that it can spell, with "
                "{output} in it"
            )

    def take_counts(self) -> Counter[str]:
        """Numbers of calls by outcome, and of ``cut`` answers, since the last call; the same on all processes."""
        counts, self.counts = self.counts, Counter()
        return counts

    def start(self, call: str) -> Running:
        """Run a call: here if the tool answers at once, else in a thread that does not keep the process alive."""
        answer: Future[Answer] = Future()
        if self.tool.at_once:
            self._run(call, answer)
        else:
            threading.Thread(target=self._run, args=(call, answer), name="fr3e-tool", daemon=True).start()
        return Running(answer, time.monotonic())

    def _run(self, call: str, answer: Future[Answer]) -> None:
        with self._slots:
            try:
                answer.set_result(self.tool.run(call))
            except Exception as error:  # such as no room for files: the policy reads the error, the run goes on
                answer.set_result(Answer(f"{type(error).__name__}: {error}", "error"))

    def wait(self, running: Running) -> Answer:
        """The answer of a call, or a time-out ``Tool.deadline`` seconds after its start."""
        left = None if self.tool.deadline is None else max(running.begun + self.tool.deadline - time.monotonic(), 0.0)
        try:
            return running.answer.result(left)
        except concurrent.futures.TimeoutError:
            return Answer(f"TimeoutError: no end after {self.config.seconds:g} seconds", "timeout")

    def encoded(self, answer: Answer) -> np.ndarray:
        """Tokens that the policy reads, int32: the answer in ``tools.result``, cut at ``tools.max_output_tokens``."""
        encode, most = self.codec.encode_foreign, self.config.max_output_tokens
        body = encode(answer.text)
        if len(body) > most:
            self.counts["cut"] += 1
            ending = encode(_CUT)[:most]
            body = body[: most - len(ending)] + ending
        return np.array(encode(self.tool.before) + body + encode(self.tool.after), np.int32)


def open_toolbox(
    config: ToolsConfig, codec: TextCodec, vocabulary: int, programs: DecoderPrograms, processes: Processes
) -> Toolbox | None:
    """The toolbox of the tool that ``config`` names, or None for ``none``; raises as `load_tool`."""
    tool = load_tool(config)
    return None if tool is None else Toolbox(tool, config, codec, vocabulary, programs, processes)


@dataclass
class CallProgress:
    """The position of a branch in its calls; tokens up to the last answer cannot be part of another call."""

    before: np.ndarray  # tokens of the response after its last answer and before the branch's own
    answered: int  # calls so far
    read: int = 0  # own tokens up to the last answer


class ToolCalls:
    """The calls of one `RolloutEngine.sample`; see `fr3e_jax.rollouts.requests.Calls`.

    Args:
      toolbox: the tool that answers.
      requests: the requests of the call.
    """

    CHANGING = ("_branches", "running")

    def __init__(self, toolbox: Toolbox, requests: Sequence[TrunkRequest]):
        self._toolbox, self._requests, self._calls = toolbox, requests, toolbox.calls
        self.table: jax.Array = toolbox.table
        self.at_once = toolbox.tool.at_once and toolbox.processes.count == 1
        self._branches: dict[Key, CallProgress] = {}
        self._running: dict[Key, Running | None] = {}  # None: another process runs it

    @property
    def running(self) -> dict[Key, tuple[str, str]]:
        """The answers to the calls under way; waits for them. All processes must ask alike."""
        own = [(*key, *self._toolbox.wait(running)) for key, running in self._running.items() if running is not None]
        told = self._toolbox.processes.exchange(f"{len(self._running)} calls of tools at a stop", own)
        return {(request, branch): tuple(answer) for part in told for request, branch, *answer in part}

    @running.setter
    def running(self, found: dict[Key, tuple[str, str]]) -> None:
        self._running = {}
        for key, answer in found.items():
            done: Future[Answer] = Future()
            done.set_result(Answer(*answer))
            is_mine = self._toolbox.processes.is_mine(sum(key))
            self._running[key] = Running(done, time.monotonic()) if is_mine else None

    def begin(self, key: Key) -> int:
        prefix = self._requests[key[0]].branches[key[1]].prefix
        tail, answered = (np.zeros(0, np.int32), 0) if prefix is None else last_segment(prefix)
        self._branches[key] = CallProgress(tail, answered)
        if answered >= self._toolbox.config.max_calls:
            return self._calls.off
        return self._calls.run(tail)

    def ask(self, key: Key, token_ids: np.ndarray) -> None:
        branch, toolbox = self._branches[key], self._toolbox
        written = np.concatenate([branch.before, token_ids[branch.read :]])
        call = toolbox.tool.call_in(toolbox.codec.decode(written, special_tokens=True))
        branch.read = len(token_ids)
        mine = toolbox.processes.is_mine(sum(key))
        self._running[key] = toolbox.start(call or "") if mine else None

    def answers(self, keys: Sequence[Key]) -> dict[Key, tuple[np.ndarray, int]]:
        if not keys:
            return {}
        own = [(*key, *self._toolbox.wait(running)) for key in keys if (running := self._running.pop(key)) is not None]
        told = self._toolbox.processes.exchange(f"the answers to {len(keys)} calls of tools", own)
        found = {(request, branch): Answer(*answer) for part in told for request, branch, *answer in part}
        return {key: self._read(key, found[key]) for key in keys}

    def _read(self, key: Key, answer: Answer) -> tuple[np.ndarray, int]:
        branch, token_ids = self._branches[key], self._toolbox.encoded(answer)
        self._toolbox.counts[answer.outcome] += 1
        branch.before = branch.before[:0]
        branch.read += len(token_ids)
        branch.answered += 1
        exhausted = branch.answered >= self._toolbox.config.max_calls
        return token_ids, self._calls.off if exhausted else 0


def answer_spans(tool_written: np.ndarray | None) -> list[list[int]]:
    """[start, end) of each answer in a response, from `Rollout.tool_written`."""
    if tool_written is None:
        return []
    borders = np.flatnonzero(np.diff(tool_written.astype(np.int8), prepend=0, append=0))
    return borders.reshape(-1, 2).tolist()


def last_segment(prefix: Rollout) -> tuple[np.ndarray, int]:
    """The policy's tokens of a response after its last answer, and the number of answers in it."""
    spans = answer_spans(prefix.tool_written)
    return prefix.token_ids[spans[-1][1] if spans else 0 :], len(spans)
