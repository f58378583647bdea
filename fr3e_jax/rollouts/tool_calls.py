"""Calls of tools and turns in environments: found in tokens, run beside the decoder, answered in tokens.

Decoding of a rollout stops at the end of a call, the answer is appended, and decoding goes on (code-integrated
reasoning: ToRL, arXiv:2503.23383, section 2). Answers are encoded once and never decoded and encoded again. They count
towards the cap on a response and carry no loss. With several processes, each runs its share of the calls and sends the
answers to the others.

An environment is a tool with state: each turn of the policy is a call, an observation its answer. The state follows
from the problem, the seed and the texts of the policy so far. A branch that leaves a rollout inside an episode plays
the turns of its prefix again in an environment of its own. No token passes the network again: the branch has the
rollout's cache.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import jax
import numpy as np

from fr3e_jax.configuration import ConfigError
from fr3e_jax.rollouts.background_calls import Running, start
from fr3e_jax.rollouts.episode import Ending, EpisodeRecord, Turn
from fr3e_jax.rollouts.requests import Key, Rollout, TrunkRequest
from fr3e_jax.rollouts.toolbox import Toolbox
from fr3e_jax.tools.answer import Answer
from fr3e_jax.tools.automaton import START
from fr3e_jax.tools.environment import EpisodeFault
from fr3e_jax.tools.tool import ToolState

logger = logging.getLogger(__name__)

_SECONDS_TO_CLOSE = 5.0  # of the environments that a stop or a fault leaves open, together


@dataclass
class AnsweredCall:
    """The policy's tokens up to the end of a call, the tokens of the answer, and the reward."""

    call_ids: np.ndarray
    answer_ids: np.ndarray
    reward: float


@dataclass
class BranchCalls:
    """The calls of a branch, and its position in its episode."""

    seed: int
    begun: np.ndarray  # tokens of the prefix after its last answer, which may begin a call
    answered: list[AnsweredCall]  # first those of the prefix
    earlier: int  # calls of the prefix
    call_ids: np.ndarray | None = None  # of the call under way
    ends: list[int] = field(default_factory=list)  # own tokens up to the end of each own call
    read: int = 0  # own tokens up to the last answer; they cannot be part of another call
    ending: Ending = ""
    right: bool | None = None
    fault: str = ""


