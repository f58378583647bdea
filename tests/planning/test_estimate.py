"""Estimates against the arrays of the programs themselves, and the advice and searches that use them."""

from __future__ import annotations

import math
import re

import jax
import pytest

from fr3e_jax.configuration import load_config
from fr3e_jax.planning.compilations import layer_programs
from fr3e_jax.planning.compile import ProgramPlan, estimated_plan, requested_bytes, with_floor
from fr3e_jax.planning.costs import Collective
from fr3e_jax.planning.estimate import Estimator
from fr3e_jax.planning.expected import Efficiency
from fr3e_jax.planning.lane_use import lane_use
from fr3e_jax.planning.plan import make_plan
from fr3e_jax.planning.plan_text import plan_text
from fr3e_jax.planning.search import Candidate, choose, ranked, rollout_settings, training_settings
from fr3e_jax.planning.targets import Programs, device_bytes
from fr3e_jax.planning.topology import CHIPS, parse_topology
from fr3e_jax.planning.tuning import advise, changed
from fr3e_jax.planning.workload import Assumptions, explore_shape, step_amounts
from fr3e_jax.policy.architecture import PUBLISHED, UnsupportedModel
from fr3e_jax.programs.mesh import MeshMismatch

SMALL = ["model.hidden_size=64", "model.num_layers=2", "model.compute_dtype=float32"]
BIG, A7, A32 = "configs/fr3e_qwen2.5_32b.yaml", PUBLISHED["qwen2.5-7b"], PUBLISHED["qwen2.5-32b"]
V5P, V5E, V5E64 = map(parse_topology, ("v5p:4x4x4", "v5e:4x4", "v5e:8x8"))


def recipe(path, *settings):
    return load_config(path, list(settings), training=False)


def test_estimate_has_the_arrays_of_the_programs():
    config = recipe("configs/fr3e_gsm8k.yaml", *SMALL)
    programs = Programs(config, jax.devices()[:1], vocab_size=20)
    estimator = Estimator(config, programs.architecture, 1)
    state, found = programs.state(explore_shape(config, programs.slots)), estimator.decode(explore=True)
    assert found.arrays["weights of rollouts"] == device_bytes(programs.rollout_params)
    assert found.arrays["trunks"] == device_bytes(state.trunks)
    assert found.arrays["rings"] == device_bytes(state.lanes)
    assert found.resident["optimizer state"] == pytest.approx(device_bytes(programs.optimizer_state), rel=1e-3)
    assert found.resident["promoted trunks"] == device_bytes(programs.target("explore").resident["promoted trunks"])
    assert (found.shape, found.positions) == (programs.target("explore").shape, programs.target("explore").positions)
    for name in ("prefill", "promote", "score", "accumulate"):
        assert estimator.of(name).shape == programs.target(name).shape


@pytest.mark.parametrize("rollouts", ["merged", "product"])
def test_adapters_alone_have_gradients_moments_and_a_reference(rollouts):
    """One base for all: weights of training and, where rollouts merge, a copy."""
    lora = ["model.lora.rank=4", f"model.lora.rollouts={rollouts}", "kl.coefficient=0.1", "model.param_dtype=bfloat16"]
    config = recipe("configs/fr3e_gsm8k.yaml", *SMALL, *lora)
    programs = Programs(config, jax.devices()[:1], vocab_size=20)
    estimator = Estimator(config, programs.architecture, 1)
    trained, base = device_bytes(programs.trained), device_bytes(programs.base)
    training, applied = estimator.accumulate(), estimator.apply()
    assert training.arrays["gradients"] == training.resident["reference policy"] == trained < base / 4
    assert training.resident["optimizer state"] == pytest.approx(device_bytes(programs.optimizer_state), rel=1e-3)
    assert training.arrays["weights"] == applied.resident["base of the adapters"] == base
    assert "gradient of the head" not in estimator._in_the_head(backward=True)
    read = estimator.decode().arrays["weights of rollouts"]
    assert read == device_bytes(programs.rollout_params) == base + trained * (rollouts == "product")
    assert programs.weights.copies == estimator.copies == (rollouts == "merged")
    gradients, _ = programs.target("accumulate").lower().out_info
    assert device_bytes(gradients) == trained


