"""The contradictions of held-out evaluation."""

from __future__ import annotations

from fr3e_jax.configuration.contradictions import rule
from fr3e_jax.configuration.evaluation_sets import set_settings
from fr3e_jax.configuration.schema import Config


@rule("evaluation.sets", "data.eval")
def entries_of_sets_can_be_read(config: Config) -> str | None:
    try:
        set_settings(config)
    except ValueError as error:
        return str(error)
    return None
