"""The critic: shared trunks give the values and gradients of whole sequences, on one device and on eight."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fr3e_jax.learning.experience import TrainingBranch, TrainingTrunk
from fr3e_jax.learning.packing import pack
from fr3e_jax.policy.network import bind
from fr3e_jax.programs.critic_programs import CriticPrograms, ValueRows
from fr3e_jax.programs.mesh import make_mesh


def draw_trunks() -> list[TrainingTrunk]:
    rng, trunks = np.random.default_rng(2), []
    for count in (3, 1, 4, 2):
        length = int(rng.integers(3, 9))
        branches = []
        for _ in range(count):
            ids = rng.integers(0, 20, int(rng.integers(1, 7))).astype(np.int32)
            nothing = np.zeros(len(ids), np.float32)
            branches.append(TrainingBranch(int(rng.integers(1, length + 1)), ids, nothing, nothing))
        trunks.append(TrainingTrunk(rng.integers(0, 20, length).astype(np.int32), branches, step=0))
    return trunks


TRUNKS = draw_trunks()
BRANCHES = [(trunk, branch) for trunk in TRUNKS for branch in trunk.branches]
RETURNS = [
    np.random.default_rng(i).normal(size=len(b.token_ids)).astype(np.float32) for i, (_, b) in enumerate(BRANCHES)
]
NUMBERS = {key: n for n, key in enumerate((i, j) for i, t in enumerate(TRUNKS) for j in range(len(t.branches)))}
TOKENS = float(sum(map(len, RETURNS)))


def critic_on(tiny, devices: int, **mesh) -> tuple[CriticPrograms, object]:
    """Programs and weights whose value head is not zero."""
    programs = CriticPrograms(
        tiny.architecture, make_mesh(devices=jax.devices()[:devices], **mesh), optax.sgd(0.1), clip=0.3
    )
    params = programs.initial_params(tiny.params)
    kernel = np.random.default_rng(5).normal(size=params["value"]["kernel"].shape).astype(np.float32)
    params["value"] = {"kernel": jnp.asarray(kernel), "bias": jnp.float32(0.25)}
    return programs, jax.device_put(params, programs.param_shardings)


def value_rows(tokens: int, shards: int = 1):
    """(micro-batch, packed rows with returns and old values of each token)."""
    for micro in pack(TRUNKS, tokens=tokens, pad_id=0, shards=shards):
        returns, old = (np.zeros(micro.batch.loss_mask.shape, np.float32) for _ in range(2))
        for p in micro.spans:
            number = NUMBERS[p.trunk, p.branch]
            returns[p.where], old[p.where] = RETURNS[number], 0.5 * RETURNS[number]
        yield micro, ValueRows(micro.batch.rows, micro.batch.loss_mask, returns, old)


def accumulated(programs, params, tokens: int, shards: int = 1):
    gradients, losses = programs.zero_gradients(params), []
    for _, rows in value_rows(tokens, shards):
        gradients, sums = programs.accumulate(params, gradients, rows, TOKENS)
        losses.append(float(sums["loss"]))
    return jax.device_get(programs.total(gradients)), sum(losses)


LENGTH = 16  # of the longest whole sequence, padding counted


def whole(values, fill=0) -> np.ndarray:
    """``[branches, LENGTH]``: each branch's values after its prefix."""
    out = np.full((len(BRANCHES), LENGTH), fill, np.asarray(values[0]).dtype)
    for row, (_, branch), value in zip(out, BRANCHES, values, strict=True):
        row[branch.fork : branch.fork + len(value)] = value
    return out


IDS = whole([branch.token_ids for _, branch in BRANCHES])
for _row, (_trunk, _branch) in zip(IDS, BRANCHES, strict=True):
    _row[: _branch.fork] = _trunk.token_ids[: _branch.fork]
OWN = whole([np.ones(len(branch.token_ids), bool) for _, branch in BRANCHES])


@partial(jax.jit, static_argnums=0)
def flattened_values(graphdef, params):
    """``[branches, LENGTH]``, from plain causal passes over whole sequences: V of the state before each token."""
    hidden, *_ = bind(graphdef, params["network"]).causal(IDS)
    values = hidden @ params["value"]["kernel"] + params["value"]["bias"]
    return jnp.pad(values, ((0, 0), (1, 0)))[:, :-1]


def published_loss(graphdef, params):
    values, returns = flattened_values(graphdef, params), whole(RETURNS)
    near = jnp.clip(values, 0.5 * returns - 0.3, 0.5 * returns + 0.3)
    return jnp.sum(0.5 * jnp.maximum((values - returns) ** 2, (near - returns) ** 2) * OWN) / TOKENS


@pytest.fixture(scope="module")
def single(tiny):
    return critic_on(tiny, 1)


def test_values_of_shared_trunks_equal_those_of_whole_sequences(tiny, single):
    programs, params = single
    expected = np.asarray(flattened_values(programs.graphdef, params))
    for micro, rows in value_rows(200):
        found = np.asarray(programs.values(params, rows.rows))
        for p in micro.spans:
            number = NUMBERS[p.trunk, p.branch]
            np.testing.assert_allclose(found[p.where], expected[number][OWN[number]], atol=1e-5)
        assert not found[~micro.batch.loss_mask].any()


def test_gradients_of_shared_trunks_equal_those_of_whole_sequences(single):
    programs, params = single
    expected_loss, expected = jax.jit(jax.value_and_grad(lambda p: published_loss(programs.graphdef, p)))(params)
    for tokens in (60, 200):
        gradients, loss = accumulated(programs, params, tokens)
        assert loss == pytest.approx(float(expected_loss), rel=1e-5)
        for ours, theirs in zip(jax.tree.leaves(gradients), jax.tree.leaves(expected), strict=True):
            assert np.linalg.norm(ours - theirs) <= 1e-5 * np.linalg.norm(theirs) + 1e-8


def test_new_critic_has_values_of_zero_and_shares_no_memory_with_the_policy(tiny, single):
    programs, _ = single
    params = programs.initial_params(tiny.params)
    assert "head" not in params["network"]
    _, rows = next(value_rows(200))
    assert not programs.values(params, rows.rows).any()
    kept = jax.device_get(tiny.params["embedding"])
    state = programs.init_optimizer(params)
    gradients, _ = programs.accumulate(params, programs.zero_gradients(params), rows, TOKENS)
    params, _, norm = programs.apply(params, state, gradients)  # donates the critic's weights
    assert float(norm) > 0 and programs.values(params, rows.rows).any()
    np.testing.assert_array_equal(tiny.params["embedding"], kept)


@pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 devices: FR3E_TEST_DEVICES=8 (make test-8)")
@pytest.mark.parametrize(
    "mesh",
    [
        {"replica": 2, "fsdp": 2, "tensor": 2},
        {"fsdp": 2, "tensor": 1, "context": 4},
    ],
)
def test_sharded_critic_equals_that_of_one_device(tiny, single, mesh):
    programs, params = critic_on(tiny, 8, **mesh)
    found_by = (programs, params), single
    expected, loss = accumulated(*single, 200)
    found, sharded_loss = accumulated(programs, params, 200, shards=mesh.get("replica", 1) * mesh["fsdp"])
    values = [jax.device_get(at.values(weights, next(value_rows(200, 8))[1].rows)) for at, weights in found_by]
    np.testing.assert_allclose(*values, atol=1e-5)
    assert sharded_loss == pytest.approx(loss, rel=1e-5)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.linalg.norm(ours - theirs) <= 1e-5 * np.linalg.norm(theirs) + 1e-8
