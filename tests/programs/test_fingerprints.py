"""Fingerprints name a function with all that it holds: equal across objects, different for any difference."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fr3e_jax.policy.architecture import Architecture
from fr3e_jax.policy.network import build_network
from fr3e_jax.programs import decode_steps, fingerprints
from fr3e_jax.programs.fingerprints import Unidentified, fingerprint
from fr3e_jax.programs.mesh import make_mesh, mesh_layout
from fr3e_jax.programs.optimizer_programs import make_optimizer
from fr3e_jax.programs.train_programs import LossSettings

SIZES = {
    "vocab_size": 16,
    "hidden_size": 8,
    "num_layers": 1,
    "num_heads": 2,
    "num_kv_heads": 1,
    "head_dim": 4,
    "intermediate_size": 8,
    "rope_theta": 1e4,
    "tie_word_embeddings": True,
}


def _prefill(**sizes):
    graphdef, *_ = build_network(Architecture(**SIZES | sizes))
    return partial(decode_steps.prefill, graphdef, mesh_layout(make_mesh(1, 1, 1, jax.devices()[:1])))


def _optimizer(**settings):
    usual = {"learning_rate": 1e-3, "schedule": "cosine", "warmup_updates": 2, "decay_updates": 9, "beta1": 0.9}
    usual |= {"beta2": 0.99, "epsilon": 1e-8, "weight_decay": 0.1, "max_grad_norm": 1.0}
    return make_optimizer(**usual | settings)


@pytest.mark.parametrize(
    ("make", "other"),
    [
        (_prefill, {"rms_norm_eps": 1e-4}),
        (_prefill, {"rope_theta": 1e5}),
        (_prefill, {"num_layers": 2}),
        (_optimizer, {"learning_rate": 2e-3}),
        (_optimizer, {"schedule": "linear"}),
        (_optimizer, {"max_grad_norm": 0.0}),
        (LossSettings, {"epsilon_high": 0.3}),
        (lambda steps=1: (decode_steps.decode_chunk, {"steps": steps}), {"steps": True}),
        (lambda value=0.0: np.array([1.0, value]), {"value": 2.0}),
    ],
)
def test_equal_things_share_a_fingerprint_and_one_other_setting_changes_it(make, other):
    assert fingerprint(make()) == fingerprint(make())
    assert fingerprint(make()) != fingerprint(make(**other))


def test_lambdas_of_one_function_differ_by_their_code(monkeypatch):
    monkeypatch.setattr(fingerprints, "CODE", (*fingerprints.CODE, __name__))
    add, multiply, two = lambda x: x + 1, lambda x: x * 1, lambda x: x + 2
    assert len({fingerprint(each) for each in (add, multiply, two)}) == 3
    bound = [lambda x, n=n: x + n for n in (1, 2)]
    assert fingerprint(bound[0]) != fingerprint(bound[1])
    adder = lambda n: lambda x: x + n
    closed = list(map(adder, (1, 1, 2)))
    assert fingerprint(closed[0]) == fingerprint(closed[1]) != fingerprint(closed[2])


def test_two_objects_of_equal_content_count_as_one_object_twice():
    one, other = (1, "a"), tuple([1, "a"])
    assert one is not other
    assert fingerprint([one, one]) == fingerprint([one, other])


def test_shardings_differ_by_mesh_and_axes():
    mesh = make_mesh(1, 1, 1, jax.devices()[:1])
    whole, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("fsdp"))
    assert fingerprint(whole) == fingerprint(NamedSharding(mesh, P()))
    assert fingerprint(whole) != fingerprint(split)
    assert fingerprint(whole) != fingerprint(jnp.zeros(1).sharding)


def _of_a_user(x):
    return x


class _Thing:
    pass


@pytest.mark.parametrize(
    "value",
    [_of_a_user, partial(jnp.sum, _of_a_user), _Thing(), {"a": _Thing}, optax.GradientTransformation(_of_a_user, 1)],
    ids=["function", "partial", "object", "class", "optimizer"],
)
def test_what_is_not_known_is_refused(value):
    with pytest.raises(Unidentified):
        fingerprint(value)


def test_a_value_that_holds_itself_is_refused():
    value: list = []
    value.append(value)
    with pytest.raises(Unidentified, match="holds itself"):
        fingerprint(value)


def test_a_jitted_function_counts_by_the_function_within():
    assert fingerprint(jnp.cumsum) != fingerprint(jnp.cumprod)
    with pytest.raises(Unidentified):
        fingerprint(jax.jit(_of_a_user))
