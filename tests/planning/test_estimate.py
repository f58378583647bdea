"""Estimates against the arrays of the programs themselves, the time of a step, and the changes that are advised."""

from __future__ import annotations

import re
from dataclasses import replace

import jax
import pytest

from fr3e_jax.configuration import load_config
from fr3e_jax.planning.compile import ProgramPlan, estimated_plan, requested_bytes, with_floor
from fr3e_jax.planning.estimate import Estimator
from fr3e_jax.planning.plan import make_plan
from fr3e_jax.planning.plan_text import amount, digits, plan_text, seconds
from fr3e_jax.planning.step_time import Assumptions, Efficiency, busy_lanes, step_amounts
from fr3e_jax.planning.targets import Programs, device_bytes
from fr3e_jax.planning.topology import CHIPS, parse_topology
from fr3e_jax.planning.tuning import advise, cheaper
from fr3e_jax.planning.workload import bases_per_prompt, largest_micro_batch
from fr3e_jax.policy.architecture import PUBLISHED, UnsupportedModel
from fr3e_jax.programs.mesh import MeshMismatch
from fr3e_jax.programs.row_shape import RowShape

SMALL = ["model.hidden_size=64", "model.num_layers=2", "model.compute_dtype=float32"]
BIG, A7, A32 = "configs/fr3e_qwen2.5_32b.yaml", PUBLISHED["qwen2.5-7b"], PUBLISHED["qwen2.5-32b"]
V5P, V5E, V5E64, H8 = map(parse_topology, ("v5p:4x4x4", "v5e:4x4", "v5e:8x8", "h100:8"))


def recipe(path, *settings):
    return load_config(path, list(settings), training=False)


def test_estimate_has_the_arrays_of_the_programs():
    config = recipe("configs/fr3e_gsm8k.yaml", *SMALL)
    programs = Programs(config, jax.devices()[:1], vocab_size=20)
    estimator = Estimator(config, programs.architecture, 1)
    state, found = programs.target("explore").arguments[1], estimator.decode(explore=True)
    assert found.arrays["weights of rollouts"] == device_bytes(programs.rollout_params)
    assert found.arrays["trunks"] == device_bytes(state.trunks)
    assert found.arrays["rings"] == device_bytes(state.lanes)
    assert found.resident["optimizer state"] == pytest.approx(device_bytes(programs.optimizer_state), rel=1e-3)
    prefilled, promoted = (
        device_bytes(target.program.results(*target.arguments, **target.options))
        for target in map(programs.target, ("prefill", "promote"))
    )
    bases = config.rollout.prompts_per_round * bases_per_prompt(config)
    assert found.resident["promoted trunks"] == bases * promoted and "prefilled prompts" not in found.resident
    assert estimator.decode().resident["prefilled prompts"] == prefilled


@pytest.mark.parametrize("rollouts", ["merged", "product"])
def test_adapters_alone_have_gradients_moments_and_a_reference(rollouts):
    """One base for all: weights of training and, where rollouts merge, a copy."""
    lora = ["model.lora.rank=4", f"model.lora.rollouts={rollouts}", "kl.coefficient=0.1", "model.param_dtype=bfloat16"]
    config = recipe("configs/fr3e_gsm8k.yaml", *SMALL, *lora)
    programs = Programs(config, jax.devices()[:1], vocab_size=20)
    estimator = Estimator(config, programs.architecture, 1)
    trained, base = device_bytes(programs.trained), device_bytes(programs.params.base)
    training, applied = estimator.accumulate(), estimator.apply()
    assert training.arrays["gradients"] == training.resident["reference policy"] == trained < base / 4
    assert training.resident["optimizer state"] == pytest.approx(device_bytes(programs.optimizer_state), rel=1e-3)
    assert training.arrays["weights"] == applied.resident["base of the adapters"] == base
    assert "gradient of the head" not in estimator._in_the_head(backward=True)
    read = estimator.decode().arrays["weights of rollouts"]
    assert read == device_bytes(programs.rollout_params) == base + trained * (rollouts == "product")
    assert programs.weights.copies == estimator.copies == (rollouts == "merged")
    gradients, *_ = programs.target("accumulate").lower().out_info
    assert device_bytes(gradients) == trained


