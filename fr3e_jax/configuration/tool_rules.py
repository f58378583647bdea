"""Contradictions between settings of tools and environments, which answer the policy within a response."""

from __future__ import annotations

from fr3e_jax.configuration.contradictions import rule, training_rule
from fr3e_jax.configuration.environment_section import OBSERVATION
from fr3e_jax.configuration.schema import Config


@rule("tools.kind", "tools.begin", "tools.end", "tools.result", "tools.branching", "environment.kind")
def tool_settings_are_read(config: Config) -> str | None:
    tools = config.tools
    unread = [name for name in ("begin", "end", "result", "branching") if getattr(tools, name)]
    if tools.kind != "none" or config.environment.enabled or not unread:
        return None
    return f"tools.{unread[0]} is not read with tools.kind=none; nearest: tools.kind=python"


@rule("tools.kind", "tools.begin", "tools.end")
def a_call_has_marks(config: Config) -> str | None:
    tools = config.tools
    missing = [name for name in ("begin", "end") if not getattr(tools, name)]
    if tools.kind in ("none", "calculator", "python") or not missing:
        return None
    return (
        f"tools.{missing[0]} is empty, so a call of tools.kind={tools.kind} cannot be told from other text; "
        f"set tools.{missing[0]}, for example tools.begin='<tool>' and tools.end='</tool>'"
    )


@rule("tools.result")
def an_answer_has_its_place(config: Config) -> str | None:
    result = config.tools.result
    if not result or "{output}" in result:
        return None
    return f"tools.result={result!r} has no place for the tool's answer; set it to a text with {{output}} in it"


@rule("tools.max_output_tokens", "rollout.max_response_tokens")
def an_answer_leaves_room(config: Config) -> str | None:
    most, cap = config.tools.max_output_tokens, config.rollout.max_response_tokens
    if config.tools.kind == "none" or most < cap:
        return None
    return (
        f"tools.max_output_tokens={most} can fill a whole response (rollout.max_response_tokens={cap}); "
        f"nearest: tools.max_output_tokens={max(1, cap // 4)}"
    )


@training_rule("tools.branching", "tools.initial_rollouts", "rollout.rollouts_per_prompt")
def branching_has_rollouts_left(config: Config) -> str | None:
    first, base = config.tools.initial_rollouts, config.rollout.rollouts_per_prompt
    if not config.tools.branching or first < base:
        return None
    return (
        f"tools.initial_rollouts={first} leaves no rollout of rollout.rollouts_per_prompt={base} for branches; "
        f"nearest: tools.initial_rollouts={max(1, base // 2)}"
    )


@training_rule("tools.branching", "explore.enabled")
def one_way_of_branching(config: Config) -> str | None:
    if not config.tools.branching or not config.explore.enabled:
        return None
    return (
        "tools.branching=true (ARPO) and explore.enabled=true (FR3E) both branch, but a rollout that branched from "
        "another one has no cache of its own to explore anchors from; set explore.enabled=false, or "
        "tools.branching=false to explore rollouts that call tools"
    )


@training_rule("rollout.draws", "tools.branching")
def parts_of_a_group_make_up_the_whole(config: Config) -> str | None:
    if config.rollout.draws == "independent" or not config.tools.branching:
        return None
    return (
        f"rollout.draws={config.rollout.draws} divides the distribution of responses among the rollouts of a prompt, "
        "but tools.branching=true (ARPO) continues some of them in place of others; set rollout.draws=independent, or "
        "tools.branching=false"
    )


@rule("environment.kind", "tools.kind")
def one_writer_beside_the_policy(config: Config) -> str | None:
    if not config.environment.enabled or config.tools.kind == "none":
        return None
    return (
        f"environment.kind={config.environment.kind} and tools.kind={config.tools.kind} both answer the policy; let "
        "the environment's step() answer calls and set tools.kind=none, or set environment.kind=none"
    )


@rule("environment.kind", "tools.begin", "tools.end", "tools.result")
def marks_of_tools_are_not_read(config: Config) -> str | None:
    unread = [name for name in ("begin", "end", "result") if getattr(config.tools, name)]
    if not config.environment.enabled or not unread:
        return None
    return (
        f"tools.{unread[0]} is not read with environment.kind={config.environment.kind}; set environment.turn_end or "
        f"environment.observation in its place, and tools.{unread[0]} empty"
    )


@rule("environment.kind", "data.verifier")
def the_environment_gives_the_rewards(config: Config) -> str | None:
    if not config.environment.enabled or not config.data.verifier:
        return None
    return (
        f"data.verifier={config.data.verifier} is not called with environment.kind={config.environment.kind}, whose "
        "steps give the rewards; set data.verifier empty and return its reward from step()"
    )


@rule("environment.observation")
def an_observation_has_its_place(config: Config) -> str | None:
    form = config.environment.observation
    if not form or OBSERVATION in form:
        return None
    return f"environment.observation={form!r} has no place for the observation; set it to a text with {OBSERVATION}"


@rule("environment.max_observation_tokens", "rollout.max_response_tokens")
def an_observation_leaves_room(config: Config) -> str | None:
    most, cap = config.environment.max_observation_tokens, config.rollout.max_response_tokens
    if not config.environment.enabled or most < cap:
        return None
    return (
        f"environment.max_observation_tokens={most} can fill a whole response (rollout.max_response_tokens={cap}); "
        f"nearest: environment.max_observation_tokens={max(1, cap // 4)}"
    )


@rule("environment.least_reward", "environment.most_reward")
def rewards_have_a_range(config: Config) -> str | None:
    least, most = config.environment.least_reward, config.environment.most_reward
    if least < most:
        return None
    return (
        f"environment.least_reward={least:g} is not below environment.most_reward={most:g}; "
        f"nearest: environment.most_reward={least + 1:g}"
    )


@rule("environment.least_reward", "environment.most_reward")
def an_episode_without_a_turn_is_in_range(config: Config) -> str | None:
    least, most = config.environment.least_reward, config.environment.most_reward
    if least <= 0 <= most:
        return None
    name = "least_reward" if least > 0 else "most_reward"
    return (
        f"environment.{name}={getattr(config.environment, name):g} leaves out 0, the sum of an episode that is cut "
        f"before its first turn; nearest: environment.{name}=0"
    )
