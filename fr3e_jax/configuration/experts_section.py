"""Settings of mixtures of experts."""

from __future__ import annotations

from dataclasses import dataclass

from fr3e_jax.configuration.options import option


@dataclass
class ExpertsConfig:
    """How networks with routed experts train; dense networks do not read it."""

    router_replay: bool = option(
        True,
        "rollouts record the experts of each token, and scoring and training pass the same ones, with weights of their "
        "own; false: routers choose anew, and rounding sends some tokens elsewhere",
    )
