"""Evaluations in the files of another harness: logs of Inspect (inspect-ai 0.3, format ``json``, version 2)."""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any

from fr3e_jax import __version__
from fr3e_jax.configuration import ConfigError
from fr3e_jax.runs.rollout_parts import rollout_path
from fr3e_jax.runs.rollout_store import RolloutRecord, read_rollouts
from fr3e_jax.runs.run_directory import RunDirectory, write_json_atomic
from fr3e_jax.verbs.eval import COUNTS
from fr3e_jax.verbs.evaluations import METRICS, Result


def write_evaluation(result: Result) -> Path:
    """Write the logs of an evaluation into ``inspect/`` of its folder, which has the metrics and every response.

    Returns:
      The folder of the logs.

    Raises:
      ConfigError: the responses were not stored.
    """
    folder = Path(result.folder)
    described = json.loads((folder / METRICS).read_bytes())["of"]
    path = rollout_path(RunDirectory(folder), described["step"], stem="eval")
    try:
        records = list(read_rollouts(path))
    except FileNotFoundError:
        raise ConfigError(
            f"{folder} has no responses, which --format writes; remove it, and set runtime.store_rollouts=true"
        ) from None
    sets: dict[str, list[RolloutRecord]] = {}
    for record in records:
        sets.setdefault(record.benchmark, []).append(record)
    written = datetime.datetime.fromtimestamp((folder / METRICS).stat().st_mtime, datetime.UTC).replace(microsecond=0)
    data = described["settings"]["data"]
    tasks = {}
    for name, members in sets.items():
        label = name or "+".join(data["eval"]) or data["task"].rpartition(":")[2]
        tasks[label] = (members, _metrics_of(result, name))
    return _write_inspect(folder / "inspect", result.name, described, tasks, written)


Tasks = dict[str, tuple[list[RolloutRecord], dict[str, float]]]


def _metrics_of(result: Result, benchmark: str) -> dict[str, float]:
    """The scores and lengths of one set, without its name."""
    prefix = f"{benchmark}/" if any(name.startswith(f"{benchmark}/") for name in result.metrics) else ""
    return {
        name.removeprefix(prefix): value
        for name, value in result.metrics.items()
        if name.startswith(prefix) and name.removeprefix(prefix) not in COUNTS and math.isfinite(value)
    }


def _write_inspect(folder: Path, model: str, described: Any, tasks: Tasks, written: datetime.datetime) -> Path:
    """A log of the samples of each set, whose epochs are the samples, and one of its greedy answers."""
    folder.mkdir(parents=True, exist_ok=True)
    for task, (records, metrics) in tasks.items():
        for kind in ("", "greedy"):
            chosen = [record for record in records if (record.base == 0) == (kind == "greedy")]
            if not chosen:
                continue
            name = f"{task}_{kind}" if kind else task
            digest = _hash(f"{name}{model}{json.dumps(described, sort_keys=True)}")[:22]
            own = {key: value for key, value in metrics.items() if (key == "greedy") == bool(kind)}
            ids = {record.problem_id for record in chosen}
            begun = written.isoformat()
            content = {
                "version": 2,
                "status": "success",
                "eval": {
                    "eval_id": digest,
                    "run_id": digest,
                    "created": begun,
                    "task": name,
                    "task_id": digest,
                    "dataset": {"name": task, "samples": len(ids)},
                    "model": f"fr3e_jax/{model}",
                    "config": {"epochs": max(record.base for record in chosen) or 1},
                    "packages": {"fr3e_jax": __version__},
                    "metadata": described,
                },
                "plan": {"name": "plan", "steps": [], "config": {}},
                "results": {
                    "total_samples": len(chosen),
                    "completed_samples": len(chosen),
                    "scores": [
                        {
                            "name": "verifier",
                            "scorer": "verifier",
                            "params": {},
                            "metrics": {key: {"name": key, "value": value} for key, value in own.items()},
                        }
                    ],
                },
                "stats": {"started_at": begun, "completed_at": begun, "model_usage": {}},
                "samples": [_inspect_sample(record, model) for record in chosen],
            }
            stamp = written.strftime("%Y-%m-%dT%H-%M-%S+00-00")
            write_json_atomic(folder / f"{stamp}_{_file_name(name)}_{digest}.json", content)
    return folder


def _inspect_sample(record: RolloutRecord, model: str) -> dict[str, Any]:
    answer = {"role": "assistant", "content": record.response, "source": "generate", "model": model}
    # "N" is Inspect's value of an answer that has none: what was not graded is not wrong.
    value = "N" if math.isnan(record.reward) else record.reward
    return {
        "id": record.problem_id,
        "epoch": max(record.base, 1),
        "input": record.prompt,
        "target": record.gold,
        "messages": [{"role": "user", "content": record.prompt, "source": "input"}, answer],
        "output": {
            "model": model,
            "choices": [{"message": answer, "stop_reason": "stop" if record.finished else "max_tokens"}],
        },
        "scores": {"verifier": {"value": value, "explanation": record.outcome or "not graded"}},
        "metadata": {"log_prob": float(sum(record.logprobs)), "tokens": len(record.token_ids)},
    }


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip("-")
