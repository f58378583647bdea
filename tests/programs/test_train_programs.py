"""Scoring and updating equal the objectives, however a mini-batch is cut, packed and sharded."""

from __future__ import annotations

from collections import Counter
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from network_programs import adamw, assert_close, one_device, placed, train_programs

from fr3e_jax.configuration.lora_section import TARGETS
from fr3e_jax.learning.experience import TrainingBranch, TrainingTrunk
from fr3e_jax.learning.mini_batches import MiniBatch, fill
from fr3e_jax.learning.packing import counted_tokens, pack
from fr3e_jax.objectives.entropy import token_entropy, token_logprobs
from fr3e_jax.objectives.losses import (
    aggregation_denominator,
    clipped_surrogate,
    entropy_bonus,
    truncated_importance_weight,
)
from fr3e_jax.policy.lora import Adapted, LoraSettings, adapter_pairs, build_adapted_network
from fr3e_jax.policy.network import bind
from fr3e_jax.policy.rows import run_trunks
from fr3e_jax.programs.frozen_base import FrozenBase
from fr3e_jax.programs.host_arrays import params_on_mesh
from fr3e_jax.programs.mesh import make_mesh
from fr3e_jax.programs.program import programs_of
from fr3e_jax.programs.row_shape import RowShape
from fr3e_jax.programs.shardings import param_shardings
from fr3e_jax.programs.train_programs import LossSettings, TrainPrograms

MODES = ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "token_sum_norm"]
GRADIENT_MODE = "seq_mean_token_mean"  # the one whose weights depend on the branch
NORM_LENGTH, TEMPERATURE = 7, 0.8
ROW = RowShape(1, trunk_size=16, lanes=1, capacity=16)
SETTINGS = LossSettings(dual_clip=2.0, importance_cap=1.1, entropy_coefficient=0.05)


def draw_trunks():
    """Five trunks with one to five branches of one to six tokens, advantages, and a sampler that was a little off."""
    rng, trunks = np.random.default_rng(0), []
    for count in (3, 1, 5, 2, 4):
        length = int(rng.integers(3, 10))
        branches = []
        for _ in range(count):
            size = int(rng.integers(1, 7))
            ids = rng.integers(0, 20, size).astype(np.int32)
            normals = rng.standard_normal((2, size)).astype(np.float32)
            branches.append(TrainingBranch(int(rng.integers(1, length + 1)), ids, normals[0], -4 + 2 * normals[1]))
        trunks.append(TrainingTrunk(rng.integers(0, 20, length).astype(np.int32), branches, step=0))
    return trunks


TRUNKS = draw_trunks()
DENOMINATOR = aggregation_denominator(counted_tokens(TRUNKS), GRADIENT_MODE, norm_length=NORM_LENGTH)
BRANCHES = [(trunk, branch) for trunk in TRUNKS for branch in trunk.branches]
OLD = {  # a policy some updates ago, so that ratios are clipped on both sides
    (i, j): (-4 + 2 * np.random.default_rng([i, j]).standard_normal(len(b.token_ids))).astype(np.float32)
    for i, trunk in enumerate(TRUNKS)
    for j, b in enumerate(trunk.branches)
}


def make_programs(network, *, loss, mesh=None):
    """Programs with weights on one device, or on ``mesh``."""
    programs = train_programs(network, mesh, optimizer=adamw(), loss=loss, chunk=100)
    return SimpleNamespace(programs=programs, params=placed(network, mesh or one_device()))


@pytest.fixture(scope="module")
def single(tiny):
    return make_programs(tiny, loss=SETTINGS)


@pytest.fixture
def stepping(tiny, single):
    """The same programs with weights that an update may donate."""
    return SimpleNamespace(programs=single.programs, params=placed(tiny, one_device()))


def micro_batches(rows, mode=GRADIENT_MODE):
    micros = pack(TRUNKS, shapes=[ROW._replace(rows=rows)], pad_id=0, aggregation=mode)
    old = [[OLD[i, j] for j in range(len(t.branches))] for i, t in enumerate(TRUNKS)]
    fill([MiniBatch(list(range(len(TRUNKS))), TRUNKS, micros)], "old_logprobs", old)
    return micros


