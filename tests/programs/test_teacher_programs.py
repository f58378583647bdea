"""A teacher's scores and its term of the loss equal those of whole sequences, on one device and on eight."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from network_programs import assert_close, one_device, placed, shardings_on

from fr3e_jax.learning.experience import TrainingBranch, TrainingTrunk
from fr3e_jax.learning.packing import pack
from fr3e_jax.objectives.distillation import distillation_divergence
from fr3e_jax.objectives.entropy import token_logprobs
from fr3e_jax.policy.int8 import with_scales
from fr3e_jax.policy.network import DEFAULT_OPTIONS, ForwardOptions, bind, build_network
from fr3e_jax.policy.rows import run_trunks
from fr3e_jax.programs.frozen_teacher import FrozenTeacher
from fr3e_jax.programs.mesh import make_mesh
from fr3e_jax.programs.reshard import RolloutWeights
from fr3e_jax.programs.shardings import param_shardings
from fr3e_jax.programs.train_programs import LossSettings, TrainPrograms

SIZES = dict(vocab_size=40, hidden_size=32, num_heads=4, num_kv_heads=2, intermediate_size=64, num_layers=1)
OTHER = dict(vocab_size=48, hidden_size=64, num_heads=8, num_kv_heads=4, intermediate_size=96, num_layers=2)
TEMPERATURE, WEIGHT = 0.8, 0.5


def draw_trunks():
    random, trunks = np.random.default_rng(3), []
    for count in (3, 1, 4, 2, 3, 1, 2, 5):
        ids = random.integers(0, 40, 9).astype(np.int32)
        lengths = [int(random.integers(2, 7)) for _ in range(count)]
        branches = [
            TrainingBranch(
                9 - n,
                random.integers(0, 40, size).astype(np.int32),
                np.zeros(size, np.float32),
                -np.ones(size, np.float32),
            )
            for n, size in enumerate(lengths)
        ]
        trunks.append(TrainingTrunk(ids, branches, 0))
    return trunks


TRUNKS = draw_trunks()
BRANCHES = [(trunk, branch) for trunk in TRUNKS for branch in trunk.branches]
TOKENS = float(sum(len(branch.token_ids) for _, branch in BRANCHES))


@pytest.fixture(scope="module")
def networks(tiny_network):
    """Policy and teacher: the teacher is wider, deeper, and has more tokens."""
    return tiny_network(**SIZES), tiny_network(**OTHER)


def teacher_on(network, mesh, options=DEFAULT_OPTIONS):
    return FrozenTeacher(
        network.graphdef, network.abstract, shardings_on(network, mesh), options, 40, lambda: placed(network, mesh)
    )


def programs_of(policy, teacher, mesh, *, beta=1.0, chunk=16, selects=False, **options):
    loss = LossSettings(teacher_weight=WEIGHT, teacher_beta=beta, teacher_selects=selects)
    options = ForwardOptions(**options)
    layout = shardings_on(policy, mesh), mesh, optax.sgd(1.0)
    return TrainPrograms(
        policy.graphdef, policy.abstract, *layout, loss=loss, token_chunk=chunk, options=options,
        teacher=teacher_on(teacher, mesh, options),
    )  # fmt: skip


@pytest.fixture(scope="module")
def programs(networks):
    """The programs of policy and teacher on one device."""
    return programs_of(*networks, one_device())


def trained(policy, teacher, mesh, rows=8, taught=None, programs=None, **options):
    """The gradient of all trunks, and their sums; rows are padded, and so are the lanes within them."""
    programs = programs or programs_of(policy, teacher, mesh, selects=taught is not None, **options)
    params = placed(policy, mesh)
    gradients, sums = programs.zero_gradients(params), []
    for micro in pack(TRUNKS, tokens=10_000, pad_id=0, shards=rows):
        batch = micro.batch
        if taught is not None:
            batch = batch._replace(taught=np.arange(batch.loss_mask.size).reshape(batch.loss_mask.shape) % taught == 0)
        gradients, found = programs.accumulate(params, gradients, batch, TOKENS, TEMPERATURE, 1.0)
        found.pop("logprobs")
        sums.append(jax.device_get(found))
    return jax.device_get(programs.total(gradients)), {k: sum(float(s[k]) for s in sums) for k in sums[0]}


def flattened(network, params):
    """Logits ``[sequences, 6, 40]`` that predict the branches' tokens, from plain causal passes."""
    ids, at = np.zeros((len(BRANCHES), 16), np.int32), np.zeros((len(BRANCHES), 6), np.int32)
    for row, (trunk, branch) in enumerate(BRANCHES):
        sequence = np.append(trunk.token_ids[: branch.fork], branch.token_ids)
        ids[row, : len(sequence)] = sequence
        at[row] = np.minimum(branch.fork - 1 + np.arange(6), len(sequence) - 2)
    hidden = jnp.take_along_axis(run_trunks(network.graphdef, params, ids).hidden, at[..., None], axis=1)
    return bind(network.graphdef, params).logits(hidden)[..., :40]


