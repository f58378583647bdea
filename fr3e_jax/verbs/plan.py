"""``fr3e plan``: whether a recipe fits a topology, and the time that a step takes there."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace

from fr3e_jax.cli.arguments import positive, share
from fr3e_jax.cli.parser import Verb
from fr3e_jax.configuration import ConfigError, load_config
from fr3e_jax.planning.absent_devices import NoCompiler, enter_planning_for

DOES_NOT_FIT = 1  # the exit code of a failed run, too


def declare(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument(
        "--topology",
        required=True,
        metavar="CHIP:SHAPE",
        help="TPU v4, v5e, v5p or v6e: v5e:8x8, v5p:4x4x4, v5e:16x16x2slices; GPU a100, h100 or h200: h100:8x4 "
        "(4 hosts of 8)",
    )
    parser.add_argument(
        "--programs",
        default="",
        metavar="NAMES",
        help="plan only these programs, comma-separated: reshard, prefill, decode, promote, explore, score, teach, "
        "accumulate, apply",
    )
    parser.add_argument(
        "--estimate", action="store_true", help="estimate by arithmetic, within seconds; nothing is compiled"
    )
    parser.add_argument(
        "--response-tokens",
        type=positive,
        default=0,
        metavar="MEAN",
        help="mean response length in tokens, for the amounts of a step (default: the cap)",
    )
    parser.add_argument(
        "--kept-share",
        type=share,
        default=1.0,
        metavar="SHARE",
        help="share of prompts that are kept, for the amounts of a step (default 1)",
    )
    parser.add_argument(
        "--efficiency",
        type=efficiencies,
        default={},
        metavar="compute=A,memory=B,network=C",
        help="shares of the published peaks that programs are expected to reach (default 0.5, 0.35, 0.5)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def efficiencies(text: str) -> dict[str, float]:
    """Parse ``compute=0.5,memory=0.4``, for argparse."""
    shares = {}
    for assignment in text.split(","):
        name, _, value = assignment.partition("=")
        if name not in ("compute", "memory", "network"):
            raise argparse.ArgumentTypeError(f"{assignment!r} is not compute=SHARE, memory=SHARE or network=SHARE")
        shares[name] = share(value)
    return shares


def run(arguments: argparse.Namespace) -> int:
    """Print the plan of a recipe; return 0 if every program fits, else 1.

    Raises:
      ConfigError: the topology cannot be read, the mesh does not fit it, or there is no compiler for it.
    """
    config = load_config(arguments.recipe, arguments.overrides, training=False)
    try:
        topology = enter_planning_for(arguments.topology, compiles=not arguments.estimate)
    except NoCompiler as error:
        raise ConfigError(f"{error}; or add --estimate") from error

    from fr3e_jax.data.tokenizer import TextCodec
    from fr3e_jax.planning.compile import ProgramPlan, topology_devices
    from fr3e_jax.planning.plan import make_plan
    from fr3e_jax.planning.plan_text import plan_text, progress_text
    from fr3e_jax.planning.step_time import Assumptions, Efficiency

    def show(program: ProgramPlan) -> None:
        if not program.estimated:
            print(progress_text(program), file=sys.stderr, flush=True)

    has_vocabulary = config.model.path or config.model.architecture != "custom"
    response_tokens = arguments.response_tokens or config.rollout.max_response_tokens
    try:
        plan = make_plan(
            config,
            topology,
            None if arguments.estimate else topology_devices(topology),
            names=[name for name in arguments.programs.split(",") if name],
            assumed=Assumptions(response_tokens, arguments.kept_share),
            vocab_size=0 if has_vocabulary else len(TextCodec.load(config.model.tokenizer)),
            efficiency=replace(Efficiency(), **arguments.efficiency),
            planned=show,
        )
    except (OSError, ValueError) as error:  # raised by files and values that the settings name
        raise ConfigError(str(error)) from error
    print(json.dumps(plan.as_json(), indent=2) if arguments.json else plan_text(plan))
    return 0 if plan.fits else DOES_NOT_FIT


VERB = Verb("fr3e plan configs/fr3e_qwen2.5_32b.yaml --topology v5p:4x4x4 mesh.tensor=2", declare, run)