@pytest.mark.parametrize("adapters", [[], ["model.lora.rank=4", "model.lora.rollouts=product"]])
def test_weights_in_int8_are_planned_with_their_scales(adapters):
    """Kernels in a byte, scales in four, the rest in the type that products compute in; no wider copy of them."""
    types = ["rollout.param_dtype=int8", "model.compute_dtype=bfloat16"]
    config = recipe("configs/fr3e_gsm8k.yaml", *SMALL[:2], *types, *adapters)
    programs = Programs(config, jax.devices()[:1], vocab_size=20)
    estimator = Estimator(config, programs.architecture, 1)
    decoding, held = estimator.decode(), device_bytes(programs.rollout_params)
    assert decoding.arrays["weights of rollouts"] == pytest.approx(held, rel=0.02)  # norms and biases have four bytes
    assert "weights in the compute type" not in decoding.arrays
    assert programs.weights.copies and estimator.copies and programs.target("reshard").lower()
    kernels, wide = estimator.kernels, estimator.weights(2, estimator.roll) + estimator.adapters * 2
    assert wide - kernels < held < wide - 0.8 * kernels


@pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 devices: make test-8")
def test_planned_caches_have_the_shardings_that_prefill_returns():
    config = recipe("configs/fr3e_gsm8k.yaml", *SMALL, "mesh.rollout_tensor=2", "model.num_kv_heads=2")
    programs = Programs(config, jax.devices()[:8], vocab_size=20)
    rows, length = 8, 32
    ids = jax.ShapeDtypeStruct((rows, length), "int32")
    returned = programs._result(programs.decoder.jitted()["prefill"], programs.rollout_params, ids)
    assert jax.tree.leaves(programs._trunks(rows, length)) == jax.tree.leaves(returned)


def test_context_splits_a_row_and_keeps_the_weights_as_they_are():
    """One row of 128k tokens a batch shard; what context adds are gathered keys and values, and a sum of gradients."""
    long = ["mesh.tensor=1", "rollout.max_response_tokens=130048", "training.micro_batch_tokens=1"]
    whole, split = (
        Estimator(recipe("configs/fr3e_qwen2.5_7b.yaml", *long, f"mesh.context={n}"), A7, 64).accumulate()
        for n in (1, 8)
    )
    kept = "activations kept for the backward pass"
    assert whole.arrays[kept] == 8 * split.arrays[kept] > 2 * split.arrays["keys and values of whole rows"] > 0
    assert whole.arrays["weights"] == split.arrays["weights"] and whole.resident == split.resident
    assert whole.positions == 8 * split.positions  # fewer batch shards, so fewer rows at the least
    keys = 2 * split.positions / 8 * A7.num_kv_heads * A7.head_dim * 2
    assert split.gathered_bytes - whole.gathered_bytes > 28 * 3 * 7 / 8 * keys


def test_long_rows_that_do_not_fit_are_advised_and_searched_with_context():
    config = recipe("configs/fr3e_qwen2.5_7b.yaml", "rollout.max_response_tokens=130048", "mesh.tensor=1")
    plan = make_plan(config, V5E64, None, names=["accumulate"])
    assert not plan.fits and "mesh.context=8" in {str(change) for change in plan.advice["accumulate"]}
    tried = list(training_settings(config, V5E64, A7))
    assert {one["mesh__context"] for one in tried} == {1, 2, 4, 8}
    sizes = ("mesh__replica", "mesh__fsdp", "mesh__context", "mesh__tensor")
    assert all(math.prod(one[size] for size in sizes) == 64 for one in tried)
    fitting = ranked(config, A7, V5E64, iter(tried), ("accumulate",), Assumptions(130048))[0]
    assert fitting.share <= 0.9 and fitting.settings["mesh__context"] > 1


def test_hidden_states_between_layers_are_split_over_tensor():
    kept = "activations kept for the backward pass"
    found = Estimator(recipe(BIG, "mesh.tensor=4"), A32, 64).accumulate()
    assert found.arrays[kept] == A32.num_layers * found.positions / 16 / 4 * A32.hidden_size * 2


def test_sharing_prefixes_saves_positions_in_training():
    config = recipe(BIG, "training.micro_batch_tokens=100000000")
    shared = step_amounts(config, Assumptions(4096), 1)
    assert shared.sampled_tokens == 64 * 16 * 4096 + shared.explored_tokens
    assert shared.explored_rollouts == config.training.batch_rollouts == shared.trained_rollouts
    assert shared.trained_positions < 0.55 * shared.flattened_positions
    assert shared.loss_tokens == pytest.approx(shared.explored_tokens)  # each explored token trains once


