"""Settings of mixtures of experts."""

from __future__ import annotations

from dataclasses import dataclass

from fr3e_jax.configuration.options import option


@dataclass
class ExpertsConfig:
    """The training of networks with routed experts; dense networks do not read it."""

    balance_coefficient: float = option(
        0.0,
        "weight of a loss that lets routers use all experts evenly (`router_aux_loss_coef` of transformers), over the "
        "trained tokens; it changes the routers' weights alone; 0: none",
        ge=0,
    )
