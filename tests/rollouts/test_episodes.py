"""An episode follows from its problem, its seed and the policy's texts, in any slot and lane and from any fork."""

from __future__ import annotations

import dataclasses
import re
import threading
import time
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import scripted_environment as scripted
from called_rollouts import assert_figures_of_one_pass, assert_same_rollouts, in_two_processes

from fr3e_jax.programs.shapes import Shapes
from fr3e_jax.rollouts.engine import RolloutEngine
from fr3e_jax.rollouts.requests import Branch, Rollout, TrunkRequest
from fr3e_jax.rollouts.tool_calls import ToolCalls, answer_spans
from fr3e_jax.rollouts.toolbox import observation_form


def sampled(session, params, episodes, requests, select=None, **changes):
    shapes = Shapes(**{"slots": 2, "lanes": 3, "chunk": 4} | changes)
    engine = RolloutEngine(session.sampler.engine.programs, shapes, seed=7)
    results, promoted = engine.sample(params, requests, select, calls=ToolCalls(episodes, requests))
    return SimpleNamespace(results=results, promoted=promoted, counts=engine.counts)


@pytest.fixture(scope="module")
def episodes(session):
    return scripted.episodes_of(session)


@pytest.fixture(scope="module")
def requests(session):
    return scripted.requests_of(session)


@pytest.fixture(scope="module")
def expected(session, params, episodes, requests):
    return sampled(session, params, episodes, requests, select=lambda i, rollouts, wait: [0, 2])


def test_observations_rewards_and_endings_are_those_of_the_environment(session, requests, expected):
    endings, turns = Counter(), 0
    for i, row in enumerate(expected.results):
        for branch, rollout in zip(requests[i].branches, row, strict=True):
            found = scripted.played_again(session.texts.codec, rollout, requests[i].problem, branch.max_tokens)
            read, rewards, ending = found
            np.testing.assert_array_equal(~rollout.sampled, read)
            assert rollout.episode.rewards == rewards and rollout.episode.ending == ending
            assert rollout.finished == (ending != "")
            endings[ending] += 1
            turns += len(rewards)
    assert set(endings) == {"", "done", "turns"} and turns > 30
    seeds = [rollout.episode.seed for row in expected.results for rollout in row]
    assert len(set(seeds)) == len(seeds)


def test_figures_are_those_of_one_forward_pass_observations_included(session, params, requests, expected, tiny_run):
    assert_figures_of_one_pass(requests[:3], expected.results[:3], session, params, tiny_run)


def test_slots_lanes_and_threads_change_no_episode(session, params, requests, expected):
    slow = scripted.episodes_of(session, scripted.Slow)
    assert_same_rollouts(sampled(session, params, slow, requests, slots=1, lanes=5), expected)


def test_a_branch_inside_an_episode_goes_on_as_the_episode_would_and_computes_nothing_again(
    session, params, episodes, requests, expected
):
    """Greedy from every state of a greedy rollout, within turns and at their borders, gives the rest of its episode."""
    again, rests, borders, within = [], [], 0, 0
    for i, row in enumerate(expected.results):
        whole, prompt = row[0], len(requests[i].token_ids)
        forks = [k for k in range(1, len(whole.token_ids)) if whole.sampled[k]]
        like = requests[i].branches[0]
        branches = [Branch(prompt + k, (1, 0, i, k), like.max_tokens - k, like.sampling, whole.head(k)) for k in forks]
        again.append(TrunkRequest(dataclasses.replace(expected.promoted[i, 0]), branches, requests[i].problem))
        rests.append([(whole, k) for k in forks])
        ends = {end for _, end in answer_spans(whole.tool_written)}
        borders += len(ends & set(forks))
        within += sum(whole.head(k).episode.turns != () and k not in ends for k in forks)
    assert borders > 2 and within > 5
    scripted.CALLED.clear()
    found = sampled(session, params, episodes, again)
    assert found.counts.prefill_positions == 0
    rest = sum(len(whole.token_ids) - k for row in rests for whole, k in row)
    assert found.counts.sampled_tokens + found.counts.tool_tokens == rest
    assert found.counts.reused_prefix_positions == sum(branch.fork for request in again for branch in request.branches)
    acting = [r for row in found.results for r in row if r.episode.turns]
    assert scripted.CALLED["reset"] == len(acting), "an environment is made for a branch that ends a turn"
    assert scripted.CALLED["step"] == sum(len(r.episode.rewards) for r in acting)
    for row, wanted in zip(found.results, rests, strict=True):
        for rollout, (whole, k) in zip(row, wanted, strict=True):
            joined = whole.head(k).then(rollout)
            np.testing.assert_array_equal(joined.token_ids, whole.token_ids)
            np.testing.assert_array_equal(joined.sampled, whole.sampled)
            assert (joined.episode, joined.finished) == (whole.episode, whole.finished)
            assert rollout.episode.rewards == whole.episode.rewards