def test_rejected_prompt_costs_only_base_rollouts():
    config = recipe(BIG)
    all_kept, half = (step_amounts(config, Assumptions(1024, share), 64) for share in (1.0, 0.5))
    assert half.base_tokens == 2 * all_kept.base_tokens
    assert half.explored_tokens == all_kept.explored_tokens


@pytest.mark.parametrize(
    ("flops", "read", "sent", "between", "seconds", "by"),
    [
        (64 * 459e12 * 3, 0, 0, 0, 3.0, "compute"),
        (0, 2765e9 * 2, 0, 0, 2.0, "memory"),
        (0, 0, 600e9 * 4, 0, 4.0, "network"),
        (0, 0, 600e9, 6.2e9 * 5, 5.0, "network"),
    ],
)
def test_floor_is_the_time_of_the_slowest_resource_at_its_peak(flops, read, sent, between, seconds, by):
    parts = [Collective("all-gather", 4, False, 1, int(sent)), Collective("all-reduce", 4, True, 1, int(between))]
    plan = ProgramPlan("x", "", True, 1, 0, 0, 0, 0, {}, int(flops), int(read), collectives=parts)
    plan = with_floor(plan, V5P)
    assert (plan.floor_seconds, plan.dominated_by) == (pytest.approx(seconds), by)


@pytest.mark.parametrize(
    ("message", "asked"),
    [
        ("Ran out of memory on HBM, the total memory required for HLO temporaries (2.50G) exceeds available HBM", 3.5),
        ("Ran out of memory in memory space hbm. Used 24.00G of 15.75G hbm.", 24),
        ("something else", 1),
    ],
)
def test_bytes_that_a_refused_program_asked_for_are_read_from_the_message(message, asked):
    assert requested_bytes(f"RESOURCE_EXHAUSTED: {message}", 2**30) == asked * 2**30


@pytest.mark.parametrize(
    ("name", "settings", "first"),
    [
        ("accumulate", ("training.remat=none", "training.attention_block=0"), "training.remat=block"),
        ("explore", ("mesh.rollout_tensor=1",), "mesh.rollout_tensor=8"),
        ("decode", ("rollout.prompts_per_round=512",), "rollout.prompts_per_round=256"),
    ],
)
def test_advice_names_the_three_settings_that_save_most(name, settings, first):
    config = recipe(BIG, *settings)
    found = advise(config, A32, 64, name)
    assert str(found[0]) == first
    assert len(found) == 3
    before = Estimator(config, A32, 64).of(name)
    for change in found:
        after = Estimator(changed(config, **{change.setting.replace(".", "__"): _typed(change.value)}), A32, 64).of(
            name
        )
        saved = before.peak_bytes + sum(before.resident.values()) - after.peak_bytes - sum(after.resident.values())
        assert change.saved_bytes == int(saved) > 0


def _typed(value):
    return int(value) if value.isdecimal() else value


def test_changes_that_keep_the_results_are_advised_first():
    found = advise(recipe(BIG, "training.remat=none"), A32, 64, "accumulate", count=99)
    kept = [change.keeps_results for change in found]
    assert kept == sorted(kept, reverse=True)
    assert not all(kept)


def test_meshes_of_a_search_divide_the_network_and_the_devices():
    config = recipe(BIG)
    tried = list(training_settings(config, V5P, A32))
    assert tried
    for one in tried:
        gathered = one["mesh__fsdp"] * one["mesh__context"]
        assert one["mesh__replica"] * gathered * one["mesh__tensor"] == 64
        assert A32.num_heads % one["mesh__tensor"] == 0
        assert A32.hidden_size % gathered == 0
    between = parse_topology("v5p:2x2x2x2slices")
    assert all(one["mesh__replica"] % 2 == 0 for one in training_settings(config, between, A32))


