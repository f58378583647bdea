"""Settings of environments: episodes of several turns."""

from __future__ import annotations

from dataclasses import dataclass

from fr3e_jax.configuration.options import option

OBSERVATION = "{observation}"


@dataclass
class EnvironmentConfig:
    """The environment that the policy acts in: each turn it writes a text and reads an observation."""

    kind: str = option(
        "none",
        "none, task (the environment that data.task has), or 'FILE.py:NAME' / 'package.module:NAME' of your own class",
    )
    turn_end: str = option("", "text that ends a turn; a stop token ends it, too; empty: a stop token alone")
    observation: str = option(
        "",
        "text that is appended after a turn, with {observation} in it; empty: the user's message of the chat template "
        "if data.template is one, else the observation alone",
    )
    max_turns: int = option(8, "turns of an episode; it ends after the last one", ge=1)
    max_observation_tokens: int = option(
        32, "tokens of an observation, cut if longer; they count towards rollout.max_response_tokens", ge=1
    )
    seconds: float = option(30.0, "time by the clock for a step; then the episode ends with reward 0", gt=0)
    reward_range: list[float] = option([0.0, 1.0], "sums of an episode's rewards that count as 0 and as 1")

    @property
    def enabled(self) -> bool:
        """true if there is an environment."""
        return self.kind != "none"