def test_adapters_count_as_the_mesh_splits_them():
    """fsdp splits them along the hidden size, so of a pair one matrix stays whole."""
    split = 5 * A7.hidden_size + 2 * A7.hidden_size  # into q, k, v, gate and up; out of o and down
    whole = 2 * A7.hidden_size + 2 * A7.num_kv_heads * A7.head_dim + 3 * A7.intermediate_size
    estimator = Estimator(recipe("configs/fr3e_lora_qwen2.5_7b.yaml", "mesh.fsdp=8", "model.lora.rank=32"), A7, 8)
    assert estimator.trained(estimator.train) == A7.num_layers * 32 * 4 * (whole + split / 8)
    gained = estimator.policy_weights - estimator.weights(2, estimator.train)
    assert estimator.beside_rollouts()["weights of training"] == estimator.policy_weights
    assert gained == estimator.trained(estimator.train)


def test_a_critic_has_no_head_over_the_vocabulary():
    found = Estimator(recipe("configs/rwe_ppo_qwen2.5_7b.yaml", "mesh.fsdp=8", "mesh.tensor=1"), A7, 8)
    elements = A7.num_parameters - A7.vocab_size * A7.hidden_size
    assert found.beside_policy()["critic and its optimizer"] == pytest.approx(3 * found.stored * elements / 8)


@pytest.mark.parametrize("adapters", [[], ["model.lora.rank=4", "model.lora.rollouts=product"]])
def test_weights_in_int8_are_planned_with_their_scales(adapters):
    """Kernels in a byte, scales in four, the rest in the type that products compute in; no wider copy of them."""
    types = ["rollout.param_dtype=int8", "model.compute_dtype=bfloat16"]
    config = recipe("configs/fr3e_gsm8k.yaml", *SMALL[:2], *types, *adapters)
    programs = Programs(config, jax.devices()[:1], vocab_size=20)
    estimator = Estimator(config, programs.architecture, 1)
    decoding, held = estimator.decode(), device_bytes(programs.rollout_params)
    assert decoding.arrays["weights of rollouts"] == pytest.approx(held, rel=0.02)  # norms and biases have four bytes
    assert "head in the compute type" not in decoding.arrays
    assert programs.weights.copies and estimator.copies and programs.target("reshard").lower()
    kernels, wide = estimator.kernels, estimator.weights(2, estimator.roll)
    wide += device_bytes(programs.trained) / 2 if adapters else 0
    assert wide - kernels < held < wide - 0.8 * kernels


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


def test_long_rows_that_do_not_fit_are_advised_context():
    config = recipe("configs/fr3e_qwen2.5_7b.yaml", "rollout.max_response_tokens=130048", "mesh.tensor=1")
    plan = make_plan(config, V5E64, None, names=["accumulate"])
    assert not plan.fits and "mesh.context=8" in {str(change) for change in plan.advice["accumulate"]}


def test_hidden_states_between_layers_are_split_over_tensor():
    kept = "activations kept for the backward pass"
    found = Estimator(recipe(BIG, "mesh.tensor=4"), A32, 64).accumulate()
    assert found.arrays[kept] == A32.num_layers * found.positions / 16 / 4 * A32.hidden_size * 2


def test_sharing_prefixes_saves_positions_in_training():
    config = recipe(BIG)
    shared = step_amounts(config, Assumptions(4096), 32)
    assert shared.sampled_tokens == 64 * 16 * 4096 + shared.explored_tokens
    assert shared.explored_rollouts == config.training.batch_rollouts == shared.trained_rollouts
    assert shared.trained_positions < 0.55 * shared.flattened_positions
    assert shared.loss_tokens == pytest.approx(shared.explored_tokens)  # each explored token trains once


def test_rejected_prompt_costs_only_base_rollouts():
    config = recipe(BIG)
    all_kept, half = (step_amounts(config, Assumptions(1024, share), 32) for share in (1.0, 0.5))
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
    plan = with_floor(ProgramPlan("x", "", 1, 0, {}, int(flops), int(read), int(sent), int(between)), V5P, V5P.devices)
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
    found = advise(Estimator(config, A32, 64), name)
    assert str(found[0]) == first
    assert len(found) == 3
    before = Estimator(config, A32, 64).of(name)
    for change in found:
        after = Estimator(change.applied(config), A32, 64).of(name)
        saved = before.peak_bytes + sum(before.resident.values()) - after.peak_bytes - sum(after.resident.values())
        assert change.saved_bytes == int(saved) > 0


def test_changes_that_keep_the_results_are_advised_first():
    found = advise(Estimator(recipe(BIG, "training.remat=none"), A32, 64), "accumulate", count=99)
    kept = [change.keeps_results for change in found]
    assert kept == sorted(kept, reverse=True)
    assert not all(kept)


