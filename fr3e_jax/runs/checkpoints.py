"""Checkpoints of a run: device arrays and host state of a step, saved in the background and all or nothing."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import shutil
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import preservation_policy

from fr3e_jax.programs.checksums import checksums

ArrayTree = Any
JSON_SCALARS = {str, int, float, bool, type(None)}


def _not_from_orbax(record: logging.LogRecord) -> bool:
    return "orbax" not in record.pathname


def _silence_orbax() -> None:
    """Drop Orbax's own reports: it raises each error as well, and prints it once for every array and thread."""
    logger = logging.getLogger("absl")
    logger.removeFilter(_not_from_orbax)
    logger.addFilter(_not_from_orbax)
    if not isinstance(sys.unraisablehook, _WithoutOrbax):
        sys.unraisablehook = _WithoutOrbax(sys.unraisablehook)


class _WithoutOrbax:
    """A hook that passes on all but the complaints of reads and writes that were under way when another one failed."""

    def __init__(self, hook: Any):
        self._hook = hook

    def __call__(self, unraisable: Any) -> None:
        files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(unraisable.exc_traceback)]
        if str(unraisable.exc_value) != "Event loop is closed" and not any("orbax" in file for file in files):
            self._hook(unraisable)


def flatten_arrays(arrays: ArrayTree) -> dict[str, Any]:
    """Leaves by path, like ``params/layers/0/kernel``; integer keys, tuples and optax states become path segments.

    Checkpoints store these flat names, because Orbax turns integer keys into strings, and optax's tuples would tie the
    files to one version of optax.

    Raises:
      TypeError: a leaf is not an array.
      ValueError: two leaves have the same path (a dict with the keys 0 and "0").
    """
    flat: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(arrays)[0]:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            raise TypeError(f"{name} is {leaf!r} ({type(leaf).__name__}); expected an array: put it in the host state")
        if name in flat:
            raise ValueError(f"found two arrays at {name}; expected distinct paths: rename one of the keys")
        flat[name] = leaf
    return flat


def _describe(leaf: Any) -> str:
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def _mismatches(found: Mapping[str, str], expected: Mapping[str, str]) -> list[str]:
    lines = []
    # Weights first: the optimizer's copies of them repeat the same mismatches.
    for name in sorted(found.keys() | expected.keys(), key=lambda name: (not name.startswith("params/"), name)):
        if found.get(name) != expected.get(name):
            lines.append(f"  {name}: found {found.get(name, 'nothing')}, expected {expected.get(name, 'nothing')}")
    return lines


class CheckpointFailed(RuntimeError):
    """A checkpoint could not be written or read."""


class DamagedCheckpoint(CheckpointFailed, ValueError):
    """The files of a checkpoint are incomplete, unreadable, or changed since they were written."""


@contextlib.contextmanager
def told_in_a_line() -> Iterator[None]:
    """Print a `CheckpointFailed` that comes out of the block, and go on after it."""
    try:
        yield
    except CheckpointFailed as error:
        print(f"fr3e: {error}", file=sys.stderr)


