"""The configuration as text: the list of all settings, and one configuration as YAML."""

from __future__ import annotations

import dataclasses
import textwrap

from omegaconf import OmegaConf

from fr3e_jax.configuration.schema import Config
from fr3e_jax.configuration.settings import Setting, as_yaml, sections, settings

PATH_WIDTH, KIND_WIDTH, DEFAULT_WIDTH = 45, 22, 10


FIRST = (
    "model.path",
    "data.task",
    "rollout.rollouts_per_prompt",
    "rollout.max_response_tokens",
    "explore.enabled",
    "explore.num_anchors",
    "explore.rollouts_per_state",
    "training.batch_rollouts",
    "training.max_sampled_tokens",
    "optimizer.learning_rate",
)
"""The settings that most runs change."""


def help_text(width: int = 120, within: str = "") -> str:
    """Every setting by section: dotted path, type and bounds, default, meaning; wrapped to ``width`` characters.

    ``within``: only this section, with those below it, or only this setting.
    """
    parts = [_row("setting", "type", "default", "meaning", width)]
    grouped: dict[str, list[Setting]] = {"": [], **{section: [] for section in sections()}}
    for path, setting in settings().items():
        if not within or path == within or path.startswith(f"{within}."):
            grouped[path.rpartition(".")[0]].append(setting)
    for section, members in grouped.items():
        if section and (members or not within):
            parts.append("\n" + textwrap.fill(f"{section}: {_purpose(sections()[section])}", width))
        parts += [_describe(setting, width) for setting in members]
    return "\n".join(parts)


def short_help(width: int = 120) -> str:
    """The settings that most runs change, and the purpose of each section."""
    rows = [_row("setting", "type", "default", "meaning", width)]
    rows += [_describe(settings()[path], width) for path in FIRST]
    top_level = {section: of for section, of in sections().items() if "." not in section}
    longest = max(map(len, top_level))
    for section, of in top_level.items():
        lead = f"  {section:<{longest}}  "
        rows.append(textwrap.fill(_purpose(of), width, initial_indent=lead, subsequent_indent=" " * len(lead)))
    rows.insert(1 + len(FIRST), "\nsections; `fr3e help SECTION` lists the settings of one, `fr3e help all` all:\n")
    return "\n".join(rows)


def _purpose(section: type) -> str:
    """The first line of the section's docstring; of a method also the source."""
    purpose = (section.__doc__ or "").splitlines()[0]
    return f"{purpose} ({section.implementation.source})" if hasattr(section, "implementation") else purpose


def _describe(setting: Setting, width: int) -> str:
    kind, meaning = setting.describe_kind(), setting.meaning
    if len(kind) > KIND_WIDTH:
        kind, meaning = "one of", f"{meaning} [{kind}]"
    default = '""' if setting.default == "" else as_yaml(setting.default)
    if len(default) > DEFAULT_WIDTH:
        default, meaning = "below", f"{meaning} [default {default}]"
    return _row(setting.path, kind, default, meaning, width)


def _row(path: str, kind: str, default: str, meaning: str, width: int) -> str:
    left = f"  {path:<{PATH_WIDTH}} {kind:<{KIND_WIDTH}} {default:<{DEFAULT_WIDTH}} "
    indent = " " * (PATH_WIDTH + KIND_WIDTH + DEFAULT_WIDTH + 5)
    lines = textwrap.wrap(meaning, max(width - len(indent), 30), break_on_hyphens=False)
    return left + f"\n{indent}".join(lines)


def to_yaml(config: Config) -> str:
    """All settings, resolved; can be given back as a recipe."""
    return OmegaConf.to_yaml(dataclasses.asdict(config))
