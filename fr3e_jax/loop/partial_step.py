"""The state of a run that was stopped inside a step: beside the checkpoints, in the folder ``partial_step``.

It has the weights of that moment and all that was sampled, so that the resumed run samples nothing twice and ends equal
to the last bit with a run that nothing interrupted. It counts until a checkpoint of a later step is complete.

    partial_step/values_N.bin    rollouts, rewards and the host's state (`fr3e_jax.runs.packed_values`)
    partial_step/arrays/N/       weights, optimizer and the decoder's caches, as in a checkpoint
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fr3e_jax.cluster.processes import Processes
from fr3e_jax.configuration.schema import ReturnConfig
from fr3e_jax.learning.critic import CriticBatch
from fr3e_jax.learning.experience import TrainingBranch, TrainingTrunk
from fr3e_jax.learning.learner import Learner
from fr3e_jax.learning.reference import ReferenceResets
from fr3e_jax.learning.scoring import Scores
from fr3e_jax.learning.update import BegunUpdate, Sums
from fr3e_jax.loop.collection import AheadState, Collected, PartialBatch, Start
from fr3e_jax.loop.expansion import Anchored, Credited, Explored, PromptGroup
from fr3e_jax.loop.kept_bases import KeptBase, KeptBases
from fr3e_jax.loop.progress import Progress
from fr3e_jax.loop.resumption import changes
from fr3e_jax.loop.round_size import Yield
from fr3e_jax.problem import Problem
from fr3e_jax.programs.decoder_programs import described
from fr3e_jax.rollouts.engine import RolloutEngine
from fr3e_jax.rollouts.episode import EpisodeRecord, Turn
from fr3e_jax.rollouts.episodes import EpisodeProgress, PlayedTurn
from fr3e_jax.rollouts.requests import CachedTrunk, DecodeCounts, Rollout
from fr3e_jax.rollouts.suspension import ON_DEVICE, SuspendedCall
from fr3e_jax.rollouts.tool_calls import CallProgress
from fr3e_jax.runs.checkpoint_damage import DamagedCheckpoint
from fr3e_jax.runs.checkpoints import Checkpointer
from fr3e_jax.runs.packed_values import Packer, Unpacker, UnreadableValues
from fr3e_jax.runs.run_directory import RunDirectory
from fr3e_jax.session.sampler import FinishedCall, SuspendedRound

HARMLESS = ("training.max_steps", "training.max_sampled_tokens", "evaluation.", "checkpoint.", "name:")
"""Settings that may change without an effect on what a step samples and trains."""

_BEFORE_ALL = -1  # any checkpoint is of a later step


@dataclass
class PartialStep:
    """How far the step under way is; and the next one, which is sampled meanwhile (`rollout.async_steps`)."""

    partial: PartialBatch | None = None  # its batch is not full
    collected: Collected | None = None  # its batch is full
    update: BegunUpdate | None = None  # mini-batches have trained
    ahead: AheadState | None = None
    samples_ahead: bool = False  # the weights that sample the next step are those of `Learner.behaviour` already
    signal: str = ""

    def without_calls(self) -> PartialStep:
        """The same, but rounds under way begin anew."""
        partial, ahead = self.partial, self.ahead
        if partial is not None:
            partial = replace(partial, calls=SuspendedRound())
        if ahead is not None and ahead.partial is not None:
            ahead = replace(ahead, partial=replace(ahead.partial, calls=SuspendedRound()))
        return replace(self, partial=partial, ahead=ahead)


_CLASSES = (
    *(PartialStep, PartialBatch, Collected, AheadState, Start, Progress),
    *(KeptBases, KeptBase, ReturnConfig, Yield, ReferenceResets),
    *(PromptGroup, Anchored, Explored, Credited, TrainingTrunk, TrainingBranch, Rollout),
    *(SuspendedRound, FinishedCall, SuspendedCall, CachedTrunk, DecodeCounts, CallProgress),
    *(EpisodeRecord, EpisodeProgress, PlayedTurn, Turn),
    *(BegunUpdate, Sums, Scores, CriticBatch),
)


@dataclass(frozen=True)
class Restored:
    """A partial step that was read: the checkpoint's host state and arrays, and the rest."""

    host: dict[str, Any]
    arrays: dict[str, Any]
    step: PartialStep


