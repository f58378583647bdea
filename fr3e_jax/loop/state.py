"""The whole state of a training run between two steps: what a checkpoint holds, and what a resumed run goes on from."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from fr3e_jax.data.stream import PromptStream
from fr3e_jax.learning.experience import TrainingTrunk
from fr3e_jax.learning.learner import Learner, abstract_learner, fresh_learner, restored_learner
from fr3e_jax.learning.reference import ReferenceResets
from fr3e_jax.loop.kept_bases import KeptBases
from fr3e_jax.loop.replay import Replay
from fr3e_jax.loop.success_rates import SuccessRates
from fr3e_jax.programs.critic_programs import CriticPrograms
from fr3e_jax.programs.train_programs import TrainPrograms
from fr3e_jax.runs.ledger import TokenLedger
from fr3e_jax.session.opening import OpenedRun, Restored


@dataclass(kw_only=True)
class Progress:
    """The part of a run's state that every verb has; all parts change in place."""

    learner: Learner
    ledger: TokenLedger = field(default_factory=TokenLedger)
    step: int = 0  # finished steps; while a step is taken, its number
    before: dict[str, float] = field(default_factory=dict)  # held-out metrics of the start
    evaluated: dict[str, float] = field(default_factory=dict)  # held-out metrics of this very step; empty: none

    def host_state(self, opened: OpenedRun) -> dict[str, Any]:
        """Content of a checkpoint beside the learner's arrays; later steps do not change it, `as_json` makes it JSON.

        No generator has a state: the seed in the identity and names such as the step key all noise.
        """
        return {
            "verb": opened.verb,
            "identity": opened.identity,
            "step": self.step,
            "updates": self.learner.updates,
            "before": self.before,
            "evaluated": self.evaluated,
            "ledger": self.ledger.state_dict(),
        }

    def as_json(self, host: dict[str, Any]) -> dict[str, Any]:
        """JSON content of what `host_state` returned."""
        return host

    def load_host_state(self, host: dict[str, Any]) -> None:
        """Take over what `host_state` described; the learner comes from the arrays."""
        self.ledger.load_state_dict(host["ledger"])
        self.step, self.before, self.evaluated = host["step"], host["before"], host["evaluated"]


@dataclass(kw_only=True)
class TrainingState(Progress):
    """Weights, optimizer, prompts, kept bases, carried trunks and counters; a step is a full batch trained on."""

    prompts: PromptStream
    kept_bases: KeptBases
    carried: list[TrainingTrunk] = field(default_factory=list)  # the partial batch
    replay: Replay = field(default_factory=Replay)
    success_rates: SuccessRates = field(default_factory=SuccessRates)
    resets: ReferenceResets = field(default_factory=ReferenceResets)

    def host_state(self, opened: OpenedRun) -> dict[str, Any]:
        return super().host_state(opened) | {
            "partial_batch": list(self.carried),
            "kept_bases": self.kept_bases.state_dict(),
            "replay": self.replay.state_dict(),
            "success_rates": dict(self.success_rates.counts),
            "reference_resets": asdict(self.resets),
            "stream": self.prompts.state_dict(),
        }

    def as_json(self, host: dict[str, Any]) -> dict[str, Any]:
        return host | {"partial_batch": [trunk.to_json() for trunk in host["partial_batch"]]}

    def load_host_state(self, host: dict[str, Any]) -> None:
        super().load_host_state(host)
        self.prompts.load_state_dict(host["stream"])
        self.kept_bases.load_state_dict(host["kept_bases"])
        self.carried = [TrainingTrunk.from_json(content) for content in host["partial_batch"]]
        self.replay.load_state_dict(host["replay"])
        self.success_rates = SuccessRates(host["success_rates"])
        self.resets = ReferenceResets(**host["reference_resets"])


def open_learner(
    opened: OpenedRun, programs: TrainPrograms, critic: CriticPrograms | None = None, *, reference: bool = False
) -> tuple[Learner, Restored | None]:
    """The learner of a run, from its newest checkpoint or fresh, and that checkpoint.

    Raises:
      ConfigError: see `OpenedRun.restore`.
    """
    restored = opened.restore(abstract_learner(programs, critic, reference=reference))
    if restored is not None:
        return restored_learner(programs, critic, restored.arrays, restored.host["updates"]), restored
    params = opened.session.model.fresh_params(opened.session.config)
    return fresh_learner(programs, params, critic, reference=reference), None


def open_state(opened: OpenedRun, ledger: TokenLedger) -> tuple[TrainingState, Restored | None]:
    """The state of a run, from its newest checkpoint or fresh, and that checkpoint; raises as `open_learner`."""
    session, config = opened.session, opened.config
    programs, critic = session.model.train_programs(config), session.model.critic_programs(config)
    learner, restored = open_learner(opened, programs, critic, reference=config.kl.coefficient > 0)
    prompts = session.prompt_stream()
    kept_bases, replay = KeptBases(config.returns), Replay(config.rollout.replay_share)
    state = TrainingState(learner=learner, ledger=ledger, prompts=prompts, kept_bases=kept_bases, replay=replay)
    if restored is not None:
        state.load_host_state(restored.host)
        cap = config.rollout.max_response_tokens  # may be lower now: nothing could follow a longer base
        kept_bases.bases = [base for base in kept_bases.bases if len(base.token_ids) <= cap]
    return state, restored
