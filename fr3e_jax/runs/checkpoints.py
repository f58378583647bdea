"""Checkpoints of a run: device arrays and host state of a step, saved in the background and all or nothing."""

from __future__ import annotations

import contextlib
import math
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from fr3e_jax.runs.checkpoint_content import (
    ArrayTree,
    CheckpointFailed,
    DamagedCheckpoint,
    check_structure,
    content_of,
    damage_named,
    describe,
    flatten_arrays,
    move_aside,
    verified_content,
    verify_arrays,
)
from fr3e_jax.runs.orbax_noise import silence_orbax
from fr3e_jax.stores.mirror import Mirror
from fr3e_jax.stores.objects import StoreFailed


class Checkpointer:
    """Saves and restores the steps of one run.

    It keeps the last ``keep_last`` steps, and also the ``keep_best`` steps with the highest scores. A step counts only
    once its directory is complete. A directory that a kill left incomplete is never read, and is removed before the
    next save.

    On several processes, each must make the same calls with the same host state and scores.
    """

    def __init__(
        self,
        directory: Path,
        *,
        keep_last: int = 1,
        keep_best: int = 0,
        best_metric: str = "",
        scores: Mapping[int, float] | None = None,
        read_only: bool = False,
        mirror: Mirror | None = None,
    ) -> None:
        """Open the checkpoints in ``directory``.

        Args:
          directory: of all steps.
          keep_last: number of newest steps to keep.
          keep_best: number of best steps to keep as well.
          best_metric: name of the held-out metric that scores a step; "": steps have no scores.
          scores: those of earlier steps (`fr3e_jax.runs.metrics.recorded_scores`).
          read_only: change nothing on disk, so that the run can go on.
          mirror: before a step is saved, it uploads the one before, so that a store that works lacks one checkpoint.
        """
        self._directory = Path(directory).absolute()
        self._keep_last, self._keep_best, self._best_metric = keep_last, keep_best, best_metric
        self._scores = dict(scores or {})
        self._failed = False  # and said so
        self._mirror = mirror or Mirror()
        silence_orbax()
        options = ocp.CheckpointManagerOptions(
            preservation_policy=self,
            cleanup_tmp_directories=not read_only,
            create=not read_only,
            read_only=read_only,
        )
        handlers = {"arrays": ocp.StandardCheckpointHandler(), "host": ocp.JsonCheckpointHandler()}
        self._manager = ocp.CheckpointManager(self._directory, options=options, item_handlers=handlers)

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Which of these steps stay on disk; the manager asks before it deletes."""
        steps = [checkpoint.step for checkpoint in checkpoints]
        kept = {*steps[-self._keep_last :], *self._best_first(steps)[: self._keep_best]}
        return [step in kept for step in steps]

    def _best_first(self, steps: Sequence[int]) -> list[int]:
        """The steps that have a score, from the best on; of equals the later one first."""
        scored = [step for step in steps if step in self._scores]
        return sorted(scored, key=lambda step: (self._scores[step], step), reverse=True)

    def save(self, step: int, arrays: ArrayTree, host: Mapping[str, Any], metrics: Mapping[str, Any] | None) -> bool:
        """Start saving; the arrays may be donated or changed as soon as this returns.

        Args:
          step: later than all saved steps. A step that is already saved is left as it is; ``metrics`` `rank` it.
          arrays: any pytree of arrays, sharded or not.
          host: JSON content with string keys: position in the data, partial batch, counters.
          metrics: with a finite ``best_metric`` among them, the step can become one of the best.

        Returns:
          False if the step was saved already.

        Raises:
          TypeError: ``host`` would not come back equal from JSON, or a leaf of ``arrays`` is not an array.
          ValueError: a later step is saved.
          CheckpointFailed: an earlier save failed in the background.
        """
        self.wait()
        latest = self.latest_step()
        if latest is not None and step < latest:
            raise ValueError(
                f"cannot save step {step}: {self._directory} already holds step {latest}; expected steps in rising "
                "order: resume from the latest step, or move the later checkpoints away"
            )
        if step == latest:
            self.rank(step, metrics)
            return False
        self._keep_up_mirror()
        flat = flatten_arrays(arrays)
        content = content_of(host, flat)
        self._check_space(step, flat)
        self._scores.pop(step, None)  # of a damaged checkpoint of that step
        self.rank(step, metrics)
        with self._explained_errors(f"saving step {step}"):
            self._manager.save(
                step,
                args=ocp.args.Composite(arrays=ocp.args.StandardSave(flat), host=ocp.args.JsonSave(content)),
            )
        return True

    def _keep_up_mirror(self) -> None:
        try:
            self._mirror.keep_up()
        except StoreFailed as error:
            self._failed = True
            raise CheckpointFailed(str(error)) from error

    def rank(self, step: int, metrics: Mapping[str, Any] | None) -> None:
        """Let a step without a score become one of the best; it may have been saved before its evaluation."""
        score = (metrics or {}).get(self._best_metric)
        if score is not None and math.isfinite(score):
            self._scores.setdefault(step, float(score))

    def _check_space(self, step: int, arrays: Mapping[str, Any]) -> None:
        """Refuse a checkpoint that cannot fit before any byte is written.

        Raises:
          CheckpointFailed: the file system has less free space than this process's share of the arrays.
        """
        needed = sum(shard.data.nbytes for leaf in arrays.values() for shard in getattr(leaf, "addressable_shards", ()))
        free = shutil.disk_usage(self._directory).free
        if free < needed:
            self._failed = True
            raise CheckpointFailed(
                f"saving step {step} failed: No space left in {self._directory}: {free / 1e6:,.1f} MB are free, the "
                f"arrays take {needed / 1e6:,.1f} MB; complete steps there: {self._complete_steps()}; make space, then "
                "continue with --resume"
            )

    def restore(
        self, step: int, abstract_arrays: ArrayTree, *, partial: bool = False
    ) -> tuple[ArrayTree, dict[str, Any]]:
        """Read a step back, bit for bit.

        Args:
          step: a saved step.
          abstract_arrays: arrays or ``jax.ShapeDtypeStruct`` with the wanted structure, shapes, dtypes and shardings;
            the shardings may differ from the saved ones.
          partial: allow the checkpoint to hold more arrays; they are not read.

        Returns:
          The arrays in that structure, and the host state.

        Raises:
          FileNotFoundError: there is no such step.
          DamagedCheckpoint: a file is missing or unreadable, or a checksum is wrong.
          ValueError: paths, shapes or dtypes differ; the message lists them.
        """
        self.wait()
        steps = self.all_steps()
        if step not in steps:
            raise FileNotFoundError(f"{self._directory} holds no checkpoint of step {step}; found the steps {steps}")
        content = self._content(step)
        targets = flatten_arrays(abstract_arrays)
        others = content["arrays"].keys() - targets if partial else set()
        stored = {name: kind for name, kind in content["arrays"].items() if name not in others}
        check_structure(self._folder(step), stored, {name: describe(leaf) for name, leaf in targets.items()})
        abstract = {
            name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=getattr(leaf, "sharding", None))
            for name, leaf in targets.items()
        }
        with damage_named(self._folder(step), "arrays"):
            arrays = self._read_part(step, abstract) if others else self._read(step, abstract)
        verify_arrays(self._folder(step), arrays, content["checksums"])
        structure = jax.tree_util.tree_structure(abstract_arrays)
        return jax.tree_util.tree_unflatten(structure, [arrays[name] for name in targets]), content["host"]

    def restore_newest(
        self, abstract_arrays: ArrayTree, *, set_aside: bool = True
    ) -> tuple[int, ArrayTree, dict[str, Any]] | None:
        """Restore the newest step that is whole; None if no step is saved.

        Each damaged step after it is named on stderr and moved out of the checkpoints, into the run's directory.

        Args:
          abstract_arrays: as for `restore`.
          set_aside: False: a damaged newest step raises. For several processes, which may see different damage.

        Raises:
          DamagedCheckpoint: all steps are damaged, and nothing was moved; or the newest, without ``set_aside``.
          ValueError: paths, shapes or dtypes differ; the message lists them.
        """
        damaged: dict[int, DamagedCheckpoint] = {}
        for step in reversed(self.all_steps()):
            try:
                arrays, host = self.restore(step, abstract_arrays)
            except DamagedCheckpoint as error:
                if not set_aside:
                    advice = f"move {self._folder(step)} away to continue from an earlier step"
                    raise DamagedCheckpoint(f"{error}; {advice}") from error
                damaged[step] = error
                continue
            for bad, damage in damaged.items():
                aside = move_aside(self._folder(bad))
                print(f"fr3e: {damage}; moved to {aside}; going on from step {step}", file=sys.stderr)
            if damaged:
                self._manager.reload()
            return step, arrays, host
        if damaged:
            newest = next(iter(damaged.values()))
            raise DamagedCheckpoint(
                f"{newest}; so are all other checkpoints there: start a new run in another directory"
            )
        return None

    def _folder(self, step: int) -> Path:
        return self._directory / str(step)

    def _content(self, step: int) -> dict[str, Any]:
        """Host state, structure and checksums of a step.

        Raises:
          DamagedCheckpoint: they are not there, or not as they were written.
          OtherFormat: another version of the package saved the step.
        """
        with damage_named(self._folder(step), "host"):
            content = dict(self._manager.restore(step, args=ocp.args.Composite(host=ocp.args.JsonRestore())).host)
        return verified_content(self._folder(step), content)

    def _read(self, step: int, abstract: dict[str, Any]) -> dict[str, jax.Array]:
        return self._manager.restore(step, args=ocp.args.Composite(arrays=ocp.args.StandardRestore(abstract))).arrays

    def _read_part(self, step: int, abstract: dict[str, Any]) -> dict[str, jax.Array]:
        """Read some of the arrays from the same files; the standard handler reads all or none."""
        arguments = ocp.args.PyTreeRestore(
            abstract, ocp.checkpoint_utils.construct_restore_args(abstract), partial_restore=True
        )
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
            return reader.restore(self._folder(step) / "arrays", args=arguments)

    def host_state(self, step: int) -> dict[str, Any]:
        """The host state of a saved step, without its arrays."""
        return self._content(step)["host"]

    def wait(self) -> None:
        """Block until the save under way is on disk.

        Raises:
          CheckpointFailed: the save failed; the checkpoint before it is still there.
        """
        with self._explained_errors("saving the last checkpoint in the background"):
            self._manager.wait_until_finished()

    @contextlib.contextmanager
    def _explained_errors(self, action: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._failed = True
            raise CheckpointFailed(
                f"{action} failed in {self._directory}: {type(error).__name__}: {error}; complete steps there: "
                f"{self._complete_steps()}; check free space and permissions, then continue with --resume"
            ) from error

    def _complete_steps(self) -> list[int]:
        """Steps on disk; after a failure, the manager's list in memory may hold the step that failed."""
        if not self._directory.is_dir():
            return []
        return sorted(int(path.name) for path in self._directory.iterdir() if path.name.isdigit())

    def all_steps(self) -> list[int]:
        """The kept steps in rising order, with one that is still being saved."""
        return sorted(self._manager.all_steps())

    def latest_step(self) -> int | None:
        return self._manager.latest_step()

    def best_step(self) -> int | None:
        """The step with the highest ``best_metric``, the latest of equals; None if no step has one."""
        return next(iter(self._best_first(self.all_steps())), None)

    def close(self) -> None:
        """Wait for the save under way and end the background threads.

        Raises:
          CheckpointFailed: the save failed, and no earlier call has raised an error.
        """
        if self._failed:
            with contextlib.suppress(Exception):
                self._manager.close()
            return
        with self._explained_errors("saving the last checkpoint in the background"):
            self._manager.close()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
