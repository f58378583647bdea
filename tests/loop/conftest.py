"""What the tests of the loop share: a tiny configuration, sessions made from it, and one finished run."""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from fr3e_jax.configuration import Config
from fr3e_jax.configuration.check import check
from fr3e_jax.loop.session import Session, open_session
from fr3e_jax.loop.train import train
from fr3e_jax.policy.rows import run_trunks
from fr3e_jax.rewards.grader import Grader

SCRIPTED = str(Path(__file__).with_name("scripted_task.py"))

# An untrained policy is nearly uniform over 22 tokens: responses end by a stop token, or at 10 tokens.
TINY = {
    "name": "tiny",
    "model.hidden_size": 16,
    "model.num_layers": 1,
    "model.num_heads": 2,
    "model.num_kv_heads": 1,
    "model.intermediate_size": 32,
    "data.task": f"{SCRIPTED}:Parity",
    "data.max_prompt_tokens": 8,
    "rollout.prompts_per_round": 3,
    "rollout.rollouts_per_prompt": 4,
    "rollout.max_response_tokens": 10,
    "rollout.trunk_slots": 2,
    "rollout.lanes_per_trunk": 3,
    "rollout.decode_chunk": 4,
    "explore.num_anchors": 2,
    "explore.rollouts_per_state": 3,
    "training.batch_rollouts": 20,
    "training.mini_batch_rollouts": 10,
    "training.micro_batch_tokens": 256,
    "training.max_steps": 4,
    "optimizer.learning_rate": 1e-2,
    "evaluation.prompts": 4,
    "evaluation.samples": 3,
    "evaluation.pass_at": [1, 2],
    "evaluation.every": 2,
    "checkpoint.every": 1,
    "runtime.tensorboard": False,
    "runtime.console": "none",
    "runtime.compilation_cache": "",
}


def assign(config: Config, settings: dict[str, Any]) -> Config:
    for path, value in settings.items():
        *sections, name = path.split(".")
        section = config
        for part in sections:
            section = getattr(section, part)
        assert hasattr(section, name), path
        setattr(section, name, copy.copy(value))
    check(config, training=False)
    return config


def tiny_config(**settings: Any) -> Config:
    """The tiny configuration with changes, written ``section__field=value``."""
    changes = {path.replace("__", "."): value for path, value in settings.items()}
    return assign(Config(), TINY | changes)


def changed(session: Session, **settings: Any) -> Session:
    """The same compiled programs under other settings of the loop."""
    changes = {path.replace("__", "."): value for path, value in settings.items()}
    return dataclasses.replace(session, config=assign(copy.deepcopy(session.config), changes))


compiled_trunks = jax.jit(run_trunks, static_argnums=0)


def full_logits(session: Session, params, token_ids) -> np.ndarray:
    """float64 logits ``[T, V]`` after each prefix of ``token_ids``, from one plain causal pass."""
    padded = np.zeros((1, 64), np.int32)  # one compiled size
    padded[0, : len(token_ids)] = token_ids
    hidden = compiled_trunks(session.graphdef, params, padded).hidden[0, : len(token_ids)]
    return np.asarray(hidden, np.float64) @ np.asarray(params["embedding"], np.float64).T


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


class InOrder(Grader):
    """Calls its verifier when a verdict is fetched: a script of rewards follows the order of a prompt's branches."""

    def submit(self, problem, response, finished):
        return SimpleNamespace(
            done=lambda: True, result=lambda: super(InOrder, self).submit(problem, response, finished).result()
        )


@pytest.fixture(scope="session")
def tiny() -> SimpleNamespace:
    return SimpleNamespace(
        config=tiny_config,
        changed=changed,
        full_logits=full_logits,
        log_softmax=log_softmax,
        task=SCRIPTED,
        in_order=InOrder,
    )


def widened(params):
    """Larger embeddings, so that entropies and log-probs differ clearly from token to token."""
    return params | {"embedding": params["embedding"] * 20}


@pytest.fixture(scope="session")
def session() -> Session:
    return open_session(tiny_config())


@pytest.fixture(scope="session")
def params(session):
    return widened(session.fresh_params())


@pytest.fixture(scope="session")
def scripted_tool() -> ModuleType:
    """The module beside this one."""
    spec = importlib.util.spec_from_file_location("scripted_tool", Path(__file__).with_name("scripted_tool.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory) -> Path:
    """An FR3E run of four steps that nothing interrupted."""
    path = tmp_path_factory.mktemp("finished") / "run"
    assert train(tiny_config(runtime__run_dir=str(path))) == 0
    return path
