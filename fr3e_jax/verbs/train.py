"""``fr3e train``: reinforcement learning, by the loop of `loop/train.py`."""

from __future__ import annotations

import argparse

from fr3e_jax.cli.arguments import declare_training
from fr3e_jax.cli.parser import Verb
from fr3e_jax.cli.run_selection import separated, start_or_resume
from fr3e_jax.configuration import Config, ConfigError
from fr3e_jax.stores.reading import Place

DEFAULT_PROFILE_STEPS = 4


def declare(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    declare_training(parser)
    parser.add_argument(
        "--profile",
        nargs="?",
        const=str(DEFAULT_PROFILE_STEPS),
        metavar="STEPS",
        help="set runtime.profile_steps: after warm-up, measure where the time of STEPS steps goes "
        f"(default {DEFAULT_PROFILE_STEPS}), then trace one more; results are in profile/ of the run directory",
    )


def run(arguments: argparse.Namespace) -> int:
    """Start a run, or resume one; return the exit code.

    Raises:
      ConfigError: there is no run to resume, or a new run would overwrite another.
    """
    return start_or_resume(profile_override(arguments), "train", _train)


def _train(config: Config, run_dir: Place | None, resume: bool) -> int:
    from fr3e_jax.loop.train import train
    from fr3e_jax.studies.reports.run_page import PageAtTheEnd

    page = [PageAtTheEnd(config.runtime.console)] if config.runtime.report else []
    return train(config, run_dir, resume, callbacks=page)


def profile_override(arguments: argparse.Namespace) -> argparse.Namespace:
    """The arguments with ``--profile=STEPS`` replaced by its setting; ``--profile seed=1`` is read as two arguments.

    Raises:
      ConfigError: STEPS is not a positive whole number.
    """
    arguments = separated(arguments, "profile", str(DEFAULT_PROFILE_STEPS))
    steps = arguments.profile
    if steps is None:
        return arguments
    if not steps.isdecimal() or int(steps) < 1:
        raise ConfigError(f"--profile={steps}: expected a number of steps to measure, such as --profile=4")
    overrides = [*arguments.overrides, f"runtime.profile_steps={steps}"]
    return argparse.Namespace(**vars(arguments) | {"overrides": overrides})


VERB = Verb("fr3e train configs/demo_fr3e.yaml explore.num_anchors=2 optimizer.learning_rate=3e-4", declare, run)