@pytest.mark.parametrize(
    ("topology", "settings", "message"),
    [
        ("v5e:8x8x2slices", (), r"mesh.replica=1 is not a multiple of the 2 slices that it spans; set mesh.replica=2"),
        ("v5e:8x8", ("mesh.tensor=8", "mesh.fsdp=8"), r"mesh.tensor=8 does not divide dimension 0 \(heads, 28\)"),
        (
            "v5e:8x8x2slices",
            ("mesh.replica=2", "mesh.rollout_fsdp=32"),
            r"mesh.rollout_tensor=4 is 128 devices, which do not divide the 64 of each of the 2 slices",
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


def test_expectation_is_the_least_time_over_the_efficiency():
    config = recipe("configs/fr3e_qwen2.5_7b.yaml", "training.max_steps=10", "training.max_sampled_tokens=0")
    plan = make_plan(config, V5E64, None, efficiency=Efficiency(0.5, 0.25, 1.0))
    shares = {"compute": 0.5, "memory": 0.25, "network": 1.0}
    took = sum(stage.seconds / shares[stage.dominated_by] for stage in plan.stages)
    e = plan.expected
    assert e.step_seconds == pytest.approx(took)
    assert e.chip_hours == pytest.approx(10 * 64 * took / 3600)
    assert e.tokens_per_second_per_chip == pytest.approx(plan.amounts.sampled_tokens / took / 64)
    most = 8 * plan.parameters * (plan.amounts.sampled_tokens + plan.amounts.trained_positions)
    assert 0 < e.mfu < most / (took * 64 * V5E64.chip.peak_flops)


def test_devices_of_their_own_sample_beside_training():
    """A step takes the longer of the two; each side has its own memory, and its own least times."""
    settings = "configs/fr3e_lora_qwen2.5_7b.yaml", "training.max_steps=10"
    together, apart = (make_plan(recipe(*settings, *own), H8, None) for own in ([], ["mesh.sampler_devices=4"]))
    assert (apart.mesh.fsdp, apart.rollout_mesh.replica, apart.rollout_mesh.fsdp) == (4, 4, 1)
    times = {side: sum(s.seconds for s in apart.stages if s.beside == side) for side in ("", "sampling", "training")}
    assert apart.step_seconds == pytest.approx(times[""] + max(times["sampling"], times["training"]))
    resident = {program.name: program.resident for program in apart.programs}
    assert not {"optimizer state", "weights of training"} & {*resident["decode"], *resident["prefill"]}
    assert "optimizer state" in resident["accumulate"]
    whole, half = ({s.name: s.seconds for s in plan.stages} for plan in (together, apart))
    assert half["accumulate"] == pytest.approx(2 * whole["accumulate"], rel=0.2), "half of the devices, all of the work"
    text = plan_text(apart)
    assert "on 4 devices that only sample; the other programs: on the 4 that train" in text
    assert re.search(r"so the longer counts: sampling at least [\d.]+ \w+, training at least [\d.]+ \w+", text)
    with pytest.raises(MeshMismatch, match="there are 2 processes"):
        make_plan(recipe(*settings, "mesh.sampler_devices=4"), parse_topology("h100:8x2"), None)


UNTUNED = ["rollout.prompts_per_round=8", "rollout.trunk_slots=16", "rollout.lanes_per_trunk=8"]


def test_text_of_a_plan_ends_with_its_verdict_and_cheaper_settings():
    """Prompts, slots and lanes together, before meshes; the same settings in the recipe save what the plan says."""
    mean = Assumptions(2048)
    before = make_plan(recipe("configs/fr3e_qwen2.5_7b.yaml", *UNTUNED), V5E64, None, assumed=mean)
    text = plan_text(before)
    verdict, *after = text[text.index("verdict: ") :].splitlines()
    assert verdict.startswith("verdict: fits; ") and "slowest: decode, " in verdict and "bound by memory" in verdict
    assert "50% of compute, 35% of memory" in after[0] and "chip-hours a step" in after[1]
    advice = re.fullmatch(r"  cheaper by estimate: (.+)  \(a step takes (\d+)% less\)", after[-1])
    assert set(advice[1].split()) <= {
        "rollout.prompts_per_round=64",
        "rollout.trunk_slots=16",
        "rollout.lanes_per_trunk=24",
    }
    plan = make_plan(recipe("configs/fr3e_qwen2.5_7b.yaml", *UNTUNED, *advice[1].split()), V5E64, None, assumed=mean)
    saved = 1 - plan.expected.step_seconds / before.expected.step_seconds
    assert saved == pytest.approx(int(advice[2]) / 100, abs=0.01) and saved > 0.7
    assert all(change.keeps_results for change in before.cheaper) and max(p.share for p in plan.programs) <= 0.9


def test_a_round_waits_for_its_longest_response():
    assert busy_lanes(512, 512, 1000, 1000) == 1.0
    assert busy_lanes(1024, 512, 1000, 1000) == 1.0, "two waves"
    assert busy_lanes(256, 512, 1000, 1000) == 0.5, "half of the lanes have nothing to do"
    assert busy_lanes(512, 512, 125, 1000) == pytest.approx(125 * 512 / 512 / (125 * (6.238 + 0.58)), rel=1e-3)
    assert busy_lanes(512, 512, 250, 1000) == 0.25, "no response is longer than the cap"
    assert busy_lanes(2**16, 512, 125, 1000) == 1.0, "many responses fill the wait"


def test_short_responses_read_less_of_the_caches_and_attend_to_fewer_positions():
    """Memory is that of the cap. Trunks of base rollouts are prompts, so a step reads them whole."""
    cap = recipe(BIG).rollout.max_response_tokens
    short, full = (Estimator(recipe(BIG, "model.attention=pallas"), A32, 64, tokens) for tokens in (cap // 8, cap))
    assert short.of("accumulate").arrays == full.of("accumulate").arrays
    assert 0.6 < short.of("accumulate").flops / full.of("accumulate").flops < 0.75
    for explore, trunk_share in ((False, 0), (True, 1 - (1024 + cap / 8) / (1024 + cap))):
        trunks, rings = full.caches(explore)
        spared = full.decode(explore).read_bytes - short.decode(explore).read_bytes
        busy = 1 if explore else 16 / 24  # lanes that a prompt's 16 rollouts fill
        assert spared == pytest.approx(64 * (trunks * trunk_share + rings * busy * 7 / 16))


def test_first_mini_batch_is_not_scored_where_its_gradient_pass_gives_its_log_probs():
    of = lambda *settings: step_amounts(recipe(BIG, *settings), Assumptions(2048), 32)
    assert of().updates == 4 and of().scored_positions == pytest.approx(0.75 * of().trained_positions)
    read = of("kl.coefficient=0.1", "kl.place=reward")
    assert read.scored_positions == pytest.approx(read.trained_positions)
    assert of("training.mini_batch_rollouts=8192").scored_positions == 0


def test_largest_micro_batch_of_16k_responses_has_one_trunk_and_one_lane_per_shard():
    assert largest_micro_batch(recipe(BIG), 16, A32.key_cost) == RowShape(16, 17408, 1, 16384)


def test_gradients_of_replicas_are_summed_by_the_optimizer_step_alone():
    """An all-reduce of a device's share over two slices, which share the weights of 32 chips each."""
    estimator = Estimator(recipe("configs/fr3e_qwen2.5_7b.yaml", "mesh.replica=2"), A7, 64)
    micro_batch, step = estimator.accumulate(), estimator.apply()
    slices = parse_topology("v5e:4x8x2slices")
    across = [estimated_plan(name, estimator, slices).sent_between_slices for name in ("accumulate", "apply")]
    share = step.arrays["gradients"]
    assert across == [0, int(share)] and share == step.arrays["gradients of all replicas"]
    assert share == micro_batch.arrays["gradients"] == estimator.trained(estimator.train)


def test_plan_for_gpus_is_labelled_as_an_estimate():
    plan = make_plan(recipe("configs/fr3e_qwen2.5_7b.yaml"), parse_topology("h100:8x4"), None)
    text = plan_text(plan)
    assert plan.estimated and "ESTIMATED by arithmetic, nothing compiled" in text
    assert "takes at least" in text and "limited by" in text
    assert any(program.sent_between_slices for program in plan.programs)
    assert CHIPS["h100"].network_bandwidth < CHIPS["h100"].link_bandwidth


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
        make_plan(
            recipe("configs/fr3e_gsm8k.yaml", "mesh.rollout_tensor=0"), V5E, None, names=["reshard"], vocab_size=20
        )


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
        read[attention] = found.read_bytes / 64
        assert (found.arrays["attention scores"] == 0) == (attention == "pallas")
    rings = Estimator(recipe(BIG), A32, 64).caches(explore=False)[1]
    assert read["xla"] - read["pallas"] == pytest.approx(rings * (1 - 16 / 24 / 2)), "half of the rings of busy lanes"
    more = [f"model.attention={attention}" for attention in ("xla", "pallas")]
    split = [Estimator(recipe(BIG, one, "mesh.rollout_tensor=20"), A32, 40).decode().read_bytes for one in more]
    assert split[0] == split[1]


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (digits, 1024, "1,024"),
        (digits, 57.93, "57.9"),
        (digits, 99.96, "100"),
        (digits, 8.72e-06, "0.00000872"),
        (digits, 0, "0"),
        (amount, 999.7, "1k"),
        (amount, 1535, "1.53k"),
        (amount, 999_700, "1M"),
        (amount, 4.5e18, "4,500P"),
        (seconds, 0.0137, "13.7 ms"),
        (seconds, 36e6, "10,000 h"),
        (seconds, 2e-8, "0.02 us"),
    ],
)
def test_numbers_have_no_exponent(write, value, text):
    assert write(value) == text


@pytest.mark.parametrize("path", ["configs/fr3e_lora_qwen2.5_7b.yaml", "configs/fr3e_gsm8k.yaml"])
def test_one_device_sends_nothing_and_is_advised_no_mesh(path):
    config = recipe(path, "model.architecture=qwen2.5-7b", "rollout.param_dtype=bfloat16")
    row, one = RowShape(1, 3072, 5, 4096), parse_topology("h100:1")
    estimator = Estimator(config, A7, 1, row=row)
    for name in ("reshard", "prefill", "decode", "promote", "explore", "score", "accumulate", "apply"):
        plan = estimated_plan(name, estimator, one)
        assert plan.sent_bytes == 0, name
        assert plan.dominated_by != "network"
        assert not [change for change in advise(estimator, name, 99) if change.setting.startswith("mesh.")]
    assert "1 device," in plan_text(make_plan(config, one, None, names=["apply"]))
    assert not any(change.setting.startswith("mesh.") for change in cheaper(estimator, one, Assumptions(512)))


@pytest.mark.parametrize(
    ("mesh", "sent"),
    [
        (["mesh.tensor=4", "mesh.rollout_tensor=0"], 0),  # the layout of training, in another type
        (["mesh.tensor=4", "mesh.rollout_tensor=4"], 15 / 16),  # gathered over 16 of fsdp
        (["mesh.tensor=1", "mesh.rollout_tensor=4"], 63 / 64),
        (["mesh.fsdp=1", "mesh.tensor=4", "mesh.replica=16", "mesh.rollout_tensor=4"], 0),
        (["mesh.fsdp=1", "mesh.tensor=4", "mesh.replica=16", "mesh.rollout_tensor=2"], 1 / 2),
    ],
)
def test_a_copy_for_rollouts_sends_what_a_device_lacks(mesh, sent):
    estimator = Estimator(recipe("configs/fr3e_qwen2.5_7b.yaml", *mesh), A7, 64)
    assert estimator.reshard().gathered_bytes == pytest.approx(sent * estimator.rollout_weights())


def test_windows_bound_what_fused_attention_reads_and_computes():
    """Gemma 3: five layers in six see 1,024 positions. Its caches have room for all of them."""
    gemma = PUBLISHED["gemma-3-27b"]
    whole = replace(gemma, windows=(0,))
    config = recipe(BIG, "model.attention=pallas")
    row = RowShape(16, 17408, 1, 16384)
    windowed, full = (Estimator(config, architecture, 64, row=row) for architecture in (gemma, whole))
    assert windowed.caches(True) == full.caches(True)
    filled = [estimator._filled_caches(1, 8, 17408, 16384, True) for estimator in (windowed, full)]
    every = gemma.num_layers - (layers := sum(gemma.window_of(n) > 0 for n in range(gemma.num_layers)))
    ring, trunk = 8192, 17408
    per_layer = full.cache_bytes(1, hidden=False) / gemma.num_layers
    assert filled[1] == pytest.approx(gemma.num_layers * per_layer * (8 * ring + trunk))
    assert filled[0] == pytest.approx(per_layer * (every * (8 * ring + trunk) + layers * 8 * 1024))
    assert windowed.accumulate().flops < full.accumulate().flops
    unfused = [
        Estimator(recipe(BIG, "model.attention=xla"), one, 64, row=row).accumulate().flops for one in (gemma, whole)
    ]
    assert unfused[0] == unfused[1] == full.accumulate().flops


def test_lanes_that_no_branch_fills_sample_nothing():
    """A slot holds the branches of one trunk, so 64 lanes for 16 rollouts of a prompt are as fast as 16."""
    few, many = (recipe("configs/grpo_pp_qwen2.5_7b.yaml", f"rollout.lanes_per_trunk={lanes}") for lanes in (16, 64))
    assert step_amounts(few, Assumptions(2048), 32) == step_amounts(many, Assumptions(2048), 32)
    calls = [Estimator(config, A7, 64, row=RowShape(16, 1024, 4, 16384)).decode().positions for config in (few, many)]
    assert calls[0] == calls[1]


def test_rounds_of_one_stream_wait_once():
    """GRPO samples the 8 rounds that a batch needs for certain as one stream; FR3E explores after each round."""
    of = lambda path, prompts: (
        step_amounts(recipe(path, f"rollout.prompts_per_round={prompts}"), Assumptions(2048), 32).base_lanes
    )
    assert of("configs/grpo_pp_qwen2.5_7b.yaml", 64) == of("configs/grpo_pp_qwen2.5_7b.yaml", 512) == 1
    assert of("configs/fr3e_qwen2.5_7b.yaml", 8) < of("configs/fr3e_qwen2.5_7b.yaml", 64) < 1


@pytest.mark.parametrize(
    ("path", "settings", "topology", "tensor"),
    [
        ("configs/fr3e_lora_qwen2.5_7b.yaml", [], "h100:8", 1),
        ("configs/fr3e_lora_qwen2.5_7b.yaml", [], "h100:1", 0),  # nothing is gathered
        ("configs/fr3e_lora_qwen2.5_7b.yaml", ["mesh.rollout_tensor=0"], "h100:8", 0),
        ("configs/fr3e_lora_qwen2.5_7b.yaml", [], "v5e:2x4", 4),
        (
            "configs/fr3e_lora_qwen2.5_7b.yaml",
            ["rollout.param_dtype=int8", "model.lora.rollouts=product"],
            "v5e:2x4",
            2,
        ),
        ("configs/fr3e_lora_qwen2.5_7b.yaml", ["mesh.fsdp=1", "mesh.replica=8"], "h100:8", 0),
        ("configs/fr3e_gsm8k.yaml", ["model.architecture=qwen2.5-0.5b"], "a100:8", 1),
        ("configs/fr3e_qwen2.5_7b.yaml", ["mesh.rollout_tensor=-1"], "v5e:8x8", 4),
        ("configs/fr3e_qwen2.5_32b.yaml", ["mesh.rollout_tensor=-1"], "h100:8", 8),
    ],
)
def test_layout_of_rollouts_by_default_reads_a_copy_where_it_fits(path, settings, topology, tensor):
    plan = make_plan(recipe(path, *settings), parse_topology(topology), None, names=["apply"])
    copied = f"; rollouts replica {plan.devices // max(tensor, 1)} x fsdp 1 x tensor {tensor}"
    assert (copied in plan_text(plan)) == (tensor > 0)
    assert tensor or plan.rollout_mesh == plan.mesh


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_teacher_is_counted_in_memory_and_time(dtype):
    """Its weights lie beside every program but its own pass, or the gradient that has its term."""
    teacher = ["teacher.path=warm_starts/order", f"teacher.param_dtype={dtype}"]
    config = recipe("configs/order_long.yaml", *teacher)
    programs = Programs(config, jax.devices()[:1])
    estimator, size = Estimator(config, programs.architecture, 1), device_bytes(programs.teacher)
    assert estimator.of("score").resident["teacher"] == estimator.of("teach").arrays["weights"] == size
    assert device_bytes(programs.target("teach").arguments[0]) == size
    assert "teacher" not in estimator.of("teach").resident
    alone, taught = (make_plan(recipe("configs/order_long.yaml", *more), V5E, None) for more in ([], teacher))
    stage = next(stage for stage in taught.stages if stage.name == "teach")
    assert stage.seconds > 0 and taught.amounts.taught_positions == taught.amounts.scored_positions > 0
    assert taught.step_seconds > alone.step_seconds and "teach" not in {stage.name for stage in alone.stages}
    config = recipe("configs/order_long.yaml", *teacher, "teacher.place=loss")
    gradient, plain = Estimator(config, programs.architecture, 1).of("accumulate"), estimator.of("accumulate")
    assert gradient.arrays["teacher"] == size and gradient.flops > plain.flops and "teacher" not in gradient.resident
    target = Programs(config, jax.devices()[:1]).target("accumulate")
    assert device_bytes(target.arguments[0].teacher) == size