def test_search_ranks_candidates_that_fit_first_and_the_fastest_of_them_in_front():
    config = recipe("configs/fr3e_qwen2.5_7b.yaml")
    order = ranked(config, A7, V5E, training_settings(config, V5E, A7), ("accumulate",), Assumptions(16384))
    roomy = [candidate.share <= 0.9 for candidate in order]
    assert roomy == sorted(roomy, reverse=True)
    inside = [candidate.seconds for candidate in order if candidate.share <= 0.9]
    assert inside == sorted(inside)
    decoding = ranked(config, A7, V5E, rollout_settings(config, V5E, A7), ("decode",), Assumptions(16384))
    assert decoding[0].settings["mesh__rollout_tensor"] > 1  # whole weights on each device would leave no room


def test_search_compiles_candidates_in_order_until_one_fits():
    candidates = [Candidate({"mesh__tensor": n}, 1.0, 0.5) for n in (1, 2, 4, 8)]
    fits = ProgramPlan("x", "", True, 1, 0, 0, 0, 0, {}, 0, 0)
    tried = []

    def compiled(candidate):
        tried.append(candidate.settings["mesh__tensor"])
        return [fits] if tried[-1] == 2 else [ProgramPlan("x", "", False, 1, 0, 0, 0, 0, {}, 0, 0)]

    choice = choose(candidates, compiled)
    assert tried == [1, 2]
    assert choice.chosen.text == "mesh.tensor=2"
    assert choose(candidates[2:], compiled).chosen is None


def test_search_over_rollouts_moves_slots_lanes_and_prompts():
    config = recipe("configs/fr3e_qwen2.5_7b.yaml")
    tried = list(rollout_settings(config, V5E, A7))
    assert len({tuple(one.values()) for one in tried}) == len(tried)
    for name in (
        "mesh__rollout_tensor",
        "rollout__trunk_slots",
        "rollout__lanes_per_trunk",
        "rollout__prompts_per_round",
    ):
        assert len({one[name] for one in tried}) > 1, name
    rollouts = config.rollout.rollouts_per_prompt
    assert all(one["rollout__lanes_per_trunk"] <= rollouts for one in tried)


def test_search_finds_room_where_the_recipe_has_none():
    """Its own advice for a program that does not fit was to halve the slots, and the search did not try that."""
    config = recipe("configs/fr3e_qwen2.5_7b.yaml", "rollout.lanes_per_trunk=32")
    order = ranked(config, A7, V5E, rollout_settings(config, V5E, A7), ("decode", "explore"), Assumptions(16384))
    as_it_is = ranked(config, A7, V5E, iter([{}]), ("decode", "explore"), Assumptions(16384))
    assert as_it_is[0].share > 1 and order[0].share <= 0.9


@pytest.mark.parametrize(
    ("topology", "settings", "message"),
    [
        ("v5e:8x8x2slices", (), r"mesh.replica=1 is not a multiple of the 2 slices that it spans; set mesh.replica=2"),
        ("v5e:8x8", ("mesh.tensor=8", "mesh.fsdp=8"), r"mesh.tensor=8 does not divide dimension 0 \(heads, 28\)"),
        (
            "v5e:8x8x2slices",
            ("mesh.replica=2", "mesh.rollout_fsdp=32"),
            r"mesh.rollout_replica=1 is not a multiple of the 2 slices that it spans; set mesh.rollout_replica=-1",
        ),
        ("v5e:8x8", ("mesh.fsdp=4", "mesh.context=8"), r"mesh.fsdp=4 x mesh.context=8 x mesh.tensor=4 is 128 devices"),
        ("v5e:8x8", ("mesh.rollout_tensor=8",), r"mesh.rollout_tensor=8 does not divide dimension 0 \(heads, 28\)"),
    ],
)
def test_estimate_refuses_the_meshes_that_a_run_refuses(topology, settings, message):
    config = recipe("configs/fr3e_qwen2.5_7b.yaml", *settings)
    with pytest.raises(MeshMismatch, match=message):
        make_plan(config, parse_topology(topology), None)


def test_estimate_refuses_what_a_network_with_experts_refuses():
    with pytest.raises(UnsupportedModel, match="mesh.expert=4: the network has no experts; set mesh.expert=1"):
        make_plan(recipe("configs/fr3e_qwen2.5_7b.yaml", "mesh.expert=4"), V5E64, None)


