"""Estimated FLOPs against the matrix products of the programs, counted in their jaxprs."""

from __future__ import annotations

import math

import jax
import pytest
from jax.extend import core

from fr3e_jax.configuration import load_config
from fr3e_jax.planning.estimate import Estimator
from fr3e_jax.planning.targets import Programs
from fr3e_jax.planning.tuning import Change


def counted(jaxpr, trips: int = 1) -> int:
    """2·m·n·k for each matrix product, times the lengths of the loops around it; ``trips``: of a ``while``."""
    total = 0
    for equation in jaxpr.eqns:
        times = {"scan": equation.params.get("length"), "while": trips}.get(equation.primitive.name, 1)
        if equation.primitive.name == "dot_general":
            (contracted, _), (batch, _) = equation.params["dimension_numbers"]
            left, right = (variable.aval for variable in equation.invars)
            depth = math.prod(left.shape[axis] for axis in (*contracted, *batch))
            matrices = min(left.ndim, right.ndim) > len(contracted) + len(batch)
            total += matrices * 2 * left.size * right.size // max(depth, 1)
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if isinstance(inner, core.ClosedJaxpr | core.Jaxpr):
                    total += times * counted(getattr(inner, "jaxpr", inner), trips)
    return total


def flops_of(programs: Programs, name: str, trips: int = 1) -> int:
    target = programs.target(name)
    return counted(target.program.trace(*target.arguments, **target.options).jaxpr.jaxpr, trips)


@pytest.fixture(scope="module")
def small():
    """A tiny recipe whose rows fill the head's chunks without padding."""
    sizes = ["model.hidden_size=32", "model.num_heads=4", "model.num_kv_heads=2", "model.intermediate_size=48"]
    sizes += ["model.num_layers=2", "data.max_prompt_tokens=16", "rollout.max_response_tokens=64"]
    sizes += ["rollout.rollouts_per_prompt=4", "explore.enabled=false", "training.micro_batch_tokens=512"]
    sizes += ["rollout.lanes_per_trunk=4"]
    config = load_config("configs/fr3e_gsm8k.yaml", [*sizes, "training.batch_rollouts=8"], training=False)
    return config, Programs(config, jax.devices()[:1], vocab_size=20)


def vectors_of(programs: Programs, estimator: Estimator) -> int:
    """Elements of norms and biases, which the estimate counts as if they were parts of matrices."""
    matrices = sum(leaf.size for leaf in jax.tree.leaves(programs.params["layers"]) if leaf.ndim == 2)
    return estimator.kernels - matrices


def test_estimated_flops_of_training_are_those_of_the_matrix_products(small):
    """A scoring pass costs two FLOPs per weight and position, a gradient three passes."""
    config, programs = small
    estimator = Estimator(config, programs.architecture, 1)
    vectors = 2 * programs.largest.positions * vectors_of(programs, estimator)
    assert flops_of(programs, "score") == estimator.of("score").flops - vectors
    assert flops_of(programs, "accumulate") == estimator.of("accumulate").flops - 3 * vectors


def test_rematerialisation_costs_one_more_pass_of_the_layers_without_their_last_product(small):
    config = Change("training.remat", "block").applied(small[0])
    programs = Programs(config, jax.devices()[:1], 20)
    a, estimator = programs.architecture, Estimator(config, programs.architecture, 1)
    vectors = 2 * programs.largest.positions * vectors_of(programs, estimator)
    last = 2 * programs.largest.positions * a.intermediate_size * a.hidden_size * a.num_layers
    assert flops_of(programs, "accumulate") == estimator.of("accumulate").flops - 4 * vectors - last


def test_estimated_flops_of_a_decode_chunk_leave_out_the_columns_that_it_writes(small):
    config, programs = small
    a, estimator = programs.architecture, Estimator(config, programs.architecture, 1)
    estimate, steps = estimator.decode(), config.rollout.decode_chunk
    written = 4 * estimate.positions * steps * a.num_heads * a.head_dim * a.num_layers
    vectors = 2 * estimate.positions * vectors_of(programs, estimator)
    assert flops_of(programs, "decode", steps) == estimate.flops + written - vectors