class Faulty(scripted.Scripted):
    """Raises, returns something else, hangs, or answers otherwise at the second time, in the second turn."""

    how, release, resets = "", threading.Event(), Counter()
    at_once = False

    def reset(self, problem, seed):
        self.again = Faulty.resets[problem.id, seed] > 0
        Faulty.resets[problem.id, seed] += 1
        if Faulty.how == "late":
            Faulty.release.wait(60)
        if Faulty.how == "reset":
            raise OSError("no house")
        return super().reset(problem, seed)

    def step(self, text):
        observation, reward, _ = super().step(text)
        if Faulty.how == "first":
            raise KeyError("no first door")
        if Faulty.how == "slow":
            time.sleep(0.1)
        if self.told.count("|") == 2:
            if Faulty.how == "raise":
                raise KeyError("no such door")
            if Faulty.how == "exit":
                raise SystemExit(3)
            if Faulty.how == "return":
                return {"observation": observation}
            if Faulty.how == "reward":
                return observation, float("nan"), False
            if Faulty.how == "hang":
                Faulty.release.wait(60)
        return observation, reward + 0.05 * (Faulty.how == "other" and self.again), False


def turns(session, make, texts, prefix=None, **changes):
    """The record of one branch that writes ``texts``, and the tokens that it read after each."""
    codec, ids, read = session.texts.codec, np.zeros(0, np.int32), []
    request = scripted.requests_of(session)[0]
    request = dataclasses.replace(request, branches=[dataclasses.replace(request.branches[0], prefix=prefix)])
    calls = ToolCalls(scripted.episodes_of(session, make, **changes), [request])
    calls.begin((0, 0))
    for text in texts:
        ids = np.concatenate([ids, codec.encode(text + scripted.TURN_END)]).astype(np.int32)
        calls.ask((0, 0), ids)
        answer = calls.answers([(0, 0)])[0, 0]
        read.append(None if answer is None else answer[0])
        if answer is None:
            break
        ids = np.concatenate([ids, answer[0]])
    return calls.episode((0, 0)), read, ids


@pytest.mark.parametrize(
    ("how", "told"),
    [
        (
            "raise",
            r"in turn 2 of problem train/0: raised KeyError: 'no such door' \(.*_episodes.py, .*, in step\)\nTrac",
        ),
        ("exit", r"in turn 2 of problem train/0: raised SystemExit: 3 "),
        ("return", r"in turn 2 of problem train/0: returned \{'observation'.*expected \(observation, reward, done\)"),
        ("reward", r"in turn 2 of problem train/0: returned the reward nan; expected a finite number"),
        ("hang", r"in turn 2 of problem train/0: no end after environment.seconds=0.05"),
    ],
)
def test_a_fault_of_the_environment_ends_the_episode_and_names_problem_and_turn(session, monkeypatch, how, told):
    monkeypatch.setattr(Faulty, "how", how)
    monkeypatch.setattr(Faulty, "release", threading.Event())
    record, read, _ = turns(session, Faulty, ["1", "2", "3"], seconds=0.05 if how == "hang" else 30.0)
    Faulty.release.set()
    assert record.ending == "fault" and len(record.turns) == 2 and read[-1] is None
    assert re.search(told, record.fault)


class Counted(Faulty):
    """Counts the objects that were made and the calls of close(), which may itself fail."""

    made: list[Counted] = []

    def __init__(self):
        self.closed = 0
        Counted.made.append(self)

    def close(self):
        self.closed += 1
        if Counted.how == "close":
            raise OSError("the door is stuck")


class InPlace(Counted):
    at_once = True


@pytest.mark.parametrize("make", [Counted, InPlace])
@pytest.mark.parametrize(
    ("how", "texts", "most", "ending"),
    [
        ("", ["1"] * 3, 3, "turns"),
        ("", ["1"], 3, ""),
        ("close", ["1"] * 3, 3, "turns"),
        ("raise", ["1"] * 2, 3, "fault"),
        ("first", ["1"], 3, "fault"),
        ("reset", ["1"], 3, "fault"),
    ],
)
def test_every_environment_is_closed_once_and_its_reward_stands(
    session, monkeypatch, caplog, make, how, texts, most, ending
):
    monkeypatch.setattr(Faulty, "how", how)
    monkeypatch.setattr(Counted, "made", [])
    record, *_ = turns(session, make, texts, max_turns=most)
    settle()
    assert [one.closed for one in Counted.made] == [1] and record.ending == ending
    assert bool(record.fault) == (ending == "fault")
    told = [line for line in caplog.messages if "in close() of problem train/0" in line]
    assert len(told) == (how == "close")


