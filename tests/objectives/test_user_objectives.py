"""Losses and estimators of the user's own: the fields they get, what they may return, and the shipped examples."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fr3e_jax.objectives.example_objectives import cispo, masked_sequences, shortest_half
from fr3e_jax.objectives.user_objectives import (
    ESTIMATOR_FIELDS,
    LOSS_FIELDS,
    check_estimator,
    user_estimator,
    user_loss,
)
from fr3e_jax.policy.rows import Rows
from fr3e_jax.programs.train_programs import LossSettings, TrainRows, policy_token_losses

CLIPPED = """
import jax.numpy as jnp

def clipped(advantages, logprobs, old_logprobs, epsilon=0.2):
    ratio = jnp.exp(logprobs - old_logprobs)
    return -jnp.minimum(ratio * advantages, jnp.clip(ratio, 1 - epsilon, 1 + epsilon) * advantages)
"""
EXAMPLES = "fr3e_jax.objectives.example_objectives"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "users" / "own_loss.md"


@pytest.fixture
def file(tmp_path):
    """Write a file of the user's, and return the setting that names a function in it."""

    def written(text: str, name: str) -> str:
        path = tmp_path / f"mine_{name}.py"
        path.write_text(text)
        return f"{path}:{name}"

    return written


def test_the_clipped_surrogate_as_a_loss_of_the_users_own_is_the_built_in_one(file):
    """Values and gradients, whatever stands where nothing trains; the ratio remains a metric."""
    random = np.random.default_rng(3)
    mask = np.array([[True, True, False], [True, False, False]])
    old, now, advantages = random.normal(size=(3, 2, 3)).astype(np.float32) * 0.3
    old[~mask] = advantages[~mask] = np.nan
    rows = TrainRows(Rows(*[None] * 8), mask, mask.astype(np.float32), advantages, old, old)

    def total(now, settings):
        losses, sums = policy_token_losses(rows, now, jnp.ones((2, 3)), settings)
        return jnp.sum(losses), (losses, sums)

    results = []
    for function in (None, user_loss(file(CLIPPED, "clipped"))):
        settings = LossSettings(epsilon_low=0.2, epsilon_high=0.2, function=function)
        (_, (losses, sums)), slope = jax.value_and_grad(total, has_aux=True)(jnp.asarray(now), settings)
        results.append((losses, slope, sums["ratio"]))
    for built_in, mine in zip(*results, strict=True):
        np.testing.assert_allclose(mine, built_in, rtol=1e-6)
    assert np.isfinite(results[1][1]).all() and not np.asarray(results[1][0])[~mask].any()


@pytest.mark.parametrize(
    "text, message",
    [
        ("def loss(logprob): return logprob", "loss.function: .* has a parameter logprob, .* did you mean logprobs?"),
        ("def loss(logprobs, beta): return logprobs", "a parameter beta, .* give it a default, or leave it out"),
        ("def loss(logprobs): return logprobs.mean()", r"returned losses \[\]; expected losses \[2, 3\], one for each"),
        ("def loss(logprobs): return logprobs, 1", "returned a int beside the losses; expected"),
        ("def loss(logprobs): return logprobs, {'kept': 1.0}", "returned kept of type float; expected losses"),
        ("def loss(logprobs): return logprobs, {'policy': logprobs}", "loss/policy is a metric of the package"),
        ("loss = 3", "has 3 there, which cannot be called; expected a function of logprobs, old_logprobs"),
        ("other = 3", "has no such name"),
        ("def loss(logprobs): return [logprobs, {}]", "returned losses of type list; expected losses"),
        ("def loss(logprobs): return logprobs.astype(int)", "losses of type int32, which have no gradient"),
        ("def loss(advantages): return -advantages", "reads advantages, through which no gradient flows"),
        ("def loss(*args): return args[0]", "takes args by its place, .* functools.wraps"),
        ("def loss(logprobs, /): return logprobs", "takes logprobs by its place"),
        (
            "import functools\nloss = functools.partial(lambda logprobs, by: logprobs.sum() * by, by=2)",
            r"partial returned losses \[\]",
        ),
        ("def loss(logprobs):\n    if logprobs[0, 0] > 0: return logprobs", r"TracerBool.*mine_loss.py, line 2\)"),
        ("def loss(logprobs) return logprobs", r"cannot be imported: expected ':' \(mine_loss.py, line 1\)$"),
        ("import nosuchmodule", "cannot be imported: No module named 'nosuchmodule'"),
    ],
)
def test_a_loss_that_cannot_be_used_is_named_before_the_run(file, text, message):
    with pytest.raises(ValueError, match=message):
        user_loss(file(text, "loss"))


