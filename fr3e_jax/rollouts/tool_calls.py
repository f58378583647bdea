"""Calls of tools: found in the tokens of a response, run beside the decoder, answered in tokens.

Code-integrated reasoning: decoding of a rollout stops at the end of a call, the tool's answer is appended, and decoding
goes on (ToRL, arXiv:2503.23383, section 2). Answers are encoded once and never decoded and encoded again. They count
towards the cap on a response and carry no loss. With several processes, each runs its share of the calls and sends the
answers to the others.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import jax
import numpy as np

from fr3e_jax.cluster.processes import Processes
from fr3e_jax.configuration.schema import ToolsConfig
from fr3e_jax.data.tokenizer import TextCodec
from fr3e_jax.programs.decoder_programs import DecoderPrograms
from fr3e_jax.rollouts.requests import Key, Rollout, TrunkRequest
from fr3e_jax.rollouts.shared_calls import Running, SharedCalls, start
from fr3e_jax.tools.answer import Answer, Outcome
from fr3e_jax.tools.automaton import call_table
from fr3e_jax.tools.tool import Tool, load_tool

_CUT = "..."
_unbounded = contextlib.nullcontext()


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
        """Run a call: here if the tool answers at once, else in a thread."""
        return start(lambda: self._answer(call), at_once=self.tool.at_once, slots=self._slots)

    def _answer(self, call: str) -> Answer:
        try:
            return self.tool.run(call)
        except Exception as error:  # such as no room for files: the policy reads the error, the run goes on
            return Answer(f"{type(error).__name__}: {error}", "error")

    def wait(self, running: Running) -> Answer:
        """The answer of a call, or a time-out ``Tool.deadline`` seconds after its start."""
        late = Answer(f"TimeoutError: no end after {self.config.seconds:g} seconds", "timeout")
        return running.wait(self.tool.deadline) or late

    def answering(self, requests: Sequence[TrunkRequest]) -> ToolCalls:
        """What answers the calls of one `RolloutEngine.sample`."""
        return ToolCalls(self, requests)

    def metrics(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Calls of a step since the last call, and the share of its ``rollouts``' tokens that tools wrote."""
        counts = self.take_counts()
        found: dict[str, float] = {f"tools/{name}": counts[name] for name in (*get_args(Outcome), "cut", "branched")}
        if rollouts:
            found["tools/calls_per_rollout"] = sum(counts[name] for name in get_args(Outcome)) / len(rollouts)
            found["tools/given_share"] = given_share(rollouts)
        return found

    def held_out_metrics(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """The calls of an evaluation since the last call."""
        calls = self.take_counts()
        return {"tools/calls_per_rollout": sum(calls[name] for name in get_args(Outcome)) / len(rollouts)}

    def encoded(self, answer: Answer) -> np.ndarray:
        """Tokens that the policy reads, int32: the answer in ``tools.result``, cut at ``tools.max_output_tokens``."""
        encode = self.codec.encode_foreign
        body, cut = cut_to(self.codec, answer.text, self.config.max_output_tokens)
        self.counts["cut"] += cut
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


class ToolCalls(SharedCalls):
    """The calls of one `RolloutEngine.sample`; see `fr3e_jax.rollouts.requests.Calls`.

    Args:
      toolbox: the tool that answers.
      requests: the requests of the call.
    """

    def __init__(self, toolbox: Toolbox, requests: Sequence[TrunkRequest]):
        super().__init__(toolbox.processes, "calls of tools", Answer, lambda running, key: toolbox.wait(running))
        self._toolbox, self._requests, self._calls = toolbox, requests, toolbox.calls
        self.table: jax.Array = toolbox.table
        self.at_once = toolbox.tool.at_once and toolbox.processes.count == 1
        self._branches: dict[Key, CallProgress] = {}

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
        self.begin_call(key, lambda: toolbox.start(call or ""))

    def answers(self, keys: Sequence[Key]) -> dict[Key, tuple[np.ndarray, int] | None]:
        return {key: self._read(key, answer) for key, answer in self.results(keys).items()}

    def episode(self, key: Key) -> None:
        return None

    def _read(self, key: Key, answer: Answer) -> tuple[np.ndarray, int]:
        branch, token_ids = self._branches[key], self._toolbox.encoded(answer)
        self._toolbox.counts[answer.outcome] += 1
        branch.before = branch.before[:0]
        branch.read += len(token_ids)
        branch.answered += 1
        exhausted = branch.answered >= self._toolbox.config.max_calls
        return token_ids, self._calls.off if exhausted else 0


def cut_to(codec: TextCodec, text: str, most: int) -> tuple[list[int], bool]:
    """At most ``most`` tokens of a foreign text, with an ellipsis where it is cut; and whether it is."""
    body = codec.encode_foreign(text)
    if len(body) <= most:
        return body, False
    ending = codec.encode_foreign(_CUT)[:most]
    return body[: most - len(ending)] + ending, True


def given_share(rollouts: Sequence[Rollout]) -> float:
    """The share of the rollouts' tokens that the policy read and did not choose."""
    return float(1 - np.mean(np.concatenate([rollout.sampled for rollout in rollouts])))


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