def accumulate(at, micros, denominator):
    """(gradients, summed statistics) of a mini-batch."""
    gradients, sums = at.programs.zero_gradients(at.params), []
    for micro in micros:
        gradients, part = at.programs.accumulate(at.params, gradients, micro.batch, denominator, TEMPERATURE)
        sums.append(jax.device_get(part))
    return gradients, {name: float(sum(part[name] for part in sums)) for name in sums[0]}


def unpacked(per_branch, fill=0.0):
    """``[sequences, T]`` from one array a branch."""
    out = np.full((len(BRANCHES), 6), fill, np.float32)
    for row, values in zip(out, per_branch, strict=True):
        row[: len(values)] = values
    return out


MASK = unpacked([np.ones(len(b.token_ids)) for _, b in BRANCHES]).astype(bool)


def reference_loss(network, params, mode):
    """The objective as the papers write it, over sequences passed one by one: no trunk, no packing, no chunks."""
    ids, at = np.zeros((len(BRANCHES), 16), np.int32), np.zeros((len(BRANCHES), 6), np.int32)
    for row, (trunk, branch) in enumerate(BRANCHES):
        sequence = np.append(trunk.token_ids[: branch.fork], branch.token_ids)
        ids[row, : len(sequence)] = sequence
        at[row] = np.minimum(branch.fork - 1 + np.arange(6), len(sequence) - 2)
    targets = np.take_along_axis(ids, at + 1, axis=1)
    hidden = jnp.take_along_axis(run_trunks(network.graphdef, params, ids).hidden, at[..., None], axis=1)
    logits = bind(network.graphdef, params).logits(hidden)
    old = unpacked([OLD[i, j] for i, trunk in enumerate(TRUNKS) for j in range(len(trunk.branches))])
    sampler = unpacked([branch.sampler_logprobs for _, branch in BRANCHES])
    losses, _ = clipped_surrogate(
        token_logprobs(logits / TEMPERATURE, targets),
        old,
        unpacked([branch.advantages for _, branch in BRANCHES]),
        MASK,
        epsilon_low=SETTINGS.epsilon_low,
        epsilon_high=SETTINGS.epsilon_high,
        dual_clip=SETTINGS.dual_clip,
    )
    losses = losses * truncated_importance_weight(old, sampler, SETTINGS.importance_cap)
    losses += entropy_bonus(token_entropy(logits), MASK, coefficient=SETTINGS.entropy_coefficient)
    sums, counts = jnp.where(MASK, losses, 0.0).sum(-1), MASK.sum(-1)
    return {
        "token_mean": sums.sum() / counts.sum(),
        "seq_mean_token_mean": (sums / counts).mean(),
        "seq_mean_token_sum": sums.mean(),
        "token_sum_norm": sums.mean() / NORM_LENGTH,
    }[mode]


@pytest.fixture(scope="module")
def references(tiny):
    """(loss of every aggregation, gradient of ``GRADIENT_MODE``'s), from one compiled program."""

    @jax.jit
    @partial(jax.grad, has_aux=True)
    def run(params):
        losses = {mode: reference_loss(tiny, params, mode) for mode in MODES}
        return losses[GRADIENT_MODE], losses

    gradient, losses = jax.device_get(run(tiny.params))
    return losses, gradient


@pytest.mark.parametrize("mode", MODES)
def test_loss_and_gradient_equal_the_objective_on_whole_sequences(single, references, mode):
    values, gradient = references
    denominator = aggregation_denominator(counted_tokens(TRUNKS), mode, norm_length=NORM_LENGTH)
    ours, sums = accumulate(single, micro_batches(2, mode), denominator)
    np.testing.assert_allclose(sums["loss"], values[mode], rtol=1e-5)
    assert min(sums[name] for name in ("clipped_low", "clipped_high", "clipped_dual")) >= 3
    if mode == GRADIENT_MODE:
        assert_close(ours, gradient)


@pytest.mark.parametrize("rows", [1, 8])
def test_gradient_does_not_depend_on_the_cut_of_the_mini_batch(single, references, rows):
    """Rows of five trunks, in pairs above; here one by one, and all at once beside empty rows."""
    micros = micro_batches(rows)
    assert len(micros) >= 4 if rows == 1 else len(micros) == 1
    gradients, sums = accumulate(single, micros, DENOMINATOR)
    np.testing.assert_allclose(sums["loss"], references[0][GRADIENT_MODE], rtol=1e-5)
    assert_close(gradients, references[1])