def test_expectation_is_the_least_time_over_the_efficiency_and_its_price_that_of_all_steps():
    config = recipe("configs/fr3e_qwen2.5_7b.yaml", "training.max_steps=10", "training.max_sampled_tokens=0")
    plan = make_plan(config, V5E64, None, efficiency=Efficiency(0.5, 0.25, 1.0), price=2.0)
    shares = {"compute": 0.5, "memory": 0.25, "network": 1.0}
    took = sum(stage.seconds / shares[stage.dominated_by] for stage in plan.stages)
    e = plan.expected
    assert e.step_seconds == pytest.approx(took)
    assert e.chip_hours == pytest.approx(10 * 64 * took / 3600) and e.price == pytest.approx(2 * e.chip_hours)
    assert e.tokens_per_second_per_chip == pytest.approx(plan.amounts.sampled_tokens / took / 64)
    most = 8 * plan.parameters * (plan.amounts.sampled_tokens + plan.amounts.trained_positions)
    assert 0 < e.mfu < most / (took * 64 * V5E64.chip.peak_flops)


def test_text_of_a_plan_ends_with_its_verdict_and_what_would_be_faster():
    text = plan_text(make_plan(recipe("configs/fr3e_qwen2.5_7b.yaml"), V5E64, None))
    verdict, *after = text[text.index("verdict: ") :].splitlines()
    assert verdict.startswith("verdict: fits; ") and "slowest: explore, " in verdict and "bound by memory" in verdict
    assert "50% of compute, 35% of memory" in after[0] and "chip-hours a step" in after[1]
    change = re.fullmatch(r"  faster by estimate: (.+)  \(a step takes (\d+)% less\)", after[-1])
    plan = make_plan(recipe("configs/fr3e_qwen2.5_7b.yaml", *change[1].split()), V5E64, None)
    before = make_plan(recipe("configs/fr3e_qwen2.5_7b.yaml"), V5E64, None)
    assert 1 - plan.step_seconds / before.step_seconds == pytest.approx(int(change[2]) / 100, abs=0.01)


