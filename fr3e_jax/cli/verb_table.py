"""The verbs of the command, each with a line for `fr3e --help`.

The module of a verb is loaded when the verb is called, so that `fr3e --help` loads none of them. It has the verb's
arguments, its help text and its function, and the verb itself as ``VERB``.
"""

from __future__ import annotations

import importlib

from fr3e_jax.cli.parser import Verb

VERBS = {
    "train": "Train by reinforcement learning: FR3E, or GRPO and its relatives with explore.enabled=false.",
    "sft": "Fine-tune on the task's demonstrations: the warm start of reinforcement learning.",
    "rft": "Fine-tune on the policy's own responses: sample, filter, select, train, and again.",
    "eval": "Evaluate models, runs and checkpoints on held-out problems, and keep every response.",
    "sample": "Complete one prompt and show each token's log-prob and entropy.",
    "serve": "Serve a model or a run: an OpenAI-compatible endpoint that also branches from answers.",
    "data": "Show a recipe's data: counts, dropped rows, prompt lengths, overlap with the evaluation sets, prompts.",
    "plan": "Show whether a recipe fits hardware that is not here, and the least time of a step.",
    "compile": "Compile the programs that a run will need into its cache, before the run; or list them.",
    "methods": "List the recipes that come with the package by method, with paper and equation; names serve as RECIPE.",
    "metrics": "Explain the numbers of metrics.jsonl: unit, meaning, good direction (docs/users/metrics.md).",
    "runs": "List the runs below a folder: state, progress, budget, held-out score before and after.",
    "show": "Print what the policy said: prompts with their responses, and the rollouts from each state.",
    "analyse": "Analyse stored runs as the papers do: pass@k, maj@k, entropy, and FR3E's figures.",
    "intervene": "Replace tokens of responses by their likeliest alternatives, and see how often answers stay right.",
    "export": "Write a run's weights as a Hugging Face directory that transformers and vLLM load.",
    "compare": "Compare runs or a sweep: curves with bands over seeds, final scores, differences paired by seed.",
    "report": "Write one HTML file that shows a run: curves, trees of rollouts, held-out problems, figures.",
    "sweep": "Run all combinations of comma-separated values, each in its own directory and process.",
}


def load_verb(name: str) -> Verb:
    """The verb of this name, from ``verbs/NAME.py``; its module is imported now."""
    return importlib.import_module(f"fr3e_jax.verbs.{name}").VERB