def test_scores_equal_those_of_whole_sequences_and_of_the_training_pass(single, tiny):
    """With scores as old log-probs every ratio is 1 and nothing is clipped: the first mini-batch is on-policy."""
    scores, micros = {}, micro_batches(2)
    for micro in micros:
        logprobs, entropies = jax.device_get(single.programs.score(single.params, micro.batch.rows, TEMPERATURE))
        for place in micro.spans:
            scores[place.trunk, place.branch] = logprobs[place.where], entropies[place.where]
    whole = [np.append(t.token_ids[: b.fork], b.token_ids) for t, b in BRANCHES]
    for (_, branch), (logprobs, entropies), logits in zip(
        BRANCHES, [scores[key] for key in OLD], tiny.full_logits(whole), strict=True
    ):
        predicting = np.float64(logits[branch.fork - 1 : -1])
        log_softmax = lambda x: x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
        expected = log_softmax(predicting / TEMPERATURE)[np.arange(len(branch.token_ids)), branch.token_ids]
        np.testing.assert_allclose(logprobs, expected, rtol=1e-5, atol=1e-5)
        plain = log_softmax(predicting)
        np.testing.assert_allclose(entropies, -(np.exp(plain) * plain).sum(axis=-1), rtol=1e-5, atol=1e-5)
    packed = MiniBatch(list(range(len(TRUNKS))), TRUNKS, micros)
    fill([packed], "old_logprobs", [[scores[i, j][0] for j in range(len(t.branches))] for i, t in enumerate(TRUNKS)])
    _, sums = accumulate(single, micros, 1.0)
    np.testing.assert_allclose(sums["ratio"], MASK.sum(), rtol=1e-6)
    assert [sums[name] for name in ("clipped_low", "clipped_high", "clipped_dual")] == [0, 0, 0]
    np.testing.assert_allclose(sums["entropy"], sum(e.sum() for _, e in scores.values()), rtol=1e-5)


def step(at, micros, denominator):
    """One update: its inputs (``inputs``), the gradient norm and the sums; the new parameters go to ``at``."""
    gradients, sums = accumulate(at, micros, denominator)
    state = at.programs.init_optimizer(at.params)
    inputs = at.params, state, gradients
    at.params, state, norm = at.programs.apply(*inputs)
    return SimpleNamespace(inputs=inputs, gradients=gradients, state=state, norm=float(norm), sums=sums)


def test_update_is_adamw_on_the_clipped_gradient_and_deletes_what_it_replaces(stepping, tiny, references):
    """First update of AdamW by hand: g / (|g| + epsilon), and decay of matrices."""
    done, gradients = step(stepping, micro_batches(8), DENOMINATOR), references[1]
    norm = np.sqrt(sum((np.float64(g) ** 2).sum() for g in jax.tree.leaves(gradients)))
    np.testing.assert_allclose(done.norm, norm, rtol=1e-5)
    params, state, _ = done.inputs
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves((params, state)))
    for before, after, g in zip(*map(jax.tree.leaves, (tiny.params, stepping.params, gradients)), strict=True):
        g = g / max(norm, 1.0)
        direction = g / (np.abs(g) + 1e-4)
        expected = before - 0.01 * (direction + (0.1 * before if before.ndim > 1 else 0.0))
        np.testing.assert_allclose(after, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sizes", [None, (2, 2, 2)])
def test_a_pass_at_the_start_of_a_batch_has_its_own_old_logprobs(sizes, tiny, single):
    """The gradient is that of a batch whose old log-probs were scored before; the pass returns them."""
    if sizes and len(jax.devices()) < 8:
        pytest.skip("needs 8 devices: FR3E_TEST_DEVICES=8 (make test-8)")
    at = make_programs(tiny, loss=SETTINGS, mesh=make_mesh(*sizes)) if sizes else single
    (micro,) = micro_batches(8)
    logprobs = np.asarray(at.programs.score(at.params, micro.batch.rows, TEMPERATURE)[0])
    found = []
    for old, at_start in ((np.full_like(logprobs, np.nan), 1.0), (logprobs, 0.0)):
        batch = micro.batch._replace(old_logprobs=old)
        start = at.programs.zero_gradients(at.params)
        gradients, sums = at.programs.accumulate(at.params, start, batch, DENOMINATOR, TEMPERATURE, at_start)
        mask, sums = micro.batch.loss_mask, jax.device_get(sums)
        np.testing.assert_allclose(sums.pop("logprobs"), np.where(mask, logprobs, 0.0), rtol=1e-5, atol=1e-5)
        found.append((gradients, {name: float(total) for name, total in sums.items()}))
    assert_close(found[0][0], found[1][0])
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-5)
    assert found[0][1]["ratio"] == mask.sum(), "every ratio is 1, to the last bit"