def test_a_round_waits_for_its_longest_response():
    config = recipe("configs/grpo_pp_qwen2.5_7b.yaml")
    lanes = config.rollout.trunk_slots * config.rollout.lanes_per_trunk
    config = changed(config, rollout__prompts_per_round=lanes // config.rollout.rollouts_per_prompt)
    slots, cap = config.rollout.trunk_slots, config.rollout.max_response_tokens
    assert lane_use(config, slots, cap).decode == 1.0
    assert lane_use(config, slots // 2, cap).decode == 1.0, "two waves"
    assert lane_use(config, 2 * slots, cap).decode == 0.5, "half of the lanes have nothing to do"
    assert lane_use(config, slots, cap // 8).decode == pytest.approx(1 / 4.5, abs=0.05)
    more = changed(config, rollout__prompts_per_round=8 * config.rollout.prompts_per_round)
    assert lane_use(more, slots, cap // 8).decode > 0.4
    use, fitted = lane_use(more, slots, cap // 8, slots).decode, changed(more, rollout__lane_layout="fitted")
    assert use < 0.8 * lane_use(fitted, slots, cap // 8, slots).decode, (
        "a straggler keeps fewer lanes of a smaller slot, and shards allow as many lanes in such slots"
    )
    fitted = changed(config, rollout__lane_layout="fitted")
    assert lane_use(fitted, slots, cap // 8, slots).decode < 0.3, "fewer lanes take no fewer steps"
    short, long = (make_plan(config, V5E64, None, assumed=Assumptions(mean)) for mean in (cap // 8, cap))
    calls = [next(stage.calls for stage in plan.stages if stage.name == "decode") for plan in (short, long)]
    assert 0.4 < calls[0] / calls[1] < 0.9, "an eighth of the tokens"


def test_programs_to_compile_are_counted_where_they_are_bounded():
    compiled = {"decode": 10.0, "explore": 20.0, "score": 3.0, "accumulate": 5.0}
    found = layer_programs(recipe("configs/fr3e_qwen2.5_7b.yaml"), compiled)
    assert found.programs == {"prefill": 1, "decode": 2, "explore": 4, "evaluation": 2, "score": 3, "accumulate": 3}
    assert (found.total, found.seconds) == (15, 2 * 10 + 4 * 20 + 2 * 10 + 3 * 3 + 3 * 5)
    assert layer_programs(recipe("configs/grpo_pp_qwen2.5_7b.yaml")).total == 1 + 2 + 3 + 3
    grown = recipe("configs/fr3e_qwen2.5_7b.yaml", "training.row_shapes=0")
    assert layer_programs(grown).total is None
    text = plan_text(make_plan(grown, V5E64, None))
    assert "as many of score, accumulate as lengths ask for; bound them with training.row_shapes" in text


def test_gradients_of_replicas_are_summed_by_the_optimizer_step_alone():
    """An all-reduce of a device's share over two slices, which share the weights of 32 chips each."""
    estimator = Estimator(recipe("configs/fr3e_qwen2.5_7b.yaml", "mesh.replica=2"), A7, 64)
    micro_batch, step = estimator.accumulate(), estimator.apply()
    plan = lambda name: estimated_plan(name, estimator, parse_topology("v5e:4x8x2slices"))
    across = [[c for c in plan(name).collectives if c.across_slices] for name in ("accumulate", "apply")]
    assert not across[0] and [c.kind for c in across[1]] == ["all-reduce"]
    share = step.arrays["gradients"]
    assert across[1][0].sent_bytes == int(share) == int(step.arrays["gradients of all replicas"])
    assert share == micro_batch.arrays["gradients"] == estimator.trained(estimator.train)


def test_plan_for_gpus_is_labelled_as_an_estimate():
    plan = make_plan(recipe("configs/fr3e_qwen2.5_7b.yaml"), parse_topology("h100:8x4"), None)
    text = plan_text(plan)
    assert plan.estimated and "ESTIMATED by arithmetic, nothing compiled" in text
    assert plan.fits and "takes at least" in text and "limited by" in text
    between = [c for p in plan.programs for c in p.collectives if c.across_slices]
    assert between and CHIPS["h100"].network_bandwidth < CHIPS["h100"].link_bandwidth


def test_program_that_does_not_fit_is_shown_with_its_largest_arrays_and_three_changes():
    config = recipe(BIG, "training.remat=none")
    plan = make_plan(config, V5E, None, names=["accumulate"])
    text = plan_text(plan)
    assert not plan.fits
    assert "accumulate needs" in text and "on a device that has 15.8" in text
    assert "activations kept for the backward pass" in text.split("largest: ")[1].splitlines()[0]
    assert text.count("  change: ") == 3 and "change: training.remat=block" in text


def test_program_that_the_recipe_does_not_run_is_refused():
    with pytest.raises(ValueError, match="--programs reshard: this recipe runs prefill, decode"):
        make_plan(recipe("configs/fr3e_gsm8k.yaml"), V5E, None, names=["reshard"], vocab_size=20)


def test_json_holds_the_figures_of_the_text():
    plan = make_plan(recipe(BIG), V5P, None)
    found = plan.as_json()
    assert set(found) >= {"recipe", "topology", "programs", "stages", "amounts", "fits", "step_seconds", "advice"}
    assert found["programs"][0]["total_bytes"] == plan.programs[0].total_bytes
    assert found["step_seconds"] == sum(stage["seconds"] for stage in found["stages"])
    estimator = Estimator(recipe(BIG), A32, 64)
    assert estimated_plan("apply", estimator, V5P).total_bytes == found["programs"][-1]["total_bytes"]


def test_fused_kernels_keep_no_scores():
    scores = Estimator(recipe(BIG, "model.attention=xla"), A32, 64).accumulate().arrays["attention scores"]
    fused = Estimator(recipe(BIG, "model.attention=pallas"), A32, 64).accumulate().arrays["attention scores"]
    assert scores > fused == 0


def test_fused_decode_steps_read_half_of_the_rings_and_write_no_scores():
    """Where ``tensor`` divides the heads; else the products stay."""
    read = {}
    for attention in ("xla", "pallas"):
        found = Estimator(recipe(BIG, f"model.attention={attention}"), A32, 64).decode()
        read[attention] = found.read_bytes / found.steps
        assert (found.arrays["attention scores"] == 0) == (attention == "pallas")
    assert read["xla"] - read["pallas"] == pytest.approx(Estimator(recipe(BIG), A32, 64).decode().arrays["rings"] / 2)
    more = [f"model.attention={attention}" for attention in ("xla", "pallas")]
    split = [Estimator(recipe(BIG, one, "mesh.rollout_tensor=20"), A32, 40).decode().read_bytes for one in more]
    assert split[0] == split[1]