MASK = np.arange(6) < np.array([[len(branch.token_ids)] for _, branch in BRANCHES])


@pytest.mark.parametrize("beta", [1.0, 0.3])
def test_the_loss_is_that_of_whole_sequences(networks, programs, beta):
    policy, teacher = networks

    @jax.jit
    @jax.value_and_grad
    def naive(params):
        logits = flattened(policy, params) / TEMPERATURE
        theirs = jax.lax.stop_gradient(flattened(teacher, teacher.params)) / TEMPERATURE
        return WEIGHT * jnp.where(MASK, distillation_divergence(logits, theirs, beta=beta), 0.0).sum() / TOKENS

    value, expected = jax.device_get(naive(policy.params))
    gradient, sums = trained(
        policy, teacher, one_device(), rows=1, programs=programs if beta == 1.0 else None, beta=beta
    )
    np.testing.assert_allclose(sums["loss"], value, rtol=1e-5)
    assert_close(gradient, expected, 2e-5)
    assert sums["taught"] == TOKENS
    if beta == 1.0:
        np.testing.assert_allclose(sums["teacher_kl"] / TOKENS * WEIGHT, value, rtol=1e-5)


def test_scores_are_those_of_whole_sequences_over_the_policys_tokens(networks, programs):
    teacher, found = networks[1], {}
    for micro in pack(TRUNKS, tokens=10_000, pad_id=0):
        scores = np.asarray(programs.teacher_score(micro.batch.rows, TEMPERATURE))
        found |= {(span.trunk, span.branch): scores[span.where] for span in micro.spans}
    numbers = [(i, j) for i, trunk in enumerate(TRUNKS) for j in range(len(trunk.branches))]
    targets = np.zeros(MASK.shape, np.int32)
    targets[MASK] = np.concatenate([branch.token_ids for _, branch in BRANCHES])
    expected = np.asarray(token_logprobs(flattened(teacher, teacher.params) / TEMPERATURE, targets))
    for row, key in enumerate(numbers):
        np.testing.assert_allclose(found[key], expected[row][MASK[row]], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("dtype", "rounding"), [("float32", 1e-5), ("bfloat16", 2e-2)])
def test_a_teacher_equal_to_the_policy_gives_advantages_of_exactly_zero_and_no_gradient(tiny_network, dtype, rounding):
    """The two passes of the gradient program are compiled on their own, so that its zero is one up to rounding."""
    network = tiny_network(**SIZES, compute_dtype=dtype)
    programs, (micro, *_) = programs_of(network, network, one_device()), pack(TRUNKS, tokens=10_000, pad_id=0)
    own, _ = programs.score(placed(network, one_device()), micro.batch.rows, TEMPERATURE)
    np.testing.assert_array_equal(own, programs.teacher_score(micro.batch.rows, TEMPERATURE))
    gradient, sums = trained(network, network, one_device(), rows=1)
    assert abs(sums["teacher_kl"]) / TOKENS < rounding and abs(sums["loss"]) < rounding
    assert optax.tree.norm(gradient) < rounding


def test_a_teacher_in_int8_says_nearly_the_same(networks, programs):
    policy, teacher = networks
    mesh, architecture = one_device(), teacher.architecture
    graphdef, abstract, axes = build_network(architecture, completed=with_scales)
    shardings = param_shardings(mesh, abstract, axes, architecture)
    narrow = RolloutWeights(abstract, shardings, shardings, "float32").of(placed(teacher, mesh))
    rounded = FrozenTeacher(graphdef, abstract, shardings, DEFAULT_OPTIONS, 40, lambda: narrow)
    layout = shardings_on(policy, mesh), mesh, optax.sgd(1.0)
    of_rounded = TrainPrograms(policy.graphdef, policy.abstract, *layout, loss=LossSettings(), teacher=rounded)
    (micro, *_) = pack(TRUNKS, tokens=10_000, pad_id=0)
    exact, found = (np.asarray(each.teacher_score(micro.batch.rows, 1.0)) for each in (programs, of_rounded))
    gap = np.abs(exact - found)
    assert 0 < gap.mean() < 0.05 and gap.max() < 0.5


@pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 devices: FR3E_TEST_DEVICES=8 (make test-8)")
@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        (dict(replica=1, fsdp=4, tensor=2), {}),
        (dict(replica=2, tensor=2, context=2), {"beta": 0.3, "taught": 3}),
        (dict(replica=2, fsdp=2, tensor=2), {"attention": "pallas", "scan": True}),
    ],
    ids=str,
)
def test_eight_devices_give_the_gradient_of_one(networks, sizes, options):
    expected = trained(*networks, one_device(), **{k: v for k, v in options.items() if k in ("beta", "taught")})
    assert_close(trained(*networks, make_mesh(**sizes), **options), expected, 3e-5)
