"""The archive returns to correct bases of hard prompts, with noise and values of their own, while it is open."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest

from fr3e_jax.data.stream import PromptStream
from fr3e_jax.loop.archive import Archive
from fr3e_jax.loop.expansion import Anchored, PromptGroup, anchored_at
from fr3e_jax.loop.explore import anchor_rules, assign_advantages, explored_trunks, roll_out_states
from fr3e_jax.loop.step_report import rollout_records
from fr3e_jax.rollouts.requests import Rollout


@pytest.fixture
def archiving(session, tiny_run):
    return tiny_run.changed(
        session, explore__archive_size=3, explore__archive_revisits=2, explore__archive_max_success_rate=0.5
    )


@pytest.fixture
def stream(session):
    return PromptStream(session.task.problems("train"), 0, session.texts.codec.encode, 8)


def expansion_of(session, stream, position: int, rewards: list[float], base: int = 0, length: int = 6) -> Anchored:
    problem = stream.problem_at(position)
    zeros = np.zeros(length, np.float32)
    rollouts = [Rollout(np.arange(length, dtype=np.int32) + 2 + n, zeros, zeros, zeros, True) for n in range(4)]
    group = PromptGroup(position, problem, session.texts.encode(problem.prompt), rollouts, np.array(rewards, float))
    return anchored_at(group, base, [2, 4], anchor_rules(session.config.explore), fresh=False)


def filled(archiving, stream, step: int = 1, positions=(3,), base: int = 1) -> Archive:
    archive = Archive(all_wrong_share=1.0)
    archive.add(
        archiving.config.explore, step, [expansion_of(archiving, stream, p, [0, 1, 0, 0], base) for p in positions]
    )
    return archive


def test_correct_bases_of_hard_prompts_are_kept_and_the_oldest_leave(archiving, stream):
    archive = Archive()
    rewards = {0: [0, 1, 0, 0], 1: [1, 1, 1, 0], 2: [1, 0, 0, 1], 3: [0, 1, 0, 0], 4: [0, 1, 1, 0], 5: [0, 1, 0, 0]}
    expansions = [expansion_of(archiving, stream, p, row, base=1) for p, row in rewards.items()]
    expansions[3] = dataclasses.replace(expansions[3], anchors=[])
    archive.add(archiving.config.explore, 7, expansions)
    assert [entry.position for entry in archive.entries] == [0, 4, 5]  # 1 is easy, 2 wrong, 3 has no state
    archive.add(archiving.config.explore, 8, [expansion_of(archiving, stream, 6, [0, 0, 0, 1], base=3)])
    assert [entry.position for entry in archive.entries] == [4, 5, 6]
    assert archive.entries[-1].rewards == [1, 0, 0, 0] and archive.entries[-1].parent == "8/6/3"
    assert archive.entries[-1].token_ids == expansions[0].group.rollouts[3].token_ids.tolist()


def test_the_archive_asks_the_verdict_and_keeps_it(archiving, stream):
    """Rewards are graded: the second response is accepted for 0.7, and the third is wrong with 1."""
    expansion = expansion_of(archiving, stream, 3, [0, 0.7, 1, 0.2], base=1)
    expansion.group.outcomes = ["wrong", "right", "wrong", "no_answer"]
    archive = Archive(all_wrong_share=1.0)
    archive.add(archiving.config.explore, 1, [expansion, dataclasses.replace(expansion, base=2)])
    (entry,) = archive.entries
    assert (entry.rewards, entry.outcomes) == ([0.7, 0, 1, 0.2], ["right", "wrong", "wrong", "no_answer"])
    (revisited,) = Archive.from_state(json.loads(json.dumps(archive.state_dict()))).revisit(archiving, 2, stream)
    assert revisited.group.success_rate == 0.25
    state = archive.state_dict() | {"entries": [{**vars(entry), "explored": 1, "rewards": [1, 0, 0, 1]}]}
    del state["entries"][0]["outcomes"]  # as checkpoints of earlier versions have it
    (revisited,) = Archive.from_state(state).revisit(archiving, 2, stream)
    assert revisited.group.success_rate == 0.5
    archive.observe([expansion.group])
    assert archive.all_wrong_share == pytest.approx(0.9)


def test_the_archive_is_open_while_most_prompts_are_all_wrong(archiving, stream):
    archive = filled(archiving, stream)
    archive.all_wrong_share = None
    assert archive.revisit(archiving, 2, stream) == []

    def groups(*rewards):
        return [SimpleNamespace(right=np.array(row, bool)) for row in rewards]

    archive.observe(groups([0, 0], [0, 0], [0, 1], [1, 1]))
    assert archive.all_wrong_share == 0.5 and archive.revisit(archiving, 2, stream) == []
    for _ in range(4):
        archive.observe(groups([0, 0]))
    assert archive.all_wrong_share == pytest.approx(1 - 0.5 * 0.9**4)
    assert len(archive.revisit(archiving, 2, stream)) == 1


def test_a_base_is_revisited_once_a_step_and_not_in_the_step_that_sampled_it(archiving, stream):
    archive = filled(archiving, stream, step=4, positions=(0, 1, 2))
    assert archive.revisit(archiving, 4, stream) == []
    first, second, third = (archive.revisit(archiving, 5, stream) for _ in range(3))
    assert (len(first), len(second), third) == (2, 1, [])
    assert sorted(e.group.position for e in first + second) == [0, 1, 2]
    assert len(archive.revisit(archiving, 6, stream)) == 2


def test_an_archive_restored_from_json_equals_the_saved_one(archiving, stream):
    archive = filled(archiving, stream, positions=(0, 1, 2))
    archive.revisit(archiving, 2, stream)
    found = Archive.from_state(json.loads(json.dumps(archive.state_dict())))
    assert found == archive


@pytest.mark.parametrize("initial_state", ["base_mean", "fresh"])
def test_revisited_states_are_those_of_the_archived_base_under_the_current_weights(
    archiving, stream, params, tiny_run, initial_state
):
    twin = tiny_run.changed(archiving, explore__initial_state=initial_state, explore__block_credit=True)
    anchored = filled(twin, stream).revisit(twin, 2, stream)
    twin.sampler.engine.take_counts()
    (expansion,) = roll_out_states(twin, params, 2, anchored)
    prompt, base = expansion.group.prompt_ids, expansion.group.rollouts[0].token_ids
    assert twin.sampler.engine.take_counts().prefill_positions == len(prompt) + len(base)
    logprobs = tiny_run.log_softmax(tiny_run.full_logits(twin, params, [*prompt, *base]))
    entropies = -(np.exp(logprobs) * logprobs).sum(axis=1)
    assert expansion.forks == ([0, 2, 4] if initial_state == "fresh" else [2, 4])
    for fork, state in zip(expansion.forks, expansion.rollouts, strict=True):
        for rollout in state:
            assert rollout.entropies[0] == pytest.approx(entropies[len(prompt) + fork - 1], abs=1e-5)
            assert fork + len(rollout.token_ids) <= 10
    rewarded = dataclasses.replace(expansion, rewards=[np.array([1.0, 0, 0])] * len(expansion.states))
    (expansion,) = assign_advantages(twin.config, [rewarded])
    start = 1 / 3 if initial_state == "fresh" else 0.25
    first = expansion.states.index(1)
    assert expansion.alphas[first] == pytest.approx(np.exp(-(1 / 3 - start)), rel=1e-5)
    (trunk,) = explored_trunks(twin.config, 2, [expansion])
    assert len(trunk.branches) == 3 * len(expansion.states), "the archived base itself is of older weights"


def test_revisited_bases_name_noise_and_records_by_their_original_index(archiving, stream, params, monkeypatch):
    streams, sample = [], archiving.sampler.engine.sample

    def noted(params, requests, *callbacks, **named):
        streams.extend(branch.stream for request in requests for branch in request.branches)
        return sample(params, requests, *callbacks, **named)

    monkeypatch.setattr(archiving.sampler.engine, "sample", noted)
    archive = Archive(all_wrong_share=1.0)
    bases = [expansion_of(archiving, stream, 3, [0, 1, 1, 0], base) for base in (1, 2)]
    archive.add(archiving.config.explore, 1, bases)
    explored = roll_out_states(archiving, params, 5, archive.revisit(archiving, 5, stream))
    assert len(streams) == len(set(streams)) == 2 * 2 * 3, "two bases of one prompt share their noise"
    expansions = assign_advantages(archiving.config, explored)
    records = list(rollout_records(5, [], expansions))
    assert {(record.base, record.parent) for record in records} == {(1, "1/3/1"), (2, "1/3/2")}
    assert len({record.id for record in records}) == len(records) == 12