class ToolCalls:
    """The calls of one `RolloutEngine.sample`; see `fr3e_jax.rollouts.requests.Calls`.

    Args:
      toolbox: the tool that answers.
      requests: the requests of the call; in an environment each has its problem.

    Raises:
      ConfigError: a request has no problem.
    """

    def __init__(self, toolbox: Toolbox, requests: Sequence[TrunkRequest]):
        tool = toolbox.tool
        if tool.is_environment and any(request.problem is None and request.branches for request in requests):
            raise ConfigError(
                f"environment.kind={tool.kind} plays the problems of the task, and here a text is to be "
                "continued that is no problem; set environment.kind=none to sample from the policy alone"
            )
        self._toolbox, self._tool, self._requests = toolbox, tool, requests
        self.table: jax.Array = toolbox.table
        self.at_once = tool.at_once and toolbox.processes.count == 1
        self._branches: dict[Key, BranchCalls] = {}
        self._running: dict[Key, Running | None] = {}  # None: another process runs it
        self._states: dict[Key, ToolState] = {}  # environments that this process has open
        self._ended: set[Key] = set()  # a call that is late must close what it opens
        self._plays: dict[Key, int] = {}  # turns that the call of a branch plays, those before it included

    # -- the decoder's side ------------------------------------------------------------------------------------------

    def begin(self, key: Key) -> int:
        branch, marks = self._requests[key[0]].branches[key[1]], self._toolbox.calls
        answered, begun = answered_calls(branch.prefix)
        self._branches[key] = BranchCalls(self._toolbox.seed_of(branch), begun, answered, len(answered))
        state = marks.run([*begun, *branch.given], marks.off if len(answered) >= self._tool.max_calls else START)
        return START if state == marks.stop else state

    def ask(self, key: Key, token_ids: np.ndarray) -> None:
        branch, tool, toolbox = self._branches[key], self._tool, self._toolbox
        branch.call_ids = np.concatenate([branch.begun, token_ids[branch.read :]])
        branch.ends.append(len(token_ids))
        branch.read, branch.begun = len(token_ids), branch.begun[:0]
        if not toolbox.processes.is_mine(sum(key)):
            self._running[key] = None
            return
        text = toolbox.call_in(branch.call_ids)
        replayed = list(branch.answered) if tool.is_environment and key not in self._states else []
        self._plays[key] = len(replayed) + 1
        threads = toolbox.threads if tool.deadline is None else None
        self._running[key] = start(lambda: self._call(key, replayed, text), at_once=tool.at_once, slots=threads)

    def answers(self, keys: Sequence[Key]) -> dict[Key, tuple[np.ndarray, int] | None]:
        if not keys:
            return {}
        running = {key: self._running.pop(key) for key in keys}
        local = [(*key, *self._wait(key, call)) for key, call in running.items() if call is not None]
        gathered = self._toolbox.processes.exchange(f"the answers to {len(keys)} calls of tools", local)
        answers = {(request, branch): Answer(*answer) for rows in gathered for request, branch, *answer in rows}
        return {key: self._read(key, answers[key]) for key in keys}

    def episode(self, key: Key) -> EpisodeRecord | None:
        if not self._tool.is_environment:
            return None
        branch = self._branches[key]
        self._ended.add(key)
        if key in self._states:
            start(lambda: self._close(key), at_once=self._tool.at_once)
        rewards = [call.reward for call in branch.answered]
        turns = tuple(map(Turn, branch.ends, rewards[branch.earlier :]))
        earlier = tuple(rewards[: branch.earlier])
        return EpisodeRecord(branch.seed, turns, earlier, branch.ending, branch.right, branch.fault)

    def close(self) -> None:
        """Close the environments of branches that have not ended, all at once, and wait a few seconds for them.

        A turn that is still played closes its environment itself when it ends.
        """
        left, at_once = self._branches.keys() - self._ended, self._tool.at_once
        self._ended |= left
        left -= {key for key, call in self._running.items() if call is not None and not call.result.done()}
        for closing in [start(lambda key=key: self._close(key), at_once=at_once) for key in left & {*self._states}]:
            closing.wait(_SECONDS_TO_CLOSE)

    def _read(self, key: Key, answer: Answer) -> tuple[np.ndarray, int] | None:
        """Note an answer; return its tokens and the state of ``table`` after them, or None where the branch ends."""
        branch, toolbox = self._branches[key], self._toolbox
        toolbox.counts[answer.outcome] += 1
        is_last = len(branch.answered) + 1 >= self._tool.max_calls
        ends = self._tool.is_environment and (answer.done or is_last)
        token_ids, is_cut = toolbox.encoded("" if ends else answer.text)
        branch.answered.append(AnsweredCall(branch.call_ids, token_ids, answer.reward))
        branch.right = answer.right
        if ends:
            failed = answer.outcome != "answered"
            branch.fault = answer.text if failed else ""
            branch.ending = "fault" if failed else "done" if answer.done else "turns"
            return None
        toolbox.counts["cut"] += is_cut
        branch.read += len(token_ids)
        return token_ids, toolbox.calls.off if is_last else START

    # -- the tool's side ---------------------------------------------------------------------------------------------

    def _call(self, key: Key, replayed: list[AnsweredCall], text: str) -> Answer:
        """Answer a call; an environment first answers the calls ``replayed`` again."""
        try:
            state = self._states.get(key) or self._opened(key, replayed)
            return state.answer(text)
        except EpisodeFault as fault:
            return _fault(str(fault))
        finally:
            if key in self._ended:
                self._close(key)

    def _opened(self, key: Key, replayed: list[AnsweredCall]) -> ToolState:
        """A new state in which the calls ``replayed`` were made; an environment is open from here on, fault or not.

        Raises:
          EpisodeFault: it fails, or it does not repeat what it had answered.
        """
        problem, toolbox = self._requests[key[0]].problem, self._toolbox
        state = self._tool.open(problem, self._branches[key].seed)
        if self._tool.is_environment:
            self._states[key] = state
        for number, call in enumerate(replayed, start=1):
            answer = state.answer(toolbox.call_in(call.call_ids))
            answer_ids, _ = toolbox.encoded(answer.text)
            if answer.done or answer.reward != call.reward or not np.array_equal(answer_ids, call.answer_ids):
                raise EpisodeFault(
                    f"in turn {number} of problem {problem and problem.id}: answered {answer.text!r}, "
                    f"{answer.reward:g}, {answer.done}, and otherwise to the same texts and seed before; an episode "
                    "must follow from problem, seed and texts alone, or no branch can go on with it"
                )
        return state

    def _wait(self, key: Key, running: Running) -> Answer:
        """The answer of a call, or that of a time-out."""
        tool, plays, problem = self._tool, self._plays[key], self._requests[key[0]].problem
        answer = running.wait(None if tool.deadline is None else tool.deadline * plays)
        if answer is not None:
            return answer
        if not tool.is_environment:
            return Answer(f"TimeoutError: no end after {tool.seconds:g} seconds", "timeout")
        turn = len(self._branches[key].answered) + 1
        late = f"in turn {turn} of problem {problem and problem.id}: no end after environment.seconds={tool.seconds:g}"
        return _fault(late + (f" for each of the {plays} turns that it plays" if plays > 1 else ""))

    def _close(self, key: Key) -> None:
        """Close the environment of a branch, once. The episode has its rewards: an error is logged, the first alone."""
        state = self._states.pop(key, None)
        if state is None:
            return
        try:
            state.close()
        except EpisodeFault as fault:
            if not self._toolbox.close_failed:
                self._toolbox.close_failed = True
                logger.warning(
                    "the environment failed %s; rewards stand, and later errors of close() are not shown", fault
                )


def _fault(text: str) -> Answer:
    return Answer(text, "error", done=True, right=False)


def answered_calls(prefix: Rollout | None) -> tuple[list[AnsweredCall], np.ndarray]:
    """The calls in a part of a response, and its tokens after the last answer, which may be none.

    In an environment these are its turns, whose observations may have no tokens.
    """
    if prefix is None:
        return [], np.zeros(0, np.int32)
    spans = dict(answer_spans(prefix.tool_written))  # the end of an answer by its start
    record = prefix.episode
    turns = [Turn(start, 0.0) for start in spans] if record is None else record.turns
    calls, begun = [], 0
    for turn in turns:
        end = spans.get(turn.end, turn.end)
        calls.append(AnsweredCall(prefix.token_ids[begun : turn.end], prefix.token_ids[turn.end : end], turn.reward))
        begun = end
    return calls, prefix.token_ids[begun:]


def answer_spans(tool_written: np.ndarray | None) -> list[list[int]]:
    """[start, end) of each answer in a response, from `Rollout.tool_written`."""
    if tool_written is None:
        return []
    borders = np.flatnonzero(np.diff(tool_written.astype(np.int8), prepend=0, append=0))
    return borders.reshape(-1, 2).tolist()
