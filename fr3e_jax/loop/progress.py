"""The progress of a training run, as a checkpoint holds it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from fr3e_jax.configuration.schema import Config
from fr3e_jax.learning.experience import TrainingTrunk
from fr3e_jax.learning.reference import ReferenceResets
from fr3e_jax.loop.kept_bases import KeptBases
from fr3e_jax.loop.prompts import PromptFeed
from fr3e_jax.loop.round_size import Yield
from fr3e_jax.runs.ledger import TokenLedger


@dataclass
class Progress:
    """The host state of a run: with it and the arrays of a checkpoint a run continues exactly."""

    kept_bases: KeptBases
    step: int = 0  # full batches trained on
    updates: int = 0  # optimizer steps
    before: dict[str, float] = field(default_factory=dict)  # held-out metrics of the start
    evaluated: dict[str, float] = field(default_factory=dict)  # held-out metrics of this very step; empty: none
    carried: list[TrainingTrunk] = field(default_factory=list)  # the partial batch
    yields: Yield = field(default_factory=Yield)
    resets: ReferenceResets = field(default_factory=ReferenceResets)

    def host_state(self, config: Config, stream: dict[str, int], ledger: TokenLedger) -> dict[str, Any]:
        """JSON content of a checkpoint beside its arrays; ``stream`` is the state of the prompts."""
        return {
            "verb": "train",
            "step": self.step,
            "updates": self.updates,
            "before": self.before,
            "evaluated": self.evaluated,
            "partial_batch": [trunk.to_json() for trunk in self.carried],
            "kept_bases": self.kept_bases.state_dict(),
            "yields": asdict(self.yields),
            "reference_resets": asdict(self.resets),
            "stream": stream,
            # The seed and names such as the step key all noise: this is the whole state of the generator.
            "random": {"seed": config.seed, "step": self.step},
            "ledger": ledger.state_dict(),
        }

    @classmethod
    def restore(cls, host: dict[str, Any], kept_bases: KeptBases, prompts: PromptFeed, ledger: TokenLedger) -> Progress:
        """The progress that `host_state` described; ``kept_bases``, ``prompts`` and ``ledger`` are set back to it."""
        kept_bases.load_state_dict(host["kept_bases"])
        prompts.load_state_dict(host["stream"])
        ledger.load_state_dict(host["ledger"])
        carried = [TrainingTrunk.from_json(content) for content in host["partial_batch"]]
        return cls(
            step=host["step"],
            updates=host["updates"],
            before=host["before"],
            evaluated=host["evaluated"],
            carried=carried,
            kept_bases=kept_bases,
            yields=Yield(**host.get("yields", {})),
            resets=ReferenceResets(**host["reference_resets"]),
        )