@pytest.mark.parametrize(
    "text, message",
    [
        ("def mine(reward): return reward", "did you mean rewards?"),
        ("def mine(rewards): return rewards[:2]", r"returned shape \[2\]; expected 4 finite advantages, one a rollout"),
        ("def mine(rewards): return rewards / 0", "expected 4 finite advantages"),
        ("def mine(rewards): return None", "mine"),
        (
            "def mine(rewards, outcomes): return [o + 1 for o in outcomes]",
            "mine failed: TypeError: can only concatenate str",
        ),
        ("def mine(rewards): return {}[0]", r"mine failed: KeyError: 0 \(.*mine_mine.py, line 1\)$"),
    ],
)
def test_an_estimator_that_cannot_be_used_is_named_before_the_run(file, text, message):
    with np.errstate(divide="ignore", invalid="ignore"), pytest.raises(ValueError, match=message):
        check_estimator(file(text, "mine"), 4)


def test_a_loss_may_ignore_further_fields_by_name(file):
    assert user_loss(file("def loss(logprobs, **others): return -logprobs", "loss")).fields == ("logprobs",)


def test_built_in_names_are_no_files_and_others_are_refused(tmp_path):
    assert user_loss("") is None and user_estimator("grpo") is None
    with pytest.raises(ValueError, match="advantage.base_estimator is 'grop'; expected grpo, .* did you mean 'grpo'?"):
        user_estimator("grop")
    with pytest.raises(FileNotFoundError, match="loss.function names the file .*none.py"):
        user_loss(f"{tmp_path}/none.py:loss")
    assert user_loss(f"{EXAMPLES}:masked_sequences").fields[-1] == "sequence_sampler_gaps"


def test_cispo_keeps_the_gradient_of_every_token_and_caps_its_weight():
    """At a ratio of 2, 0.5 and 20 the gradients are −2 Â, −0.5 Â and −5 Â."""
    old, advantages = jnp.zeros(3), jnp.array([1.0, -2.0, 3.0])
    now = jnp.log(jnp.array([2.0, 0.5, 20.0]))
    slope = jax.grad(lambda x: cispo(x, old, advantages)[0].sum())(now)
    np.testing.assert_allclose(slope, [-2.0, 1.0, -15.0], rtol=1e-6)
    assert cispo(now, old, advantages)[1]["capped"].tolist() == [0, 0, 1]


def test_sequences_that_the_sampler_judges_otherwise_have_no_gradient():
    gaps, zeros = jnp.array([0.0, 0.009, 0.011, -0.011]), jnp.zeros(4)
    slope = jax.grad(lambda x: masked_sequences(x, zeros, jnp.ones(4), gaps).sum())(zeros)
    assert slope.tolist() == [-1, -1, 0, 0]


def test_the_shorter_half_has_a_baseline_of_its_own():
    advantages = shortest_half(np.array([1.0, 0.0, 1.0, 0.0, 0.0]), np.array([9, 2, 2, 8, 3]))
    np.testing.assert_allclose(advantages, [np.nan, -(0.5**0.5), 2**0.5, np.nan, -(0.5**0.5)], rtol=1e-5)


def test_the_page_on_losses_of_ones_own_is_true(file):
    """Its code runs as it stands, and its tables are those of the fields."""
    text = PAGE.read_text()
    loss, estimator = re.findall(r"```python\n# mine\.py\n(.*?)```", text, re.DOTALL)
    assert user_loss(file(loss, "soft_clip")).fields == ("logprobs", "old_logprobs", "advantages")
    check_estimator(file(estimator, "shortest_half"), 5)
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.MULTILINE))
    assert {name: row.replace("`", "") for name, row in rows.items()} == LOSS_FIELDS | ESTIMATOR_FIELDS