def settle() -> None:
    """Wait for the threads of calls."""
    for thread in threading.enumerate():
        if thread.name == "fr3e-call":
            thread.join(60)


def test_a_replay_that_fails_and_a_late_first_turn_close_what_they_open(session, monkeypatch):
    base = begun(session, monkeypatch, Counted)
    monkeypatch.setattr(Counted, "made", [])
    monkeypatch.setattr(Faulty, "how", "other")
    again, *_ = turns(session, Counted, ["2"], prefix=base)
    assert again.ending == "fault"
    monkeypatch.setattr(Faulty, "how", "late")
    monkeypatch.setattr(Faulty, "release", threading.Event())
    late, *_ = turns(session, Counted, ["2"], seconds=0.05)
    assert "no end after environment.seconds=0.05" in late.fault
    Faulty.release.set()
    settle()
    assert [one.closed for one in Counted.made] == [1, 1]


def test_a_branch_has_the_time_of_every_turn_that_it_plays(session, monkeypatch):
    base = begun(session, monkeypatch, Faulty, texts=["1"] * 4)
    monkeypatch.setattr(Faulty, "how", "slow")
    record, *_ = turns(session, Faulty, ["2"], prefix=base, seconds=0.4, max_turns=8)
    assert len(record.rewards) == 5 and not record.fault, "five turns of 0.1 s"


def begun(session, monkeypatch, make, texts=("1",)) -> Rollout:
    """A rollout of the turns ``texts``."""
    monkeypatch.setattr(Faulty, "how", "")
    Faulty.resets.clear()
    record, read, ids = turns(session, make, texts, max_turns=8)
    zeros, written = np.zeros(len(ids), np.float32), np.zeros(len(ids), bool)
    for turn, observed in zip(record.turns, read, strict=True):
        written[turn.end : turn.end + len(observed)] = True
    return Rollout(ids, zeros, zeros, zeros, False, tool_written=written, episode=record)


def test_an_environment_that_does_not_repeat_an_episode_is_found_at_the_first_branch(session, monkeypatch):
    base = begun(session, monkeypatch, Faulty)
    monkeypatch.setattr(Faulty, "how", "other")
    again, _, _ = turns(session, Faulty, ["2"], prefix=base)
    assert again.ending == "fault" and "in turn 1 of problem train/0: answered" in again.fault
    assert "follow from problem, seed and texts alone" in again.fault


def test_a_text_that_is_no_problem_is_refused_with_the_way_out(session, requests):
    with pytest.raises(ValueError, match="set environment.kind=none to sample from the policy alone"):
        ToolCalls(scripted.episodes_of(session), [dataclasses.replace(requests[0], problem=None)])


def test_processes_share_the_episodes_and_read_the_same_observations(session, requests):
    def play(processes):
        calls = ToolCalls(scripted.episodes_of(session, processes=processes), requests)
        keys = [(0, 0), (0, 1), (1, 1)]
        for key in keys:
            calls.begin(key)
            calls.ask(key, np.array(session.texts.codec.encode("35"), np.int32))
        answers = calls.answers(keys)
        return [answers[key] and answers[key][0].tolist() for key in keys] + [calls.episode(key) for key in keys]

    first, second = in_two_processes(play)
    assert first == second


class Chat:
    """A codec with a chat template, of characters."""

    stop_ids = (1,)

    def __init__(self, close="<e>", order=(0, 1, 2)):
        self.close, self.order = close, order

    def render_chat(self, messages):
        said = [messages[n] for n in self.order]
        return "".join(f"<{m['role']}>{m['content']}{self.close}\n" for m in said) + "<assistant>"

    def decode(self, ids, special_tokens=False):
        return "<e>"

    def encode(self, text):
        return list(text.encode())


def test_the_form_of_an_observation_is_the_users_message_of_the_chat_template():
    form = observation_form("", Chat(), chat=True)
    assert bytes(form.before) == b"\n<user>", "the policy has written the stop token itself"
    assert bytes(form.after) == b"<e>\n<assistant>"
    assert observation_form("", Chat(), chat=False) == ([], [])
    assert bytes(observation_form("[{observation}]", Chat(), chat=True).after) == b"]"


@pytest.mark.parametrize(
    ("codec", "turn_end", "told"),
    [
        (Chat(close="<end>"), "", "begins with no stop token; set environment.observation"),
        (Chat(order=(0, 2)), "", "does not show a conversation of three messages"),
        (Chat(), ">", "environment.turn_end='>' ends turns where the chat template has a stop token of its own"),
    ],
)
def test_a_chat_template_without_such_a_form_is_refused(codec, turn_end, told):
    with pytest.raises(ValueError, match=told):
        observation_form("", codec, chat=True, turn_end=turn_end)
