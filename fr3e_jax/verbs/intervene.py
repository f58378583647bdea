"""``fr3e intervene``: replace tokens by their likeliest alternatives, and see how the answers change."""

from __future__ import annotations

import argparse
from pathlib import Path

from fr3e_jax.cli.arguments import declare_print_config, declare_run_to_read, on_this_machine, positive
from fr3e_jax.cli.parser import Verb
from fr3e_jax.cli.run_selection import locate_policy, print_config
from fr3e_jax.studies.analysis.figure import Finding
from fr3e_jax.studies.analysis.finding_content import write_findings
from fr3e_jax.studies.printing import print_tables

DEFAULT_GROUPS = "entropy:top20%,entropy:bottom20%"


def declare(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument(
        "--tokens",
        default=DEFAULT_GROUPS,
        metavar="GROUP,...",
        help="groups of tokens to compare: entropy:top20%%, entropy:bottom20%%, random, position:early, position:late, "
        "low-ppl, high-ppl; a share may follow each (default %(default)s)",
    )
    parser.add_argument("--problems", type=positive, default=32, metavar="N", help="held-out problems (default 32)")
    parser.add_argument("--responses", type=positive, default=1, metavar="N", help="responses to each (default 1)")
    parser.add_argument(
        "--tokens-per-response", type=positive, default=2, metavar="N", help="of each group, at most (default 2)"
    )
    parser.add_argument(
        "--rollouts", type=positive, default=8, metavar="K", help="continuations of each side (default 8)"
    )
    parser.add_argument(
        "--out",
        type=on_this_machine,
        metavar="DIR",
        help="folder of the results (default: interventions/ of the run, or runtime.output_dir)",
    )
    declare_run_to_read(parser, "replace tokens of")
    declare_print_config(parser)


def run(arguments: argparse.Namespace) -> int:
    """Replace tokens, print the table, write the files; return the exit code."""
    config, run_dir = locate_policy(arguments)
    if print_config(arguments, config):
        return 0
    from fr3e_jax.verbs.interventions import InterventionPlan, intervene, read_groups

    plan = InterventionPlan(
        read_groups(arguments.tokens),
        arguments.problems,
        arguments.responses,
        arguments.tokens_per_response,
        arguments.rollouts,
    )
    parent = run_dir or Path(config.runtime.output_dir).expanduser()
    folder = Path(arguments.out).expanduser() if arguments.out else parent / "interventions"
    results: list[Finding] = []
    code = intervene(config, run_dir, plan, folder, results)
    if code or not results:
        return code
    write_findings(results, folder)
    print_tables(results[1:2])
    print(f"all replacements and their continuations: {folder}")
    return 0


VERB = Verb(
    "fr3e intervene configs/demo_fr3e.yaml --run runs/demo_fr3e-20250101-120000 --tokens position:early", declare, run
)
