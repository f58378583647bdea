"""Every recipe of configs/methods trains for a small step, or for three whose own metric moves as its header says."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fr3e_jax.configuration import load_config
from fr3e_jax.loop.run import TrainingRun
from fr3e_jax.loop.train import train, train_steps
from fr3e_jax.runs.ledger import TokenLedger
from fr3e_jax.session.opening import opened_run
from fr3e_jax.session.session import Session, open_session
from fr3e_jax.verbs.supervised.rejection_sampling import rft

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted((ROOT / "configs" / "methods").glob("*.yaml"))

RUN = [
    "training.max_steps=3",
    "training.max_sampled_tokens=0",
    "training.batch_rollouts=32",
    "training.mini_batch_rollouts=16",
    "training.micro_batch_tokens=128",  # two shapes of rows for most recipes; with 1024 there are six
    "evaluation.prompts=2",
    "evaluation.samples=2",
    "evaluation.pass_at=[2]",
    "rollout.prompts_per_round=2",
    "rollout.max_rounds_without_signal=100",
    "runtime.console=none",
    "runtime.trackers=[]",
]
UNTRAINED = [  # one layer, and a task that such a policy solves half of the time
    "model.path=",
    "model.hidden_size=16",
    "model.num_layers=1",
    "model.num_heads=2",
    "model.num_kv_heads=1",
    "model.intermediate_size=32",
    f"data.task={ROOT / 'tests/fixtures/scripted_task.py'}:Parity",
    "rollout.trunk_slots=2",
    "rollout.lanes_per_trunk=17",
    "optimizer.learning_rate=1e-2",
]
WARM_STARTED = [
    "rft.prompts=24",
    "rft.responses=64",
    "training.mini_batch_rollouts=16",
]  # what an untrained policy cannot do

EARLIER = {  # events that lie beyond three steps in the recipe itself
    "ppo": ["critic.warmup_steps=1"],
    "prorl": ["kl.reset_every=2"],
}

Metrics = list[dict[str, float]]
METHOD: dict[str, Callable[[Metrics], bool]] = {
    "clip_cov": lambda m: all(0 < s["shaping/clip_cov/masked"] <= 0.02 for s in m),
    "egsw_base": lambda m: all(s["shaping/sequence_weighting/scale"] < 0.2 for s in m),
    "entropy_advantage": lambda m: all(0 < s["shaping/entropy_advantage/ratio"] <= 0.5 for s in m),
    "forking_tokens": lambda m: all(0.2 <= s["shaping/forking_tokens/kept"] < 0.21 for s in m),
    "grpo": lambda m: m[-1]["kl/mean"] > m[0]["kl/mean"] >= 0,
    "gspo": lambda m: m[-1]["clip/low"] + m[-1]["clip/high"] > 0.02,
    "kl_cov": lambda m: all(0 < s["shaping/kl_cov/masked"] <= 0.02 for s in m),
    "negative_samples": lambda m: all(s["shaping/sample_reinforcement/positive_share"] == 0 for s in m),
    "perplexity_low": lambda m: all(0.3 < s["shaping/perplexity/weight_abs"] < 1 for s in m),
    "position_late": lambda m: m[0]["shaping/position/added"] == 0 < m[1]["shaping/position/added"] < 0.1,
    "ppo": lambda m: [s["critic/warming_up"] for s in m] == [1, 0, 0] and [s["updates"] > 0 for s in m] == [0, 1, 1],
    "prorl": lambda m: [s["kl/reset"] for s in m] == [0, 1, 0] and m[2]["kl/mean"] < m[1]["kl/mean"],
    "reinforce_ada": lambda m: all(
        s.get("prompts/most_rollouts", 17) > 16 == s["batch/rollouts"] / s["batch/trunks"] for s in m
    ),
    "reinforce_pp": lambda m: all(abs(s["advantage/mean"]) < 1e-3 for s in m),
    "replay": lambda m: m[-1]["replay/asked"] > 0,
    "rft_branching_factor": lambda m: all(
        s["rft/branching_factor_selected"] > s["rft/branching_factor_right"] for s in m
    ),
    "tools_order": lambda m: all(s["tools/calls_per_rollout"] > 0 for s in m),
    "truncated_importance": lambda m: all(s["logprob_gap/mean"] > 1e-4 for s in m),
    "vineppo": lambda m: all(s["batch/rollouts"] == s["batch/trunks"] for s in m),
}
"""The expectation that a recipe's header states of its own metric, if it states one."""


OWN_SESSION = ("rft", "tools", "vineppo", "truncated")
"""Recipes with programs of their own: from the warm start, with tools, with weights of another type."""


@pytest.fixture(scope="module")
def shared() -> Session:
    """A session whose sampling programs are compiled once for all other recipes."""
    return open_session(load_config(ROOT / "configs" / "demo_grpo.yaml", [*RUN, *UNTRAINED]))


def train_small(recipe: Path, run_dir: Path, shared: Callable[[], Session]) -> Metrics:
    """Train small steps of the recipe, one if it states no metric; return the metrics of its training steps."""
    kind = recipe.stem.partition("_")[0]
    warm = kind in OWN_SESSION[:-1]
    config = load_config(recipe, [*RUN, *(WARM_STARTED if warm else UNTRAINED), *EARLIER.get(recipe.stem, [])])
    if recipe.stem not in METHOD:
        config.training.max_steps = 1
    config.model.path = str(ROOT / config.model.path) if warm else ""
    config.runtime.run_dir = str(run_dir)
    if kind in OWN_SESSION:
        assert (rft if kind == "rft" else train)(config) == 0
    else:
        session = dataclasses.replace(shared(), config=config)
        with opened_run(session, "train", None, False) as opened:
            assert TrainingRun(opened, TokenLedger()).carry_out(train_steps) == 0
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "train"]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_the_recipe_trains_and_its_metric_is_what_it_says(recipe, tmp_path, request):
    metrics = train_small(recipe, tmp_path / "run", lambda: request.getfixturevalue("shared"))
    assert metrics
    if recipe.stem in METHOD:
        assert METHOD[recipe.stem](metrics), {k: [m.get(k) for m in metrics] for k in metrics[-1]}


def test_expectations_name_recipes():
    assert METHOD.keys() | EARLIER.keys() <= {recipe.stem for recipe in RECIPES}
