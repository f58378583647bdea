"""Checks beyond types: bounds of single settings, and settings that contradict each other."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fr3e_jax.configuration import (
    contradictions,
    exploration_rules,
    judge_rules,
    method_rules,
    sampler_rules,
    tool_rules,
)
from fr3e_jax.configuration.contradictions import broken_rules
from fr3e_jax.configuration.schema import Config
from fr3e_jax.configuration.settings import COMMAND_LINE, ConfigError, setting_value, settings

RULES = contradictions.RULES | sampler_rules.RULES | tool_rules.RULES | judge_rules.RULES
TRAINING_RULES = contradictions.TRAINING_RULES | exploration_rules.TRAINING_RULES | method_rules.TRAINING_RULES
"""Rules of reinforcement learning; sft, eval and sample ignore them."""

_PATH = re.compile(r"[a-z_0-9]+(?:\.[a-z_0-9]+)+")

SWITCHES = {
    "model.lora.": (("model.lora.rank", "model.lora.path"), "adapters", "model.lora.rank=8 (or another rank)"),
    "teacher.": (("teacher.path",), "a teacher", "teacher.path=FOLDER, or its id on the hub"),
    "environment.": (("environment.kind",), "an environment", "environment.kind=task, or FILE.py:NAME"),
    "judge.": (("judge.model",), "a judge", "judge.model=NAME and judge.base_url"),
}
"""Sections of which nothing is read unless one of these settings is given; what that is, and how it is given."""
_LONGEST_NAME = 100
RANDOM_WEIGHTS_ONLY = "(random weights only)"
"""In the meaning of a setting that says how large a fresh network is."""


def check(config: Config, origins: Mapping[str, str] | None = None, *, training: bool = True) -> None:
    """Raise ``ConfigError`` for the first setting out of bounds, else for the first contradiction.

    Args:
        origins: the file or the command line that set each path; other paths have their defaults.
        training: also apply the rules of reinforcement learning.
    """
    origins = origins or {}
    for path, setting in settings().items():
        if origins and path not in origins:  # a default
            continue
        value = setting_value(config, path)
        numbers = value if isinstance(value, list) else [value]
        if setting.kind is float or setting.bounds:
            for item in numbers:
                if not setting.allows(item):
                    raise ConfigError(f"{origins.get(path, 'default')}: {setting.refuse(value)}")
    for problem in broken_rules(config, RULES | TRAINING_RULES if training else RULES):
        paths = dict.fromkeys(_PATH.findall(problem))
        sources = [f"{path}: {origins[path]}" for path in paths if path in origins]
        raise ConfigError(f"{problem} ({', '.join(sources) or 'all defaults'})")
    _check_name(config, origins)
    _check_sizes(config, origins)
    _check_switches(config, origins)


def _check_name(config: Config, origins: Mapping[str, str]) -> None:
    """Refuse a name that the run's directory, NAME-DATE-TIME, cannot have."""
    fitting = re.sub(r"[/\x00-\x1f\x7f]+", "-", config.name)[:_LONGEST_NAME].strip().lstrip("-.")
    if (not fitting or fitting != config.name.strip()) and not config.runtime.run_dir:
        raise ConfigError(
            f"{origins.get('name', 'default')}: name={config.name[: 2 * _LONGEST_NAME]!r} cannot be part of the run's "
            "directory; expected a name without / and control characters, not beginning with - or ., of at most "
            f"{_LONGEST_NAME} characters; nearest: name={fitting or 'run'!r}, or set runtime.run_dir"
        )


def _check_sizes(config: Config, origins: Mapping[str, str]) -> None:
    """Refuse a size of the network on the command line beside a model that has its own; recipes may hold both."""
    model = config.model
    named = f"model.path={model.path}" if model.path else f"model.architecture={model.architecture}"
    if not model.path and model.architecture == "custom":
        return
    for path in origins:
        if origins[path] == COMMAND_LINE and RANDOM_WEIGHTS_ONLY in settings()[path].meaning:
            raise ConfigError(
                f"{COMMAND_LINE}: {path}={setting_value(config, path)} has no effect, for {named} has its own sizes; "
                "leave it out, or set model.path= model.architecture=custom for random weights of the sizes given"
            )


def _check_switches(config: Config, origins: Mapping[str, str]) -> None:
    """Refuse settings of a part that nothing turns on; turned off by name, a recipe's settings of it may stay."""
    for section, (switches, what, remedy) in SWITCHES.items():
        named = [path for path in origins if path.startswith(section)]
        if named and not set(switches) & set(named):
            raise ConfigError(
                f"{origins[named[0]]}: {named[0]}={setting_value(config, named[0])} has no effect without {what}; set "
                f"{remedy}, or leave it out"
            )
