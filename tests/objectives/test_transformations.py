"""Every public function of the package under jit, vmap and grad, with NumPy in and float32 (or int32, bool) out."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fr3e_jax import objectives
from fr3e_jax.objectives.anchors import AnchorRules

NAMES = [module.name for module in pkgutil.iter_modules(objectives.__path__)]
FUNCTIONS = {
    name: function
    for module in (importlib.import_module(f"{objectives.__name__}.{name}") for name in NAMES)
    # Each of these has a test file of its name; examples are tested with the user's objectives.
    if not module.__name__.endswith((".shaping_steps", ".arrays", ".user_objectives", ".example_objectives"))
    for name, function in vars(module).items()
    if inspect.isfunction(function) and function.__module__ == module.__name__ and not name.startswith("_")
}
HOST_ONLY = {"pass_at_k", "avg_at_k", "n_gram_redundancy", "whitening", "is_degenerate"}
HOST_ONLY |= {"has_both_kinds", "balanced_group", "knapsack_rollouts"}  # NumPy
HOST_ONLY |= {"aggregation_denominator", "token_divisors"}  # arithmetic on counts, of NumPy arrays too
HOST_ONLY |= {"intervention", "read_group", "highest", "replaceable", "probed_depths", "crossing_depth"}  # NumPy
RNG = np.random.default_rng(0)
BATCH, J, M, T, V = 3, 4, 5, 6, 7


def floats(*shape: int) -> np.ndarray:
    return RNG.uniform(0.1, 1.0, size=(BATCH, *shape)).astype(np.float32)


def bits(*shape: int) -> np.ndarray:
    return RNG.integers(0, 2, size=(BATCH, *shape)).astype(bool)


TOKEN_IDS, LENGTHS = RNG.integers(0, V, size=(BATCH, T)), np.array([1, 4, T])
ANCHORS = np.sort(RNG.integers(1, T, size=(BATCH, J)), axis=-1)
LOGITS = np.where(RNG.uniform(size=(BATCH, T, V)) < 0.2, -np.inf, floats(T, V)).astype(np.float32)
LOGITS[..., 0] = 0.5

# name -> (arguments with a batch axis, static keywords)
CALLS = {
    "block_credit": ((floats(J), floats(), floats(), bits(J)), {}),
    "block_index": ((ANCHORS, bits(J), LENGTHS), dict(T=T)),
    "bounded_log_ratio": ((floats(T), floats(T)), {}),
    "boundary_anchors": ((bits(T), LENGTHS), dict(rules=AnchorRules(J))),
    "branching_factor": ((LOGITS,), {}),
    "clip_cov_tokens": ((5 * floats(T), bits(T), bits(T), floats(T)), dict(share=0.5, low=1.0, high=5.0)),
    "clipped_surrogate": ((floats(T), floats(T), floats(T), bits(T)), dict(epsilon_low=0.2, epsilon_high=0.3)),
    "clipped_value_losses": ((floats(T), floats(T), floats(T), bits(T)), dict(clip=0.5)),
    "distillation_divergence": ((LOGITS, np.flip(LOGITS, axis=-1)), dict(beta=0.3)),
    "entropy_based_advantages": ((floats(T), floats(T), bits(T)), dict(alpha=0.4, kappa=2.0)),
    "entropy_bonus": ((floats(T), bits(T)), dict(coefficient=0.1)),
    "entropy_guided_weights": (
        (floats(2, T), floats(2, T), bits(2, T)),
        dict(alpha=0.3, temperature=1.0, level="step"),
    ),
    "forking_tokens": ((floats(T), bits(T)), dict(share=0.2)),
    "fr3e_advantages": ((floats(J, M), bits(J, M), floats(), bits(J)), dict(modulation="sharpen")),
    "generalised_advantages": ((floats(T), floats(T), bits(T)), dict(gamma=0.9, lam=0.95)),
    "graded_values": ((floats(J),), dict(reward_range="minus_one_one")),
    "group_advantages": ((floats(M), bits(M)), dict(estimator="rloo")),
    "grpo_advantages": ((floats(M), bits(M)), {}),
    "kl_cov_losses": ((floats(T), floats(T), floats(T), bits(T), bits(T)), dict(coefficient=1.0)),
    "kl_cov_tokens": ((floats(T), bits(T)), dict(share=0.3)),
    "kl_k1": ((floats(T), floats(T)), {}),
    "kl_k2": ((floats(T), floats(T)), {}),
    "kl_k3": ((floats(T), floats(T)), {}),
    "largest_share": ((floats(T), bits(T), np.full(BATCH, 2.0, np.float32)), {}),
    "log_perplexity": ((floats(T), bits(T)), {}),
    "masked_mean": ((floats(T), bits(T)), {}),
    "masked_std": ((floats(T), bits(T)), {}),
    "masked_sum": ((floats(T), bits(T)), {}),
    "matching_tokens": ((floats(T), floats(T), bits(T)), dict(low=0.5, high=2.0)),
    "maxrl_advantages": ((floats(M), bits(M)), {}),
    "mean_advantages": ((floats(M), bits(M)), {}),
    "pass_at_k_advantages": ((bits(M), bits(M)), dict(k=2)),
    "perplexity_shaped_advantages": ((floats(M, T), floats(M)), dict(alpha=0.01, variant="paper")),
    "perplexity_weights": ((floats(M), bits(M)), dict(variant="released")),
    "position_shaped_advantages": (
        (floats(T), bits(T)),
        dict(gamma=0.1, direction=1.0, steepness=15.0, centre=0.5, variant="paper"),
    ),
    "ranged_rewards": ((floats(M),), dict(reward_range="minus_one_one")),
    "rloo_advantages": ((floats(M), bits(M)), {}),
    "sample_reinforcement": ((floats(T), bits(T)), dict(positive=0.1, negative=1.0)),
    "safe_sqrt": ((floats(T),), {}),
    "sequence_log_ratios": ((floats(T), floats(T), bits(T)), {}),
    "select_anchors": ((floats(T), LENGTHS), dict(rules=AnchorRules(J, min_spacing=2))),
    "sharpened": ((floats(J),), {}),
    "soft_overlong_penalty": ((LENGTHS,), dict(max_length=6, margin=3)),
    "state_values": ((floats(J, M), bits(J, M)), {}),
    "teacher_advantages": ((floats(T), floats(T)), {}),
    "token_covariances": ((floats(T), floats(T), bits(T)), {}),
    "token_entropy": ((LOGITS,), {}),
    "token_logprobs": ((LOGITS, TOKEN_IDS), {}),
    "trajectory_modulation": ((floats(J), floats(), bits(J)), dict(variant="sharpen")),
    "tree_advantages": ((floats(J, M), bits(J, M), floats(), floats()), {}),
    "truncated_importance_weight": ((floats(T), floats(T)), dict(cap=2.0)),
    "uniform_anchors": ((LENGTHS,), dict(rules=AnchorRules(J), T=T)),
    "update_magnitude": ((LOGITS, TOKEN_IDS, floats(T)), {}),
    "value_differences": ((floats(J), floats(), bits(J)), {}),
}


def bound(name):
    static, function = CALLS[name][1], FUNCTIONS[name]
    return lambda *arrays: function(*arrays, **static)


def test_every_public_function_is_listed_here():
    assert set(CALLS) | HOST_ONLY == set(FUNCTIONS)


def compiled(names, transformation=lambda function: function):
    """All functions of a module in one program: compiling one for each takes four times as long."""
    functions = {name: transformation(bound(name)) for name in names}
    return jax.jit(lambda arguments: {name: functions[name](*arguments[name]) for name in names})


MODULES = {}
for _name in CALLS:
    MODULES.setdefault(FUNCTIONS[_name].__module__.rpartition(".")[2], []).append(_name)


@pytest.mark.parametrize("names", MODULES.values(), ids=MODULES)
def test_jit_of_vmap_equals_one_call_at_a_time(names):
    arguments = {name: CALLS[name][0] for name in names}
    together, alone = compiled(names, jax.vmap)(arguments), compiled(names)  # without jit: the other tests
    one_by_one = [alone(jax.tree.map(lambda a, i=i: a[i], arguments)) for i in range(BATCH)]
    stacked = jax.tree.map(lambda *rows: np.stack(rows), *one_by_one)
    for name in names:
        close = lambda a, b, name=name: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=name)
        jax.tree.map(close, together[name], stacked[name])
    assert {leaf.dtype for leaf in jax.tree.leaves(together)} <= {np.dtype(t) for t in ("float32", "int32", "bool")}


@pytest.mark.parametrize("names", MODULES.values(), ids=MODULES)
def test_gradients_are_finite(names):
    is_real = lambda array: array.dtype == np.float32
    real = {name: [a for a in CALLS[name][0] if is_real(a)] for name in names}

    def total(real):
        sums = jnp.float32(0)
        for name in names:
            inputs = iter(real[name])
            arguments = [next(inputs) if is_real(a) else a for a in CALLS[name][0]]
            for output in jax.tree.leaves(jax.vmap(bound(name))(*arguments)):
                if is_real(output):
                    sums += jnp.where(jnp.isfinite(output), output, 0.0).sum()  # log 0 is −inf, rightly
        return sums

    for name, gradients in jax.jit(jax.grad(total))(real).items():
        assert all(np.isfinite(gradient).all() for gradient in gradients), name
