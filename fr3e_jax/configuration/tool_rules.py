"""Contradictions between settings of tools and environments, which answer the policy within a response."""

from __future__ import annotations

from fr3e_jax.configuration.contradictions import Rules, first_set, is_range
from fr3e_jax.configuration.environment_section import OBSERVATION
from fr3e_jax.configuration.schema import Config, ToolsConfig


def _missing_mark(tools: ToolsConfig) -> str:
    """``begin`` or ``end`` where a tool of the user's has none; empty if nothing is missing."""
    if tools.kind in ("none", "python"):
        return ""
    return next((name for name in ("begin", "end") if not getattr(tools, name)), "")


def _fills_a_response(config: Config) -> tuple[str, int, str, int] | None:
    """The cap on a text that can fill a whole response, and a smaller one."""
    cap, tools, environment = config.rollout.max_response_tokens, config.tools, config.environment
    for setting, tokens, is_written in (
        ("tools.max_output_tokens", tools.max_output_tokens, tools.kind != "none"),
        ("environment.max_observation_tokens", environment.max_observation_tokens, environment.enabled),
    ):
        if is_written and tokens >= cap:
            return setting, tokens, setting, max(1, cap // 4)
    return None


RULES: Rules = {
    "tool_settings_are_read": (
        lambda c: c.tools.kind == "none" and first_set(c.tools, "begin", "end", "result"),
        "tools.{} is not read with {tools.kind}; nearest: tools.kind=python, or for an environment "
        "environment.turn_end and environment.observation in its place",
    ),
    "a_call_has_marks": (
        lambda c: _missing_mark(c.tools),
        "tools.{} is empty, so a call of {tools.kind} cannot be told from other text; set both, for example "
        "tools.begin='<tool>' and tools.end='</tool>'",
    ),
    "an_answer_has_its_place": (
        lambda c: c.tools.result and "{output}" not in c.tools.result,
        "{tools.result} has no place for the tool's answer; set it to a text with {output} in it",
    ),
    "an_answer_leaves_room": (
        _fills_a_response,
        "{}={} can fill a whole response ({rollout.max_response_tokens}); nearest: {}={}",
    ),
    "one_writer_beside_the_policy": (
        lambda c: c.environment.enabled and c.tools.kind != "none",
        "{environment.kind} and {tools.kind} both answer the policy; let the environment's step() answer calls and set "
        "tools.kind=none, or set environment.kind=none",
    ),
    "the_environment_gives_the_rewards": (
        lambda c: c.environment.enabled and c.data.verifier,
        "{data.verifier} is not called with {environment.kind}, whose steps give the rewards; set data.verifier empty "
        "and return its reward from step()",
    ),
    "an_observation_has_its_place": (
        lambda c: c.environment.observation and OBSERVATION not in c.environment.observation,
        f"{{environment.observation}} has no place for the observation; set it to a text with {OBSERVATION}",
    ),
    "rewards_have_a_range": (
        lambda c: (
            not is_range(c.environment.reward_range)
            or not c.environment.reward_range[0] <= 0 <= c.environment.reward_range[1]
        ),
        "{environment.reward_range} is no range with 0 in it, the sum of an episode that is cut before its first turn; "
        "set environment.reward_range=[-1,1] (or other sums that count as 0 and as 1)",
    ),
}
