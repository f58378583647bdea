"""Reinforcement learning from verifiable rewards by branching: FR3E and its relatives in JAX.

    import fr3e_jax as fr3e

    trainer = fr3e.Trainer("configs/demo_fr3e.yaml", overrides=["explore.num_anchors=2"])
    result = trainer.train()
    policy = fr3e.load_policy(result.run_dir)
    answers = policy.sample(["2+3*4>"], n=8)

The names in ``__all__`` are imported when they are first used, so that this module loads neither jax nor a device.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fr3e_jax.api.policy import Completion as Completion
    from fr3e_jax.api.policy import Policy as Policy
    from fr3e_jax.api.policy import State as State
    from fr3e_jax.api.policy import load_policy as load_policy
    from fr3e_jax.api.stored import read_metrics as read_metrics
    from fr3e_jax.api.stored import read_rollouts as read_rollouts
    from fr3e_jax.api.trainer import Trainer as Trainer
    from fr3e_jax.api.trainer import TrainingFailed as TrainingFailed
    from fr3e_jax.api.trainer import TrainingResult as TrainingResult
    from fr3e_jax.configuration import ConfigError as ConfigError
    from fr3e_jax.configuration import load_config as load_config
    from fr3e_jax.loop.callbacks import Callback as Callback

__version__ = "0.1.0"

_PLACES = {
    "Callback": "fr3e_jax.loop.callbacks",
    "Completion": "fr3e_jax.api.policy",
    "ConfigError": "fr3e_jax.configuration",
    "Policy": "fr3e_jax.api.policy",
    "State": "fr3e_jax.api.policy",
    "Trainer": "fr3e_jax.api.trainer",
    "TrainingFailed": "fr3e_jax.api.trainer",
    "TrainingResult": "fr3e_jax.api.trainer",
    "load_config": "fr3e_jax.configuration",
    "load_policy": "fr3e_jax.api.policy",
    "read_metrics": "fr3e_jax.api.stored",
    "read_rollouts": "fr3e_jax.api.stored",
}
__all__ = [*_PLACES]

# Tokenizers work without PyTorch; transformers would say on every start that its models do not.
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    value = globals()[name] = getattr(importlib.import_module(_PLACES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