def test_second_step_of_the_same_shapes_compiles_nothing(stepping):
    """Data, denominators and the weights that an update returns compile nothing new."""
    compiled = []
    for denominator in (3.0, 5.0):
        step(stepping, micro_batches(2)[:2], denominator)
        compiled.append({name: program._cache_size() for name, program in programs_of(stepping.programs).items()})
    assert compiled[0] == compiled[1]
    assert [compiled[0][name] for name in ("init_optimizer", "zero_gradients", "_apply")] == [1, 1, 1]


def test_supervised_loss_is_the_mean_of_minus_the_log_probs(tiny, single):
    at, micros = make_programs(tiny, loss=None), micro_batches(8, "token_mean")
    count = aggregation_denominator(counted_tokens(TRUNKS), "token_mean", norm_length=NORM_LENGTH)
    of_micro = lambda micro: np.asarray(single.programs.score(at.params, micro.batch.rows, TEMPERATURE)[0])
    logprobs = np.concatenate([of_micro(micro)[np.asarray(micro.batch.loss_mask)] for micro in micros])
    np.testing.assert_allclose(accumulate(at, micros, count)[1]["loss"], -logprobs.mean(), rtol=1e-5)


def test_bfloat16_weights_keep_float32_scores_and_the_direction_of_the_gradient(single, tiny_network, references):
    """Scores are float32 with more bits than bfloat16 has; the gradient keeps its direction."""
    network = tiny_network(compute_dtype="bfloat16")
    network = network._replace(
        params=jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), network.params),
        abstract=jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16), network.abstract),
    )
    at = make_programs(network, loss=SETTINGS)
    (micro,) = micro_batches(8)
    exact = single.programs.score(single.params, micro.batch.rows, TEMPERATURE)
    for ours, theirs in zip(at.programs.score(at.params, micro.batch.rows, TEMPERATURE), exact, strict=True):
        assert ours.dtype == np.float32 and (ours.view(np.uint32) & 0xFFFF).any()
        np.testing.assert_allclose(ours, theirs, atol=0.2)
    gradients, sums = accumulate(at, [micro], DENOMINATOR)
    np.testing.assert_allclose(sums["loss"], references[0][GRADIENT_MODE], atol=0.05)
    flat = lambda tree: np.concatenate([np.asarray(leaf, np.float32).ravel() for leaf in jax.tree.leaves(tree)])
    ours, theirs = flat(gradients), flat(references[1])
    assert ours @ theirs > 0.98 * np.linalg.norm(ours) * np.linalg.norm(theirs)


LORA = LoraSettings(rank=3, alpha=6.0, targets=TARGETS)


def make_adapted(network, *, mesh=None):
    """As `make_programs`, for adapters on the weights; no factor is 0, so that all have gradients."""
    mesh = mesh or one_device()
    graphdef, abstract, axes = build_adapted_network(network.architecture, LORA)
    on = lambda part, names: param_shardings(mesh, part, names, network.architecture)
    shardings, own = on(network.abstract, network.axes), on(abstract.adapters, axes.adapters)
    base = FrozenBase(network.abstract, shardings, LORA.scale, lambda: params_on_mesh(network.params, shardings))
    programs = TrainPrograms(graphdef, abstract.adapters, own, mesh, adamw(), loss=SETTINGS, token_chunk=100, base=base)
    rng = np.random.default_rng(5)
    draw = lambda leaf: (0.3 * rng.standard_normal(leaf.shape)).astype(leaf.dtype)
    return SimpleNamespace(programs=programs, params=params_on_mesh(jax.tree.map(draw, abstract.adapters), own))


