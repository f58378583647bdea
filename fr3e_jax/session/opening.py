"""Opening a run: its directory under the writer's lock, its checkpoints, and the identity that a resume compares."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from fr3e_jax.configuration import save_config
from fr3e_jax.configuration.error_conversion import as_config_error
from fr3e_jax.configuration.evaluation_sets import best_metric
from fr3e_jax.configuration.schema import Config
from fr3e_jax.runs.checkpoint_content import CheckpointFailed
from fr3e_jax.runs.checkpoints import Checkpointer
from fr3e_jax.runs.metrics import recorded_scores
from fr3e_jax.runs.rollout_parts import Part
from fr3e_jax.runs.run_directory import RunDirectory, check_seen_by_all, open_run
from fr3e_jax.runs.run_lock import RunLock
from fr3e_jax.runs.trackers import check_installed
from fr3e_jax.session.checkpoint_changes import since_checkpoint
from fr3e_jax.session.run_identity import identity
from fr3e_jax.session.session import Session
from fr3e_jax.stores.mirror import Mirror
from fr3e_jax.stores.objects import StoreFailed, join
from fr3e_jax.stores.reading import Place


class Restored(NamedTuple):
    """The newest checkpoint of a run that goes on, and a line for each change since it."""

    step: int
    arrays: Any
    host: dict[str, Any]
    changes: list[str]


@dataclass(frozen=True)
class OpenedRun:
    """A run whose directory this process may write."""

    session: Session
    config: Config  # the settings that are saved
    verb: str
    directory: RunDirectory
    lock: RunLock
    checkpoints: Checkpointer
    identity: dict[str, Any]
    resumed: bool
    mirror: Mirror = field(default_factory=Mirror)

    @property
    def part(self) -> Part:
        """The part of the rollouts that this process stores."""
        return Part(self.session.processes.index, self.session.processes.count)

    @property
    def way_on(self) -> str:
        """The command that continues the run, after "continue with"."""
        address = self.directory.address
        recipe, run = map(shlex.quote, (join(address, self.directory.config.name), address))
        return f"continue with fr3e {self.verb} {recipe} --resume {run}"

    def restore(self, abstract_arrays: Any) -> Restored | None:
        """The newest checkpoint, in arrays like ``abstract_arrays``; None if there is none.

        Raises:
          ConfigError: the checkpoint is of another network, format or run.
        """
        processes = self.session.processes
        with as_config_error():
            newest = self.checkpoints.restore_newest(abstract_arrays, set_aside=processes.count == 1)
        restored = None
        if newest is not None:
            allowed = self.config.runtime.allow_changes
            changes = since_checkpoint(newest[2], self.identity, self.directory, self.verb, allowed)
            restored = Restored(*newest, changes)
        if self.resumed and processes.first:  # only now: settings that do not fit the checkpoint have raised
            step = restored.step if restored else 0
            save_config(self.config, self.directory.path, verb=self.verb, resumed_step=step)
        return restored


@contextlib.contextmanager
def opened_run(
    session: Session,
    verb: str,
    run_dir: Place | None,
    resume: bool,
    *,
    config: Config | None = None,
    demonstrations: bool = False,
) -> Iterator[OpenedRun]:
    """A block in which a run is open; a failure of its checkpoints or its store ends the block with a line.

    Args:
      session: of the run.
      verb: of the command.
      run_dir: the directory of the run, or its address in an object store; None: a new one, as the settings say.
      resume: whether the run goes on.
      config: the settings to save; None: those of the session.
      demonstrations: the run trains on those of the task.

    Raises:
      ConfigError: see `open_run`; or the processes do not share the directory.
    """
    config = config or session.config
    check_installed(config.runtime.trackers)
    with as_config_error():
        frozen = {"base": session.model.base_fingerprint(), "teacher": session.model.teacher_fingerprint()}
        texts, network = session.texts.codec, session.model.architecture
        run_identity = identity(config, session.task, texts, network, demonstrations=demonstrations, **frozen)
    with RunLock() as lock, session.grader, _failures_in_a_line(), Mirror() as mirror:
        opening = partial(open_run, config, run_dir, resume, verb, lock, mirror)
        directory = RunDirectory(session.processes.on_first(opening))
        check_seen_by_all(directory, session.processes.gather)
        metric = best_metric(config.evaluation, config.data.eval)
        scores = session.processes.on_first(lambda: list(recorded_scores(directory.metrics, metric).items()))
        with Checkpointer(
            directory.checkpoints,
            keep_last=config.checkpoint.keep_last,
            keep_best=config.checkpoint.keep_best,
            best_metric=metric,
            scores=dict(scores),
            mirror=mirror,
        ) as checkpoints:
            yield OpenedRun(session, config, verb, directory, lock, checkpoints, run_identity, resume, mirror)


@contextlib.contextmanager
def _failures_in_a_line() -> Iterator[None]:
    """Print a failure of checkpoints or of a store that comes out of the block, and go on after it."""
    try:
        yield
    except (CheckpointFailed, StoreFailed) as error:
        print(f"fr3e: {error}", file=sys.stderr)