class Checkpointer:
    """Saves and restores the steps of one run.

    It keeps the last ``keep_last`` steps, and also the ``keep_best`` steps with the highest ``best_metric``. A step
    counts only once its directory is complete. A directory that a kill left incomplete is never read, and is removed
    before the next save.

    On several processes, each must make the same calls with the same host state.
    """

    def __init__(
        self, directory: Path, *, keep_last: int, keep_best: int, best_metric: str, read_only: bool = False
    ) -> None:
        """Open the checkpoints in ``directory``; ``read_only`` changes nothing on disk, so that the run can go on."""
        self._directory = Path(directory).absolute()
        self._best_metric = best_metric
        self._failed = False  # and said so
        _silence_orbax()

        def score(metrics: Mapping[str, float]) -> float:
            return metrics.get(best_metric, -math.inf)  # another metric ranked the runs of an earlier configuration

        options = ocp.CheckpointManagerOptions(
            preservation_policy=preservation_policy.AnyPreservationPolicy(
                [
                    preservation_policy.LatestN(keep_last),
                    preservation_policy.BestN(get_metric_fn=score, n=keep_best, keep_checkpoints_without_metrics=False),
                ]
            ),
            best_fn=score if best_metric else None,
            cleanup_tmp_directories=not read_only,
            create=not read_only,
            read_only=read_only,
        )
        if best_metric and not read_only:
            self._drop_unreadable_rankings()
        handlers = {"arrays": ocp.StandardCheckpointHandler(), "host": ocp.JsonCheckpointHandler()}
        self._manager = ocp.CheckpointManager(self._directory, options=options, item_handlers=handlers)

    def save(self, step: int, arrays: ArrayTree, host: Mapping[str, Any], metrics: Mapping[str, Any] | None) -> bool:
        """Start saving; the arrays may be donated or changed as soon as this returns.

        Args:
          step: later than all saved steps. A step that is already saved is left as it is.
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
            return False
        _check_json(host, "host")
        flat = flatten_arrays(arrays)
        content: dict[str, Any] = {
            "host": dict(host),
            "arrays": {name: _describe(leaf) for name, leaf in flat.items()},
            "checksums": checksums(flat),
        }
        content["checksum"] = _checksum_of_json(content)
        self._check_space(step, flat)
        with self._explained_errors(f"saving step {step}"):
            self._manager.save(
                step,
                args=ocp.args.Composite(arrays=ocp.args.StandardSave(flat), host=ocp.args.JsonSave(content)),
                metrics=self._ranked(metrics),
            )
        return True

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

    def _ranked(self, metrics: Mapping[str, Any] | None) -> dict[str, float] | None:
        value = (metrics or {}).get(self._best_metric)
        if value is None or not math.isfinite(value):
            return None
        return {self._best_metric: float(value)}

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
        wanted = flatten_arrays(abstract_arrays)
        others = content["arrays"].keys() - wanted if partial else set()
        found = {name: kind for name, kind in content["arrays"].items() if name not in others}
        self._check_structure(step, found, {name: _describe(leaf) for name, leaf in wanted.items()})
        abstract = {
            name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=getattr(leaf, "sharding", None))
            for name, leaf in wanted.items()
        }
        with self._damage_named(step, "arrays"):
            arrays = self._read_part(step, abstract) if others else self._read(step, abstract)
        self._verify(step, arrays, content.get("checksums"))
        structure = jax.tree_util.tree_structure(abstract_arrays)
        return jax.tree_util.tree_unflatten(structure, [arrays[name] for name in wanted]), content["host"]

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
                    place = self._directory / str(step)
                    raise DamagedCheckpoint(f"{error}; move {place} away to continue from an earlier step") from error
                damaged[step] = error
                continue
            for bad, damage in damaged.items():
                print(f"fr3e: {damage}; moved to {self._set_aside(bad)}; going on from step {step}", file=sys.stderr)
            return step, arrays, host
        if damaged:
            newest = next(iter(damaged.values()))
            raise DamagedCheckpoint(
                f"{newest}; so are all other checkpoints there: start a new run in another directory"
            )
        return None

    def _set_aside(self, step: int) -> Path:
        """Move a step out of the checkpoints; return its new path."""
        place = self._directory.parent / f"damaged_checkpoint_{step:06d}"
        number = 1
        while place.exists():
            number += 1
            place = place.with_name(f"damaged_checkpoint_{step:06d}_{number}")
        (self._directory / str(step)).rename(place)
        self._manager.reload()
        return place

    def _content(self, step: int) -> dict[str, Any]:
        """Host state, structure and checksums of a step.

        Raises:
          DamagedCheckpoint: they are not there, or not as they were written.
        """
        with self._damage_named(step, "host"):
            content = self._manager.restore(step, args=ocp.args.Composite(host=ocp.args.JsonRestore())).host
            checksum = content.pop("checksum", None)
            older = checksum is None and "checksums" not in content  # an older version saved neither
            if not older and checksum != _checksum_of_json(content):
                raise ValueError("the checksum of the host state is wrong")
            if missing := {"host", "arrays"} - content.keys():
                raise ValueError(f"it lacks {' and '.join(sorted(missing))}")
            return content

    def _verify(self, step: int, arrays: Mapping[str, Any], saved: Mapping[str, str] | None) -> None:
        if saved is None:
            print(
                f"fr3e: the checkpoint of step {step} in {self._directory} has no checksums, because an older version "
                "saved it: its arrays were not verified",
                file=sys.stderr,
            )
            return
        wrong = sorted(name for name, found in checksums(arrays).items() if found != saved.get(name))
        if wrong:
            more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            raise self._damage(step, "arrays", f"the checksum of {wrong[0]}{more} is wrong")

    @contextlib.contextmanager
    def _damage_named(self, step: int, part: str) -> Iterator[None]:
        """Turn each error of reading the files of ``part`` into a `DamagedCheckpoint` of one line."""
        try:
            yield
        except Exception as error:
            found = " ".join(str(error).split())
            raise self._damage(step, part, f"{type(error).__name__}: {found[:160]}") from error

    def _damage(self, step: int, part: str, found: str) -> DamagedCheckpoint:
        return DamagedCheckpoint(
            f"the checkpoint of step {step} is damaged, in {self._directory / str(step) / part}: {found}"
        )

    def _drop_unreadable_rankings(self) -> None:
        """Remove files of metrics that are not JSON: the manager reads them all when it is made."""
        for file in self._directory.glob("*/metrics/metrics"):
            try:
                sum(map(float, json.loads(file.read_bytes()).values()))
            except (OSError, ValueError, TypeError, AttributeError):
                print(
                    f"fr3e: {file} is damaged: step {file.parts[-3]} no longer counts among the best", file=sys.stderr
                )
                shutil.rmtree(file.parent, ignore_errors=True)

    def _read(self, step: int, abstract: dict[str, Any]) -> dict[str, jax.Array]:
        return self._manager.restore(step, args=ocp.args.Composite(arrays=ocp.args.StandardRestore(abstract))).arrays

    def _read_part(self, step: int, abstract: dict[str, Any]) -> dict[str, jax.Array]:
        """Read some of the arrays from the same files; the standard handler reads all or none."""
        arguments = ocp.args.PyTreeRestore(
            abstract, ocp.checkpoint_utils.construct_restore_args(abstract), partial_restore=True
        )
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
            return reader.restore(self._directory / str(step) / "arrays", args=arguments)

    def host_state(self, step: int) -> dict[str, Any]:
        """The host state of a saved step, without its arrays."""
        return self._content(step)["host"]

    def _check_structure(self, step: int, found: Mapping[str, str], expected: Mapping[str, str]) -> None:
        lines = _mismatches(found, expected)
        if lines:
            shown = lines[:20] + ([f"  and {len(lines) - 20} more"] if len(lines) > 20 else [])
            raise ValueError(
                f"the checkpoint of step {step} in {self._directory} is of another model or optimizer; "
                f"{len(lines)} of its arrays differ from the configuration's:\n" + "\n".join(shown) + "\n"
                "resume with the config.yaml of its run, or set another runtime.run_dir"
            )

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
        return self._manager.best_step()

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


def _check_json(value: Any, path: str) -> None:
    """Refuse content that JSON accepts in silence and returns changed: integer keys, tuples, array scalars."""
    if isinstance(value, Mapping):
        bad_keys = [key for key in value if not isinstance(key, str)]
        if bad_keys:
            raise TypeError(f"{path} has the keys {bad_keys[:3]}; expected strings, as JSON has no other keys")
        for key, entry in value.items():
            _check_json(entry, f"{path}[{key!r}]")
    elif isinstance(value, list):
        # Token lists are long: a list of plain scalars is not walked through entry by entry.
        if not set(map(type, value)) <= JSON_SCALARS:
            for index, entry in enumerate(value):
                _check_json(entry, f"{path}[{index}]")
    elif type(value) not in JSON_SCALARS:
        raise TypeError(
            f"{path} is {value!r} ({type(value).__name__}); expected dicts, lists, strings, Python numbers, "
            "booleans or None, which come back from JSON unchanged: convert it"
        )


def _checksum_of_json(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