@pytest.fixture(scope="module")
def adapted_step(tiny):
    """One update of adapters; ``adapters`` before it, and ``whole``, the weights with these merged."""
    at = make_adapted(tiny)
    before = dict(adapters=jax.device_get(at.params), whole=at.programs.whole(at.params))
    return SimpleNamespace(at=at, **before, step=step(at, micro_batches(8), DENOMINATOR))


def test_gradients_of_adapters_are_the_chain_rule_of_the_full_gradient(adapted_step, single):
    """For W + s A B with the gradient G of that kernel: s G Bᵀ and s Aᵀ G. (Hu et al. 2021, section 4.1.)"""
    at = SimpleNamespace(programs=single.programs, params=adapted_step.whole)
    full, sums = accumulate(at, micro_batches(8), DENOMINATOR)
    np.testing.assert_allclose(adapted_step.step.sums["loss"], sums["loss"], rtol=1e-5)
    slopes = adapter_pairs(Adapted(full, adapted_step.step.gradients))
    before = adapter_pairs(Adapted(full, adapted_step.adapters))
    pairs = list(zip(slopes, before, strict=True))
    assert len(pairs) == 2 * len(TARGETS)
    for (slope, found), (_, adapter) in pairs:
        slope, a, b = (np.float64(x) for x in (slope, adapter["a"], adapter["b"]))
        assert_close(found, {"a": LORA.scale * slope @ b.T, "b": LORA.scale * a.T @ slope})


def test_a_gradient_of_adapters_computes_none_of_the_base(adapted_step, single):
    """No product of the backward pass has the shape of the head, and none that of a kernel."""
    (micro,) = micro_batches(8)
    scalars = [jnp.float32(x) for x in (DENOMINATOR, TEMPERATURE)]

    def shapes(at):
        zero = at.programs.zero_gradients(at.params)
        traced = at.programs._accumulate.trace(at.programs.read(at.params), zero, micro.batch, *scalars)
        return Counter(product_shapes(traced.jaxpr.jaxpr))

    kernels = {leaf.shape for leaf in jax.tree.leaves(single.params) if leaf.ndim == 2}
    made, full = shapes(adapted_step.at), shapes(single)
    assert all(full[shape] + full[shape[::-1]] + full[1, *shape[::-1]] for shape in kernels)
    assert not any(made[shape] or made[shape[::-1]] or made[1, *shape[::-1]] for shape in kernels)


def product_shapes(jaxpr):
    """The shapes of all matrix products of a program, those of its loops and functions included."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield equation.outvars[0].aval.shape
        for value in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from product_shapes(inner)


def test_adapters_on_eight_devices_are_trained_as_on_one(tiny, adapted_step):
    if len(jax.devices()) < 8:
        pytest.skip("needs 8 devices: FR3E_TEST_DEVICES=8 (make test-8)")
    at = make_adapted(tiny, mesh=make_mesh(2, 2, 2))
    (micro,) = micro_batches(8)
    adapter = at.params["layers"][0]["attention"]["query"]["adapter"]
    assert adapter["a"].addressable_shards[0].data.size * 2 == adapter["a"].size
    assert adapter["b"].addressable_shards[0].data.size * 2 == adapter["b"].size
    assert_close(at.programs.whole(at.params), adapted_step.whole)
    done = step(at, [micro], DENOMINATOR)
    assert_close(at.programs.total(done.gradients), adapted_step.step.gradients)
    assert_close(at.params, adapted_step.at.params)


def test_relative_change_is_the_norm_of_the_products_over_that_of_their_kernels(tiny, adapted_step):
    at = make_adapted(tiny)
    pairs = list(adapter_pairs(Adapted(tiny.params, adapted_step.adapters)))
    moved = [LORA.scale * np.float64(x["a"]) @ np.float64(x["b"]) for _, x in pairs]
    norm = lambda arrays: np.sqrt(sum((np.float64(x) ** 2).sum() for x in arrays))
    found = float(at.programs.relative_change(at.params))
    assert found == pytest.approx(norm(moved) / norm([kernel for kernel, _ in pairs]), rel=1e-5)
