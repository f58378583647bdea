"""Episodes in an environment: turns found in the tokens of a response, played beside the decoder, answered in tokens.

A lane that ends a turn pauses as it does for a tool (`fr3e_jax.rollouts.pauses`). The environment's observation is
appended, and the policy goes on; or the episode ends, and with it the response. Observations are encoded once, count
towards the cap on a response and carry no loss.

The state of an episode is a function of the problem, the seed and the texts of the policy so far. A branch that leaves
a rollout inside an episode plays the turns of its prefix again in an environment of its own, and so does a run that
goes on after a stop. No token passes the network again: the branch has the rollout's cache.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import numpy as np

from fr3e_jax.cluster.processes import Processes
from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.environment_section import OBSERVATION, EnvironmentConfig
from fr3e_jax.data.tokenizer import TextCodec
from fr3e_jax.problem import Problem
from fr3e_jax.programs.decoder_programs import DecoderPrograms
from fr3e_jax.rollouts.episode import Ending, EpisodeRecord, Turn
from fr3e_jax.rollouts.requests import Branch, Key, Rollout, TrunkRequest
from fr3e_jax.rollouts.shared_calls import Running, SharedCalls, start
from fr3e_jax.rollouts.tool_calls import answer_spans, cut_to, given_share
from fr3e_jax.tools.automaton import turn_table
from fr3e_jax.tools.environment import Episode, EpisodeFault, MakeEnvironment

logger = logging.getLogger(__name__)

_SECONDS_TO_CLOSE = 5.0  # of the environments that a stop or a fault leaves open, together
_ASKED, _ANSWERED, _OBSERVED = "\x02question\x03", "\x02answer\x03", "\x02observation\x03"


class ObservationForm(NamedTuple):
    """Token ids on both sides of an observation."""

    before: list[int]
    after: list[int]


def observation_form(given: str, codec: TextCodec, *, chat: bool, turn_end: str = "") -> ObservationForm:
    """The form of ``environment.observation``.

    Args:
      given: the setting; "": the chat template's form of a user's message after an answer, if ``chat``, else nothing.
      codec: the tokenizer.
      chat: whether prompts are written by the tokenizer's chat template.
      turn_end: the setting ``environment.turn_end``.

    Raises:
      ValueError: the tokenizer cannot spell the form, or the chat template has none.
    """
    if given or not chat:
        before, _, after = (given or OBSERVATION).partition(OBSERVATION)
        return ObservationForm(codec.encode(before), codec.encode(after))
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
            return ObservationForm(codec.encode(before.removeprefix(spelled)), codec.encode(after))
    raise ValueError(f"the chat template ends an answer with {before!r}, which begins with no stop token{advice}")


class Played(NamedTuple):
    """The result of a turn, as processes tell it to each other: a `Step`, and why there is none."""

    observation: str
    reward: float
    done: bool
    right: bool | None
    fault: str = ""


class Episodes:
    """The environment of a run.

    Args:
      make: makes the environment of an episode.
      config: its limits.
      form: of observations.
      codec: the policy's tokenizer.
      vocabulary: size of the policy's vocabulary; may be larger than the tokenizer's.
      programs: the decoder's programs; they keep the table that recognises the ends of turns on the devices.
      processes: the processes that share the episodes.
      seed: of the run; with the name of a rollout's noise it gives the seed of the rollout's episode.
    """

    def __init__(
        self,
        make: MakeEnvironment,
        config: EnvironmentConfig,
        form: ObservationForm,
        codec: TextCodec,
        vocabulary: int,
        programs: DecoderPrograms,
        processes: Processes,
        seed: int,
    ):
        self.make, self.config, self.form, self.codec, self.processes = make, config, form, codec, processes
        self.seed, self.at_once = seed, bool(getattr(make, "at_once", False))
        texts = codec.token_texts()
        self.calls = turn_table(config.turn_end, texts + [""] * (vocabulary - len(texts)), codec.stop_ids)
        self.table = programs.on_all_devices(self.calls.next)
        self.counts: Counter[str] = Counter()
        self.close_failed = False

    def take_counts(self) -> Counter[str]:
        """Numbers of ``cut`` observations and of ``branched`` rollouts since the last call."""
        counts, self.counts = self.counts, Counter()
        return counts

    def answering(self, requests: Sequence[TrunkRequest]) -> EpisodeCalls:
        """What plays the turns of one `RolloutEngine.sample`.

        Raises:
          ConfigError: a request has no problem.
        """
        return EpisodeCalls(self, requests)

    def seed_of(self, branch: Branch) -> int:
        """The seed of a branch's episode: of its prefix's episode, or its own."""
        if branch.prefix is not None and branch.prefix.episode is not None:
            return branch.prefix.episode.seed
        high, low = np.random.SeedSequence([self.seed, *branch.stream]).generate_state(2).tolist()
        return (high << 32 | low) >> 1

    def encoded(self, observation: str) -> tuple[np.ndarray, bool]:
        """Tokens that the policy reads, int32, in their form, and whether they are cut at their limit."""
        body, cut = cut_to(self.codec, observation, self.config.max_observation_tokens)
        return np.array(self.form.before + body + self.form.after, np.int32), cut

    def action(self, token_ids: np.ndarray) -> str:
        """The text of a turn's tokens, without the stop token or the mark that ends it."""
        ids = token_ids[:-1] if len(token_ids) and token_ids[-1] in self.codec.stop_ids else token_ids
        text, mark = self.codec.decode(ids, special_tokens=True), self.config.turn_end
        return text.partition(mark)[0] if mark else text

    def metrics(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Metrics of a step's rollouts: turns, endings, and the mean reward of each turn."""
        counts = self.take_counts()
        found: dict[str, float] = {f"environment/{name}": counts[name] for name in ("cut", "branched")}
        if rollouts:
            found |= _episode_metrics(rollouts) | {"environment/given_share": given_share(rollouts)}
        return found

    def held_out_metrics(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Metrics of an evaluation's rollouts."""
        self.take_counts()
        return _episode_metrics(rollouts)


def _episode_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    records = [rollout.episode for rollout in rollouts if rollout.episode is not None]
    rewards = [record.rewards for record in records]
    found = {"environment/turns": float(np.mean([len(row) for row in rewards]))}
    for ending, name in (("done", "ended"), ("turns", "out_of_turns"), ("", "cut_off"), ("fault", "faults")):
        found[f"environment/{name}"] = float(np.mean([record.ending == ending for record in records]))
    for turn in range(max(map(len, rewards))):
        earned = [row[turn] for row in rewards if len(row) > turn]
        found[f"environment/reward_turn_{turn + 1}"] = float(np.mean(earned))
    return found


@dataclass
class PlayedTurn:
    """A turn of which all is known: the policy's text, its reward, and the tokens of the observation after it."""

    text: str
    reward: float
    observed: np.ndarray


@dataclass
class EpisodeProgress:
    """The position of a branch in its episode; ``turns`` begins with those of its prefix."""

    seed: int
    before: np.ndarray  # tokens of the turn that the prefix has begun
    turns: list[PlayedTurn] = field(default_factory=list)
    earlier: int = 0  # turns of the prefix
    text: str = ""  # of the turn that is played
    ends: list[int] = field(default_factory=list)  # own tokens up to the end of each own turn
    read: int = 0  # own tokens up to the last observation
    ending: str = ""
    right: bool | None = None
    fault: str = ""


class EpisodeCalls(SharedCalls):
    """The episodes of one `RolloutEngine.sample`; see `fr3e_jax.rollouts.requests.Calls`.

    Args:
      episodes: the environment.
      requests: the requests of the call, each with its problem.

    Raises:
      ConfigError: a request has no problem.
    """

    def __init__(self, episodes: Episodes, requests: Sequence[TrunkRequest]):
        super().__init__(episodes.processes, "turns", Played, self._waited)
        if any(request.problem is None and request.branches for request in requests):
            raise ConfigError(
                f"environment.kind={episodes.config.kind} plays the problems of the task, and here a text is to be "
                "continued that is no problem; set environment.kind=none to sample from the policy alone"
            )
        self._episodes, self._requests, self._calls = episodes, requests, episodes.calls
        self.table: jax.Array = episodes.table
        self.at_once = episodes.at_once and episodes.processes.count == 1
        self._branches: dict[Key, EpisodeProgress] = {}
        self._live: dict[Key, Episode] = {}  # that this process has open
        self._ended: set[Key] = set()  # a call that is late must close what it opens
        self._plays: dict[Key, int] = {}  # turns that the call of a branch plays, those before it included

    def begin(self, key: Key) -> int:
        branch = self._requests[key[0]].branches[key[1]]
        seed, prefix = self._episodes.seed_of(branch), branch.prefix
        if prefix is None or prefix.episode is None:
            self._branches[key] = EpisodeProgress(seed, np.zeros(0, np.int32))
            return 0
        played, begun = turns_of(prefix)
        rewards = prefix.episode.rewards
        turns = [
            PlayedTurn(self._episodes.action(own), reward, read)
            for (own, read), reward in zip(played, rewards, strict=True)
        ]
        self._branches[key] = EpisodeProgress(seed, begun, turns, len(turns))
        return self._calls.run(begun)

    def ask(self, key: Key, token_ids: np.ndarray) -> None:
        own, episodes = self._branches[key], self._episodes
        own.text = episodes.action(np.concatenate([own.before, token_ids[own.read :]]))
        own.ends.append(len(token_ids))
        own.read, own.before = len(token_ids), own.before[:0]
        earlier, text = list(own.turns), own.text
        self._plays[key] = 1 if key in self._live else len(earlier) + 1
        self.begin_call(key, lambda: start(lambda: self._play(key, earlier, text), at_once=episodes.at_once))

    def answers(self, keys: Sequence[Key]) -> dict[Key, tuple[np.ndarray, int] | None]:
        return {key: self._read(key, played) for key, played in self.results(keys).items()}

    def episode(self, key: Key) -> EpisodeRecord:
        own = self._branches[key]
        self._ended.add(key)
        if key in self._live:
            start(lambda: self._close(key), at_once=self._episodes.at_once)
        rewards = [turn.reward for turn in own.turns]
        turns = tuple(map(Turn, own.ends, rewards[own.earlier :]))
        ending: Ending = own.ending  # type: ignore[assignment]
        return EpisodeRecord(own.seed, turns, tuple(rewards[: own.earlier]), ending, own.right, own.fault)

    def _read(self, key: Key, played: Played) -> tuple[np.ndarray, int] | None:
        own, config = self._branches[key], self._episodes.config
        own.right, own.fault = played.right, played.fault
        ended = bool(played.fault) or played.done or len(own.turns) + 1 >= config.max_turns
        token_ids, cut = self._episodes.encoded("" if ended else played.observation)
        own.turns.append(PlayedTurn(own.text, played.reward, token_ids))
        if ended:
            own.ending = "fault" if played.fault else "done" if played.done else "turns"
            return None
        self._episodes.counts["cut"] += cut
        own.read += len(token_ids)
        return token_ids, 0

    # -- playing -----------------------------------------------------------------------------------------------------

    def _play(self, key: Key, earlier: list[PlayedTurn], text: str) -> Played:
        """Play a turn after ``earlier`` ones."""
        try:
            episode = self._live.get(key) or self._again(key, earlier)
            return Played(*episode.step(text))
        except EpisodeFault as fault:
            return Played("", 0.0, True, False, str(fault))
        finally:
            if key in self._ended:
                self._close(key)

    def close(self) -> None:
        """Close the environments of branches that have not ended, all at once, and wait a few seconds for them.

        A turn that is still played closes its environment itself when it ends.
        """
        left, at_once = self._branches.keys() - self._ended, self._episodes.at_once
        self._ended |= left
        left -= {key for key, call in self._running.items() if call is not None and not call.result.done()}
        for one in [start(lambda key=key: self._close(key), at_once=at_once) for key in left & {*self._live}]:
            one.wait(_SECONDS_TO_CLOSE)

    def _close(self, key: Key) -> None:
        """Close the environment of a branch, once. The episode has its rewards: an error is logged, the first alone."""
        episode = self._live.pop(key, None)
        if episode is None:
            return
        try:
            episode.close()
        except EpisodeFault as fault:
            if not self._episodes.close_failed:
                self._episodes.close_failed = True
                logger.warning(
                    "the environment failed %s; rewards stand, and later errors of close() are not shown", fault
                )

    def _again(self, key: Key, turns: list[PlayedTurn]) -> Episode:
        """A new environment in which ``turns`` have been played; it is open from here on, fault or not.

        Raises:
          EpisodeFault: it fails, or it does not repeat what it had answered.
        """
        posed = self._requests[key[0]].problem
        assert posed is not None
        episode = Episode(self._episodes.make, original(posed), self._branches[key].seed)
        self._live[key] = episode
        if episode.first not in ("", posed.prompt):
            raise EpisodeFault(
                f"in reset() of problem {posed.id}: returned another first observation than before; expected the same "
                "text for every seed and every time"
            )
        for number, turn in enumerate(turns, start=1):
            step = episode.step(turn.text)
            read, _ = self._episodes.encoded(step.observation)
            if step.done or step.reward != turn.reward or not np.array_equal(read, turn.observed):
                raise EpisodeFault(
                    f"in turn {number} of problem {posed.id}: answered {step.observation!r}, {step.reward:g}, "
                    f"{step.done}, and otherwise to the same texts and seed before; an episode must follow from "
                    "problem, seed and texts alone, or no branch and no resumed run can go on with it"
                )
        return episode

    def _waited(self, running: Running, key: Key) -> tuple:
        problem, turn = self._requests[key[0]].problem, len(self._branches[key].turns) + 1
        seconds, plays = self._episodes.config.seconds, self._plays.get(key, 1)
        late = f"in turn {turn} of problem {problem and problem.id}: no end after environment.seconds={seconds:g}"
        late += f" for each of the {plays} turns that it plays" if plays > 1 else ""
        return running.wait(seconds * plays) or Played("", 0.0, True, False, late)


def original(problem: Problem) -> Problem:
    """The problem as its task gives it, which an environment may have posed with a text of its own."""
    return getattr(problem, "original", None) or problem


def turns_of(prefix: Rollout) -> tuple[list[tuple[np.ndarray, np.ndarray]], np.ndarray]:
    """Turns in a part of a response: the policy's tokens and the observation after them; and the turn that has begun.

    The tokens of the latter may be none.
    """
    assert prefix.episode is not None
    after = dict(answer_spans(prefix.tool_written))  # the end of an observation by its start
    found, begun = [], 0
    for turn in prefix.episode.turns:
        end = after.get(turn.end, turn.end)
        found.append((prefix.token_ids[begun : turn.end], prefix.token_ids[turn.end : end]))
        begun = end
    return found, prefix.token_ids[begun:]
