"""The tool of a run beside the decoder: its table on the devices, its answers as tokens, its counts and metrics."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, get_args

import numpy as np

from fr3e_jax.cluster.processes import Processes
from fr3e_jax.configuration.environment_section import OBSERVATION
from fr3e_jax.data.tokenizer import TextCodec
from fr3e_jax.programs.decoder_programs import DecoderPrograms
from fr3e_jax.rollouts.episode import episode_metrics
from fr3e_jax.rollouts.requests import Branch, Rollout
from fr3e_jax.tools.answer import Outcome
from fr3e_jax.tools.automaton import call_table
from fr3e_jax.tools.tool import Tool

_ELLIPSIS = "..."
_MOST_THREADS = 16  # of a tool that limits its own time
_ASKED, _ANSWERED, _OBSERVED = "\x02question\x03", "\x02answer\x03", "\x02observation\x03"


class AnswerForm(NamedTuple):
    """Token ids on both sides of an answer."""

    before: list[int]
    after: list[int]


def answer_form(tool: Tool, codec: TextCodec) -> AnswerForm:
    """The form of a tool's answers.

    Raises:
      ValueError: an empty answer would leave no token.
    """
    form = AnswerForm(*(codec.encode_foreign(text, marks=True) for text in (tool.before, tool.after)))
    if not any(form):
        raise ValueError(
            f"the tokenizer can spell nothing of {tool.before!r} and {tool.after!r}, which stand around a tool's "
            "answer: an empty answer would leave no token; set tools.result to a text that it can spell, with "
            "{output} in it"
        )
    return form


def observation_form(setting: str, codec: TextCodec, *, chat: bool, turn_end: str = "") -> AnswerForm:
    """The form of an environment's observations.

    Args:
      setting: ``environment.observation``; "": the chat template's form of a user's message after an answer, if
        ``chat``, else nothing.
      codec: the tokenizer.
      chat: whether prompts are written by the tokenizer's chat template.
      turn_end: the setting ``environment.turn_end``.

    Raises:
      ValueError: the tokenizer cannot spell the form, or the chat template has none.
    """
    if setting or not chat:
        before, _, after = (setting or OBSERVATION).partition(OBSERVATION)
        return AnswerForm(codec.encode(before), codec.encode(after))
    advice = f"; set environment.observation to the text around an observation, with {OBSERVATION} in it"
    if turn_end:
        raise ValueError(
            f"environment.turn_end={turn_end!r} ends turns where the chat template has a stop token of its own{advice}"
        )
    roles = [("user", _ASKED), ("assistant", _ANSWERED), ("user", _OBSERVED)]
    text = codec.render_chat([{"role": role, "content": content} for role, content in roles])
    _, answered, rest = text.partition(_ANSWERED)
    before, observed, after = rest.partition(_OBSERVED)
    if not answered or not observed:
        raise ValueError(f"the chat template does not show a conversation of three messages in its order{advice}")
    for stop in codec.stop_ids:
        spelled = codec.decode([stop], special_tokens=True)
        if spelled and before.startswith(spelled):
            return AnswerForm(codec.encode(before.removeprefix(spelled)), codec.encode(after))
    raise ValueError(f"the chat template ends an answer with {before!r}, which begins with no stop token{advice}")


class Toolbox:
    """The tool or the environment of a run, ready to be called.

    Args:
      tool: the tool.
      form: of its answers.
      codec: the policy's tokenizer.
      vocabulary: size of the policy's vocabulary; may be larger than the tokenizer's.
      programs: the decoder's programs; they keep the table that recognises calls on the devices.
      processes: the processes that share the calls.
      seed: of the run; with the name of a rollout's noise it gives the seed of the rollout's episode.
    """

    def __init__(
        self,
        tool: Tool,
        form: AnswerForm,
        codec: TextCodec,
        vocabulary: int,
        programs: DecoderPrograms,
        processes: Processes,
        seed: int,
    ):
        self.tool, self.form, self.codec, self.processes, self.seed = tool, form, codec, processes, seed
        self._token_bytes = codec.token_bytes(vocabulary)
        self.calls = call_table(tool.begin, tool.end, self._token_bytes, codec.stop_ids, codec.stop_texts)
        self.table = programs.on_all_devices(self.calls.next)
        self.threads = threading.BoundedSemaphore(min(os.cpu_count() or 1, _MOST_THREADS))
        self.counts: Counter[str] = Counter()
        self.close_failed = False

    def take_counts(self) -> Counter[str]:
        """Counts since the last call of this method, the same on all processes.

        They are calls by outcome, and ``cut`` answers.
        """
        counts, self.counts = self.counts, Counter()
        return counts

    def seed_of(self, branch: Branch) -> int:
        """The seed of a branch's episode: of its prefix's episode, or its own."""
        if branch.prefix is not None and branch.prefix.episode is not None:
            return branch.prefix.episode.seed
        high, low = np.random.SeedSequence([self.seed, *branch.stream]).generate_state(2).tolist()
        return (high << 32 | low) >> 1

    def call_in(self, token_ids: np.ndarray) -> str:
        """The text of a call in the tokens that complete it, without its marks or what ends a turn."""
        ids = token_ids[:-1] if len(token_ids) and token_ids[-1] in self.codec.stop_ids else token_ids
        text = b"".join(self._token_bytes[i] for i in ids).decode(errors="replace")
        for stop in () if self.tool.begin else self.codec.stop_texts:
            text = text.partition(stop)[0]
        return self.tool.call_in(text) or ""

    def encoded(self, answer: str) -> tuple[np.ndarray, bool]:
        """Tokens that the policy reads, int32, in their form, and whether they are cut at their limit."""
        body, most = self.codec.encode_foreign(answer), self.tool.max_answer_tokens
        is_cut = len(body) > most
        if is_cut:
            ending = self.codec.encode_foreign(_ELLIPSIS)[:most]
            body = body[: most - len(ending)] + ending
        return np.array(self.form.before + body + self.form.after, np.int32), is_cut

    def metrics(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Metrics of a step's rollouts: calls since the last call of this method, turns, and the tokens of answers."""
        counts, name = self.take_counts(), "environment" if self.tool.is_environment else "tools"
        metrics: dict[str, float] = {f"{name}/cut": counts["cut"]}
        if not self.tool.is_environment:
            metrics |= {f"tools/{outcome}": counts[outcome] for outcome in get_args(Outcome)}
        if rollouts:
            sampled = np.concatenate([rollout.sampled for rollout in rollouts])
            metrics |= self._rollout_metrics(rollouts, counts) | {f"{name}/given_share": float(1 - np.mean(sampled))}
        return metrics

    def held_out_metrics(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Metrics of an evaluation's rollouts."""
        return self._rollout_metrics(rollouts, self.take_counts())

    def _rollout_metrics(self, rollouts: Sequence[Rollout], counts: Counter[str]) -> dict[str, float]:
        if self.tool.is_environment:
            return episode_metrics([rollout.episode for rollout in rollouts if rollout.episode is not None])
        return {"tools/calls_per_rollout": sum(counts[name] for name in get_args(Outcome)) / len(rollouts)}
