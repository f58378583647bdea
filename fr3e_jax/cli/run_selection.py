"""The run directory that a command refers to, and the settings that were saved there."""

from __future__ import annotations

import argparse
import dataclasses
import glob
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fr3e_jax.configuration import Config, ConfigError, load_config, to_yaml
from fr3e_jax.configuration.check import RANDOM_WEIGHTS_ONLY
from fr3e_jax.configuration.error_conversion import as_config_error
from fr3e_jax.configuration.load import default_config
from fr3e_jax.configuration.provenance import CONFIG_FILE, FIRST_LINE, LAST_LINE, read_provenance
from fr3e_jax.configuration.settings import flat_settings, settings
from fr3e_jax.hub import is_id
from fr3e_jax.runs.console import say
from fr3e_jax.runs.run_directory import RunDirectory, check_format, holds_steps
from fr3e_jax.shipped_files import existing, find_recipe, recipe_names
from fr3e_jax.stores import reading as stores
from fr3e_jax.stores.objects import is_remote, store_of
from fr3e_jax.stores.reading import Place

_NO_PROFILE = "runtime.profile_steps=0"
_OF_THE_COMMAND = "runtime.profile_steps", "runtime.allow_changes"  # a resumed run does not take them from its start


def separated(arguments: argparse.Namespace) -> argparse.Namespace:
    """The arguments with ``--resume seed=1`` read as the option alone and a setting, unless there is such a folder."""
    value = arguments.resume
    if value and re.match(r"[\w.]+=", value) and not Path(value).is_dir():
        return argparse.Namespace(**vars(arguments) | {"resume": "", "overrides": [value, *arguments.overrides]})
    return arguments


def print_config(arguments: argparse.Namespace, config: Config) -> bool:
    """Print the settings if ``--print-config`` asks for them; return whether it does."""
    if arguments.print_config:
        print(to_yaml(config), end="")
    return arguments.print_config


def start_or_resume(
    verb: str, train: Callable[[Config, Place | None, bool], int], arguments: argparse.Namespace
) -> int:
    """Find the settings and the run, print a line before jax loads, which takes seconds, and call ``train``.

    Raises:
      ConfigError: see `locate_run`.
    """
    config, run_dir, resume = locate_run(separated(arguments), verb)
    if print_config(arguments, config):
        return 0
    say(f"fr3e {verb} {config.name}: {f'resuming {run_dir}' if resume else 'starting'}", config.runtime.console)
    return train(config, run_dir, resume)


def locate_run(arguments: argparse.Namespace, verb: str) -> tuple[Config, Place | None, bool]:
    """Settings, run directory (None: the run makes one), and whether to resume.

    Raises:
      ConfigError: there is no run to resume, or a new run would overwrite another.
    """
    training = verb == "train"
    config = load_config(arguments.recipe, arguments.overrides, training=training)
    named = _place(config.runtime.run_dir) if config.runtime.run_dir else None
    if arguments.proceed:
        with as_config_error(), store_of("runtime.run_dir"):
            resume = _is_started(named, arguments.resume)
        arguments = argparse.Namespace(**{**vars(arguments), "resume": "" if resume else None})
    if arguments.resume is None:
        with as_config_error(), store_of("runtime.run_dir"):
            holds = named is not None and holds_steps(named)
        if holds:
            raise ConfigError(
                f"runtime.run_dir={named} holds a run already; continue it with --resume, or name another"
            )
        return config, named, False
    setting = "--resume" if arguments.resume else f"runtime.{'run_dir' if named else 'output_dir'}"
    with as_config_error(), store_of(setting):
        run_dir = (
            _place(arguments.resume)
            if arguments.resume
            else named or newest_run(config.runtime.output_dir, config.name, verb)
        )
        settings = saved_config(stores.run_folder(run_dir, rollouts=False))
    # A resumed run is profiled again, or allowed to change, only if this very command asks for it.
    allowed = f"runtime.allow_changes={str(arguments.allow_changes).lower()}"
    overrides = [_NO_PROFILE, allowed, *arguments.overrides]
    resumed = load_config(settings, overrides, training=training)
    if arguments.proceed:
        for line in _passed_over(config, resumed):
            say(f"fr3e: {line}", config.runtime.console)
    return resumed, run_dir, True


def _passed_over(config: Config, resumed: Config) -> list[str]:
    """A line for each setting of a recipe that its run, begun with another value, does not take up."""
    recipe, run = (dict(flat_settings(dataclasses.asdict(each))) for each in (config, resumed))
    names = [name for name in sorted(recipe | run) if recipe.get(name) != run.get(name) and name not in _OF_THE_COMMAND]
    return [
        f"{name}: {recipe.get(name)!r} in the recipe, {run.get(name)!r} in the run, which goes on with its own; "
        f"to change it, say {name}=VALUE on the command line"
        for name in names
    ]


def _place(text: str) -> Place:
    """An address in a store as it is, or the path of a folder."""
    return text if is_remote(text) else Path(text).expanduser()


def run_to_read(text: str, *, checkpoints: bool = False) -> Path:
    """The folder of a run that a command only reads; a run in a store is fetched.

    Raises:
      ConfigError: the store cannot be read.
    """
    with as_config_error():
        return stores.run_folder(text, checkpoints=checkpoints)


