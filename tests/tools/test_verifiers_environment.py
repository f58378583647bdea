"""Environments of ``verifiers`` play their own loop, and an episode earns what their own rubric gives.

They are the package's where it is installed, and else those of `verifiers_stand_in`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from types import ModuleType

import pytest
from verifiers_stand_in import verifiers_package

from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.schema import DataConfig, EnvironmentConfig
from fr3e_jax.rollouts.background_calls import start
from fr3e_jax.tools import verifiers_environment as adapter
from fr3e_jax.tools.environment import Episode, EpisodeFault, Step, check_by_playing, load_environment
from fr3e_jax.tools.verifiers_environment import VerifiersTask

vf, dataset_of = verifiers_package()
ROWS = [{"question": f"{n}+3=", "answer": str(n + 3), "info": {"n": n}} for n in range(20)]


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def ends_right(completion, answer):
    return float(completion[-1]["content"].endswith(answer))


def short(completion, state, info):
    assert state["sampling_args"]["seed"] == 5 and info["n"] >= 0
    return len(completion) / 10


def fails(completion):
    raise KeyError("boom")


def whole_group(completions):
    return [1.0 for _ in completions]


class Echo(vf.MultiTurnEnv):
    """Says what it heard, or does what it hears."""

    async def env_response(self, messages, state, **more):
        said = messages[-1]["content"]
        match said:
            case "exit":
                sys.exit(3)
            case "_exit":
                os._exit(3)
            case "error":
                raise RuntimeError("inside")
            case "its error":
                raise vf.Error("its own")
            case "loop":
                while True:
                    pass
            case "picture":
                return [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
            case "parts":
                return [{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "user", "content": "b"}]
            case "endpoint":
                await state["client"].client.chat.completions.create(messages=messages)
            case "native":
                await state["client"].get_native_response(messages, "policy", {})
            case "other":
                return await self.another(state)
        return [{"role": "user", "content": f"heard {said}"}]

    async def another(self, state):
        await state["client"].get_response([{"role": "user", "content": "Who are you?"}], "policy", {})


def environment(kind=vf.SingleTurnEnv, funcs=(ends_right,), weights=None, **more):
    rubric = more.pop("rubric", None) or vf.Rubric(funcs=list(funcs), weights=weights)
    return kind(dataset=dataset_of(ROWS), rubric=rubric, **more)


def played(task, texts, problem=0):
    """The steps of an episode."""
    episode = Episode(task.environment, task.problems("train")[problem], 5)
    assert episode.first == ""
    try:
        return [episode.step(text) for text in texts]
    finally:
        episode.abandon()


@pytest.mark.parametrize(
    ("make", "texts", "observations", "reward"),
    [
        (lambda: environment(), ["is 4"], [""], 1.0),
        (lambda: environment(), [""], [""], 0.0),
        (lambda: environment(funcs=(ends_right, short), weights=[0.5, 2]), ["4"], [""], 0.7),
        (lambda: environment(funcs=(ends_right, fails), weights=[1, 0]), ["4"], [""], 1.0),
        (
            lambda: environment(rubric=vf.RubricGroup([vf.Rubric([ends_right], [0.25]), vf.Rubric([short])])),
            ["4"],
            [""],
            0.35,
        ),
        (lambda: environment(Echo, max_turns=2), ["a", "4"], ["heard a", ""], 1.0),
        (lambda: environment(Echo), ["parts", "b", "4"], ["a\nb", "heard b", ""], 1.0),
        (
            lambda: environment(vf.ToolEnv, tools=[add]),
            ['I add <tool_call>{"name": "add", "arguments": {"a": 1, "b": 3}}</tool_call>', "It is 4"],
            ["<tool_response>\n4\n</tool_response>", ""],
            1.0,
        ),
        (
            lambda: environment(vf.ToolEnv, tools=[add]),
            ['<tool_call>{"name": "add"</tool_call><tool_call>{"name": "no", "arguments": "{}"}</tool_call>', "4"],
            [
                "<tool_response>\nExpecting ',' delimiter: line 1 column 15 (char 14)\n</tool_response>\n"
                "<tool_response>\n'no'\n</tool_response>",
                "",
            ],
            1.0,
        ),
    ],
)
def test_turns_observations_and_rewards_are_the_environments(make, texts, observations, reward):
    task = VerifiersTask(make())
    task.environment.limit_turns(3)
    steps = played(task, texts)
    assert [step.observation for step in steps] == observations
    assert [step.done for step in steps] == [False] * (len(texts) - 1) + [True]
    assert [step.reward for step in steps] == pytest.approx([0.0] * (len(texts) - 1) + [reward])
    assert played(task, texts) == steps and steps[-1].right is None


def test_an_episode_earns_what_the_package_gives_the_same_completion():
    made = environment(funcs=(ends_right, short), weights=[0.3, 0.7])
    task = VerifiersTask(made)

    class Fixed(adapter.VerifiersEnvironment):
        async def answer(self, prompt, tools):
            return adapter._response("is 4", bool(tools))

    async def by_itself(row):
        state = await made.rollout(row, adapter._client(Fixed(made)), "model", {"seed": 5})
        await made.rubric.score_rollout(state)
        return state["reward"]

    problem = task.problems("train")[0]
    assert played(task, ["is 4"])[-1].reward == asyncio.run(by_itself(problem.extra["row"])) > 0


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("exit", "raised SystemExit: 3"),
        ("_exit", "raised SystemExit"),
        ("error", "raised RuntimeError: inside"),
        ("its error", "raised Error: its own"),
        ("picture", "has the part {'type': 'image_url'"),
        ("other", "asks the policy with other messages"),
        ("endpoint", "the policy has no endpoint; expected an environment that asks it by client.get_response("),
        ("native", "the policy has no endpoint"),
    ],
)
def test_a_fault_of_an_environment_ends_its_episode_alone(text, fault):
    task = VerifiersTask(environment(Echo))
    task.environment.limit_turns(2)
    with pytest.raises(EpisodeFault) as raised:
        played(task, [text])
    assert fault in str(raised.value) and "in turn 1 of problem train/1" in str(raised.value)
    assert played(task, ["a", "4"])[-1] == Step("", 1.0, True)


@pytest.mark.parametrize(("turns", "left"), [(-1, 2), (1, 1), (9, 2)])
def test_the_setting_of_turns_limits_the_environment_s_turns_so_that_the_last_is_scored(turns, left):
    made = environment(Echo, max_turns=turns)
    make = load_environment(EnvironmentConfig(kind="task", max_turns=2), VerifiersTask(made))
    assert make is not None and made.max_turns == left
    assert [step.done for step in played(VerifiersTask(made), ["a", "4"][:left])] == [False, True][-left:]


def test_a_weighted_reward_that_raises_is_a_fault_and_no_silent_zero():
    with pytest.raises(EpisodeFault, match="raised KeyError: 'boom'"):
        played(VerifiersTask(environment(funcs=(ends_right, fails))), ["4"])


def test_an_environment_that_holds_the_loop_is_interrupted_and_others_play_on():
    task = VerifiersTask(environment(Echo))
    task.environment.limit_turns(2)
    assert start(lambda: played(task, ["loop"]), at_once=False).wait(0.2) is None
    assert played(task, ["a", "4"])[-1].reward == 1.0


def test_problems_are_the_rows_with_their_tools_and_every_tenth_is_held_out():
    task = VerifiersTask(environment(vf.ToolEnv, tools=[add], system_prompt="Be brief."))
    train, test = task.problems("train"), task.problems("test")
    assert [problem.id for problem in test] == ["train/0", "train/10"] and len(train) == 18
    asked, (tool,) = train[0].prompt.messages, train[0].prompt.tools
    assert [message["content"] for message in asked] == ["Be brief.", "1+3="] and train[0].gold == "4"
    assert tool["function"]["name"] == "add" and tool["function"]["description"] == "Add two numbers."
    assert check_by_playing(task.environment, train[0], "task", []) == ""
    with pytest.raises(ConfigError, match="problem train/1 is graded by its environment alone"):
        task.verifier()(train[0], "4", True)
    task = VerifiersTask(environment(eval_dataset=dataset_of(ROWS[:3])))
    assert [len(task.problems(split)) for split in ("train", "test")] == [20, 3]
    assert task.problems("train")[1].prompt == "1+3="


class SandboxEnv(Echo): ...


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: environment(funcs=(whole_group,)), "rewards of whole groups of rollouts"),
        (lambda: environment(score_rollouts=False), "score_rollouts=False"),
        (lambda: environment(SandboxEnv), "is a SandboxEnv, which runs code in a remote sandbox"),
        (lambda: object(), "without rollout() and rubric"),
    ],
)
def test_an_environment_that_cannot_be_played_is_refused_by_name(make, complaint):
    with pytest.raises(ConfigError) as error:
        VerifiersTask(make())
    assert complaint in str(error.value)


@pytest.mark.parametrize(("version", "taken"), [("0.1.14", 1), ("0.3.1", 1), ("0.1.9.post3", 0), ("0.4.0", 0)])
def test_other_versions_are_refused_by_name(version, taken, monkeypatch):
    monkeypatch.setattr(vf, "__version__", version)
    if taken:
        return adapter.check_version()
    with pytest.raises(ConfigError, match=f"verifiers {version} is installed; expected 0.1.14 or later and before 0.4"):
        adapter.check_version()


def test_a_recipe_names_the_module_and_its_arguments(monkeypatch):
    module = ModuleType("my_environment")
    module.load_environment = lambda size: environment(eval_dataset=dataset_of(ROWS[:size]))
    monkeypatch.setitem(sys.modules, "my_environment", module)
    named = {"task": "verifiers", "environment": "my-environment"}
    task = adapter.task(DataConfig(**named, environment_options=["size=4"]))
    assert len(task.problems("test")) == 4
    for change, complaint in (
        ({}, r"data.environment=my-environment: .*size"),
        ({"environment": ""}, "data.task=verifiers plays the environment that data.environment names"),
        ({"environment": "absent"}, "data.environment=absent: .*absent"),
        ({"environment_options": ["size"]}, "data.environment_options has 'size'; expected NAME=VALUE"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            adapter.task(DataConfig(**named | change))
