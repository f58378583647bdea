"""The model card of an export, written from its run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from fr3e_jax.configuration import Config
from fr3e_jax.hub import is_id
from fr3e_jax.runs.declared_metrics import is_score
from fr3e_jax.studies.analysis.stored_run import StoredRun

_FOLDERS = re.compile(r"(?<![^\s=,\[\"'])[~/](?:[^\s=,\[\]\"'/]*/)+")  # of absolute paths, which are nobody's business


def model_card(run: StoredRun, config: Config, step: int, dtype: str, *, adapter: bool = False) -> str:
    """Markdown with the front matter of the hub: base, method, data, budget, held-out scores, commit and command.

    Args:
      run: the run.
      config: its settings.
      step: of the checkpoint.
      dtype: of the weights.
      adapter: the directory holds adapters, as PEFT reads them.
    """
    front: dict[str, Any] = {"library_name": "peft" if adapter else "transformers"}
    front["tags"] = ["reinforcement-learning", "rlvr", "fr3e_jax"]
    if is_id(config.model.path):
        front["base_model"] = config.model.path.partition("@")[0]  # the hub takes no revision there
    return "\n".join(
        [
            f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n",
            f"# {config.name}\n",
            f"Step {step} of the run `{run.name}`, by reinforcement learning from verifiable rewards with fr3e_jax.\n",
            *_table(["", ""], _facts(run, config, step, dtype)),
            *_scores(run, config, step),
            *_command(run),
        ]
    )


def _file_name(text: str) -> str:
    """A path less its folders, which are nobody's business; an id of the hub as it is."""
    return Path(text).name if Path(text.rpartition(":")[0] or text).is_absolute() else text


def _facts(run: StoredRun, config: Config, step: int, dtype: str) -> list[list[str]]:
    training = [record for record in run.training if record["step"] <= step]
    tokens = sum(record.get("tokens/sampled_tokens") or 0 for record in training)
    git = run.provenance.get("git") or {}
    commit = str(git.get("commit", "")) + (" with changes" if git.get("dirty") else "")
    data = config.data.train or [config.data.task]
    facts = {
        "method": config.algorithm,
        "started from": _file_name(config.model.path) or "random weights",
        "adapters": f"rank {config.model.lora.rank}" if config.model.lora.rank else "",
        "data": ", ".join(map(_file_name, data)),
        "verifier": _file_name(config.data.verifier),
        "learning rate": f"{config.optimizer.learning_rate:g}",
        "sampled tokens": f"{tokens:,.0f}" if tokens else "",
        "seed": str(config.seed),
        "type of the weights": dtype,
        "trained on": str(run.provenance.get("time", ""))[:10],
        "commit of fr3e_jax": commit,
    }
    return [[name, value] for name, value in facts.items() if value]


def _scores(run: StoredRun, config: Config, step: int) -> list[str]:
    """The last evaluation up to ``step``, and how it was sampled."""
    evaluations = [record for record in run.evaluations if record["step"] <= step]
    if not evaluations:
        return []
    first, last = evaluations[0], evaluations[-1]
    names = [name for name in last if is_score(name)]
    rows = [
        [name, *(f"{100 * record[name]:.1f}" if record.get(name) is not None else "" for record in (first, last))]
        for name in names
    ]
    e = config.evaluation
    sampling = f"temperature {e.temperature:g}" + (f" and top-p {e.top_p:g}" if e.top_p < 1 else "")
    sampling += f"; sets with settings of their own: {', '.join(e.sets)}" if e.sets else ""
    problems = f"{last.get('prompts', e.prompts):g} problems of the {e.split} split"
    return [
        f"## Held-out scores\n\n{problems}, in percent. avg@k and pass@k are sampled at {sampling}.\n",
        *_table(["", f"step {first['step']}", f"step {last['step']}"], rows),
    ]


def _command(run: StoredRun) -> list[str]:
    _, _, arguments = str(run.provenance.get("command") or "").partition(" ")
    return [f"## Command\n\n```\nfr3e {_FOLDERS.sub('', arguments)}\n```\n"] if arguments else []


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    cells = [header, ["---"] * len(header), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return [*("| " + " | ".join(row) + " |" for row in cells), ""]
