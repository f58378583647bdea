"""The verbs of the command. Each finds its settings and run directory, then imports and calls its function.

The import comes late because jax loads slowly.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from fr3e_jax.cli import (
    analyse_verb,
    compile_verb,
    eval_verb,
    gradient_noise_verb,
    intervene_verb,
    metrics_verb,
    parsers,
    recipe_verbs,
    report_verb,
    runs_verb,
    show_verb,
    updates_verb,
)
from fr3e_jax.cli.parsers import Verb
from fr3e_jax.cli.run_selection import (
    locate_run,
    locate_weights,
    profile_override,
    run_to_read,
    saved_config,
    separate_resume,
)
from fr3e_jax.cli.sweep import sweep
from fr3e_jax.configuration import Config, ConfigError, load_config, to_yaml
from fr3e_jax.stores.reading import Place


def _train(arguments: argparse.Namespace) -> int:
    config, run_dir, resume = locate_run(profile_override(separate_resume(arguments)), "train")
    if arguments.print_config:
        return _print(config)
    _announce("train", config, run_dir if resume else None)
    from fr3e_jax.loop.train import train

    return train(config, run_dir, resume)


def _sft(arguments: argparse.Namespace) -> int:
    config, run_dir, resume = locate_run(separate_resume(arguments), "sft")
    if arguments.print_config:
        return _print(config)
    _announce("sft", config, run_dir if resume else None)
    from fr3e_jax.verbs.sft import sft

    return sft(config, run_dir, resume)


def _rft(arguments: argparse.Namespace) -> int:
    config, run_dir, resume = locate_run(separate_resume(arguments), "rft")
    if arguments.print_config:
        return _print(config)
    _announce("rft", config, run_dir if resume else None)
    from fr3e_jax.verbs.rft import rft

    return rft(config, run_dir, resume)


def _sample(arguments: argparse.Namespace) -> int:
    config, run_dir = locate_weights(arguments)
    if arguments.print_config:
        return _print(config)
    from fr3e_jax.verbs.sample import sample

    return sample(config, arguments.prompt, arguments.num, arguments.json, run_dir)


def _export(arguments: argparse.Namespace) -> int:
    run_dir = run_to_read(arguments.run, checkpoints=True)
    config = load_config(saved_config(run_dir), training=False)
    from fr3e_jax.verbs.export import export_run

    dtype = parsers.DTYPES[arguments.dtype] if arguments.dtype else ""
    options = {"dtype": dtype, "step": arguments.step, "adapter": arguments.adapter}
    if arguments.max_shard_size is not None:
        options["max_shard_bytes"] = arguments.max_shard_size
    return export_run(config, run_dir, Path(arguments.directory), **options)


def _data(arguments: argparse.Namespace) -> int:
    config = load_config(arguments.recipe, arguments.overrides, training=False)
    if arguments.print_config:
        return _print(config)
    from fr3e_jax.cli.data_tables import print_overview
    from fr3e_jax.data.overview import overview

    try:
        found = overview(config)
    except (OSError, ValueError) as error:  # raised by the files that the settings name
        raise ConfigError(str(error)) from error
    if arguments.json:
        print(json.dumps(found.as_json(), indent=2, ensure_ascii=False))
    else:
        print_overview(found)
    return 0


def _plan(arguments: argparse.Namespace) -> int:
    from fr3e_jax.cli.plan_verb import plan

    return plan(load_config(arguments.recipe, arguments.overrides, training=False), arguments)


def _methods(arguments: argparse.Namespace) -> int:
    from fr3e_jax.methods import list_methods, write_table

    try:
        write_table(Path(arguments.write)) if arguments.write else print(list_methods())
    except OSError as error:
        raise ConfigError(
            f"cannot write --write {arguments.write}: {error.strerror}; name a page that exists"
        ) from error
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return 0


def _sweep(arguments: argparse.Namespace) -> int:
    return sweep(
        arguments.recipe,
        arguments.overrides,
        arguments.verb,
        arguments.jobs,
        arguments.dry_run,
        sample=arguments.sample,
        sample_seed=arguments.sample_seed,
        hours=arguments.hours,
        fresh=arguments.new,
    )


def _declare_compare(parser: argparse.ArgumentParser) -> None:
    from fr3e_jax.cli.compare_verb import declare_compare

    declare_compare(parser)


def _compare(arguments: argparse.Namespace) -> int:
    from fr3e_jax.cli.compare_verb import run_compare

    return run_compare(arguments)


def _announce(verb: str, config: Config, resumed: Place | None) -> None:
    """Print a line before jax loads, which takes seconds."""
    from fr3e_jax.runs.console import say

    what = f"resuming {resumed}" if resumed else "starting"
    say(f"fr3e {verb} {config.name}: {what}", config.runtime.console)


def _print(config: Config) -> int:
    print(to_yaml(config), end="")
    return 0


VERBS = {
    "train": Verb(
        "Train by reinforcement learning: FR3E, or GRPO and its relatives with explore.enabled=false.",
        "fr3e train configs/demo_fr3e.yaml explore.num_anchors=2 optimizer.learning_rate=3e-4",
        parsers.declare_train,
        _train,
    ),
    "sft": Verb(
        "Fine-tune on the task's demonstrations: the warm start of reinforcement learning.",
        "fr3e sft configs/demo_fr3e.yaml sft.output=my_start",
        parsers.declare_run,
        _sft,
    ),
    "rft": Verb(
        "Fine-tune on the policy's own responses: sample, filter, select, train, and again.",
        "fr3e rft configs/methods/rft_branching_factor.yaml rft.iterations=2",
        parsers.declare_run,
        _rft,
    ),
    "eval": Verb(
        "Evaluate models, runs and checkpoints on held-out problems, and keep every response.",
        "fr3e eval configs/demo.yaml --run runs/demo-20250101-120000 evaluation.samples=32",
        eval_verb.declare_eval,
        eval_verb.evaluate,
    ),
    "sample": Verb(
        "Complete one prompt and show each token's log-prob and entropy.",
        "fr3e sample configs/demo.yaml --prompt '3+4*2-5*6>' --num 4 --run runs/demo-20250101-120000",
        parsers.declare_sample,
        _sample,
    ),
    "data": Verb(
        "Show a recipe's data: counts, dropped rows, prompt lengths, overlap with the evaluation sets, prompts.",
        "fr3e data configs/mixture_fr3e.yaml data.root=DIR model.tokenizer=Qwen2.5-7B",
        parsers.declare_data,
        _data,
    ),
    "plan": Verb(
        "Show whether a recipe fits hardware that is not here, and the least time of a step.",
        "fr3e plan configs/fr3e_qwen2.5_32b.yaml --topology v5p:4x4x4 mesh.tensor=2",
        parsers.declare_plan,
        _plan,
    ),
    "compile": Verb(
        "Compile the programs that a run will need into its cache, before the run; or list them.",
        "fr3e compile configs/demo.yaml --list",
        compile_verb.declare_compile,
        compile_verb.compile_recipe,
    ),
    "methods": Verb(
        "List the methods that recipes combine, with paper, equation and recipe (docs/users/methods.md).",
        "fr3e methods --write docs/users/methods.md",
        parsers.declare_methods,
        _methods,
        recipe=False,
    ),
    "metrics": Verb(
        "Explain the numbers of metrics.jsonl: unit, meaning, good direction (docs/users/metrics.md).",
        "fr3e metrics clip",
        metrics_verb.declare_metrics,
        metrics_verb.show_metrics,
        recipe=False,
    ),
    "recipes": Verb(
        "List the recipes that come with the package; their names serve in place of a file.",
        "fr3e recipes",
        recipe_verbs.declare_recipes,
        recipe_verbs.list_recipes,
        recipe=False,
    ),
    "new": Verb(
        "Begin a recipe of your own: a file that includes another one and names what most runs change.",
        "fr3e new my.yaml --from demo",
        recipe_verbs.declare_new,
        recipe_verbs.write_new,
        recipe=False,
    ),
    "runs": Verb(
        "List the runs below a folder: state, progress, budget, held-out score before and after.",
        "fr3e runs runs --state failed",
        runs_verb.declare_runs,
        runs_verb.show_runs,
        recipe=False,
    ),
    "show": Verb(
        "Print what the policy said: prompts with their responses, and the rollouts from each state.",
        "fr3e show runs/demo-20250101-120000 --step 10 --prompts 2",
        show_verb.declare_show,
        show_verb.show,
        recipe=False,
    ),
    "analyse": Verb(
        "Analyse stored runs as the papers do: pass@k, diversity, entropy, stages, response quality, FR3E's figures.",
        "fr3e analyse runs/fr3e-20250101-120000 --baseline runs/grpo-20250101-120000",
        analyse_verb.declare_analyse,
        analyse_verb.show_analyses,
        recipe=False,
    ),
    "intervene": Verb(
        "Replace tokens of responses by their likeliest alternatives, and see how often the answers stay right.",
        "fr3e intervene configs/demo_fr3e.yaml --run runs/demo_fr3e-20250101-120000 --tokens position:early",
        intervene_verb.declare_intervene,
        intervene_verb.run_interventions,
    ),
    "gradient-noise": Verb(
        "Rank recipes by the signal-to-noise ratio of their gradient per sampled token, at fixed weights.",
        "fr3e gradient-noise configs/demo_fr3e.yaml --variants 'K=1 M=32' 'K=4 M=8' configs/demo_grpo.yaml --oracle",
        gradient_noise_verb.declare_gradient_noise,
        gradient_noise_verb.measure_gradient_noise,
    ),
    "updates": Verb(
        "Show how the updates between two checkpoints changed the probabilities of sampled tokens.",
        "fr3e updates runs/demo-20250101-120000 --steps 60,70",
        updates_verb.declare_updates,
        updates_verb.show_updates,
        recipe=False,
    ),
    "export": Verb(
        "Write a run's weights as a Hugging Face directory that transformers and vLLM load.",
        "fr3e export runs/demo-20250101-120000 my_model --dtype bf16",
        parsers.declare_export,
        _export,
        recipe=False,
    ),
    "compare": Verb(
        "Compare runs or a sweep: curves with bands over seeds, final scores, differences paired by seed.",
        "fr3e compare runs/sweep-demo-20250101-120000 --page comparison.html",
        _declare_compare,
        _compare,
        recipe=False,
    ),
    "report": Verb(
        "Write one HTML file that shows a run: curves, trees of rollouts, held-out problems, figures.",
        "fr3e report runs/demo-20250101-120000 --serve",
        report_verb.declare_report,
        report_verb.report,
        recipe=False,
    ),
    "sweep": Verb(
        "Run all combinations of comma-separated values, each in its own directory and process.",
        "fr3e sweep configs/demo_fr3e.yaml seed=0,1,2 explore.num_anchors=2,4 --dry-run",
        parsers.declare_sweep,
        _sweep,
    ),
}
