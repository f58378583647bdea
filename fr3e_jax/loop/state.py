"""The whole state of a training run between two steps: what a checkpoint holds, and what a resumed run goes on from."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from fr3e_jax.learning.experience import TrainingTrunk
from fr3e_jax.learning.learner import Learner, abstract_learner, fresh_learner, restored_learner
from fr3e_jax.learning.reference import ReferenceResets
from fr3e_jax.loop.kept_bases import KeptBases
from fr3e_jax.loop.prompts import PromptFeed
from fr3e_jax.loop.replay import Replay
from fr3e_jax.loop.round_size import Yield
from fr3e_jax.runs.ledger import TokenLedger
from fr3e_jax.session.opening import OpenedRun, Restored


@dataclass
class TrainingState:
    """Weights, optimizer, prompts, kept bases, carried trunks and counters; each part changes in place."""

    learner: Learner
    prompts: PromptFeed
    kept_bases: KeptBases
    ledger: TokenLedger = field(default_factory=TokenLedger)
    step: int = 0  # full batches trained on; while a step is taken, its number
    before: dict[str, float] = field(default_factory=dict)  # held-out metrics of the start
    evaluated: dict[str, float] = field(default_factory=dict)  # held-out metrics of this very step; empty: none
    carried: list[TrainingTrunk] = field(default_factory=list)  # the partial batch
    yields: Yield = field(default_factory=Yield)
    replay: Replay = field(default_factory=Replay)
    resets: ReferenceResets = field(default_factory=ReferenceResets)

    def host_state(self, identity: dict[str, Any]) -> dict[str, Any]:
        """Content of a checkpoint beside the learner's arrays; later steps do not change it, `as_json` makes it JSON.

        No generator has a state: the seed in ``identity`` and names such as the step key all noise.
        """
        return {
            "verb": "train",
            "identity": identity,
            "step": self.step,
            "updates": self.learner.updates,
            "before": self.before,
            "evaluated": self.evaluated,
            "partial_batch": list(self.carried),
            "kept_bases": self.kept_bases.state_dict(),
            "yields": asdict(self.yields),
            "replay": self.replay.state_dict(),
            "reference_resets": asdict(self.resets),
            "stream": self.prompts.state_dict(),
            "ledger": self.ledger.state_dict(),
        }

    def load_host_state(self, host: dict[str, Any]) -> None:
        """Take over what `host_state` described; the learner comes from the arrays."""
        self.prompts.load_state_dict(host["stream"])
        self.kept_bases.load_state_dict(host["kept_bases"])
        self.ledger.load_state_dict(host["ledger"])
        self.step, self.before, self.evaluated = host["step"], host["before"], host["evaluated"]
        self.carried = [TrainingTrunk.from_json(content) for content in host["partial_batch"]]
        self.yields = Yield(**host["yields"])
        if "replay" in host:  # the state of an older run lacks it
            self.replay.load_state_dict(host["replay"])
        self.resets = ReferenceResets(**host["reference_resets"])


def as_json(host: dict[str, Any]) -> dict[str, Any]:
    """JSON content of what `TrainingState.host_state` returned."""
    return host | {"partial_batch": [trunk.to_json() for trunk in host["partial_batch"]]}


def open_state(opened: OpenedRun, ledger: TokenLedger) -> tuple[TrainingState, Restored | None]:
    """The state of a run, from its newest checkpoint or fresh, and that checkpoint.

    Raises:
      ConfigError: see `OpenedRun.restore`.
    """
    session, config = opened.session, opened.config
    programs, critic = session.model.train_programs(config), session.model.critic_programs(config)
    reference = config.kl.coefficient > 0
    restored = opened.restore(abstract_learner(programs, critic, reference=reference))
    if restored is None:
        params = session.model.fresh_params(config)
        learner = fresh_learner(programs, params, critic, reference=reference)
    else:
        learner = restored_learner(programs, critic, restored.arrays, restored.host["updates"])
    prompts = PromptFeed(session.task.problems("train"), session.texts, config.data)
    state = TrainingState(
        learner, prompts, KeptBases(config.returns), ledger, replay=Replay(config.rollout.replay_share)
    )
    if restored is not None:
        state.load_host_state(restored.host)
    return state, restored