class PartialSteps:
    """Saves and reads the partial step of a run; on several processes all make the same calls.

    Args:
      run: the directory of the run.
      processes: they share it.
      engine: samples the run's rollouts.
      problem_at: the problem at a position of the run's stream.
    """

    def __init__(
        self,
        run: RunDirectory,
        processes: Processes,
        engine: RolloutEngine,
        problem_at: Callable[[int], Problem],
    ):
        self._folder, self._processes, self._engine = run.partial_step, processes, engine
        self._derived = {"PromptGroup": {"problem": lambda own: problem_at(own["position"])}}
        self._of: int | None = None  # the last whole step before the one that is saved here

    def save(self, learner: Learner, host: Mapping[str, Any], step: PartialStep) -> None:
        """Save a partial step, and drop an earlier one once this is complete.

        Raises:
          CheckpointFailed: see `Checkpointer.save`.
        """
        packer = Packer(_CLASSES, ON_DEVICE, self._derived)
        content = packer.content(step)
        with self._checkpoints() as checkpoints:
            number = (checkpoints.latest_step() or 0) + 1
            if self._processes.first:
                packer.write(self._values(number), content, [described(one) for one in packer.device])
            arrays = {"learner": learner.arrays(), "held": {str(n): one for n, one in enumerate(packer.device)}}
            own = {"updates_done": learner.updates, "layout": _layout(self._engine), "row_menu": learner.menu.to_json()}
            checkpoints.save(number, arrays, {**host, **own}, None)
            checkpoints.wait()
        if self._processes.first:
            for path in self._folder.glob("values_*.bin"):
                if path != self._values(number):
                    path.unlink()
        self._of = host["step"]

    def read(
        self, newest: int | None, identity: Mapping[str, Any], abstract: dict[str, Any], tell: Callable[[str], None]
    ) -> Restored | None:
        """The partial step to go on from; None: there is none that is later than the ``newest`` checkpoint.

        Args:
          newest: the step of the newest checkpoint.
          identity: of the run that goes on (`fr3e_jax.session.run_identity`).
          abstract: shapes of the learner's arrays.
          tell: gets a line if what is there cannot be used.

        Raises:
          DamagedCheckpoint: it is damaged, and several processes run, which may see different damage.
        """
        if not self._processes.on_first(lambda: self._folder.is_dir()):
            return None
        again = "; the run goes on from its newest checkpoint and samples the step again"
        try:
            with self._checkpoints() as checkpoints:
                number = checkpoints.latest_step()
                if number is None:  # a kill came before it was complete
                    self._of = _BEFORE_ALL
                    return None
                host = checkpoints.host_state(number)
                self._of = host["step"]
                if newest is not None and host["step"] < newest:
                    return None
                lines = changes(host["identity"], identity)
                if found := [line for line in lines if not line.startswith(HARMLESS)]:
                    tell(f"{self._folder} is not used, because settings have changed ({found[0]}){again}")
                    return None
                return self._read(checkpoints, number, host, abstract, tell)
        except (DamagedCheckpoint, UnreadableValues) as error:
            if self._processes.count > 1:
                raise DamagedCheckpoint(f"{error}; move {self._folder} away to sample the step again") from error
            tell(f"{error}; moved to {_moved_aside(self._folder)}{again}")
            return None

    def _read(
        self,
        checkpoints: Checkpointer,
        number: int,
        host: dict[str, Any],
        abstract: dict[str, Any],
        tell: Callable[[str], None],
    ) -> Restored:
        file = Unpacker(self._values(number), _CLASSES, self._derived)
        same = host["layout"] == _layout(self._engine)
        shapes = [self._engine.programs.abstract(one) for one in file.device] if same else []
        wanted = {"learner": abstract, "held": {str(n): one for n, one in enumerate(shapes)}}
        arrays, _ = checkpoints.restore(number, wanted, partial=not same)
        held = arrays["held"]
        step = file.value([held[str(n)] for n in range(len(shapes))] if same else [None] * len(file.device))
        if not same:
            tell("the mesh or the layout of lanes has changed: the round of the stop is sampled again")
            step = step.without_calls()
        return Restored(host, arrays["learner"], step)

    def drop_before(self, newest: int | None) -> None:
        """Remove the partial step if the checkpoint ``newest``, which is complete, is of a later step."""
        if self._of is not None and newest is not None and newest > self._of:
            if self._processes.first:
                shutil.rmtree(self._folder, ignore_errors=True)
            self._of = None

    def _checkpoints(self) -> Checkpointer:
        return Checkpointer(self._folder / "arrays", keep_last=1, keep_best=0, best_metric="")

    def _values(self, number: int) -> Path:
        return self._folder / f"values_{number}.bin"


def _layout(engine: RolloutEngine) -> list[Any]:
    """What the decoder's state depends on beside the requests; JSON content."""
    mesh = {name: int(size) for name, size in engine.programs.mesh.shape.items()}
    return [mesh, engine.slots, engine.lanes, engine.chunk, engine.fitted]


def _moved_aside(folder: Path) -> Path:
    new, number = folder.with_name(f"damaged_{folder.name}"), 1
    while new.exists():
        number += 1
        new = folder.with_name(f"damaged_{folder.name}_{number}")
    return folder.rename(new)
