"""Shapes of arguments are checked outside the tests, too: these call functions without the checks of `conftest`."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import re

import jax
import numpy as np
import pytest
from jaxtyping import Float

import fr3e_jax.objectives
from fr3e_jax.objectives.advantages import fr3e_advantages, group_advantages
from fr3e_jax.objectives.arrays import AnyArray, Number, checked_shapes
from fr3e_jax.objectives.divergence import kl_k3, sequence_log_ratios
from fr3e_jax.objectives.entropy import token_logprobs
from fr3e_jax.objectives.losses import clipped_surrogate, entropy_bonus, truncated_importance_weight
from fr3e_jax.objectives.pass_at_k import avg_at_k
from fr3e_jax.objectives.reductions import masked_mean
from fr3e_jax.objectives.returns import clipped_value_losses, generalised_advantages
from fr3e_jax.objectives.values import state_values

SQUARE = np.zeros((3, 3), np.float32)
CLIPPING = {"epsilon_low": 0.2, "epsilon_high": 0.2}


@checked_shapes
def scaled(
    values: Float[AnyArray, "*batch T"], scale: Number | Float[AnyArray, " T"], *, mask: Float[AnyArray, "*batch T"]
):
    return values


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        ((SQUARE, SQUARE[0]), {"mask": SQUARE}, None),
        ((SQUARE, 2.0), {"mask": SQUARE.tolist()}, None),
        ((SQUARE[0], np.float32(2.0)), {"mask": SQUARE[0]}, "scale has shape []; expected axes [T] beside values [3]"),
        (
            (SQUARE, 1.0),
            {"mask": SQUARE[0]},
            "mask has shape [3]; expected axes [*batch T] beside values [3, 3], scale []",
        ),
        ((SQUARE, 1.0), {"mask": SQUARE[:, :1]}, "mask has shape [3, 1]"),
        ((SQUARE, 1.0), {"mask": SQUARE[None]}, "mask has shape [1, 3, 3]"),
        ((SQUARE, SQUARE), {"mask": SQUARE}, "scale has shape [3, 3]"),
        ((SQUARE, SQUARE[0, :1]), {"mask": SQUARE}, "scale has shape [1]"),
        ((1.0, 1.0), {"mask": 1.0}, "values has shape []; expected axes [*batch T]"),
    ],
)
def test_axes_of_one_name_are_equal(arguments, options, error):
    if error is None:
        assert scaled(*arguments, **options) is arguments[0]
        return
    with pytest.raises(ValueError, match="scaled: " + re.escape(error)):
        scaled(*arguments, **options)


def test_advantages_of_sequences_do_not_broadcast_over_tokens():
    """With as many sequences as tokens, [B] would broadcast over [B, T] without a word."""
    with pytest.raises(ValueError, match=r"clipped_surrogate: advantages has shape \[3\]"):
        clipped_surrogate(SQUARE, SQUARE, SQUARE[0], SQUARE > 0, **CLIPPING)
    with pytest.raises(ValueError, match=r"clipped_surrogate: mask has shape \[3\]"):
        jax.jit(lambda logprobs, mask: clipped_surrogate(logprobs, logprobs, logprobs, mask, **CLIPPING))(
            SQUARE, SQUARE[0]
        )


RIGHT = np.zeros((3, 3, 3), np.float32)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: kl_k3(SQUARE, SQUARE[0]), "kl_k3: ref_logprobs"),
        (lambda: sequence_log_ratios(SQUARE, SQUARE, SQUARE[:, :1]), "sequence_log_ratios: mask"),
        (lambda: masked_mean(SQUARE, SQUARE[0]), "masked_mean: mask"),
        (lambda: entropy_bonus(SQUARE, SQUARE[:, 0], coefficient=0.1), "entropy_bonus: mask"),
        (
            lambda: truncated_importance_weight(SQUARE, SQUARE[None], 2.0),
            "truncated_importance_weight: sampler_logprobs",
        ),
        (lambda: group_advantages(SQUARE, SQUARE[0], estimator="grpo"), "group_advantages: mask"),
        (lambda: fr3e_advantages(RIGHT, RIGHT, SQUARE, SQUARE), "fr3e_advantages: initial_value"),
        (lambda: state_values(RIGHT, SQUARE), "state_values: mask"),
        (lambda: token_logprobs(SQUARE, np.zeros((3, 3), int)), "token_logprobs: token_ids"),
        (
            lambda: generalised_advantages(SQUARE, SQUARE[0], SQUARE, gamma=1.0, lam=1.0),
            "generalised_advantages: values",
        ),
        (
            lambda: clipped_value_losses(SQUARE, SQUARE, SQUARE[0], SQUARE, clip=0.2),
            "clipped_value_losses: returns",
        ),
        (lambda: avg_at_k(np.float32(1.0)), "avg_at_k: correct"),
    ],
)
def test_arrays_that_would_broadcast_are_named(call, name):
    """All axes have three entries, so that NumPy's rules alone would accept them."""
    with pytest.raises(ValueError, match=f"{name} has shape"):
        call()


def test_the_check_is_in_no_compiled_program():
    arguments = (SQUARE, SQUARE, SQUARE, SQUARE > 0)
    checked, unchecked = (
        jax.jit(functools.partial(function, **CLIPPING)).lower(*arguments).as_text()
        for function in (clipped_surrogate, clipped_surrogate.__wrapped__)
    )
    assert checked == unchecked


def test_every_public_function_of_arrays_checks_them():
    unchecked, checked = [], 0
    for module in pkgutil.iter_modules(fr3e_jax.objectives.__path__, "fr3e_jax.objectives."):
        for name, function in inspect.getmembers(importlib.import_module(module.name), inspect.isfunction):
            if function.__module__ != module.name or name.startswith("_"):
                continue
            signature = inspect.getsource(function).split('"""')[0].rpartition("->")[0]
            if re.search(r": (\w+ \| )?(Float|Int|Bool|Shaped)\[", signature):
                checked += "@checked_shapes" in signature
                unchecked += [] if "@checked_shapes" in signature else [f"{module.name}.{name}"]
    assert not unchecked and checked > 60