def _is_started(run_dir: Place | None, resume: str | None) -> bool:
    """true if there is a run that ``--continue`` resumes."""
    if run_dir is None:
        raise ConfigError("--continue needs runtime.run_dir=DIR, the directory of the run to start or resume")
    if resume is not None:
        raise ConfigError("--continue and --resume exclude each other; --continue resumes the run if there is one")
    return holds_steps(run_dir)


def newest_run(output: str, name: str, verb: str) -> Place:
    """The latest run below ``output`` of this recipe's name and verb that has a checkpoint, else the latest one.

    Run directories are called NAME-DATE-TIME. A run with damaged settings or a damaged provenance counts, too: resuming
    it names the damage.
    """
    runs: list[Place]
    if is_remote(output):
        addresses = [run for run in reversed(stores.runs_below(output, depth=1)) if f"/{name}-" in run]
        runs = [run for run in addresses if _is_run(stores.run_folder(run, rollouts=False), name, verb)]
        noun = "address"
    else:
        folders = sorted(Path(output).expanduser().glob(f"{glob.escape(name)}-*"), reverse=True)
        runs = [run for run in folders if _is_run(run, name, verb)]
        noun = "directory"
    if not runs:
        raise ConfigError(
            f"--resume: no {verb} run named {name} in {output}; start one without --resume, or give its {noun}: "
            f"--resume {'ADDRESS' if noun == 'address' else 'RUN_DIR'}"
        )
    return next(filter(_has_checkpoint, runs), runs[0])


def _has_checkpoint(run: Place) -> bool:
    if isinstance(run, str):
        return stores.has_checkpoint(run)
    return any(path.name.isdecimal() for path in RunDirectory(Path(run)).checkpoints.glob("*"))


def _is_run(run_dir: Path, name: str, verb: str) -> bool:
    if not RunDirectory(run_dir).holds_run():
        return False
    if read_provenance(run_dir).get("verb", verb) != verb:
        return False
    try:
        saved_name = OmegaConf.select(OmegaConf.load(run_dir / CONFIG_FILE), "name")
    except (OSError, ValueError, yaml.YAMLError, OmegaConfBaseException):
        saved_name = None
    if isinstance(saved_name, str):
        return saved_name == name
    return re.fullmatch(r"-\d{8}-\d{6}(-\d+)?", run_dir.name.removeprefix(name)) is not None


def saved_config(run_dir: Path) -> Path:
    """The path of the settings saved in a run directory.

    Raises:
      ConfigError: there are none, or another version of the package wrote the run.
    """
    check_format(run_dir)
    path = run_dir / CONFIG_FILE
    if not path.is_file():
        raise ConfigError(f"{run_dir} is not a run directory: it has no {CONFIG_FILE}; expected one that fr3e made")
    content = path.read_bytes()
    torn = content[:20] == FIRST_LINE[:20].encode() and not content.endswith(LAST_LINE.encode())
    if torn or not content.strip(b" \t\r\n\0"):
        raise ConfigError(
            f"{path} is {'torn' if torn else 'empty'}; expected the settings of the run: write its recipe there again "
            "and resume, which says what differs from the checkpoint"
        )
    return path


def locate_policy(arguments: argparse.Namespace) -> tuple[Config, Path | None]:
    """Settings and run of ``RECIPE [--run RUN_DIR]``, or of a run or a model in place of the recipe.

    The run's model settings win over the recipe's. Without a run: None.
    """
    source, folder = arguments.recipe, existing(arguments.recipe)
    if arguments.run is None and (folder / CONFIG_FILE).is_file():
        arguments = argparse.Namespace(**vars(arguments) | {"recipe": str(folder / CONFIG_FILE), "run": source})
    elif arguments.run is None and not find_recipe(source).is_file():
        folders = {name.partition("/")[0] for name in recipe_names()} | {path.name for path in Path().iterdir()}
        from_hub = is_id(source) and source.partition("/")[0] not in folders
        if from_hub or (folder / "config.json").is_file():
            return default_config([f"model.path={source}", *arguments.overrides]), None
    run_dir = None if arguments.run is None else run_to_read(arguments.run, checkpoints=True)
    return settings_of_run(arguments.recipe, arguments.overrides, run_dir), run_dir


def settings_of_run(recipe: str, overrides: Sequence[str], run_dir: Path | None) -> Config:
    """The settings of a recipe with the model settings of a run, if there is one; ``overrides`` win over both."""
    return load_config(recipe, [*(_model_overrides(run_dir) if run_dir else []), *overrides], training=False)


def _model_overrides(run_dir: Path) -> list[str]:
    """The model settings of a run as overrides, so that its checkpoint fits the network.

    Sizes of random weights are left out where a directory or a name gives the network's: they would be refused.
    """
    model = load_config(saved_config(run_dir), training=False).model
    has_sizes = bool(model.path) or model.architecture != "custom"
    values = {f"model.{name}": value for name, value in dataclasses.asdict(model).items()}
    unread = {path for path, setting in settings().items() if has_sizes and RANDOM_WEIGHTS_ONLY in setting.meaning}
    return [f"{path}={value}" for path, value in values.items() if path not in unread]
