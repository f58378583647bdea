"""`fr3e plan` as a user types it. The tests that compile for a TPU need libtpu (`make test-plan`)."""

from __future__ import annotations

import json
import os

import pytest

from fr3e_jax.cli import main
from fr3e_jax.methods import read_methods
from fr3e_jax.planning.planner_process import environment, find_libtpu
from fr3e_jax.planning.workload import RowShape, largest_micro_batch

RECIPE = "configs/fr3e_qwen2.5_7b.yaml"
TINY = [
    "configs/fr3e_gsm8k.yaml",
    "model.num_layers=1",
    "data.max_prompt_tokens=128",
    "rollout.max_response_tokens=128",
    "rollout.trunk_slots=4",
    "rollout.lanes_per_trunk=4",
    "rollout.param_dtype=bfloat16",
    "mesh.rollout_tensor=2",
    "training.remat=block",
]


@pytest.fixture
def libtpu():
    found = find_libtpu()
    if found is None and os.environ.get("FR3E_REQUIRE_LIBTPU"):
        pytest.fail("no libtpu.so; `make libtpu` installs it")
    if found is None:
        pytest.skip("no libtpu.so; `make test-plan` installs it and runs this")
    return found


def test_estimate_needs_no_libtpu(capsys, monkeypatch):
    monkeypatch.setattr("fr3e_jax.planning.planner_process.find_libtpu", lambda: None)
    assert main(["plan", RECIPE, "--topology", "v5e:8x8", "--estimate", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["devices"], found["estimated"], found["fits"]) == (64, True, True)
    assert [program["name"] for program in found["programs"]][-2:] == ["accumulate", "apply"]


PUBLISHED = [method for method in read_methods() if method.command.startswith("fr3e plan ")]


@pytest.mark.parametrize("method", PUBLISHED, ids=lambda method: method.recipe)
def test_recipe_of_a_published_size_fits_the_hardware_of_its_header(method, capsys):
    """By the estimate, with a tenth of the memory to spare."""
    topology = method.command.split()[4]
    assert f"({topology}" in method.hardware
    assert main(["plan", method.recipe, "--topology", topology, "--estimate", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert max(program["share"] for program in found["programs"]) < 0.9


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--topology", "v5p:8x8"], "slices of v5p have 3"),
        (["--topology", "v5e:2x2"], "--topology v5e:2x2 needs libtpu to compile for: `make libtpu`"),
        (
            ["--topology", "h100:8", "model.attention=pallas"],
            "model.attention=pallas: its kernels are for TPU, and the",
        ),
        (["--topology", "h100:8", "--kept-share", "2"], "'2' is not a share above 0 and up to 1"),
        (["--topology", "h100:8", "--efficiency", "speed=0.5"], "'speed=0.5' is not compute=SHARE, memory=SHARE"),
        (["--topology", "h100:8", "--efficiency", "compute=2"], "'2' is not a share above 0 and up to 1"),
        (["--topology", "h100:8", "--price", "dear"], "'dear' is not a price of a chip-hour"),
        ([], "--topology"),
    ],
)
def test_mistake_is_reported_in_one_line(arguments, says, capsys, monkeypatch):
    monkeypatch.setattr("fr3e_jax.verbs.plan.find_libtpu", lambda: None)
    assert main(["plan", RECIPE, *arguments]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and says in told


def test_mesh_that_does_not_fit_the_devices_is_a_mistake(capsys):
    assert main(["plan", RECIPE, "--topology", "h100:8", "mesh.tensor=3"]) == 2
    assert "mesh.tensor=3" in capsys.readouterr().err


def test_planning_process_sees_no_other_device(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setenv("TPU_NAME", "other")
    found = environment(tmp_path / "libtpu.so")
    assert found["JAX_PLATFORMS"] == "cpu"
    assert "TPU_NAME" not in found and found["TPU_LIBRARY_PATH"] == str(tmp_path / "libtpu.so")


def test_largest_micro_batch_of_16k_responses_has_one_trunk_and_one_lane_per_shard():
    from fr3e_jax.configuration import load_config

    config = load_config("configs/fr3e_qwen2.5_32b.yaml", training=False)
    assert largest_micro_batch(config, 16) == RowShape(16, 17408, 1, 16384)


@pytest.mark.slow
def test_programs_are_compiled_for_an_absent_tpu(libtpu, capsys):
    assert main(["plan", *TINY, "--topology", "v5e:2x2", "--programs", "reshard,decode,apply", "--json"]) == 0
    written = capsys.readouterr()
    reshard, decode, apply = json.loads(written.out)["programs"]
    assert "decode: " in written.err and "compiled in" in written.err
    assert not decode["estimated"] and decode["peak_bytes"] >= decode["argument_bytes"] > 0
    assert decode["flops"] > 0 and decode["resident"]["optimizer state"] > 0
    assert {c["kind"] for c in reshard["collectives"]} & {"all-gather", "all-to-all", "all-reduce"}
    assert decode["collectives"] and apply["argument_bytes"] > 0
    assert decode["read_bytes"] != sum(decode["moved"].values()), "rings are half full"


@pytest.mark.slow
def test_fused_attention_compiles_and_moves_fewer_bytes(libtpu, capsys):
    """Rows of 1,024 positions and more, heads split over two devices; XLA's scores are larger than all else."""
    rows = ["model.hidden_size=256", "model.num_heads=4", "mesh.tensor=2", "rollout.max_response_tokens=2048"]
    rows += ["model.compute_dtype=bfloat16", "training.micro_batch_tokens=8192"]
    moved = {}
    for attention in ("xla", "auto"):
        choice = [*TINY, *rows, f"model.attention={attention}", "--topology", "v5e:2x2", "--programs", "accumulate"]
        assert main(["plan", *choice, "--json"]) == 0
        (program,) = json.loads(capsys.readouterr().out)["programs"]
        moved[attention] = program["moved"]["attention"]
        assert program["read_bytes"] == sum(program["moved"].values()) > program["argument_bytes"]
    assert 0 < 5 * moved["auto"] < moved["xla"]


@pytest.mark.slow
def test_rows_split_over_context_compile_with_fused_attention(libtpu, capsys):
    """A row a batch shard: with half the shards each row lies on two devices."""
    rows = ["model.hidden_size=256", "model.num_heads=4", "mesh.tensor=1", "rollout.max_response_tokens=4096"]
    rows += ["model.compute_dtype=bfloat16", "training.micro_batch_tokens=1", "training.remat=block"]
    programs = []
    for context in (1, 4):
        choice = [*TINY, *rows, f"mesh.context={context}", "--topology", "v5e:2x2", "--programs", "accumulate"]
        assert main(["plan", *choice, "--json"]) == 0
        programs += json.loads(capsys.readouterr().out)["programs"]
    whole, split = programs
    assert split["positions"] * 4 == whole["positions"] and split["peak_bytes"] < whole["peak_bytes"]
    assert {"all-gather", "reduce-scatter"} <= {c["kind"] for c in split["collectives"]}
    assert 0 < split["moved"]["attention"] < whole["moved"]["attention"]


@pytest.mark.slow
def test_gradients_cross_slices_once_an_update_and_nothing_else_does(libtpu, capsys):
    """With fused kernels, which are mapped over the replicas, too."""
    heads = ["model.hidden_size=256", "model.num_heads=4", "model.compute_dtype=bfloat16", "model.attention=pallas"]
    choice = [*TINY, *heads, "mesh.replica=2", "--topology", "v5e:2x2x2slices"]
    choice += ["--programs", "accumulate,apply,decode"]
    assert main(["plan", *choice, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    crossing = {p["name"]: [c for c in p["collectives"] if c["across_slices"]] for p in plan["programs"]}
    sent = {name: sum(c["sent_bytes"] for c in found) for name, found in crossing.items()}
    share = plan["parameters"] / 4  # of the gradients, in two or four bytes, over the chips of a slice
    assert 2 * share <= sent["apply"] < 5 * share and {c["kind"] for c in crossing["apply"]} == {"all-reduce"}
    assert sent["accumulate"] <= 2048 < sent["apply"] / 100, "a few sums, each padded to 512 bytes"
    assert sent["decode"] < 2**16, "tokens, which every process fetches"


@pytest.mark.slow
def test_program_that_cannot_fit_is_reported_with_changes(libtpu, capsys):
    large = ["model.hidden_size=1024", "model.intermediate_size=8192", "rollout.max_response_tokens=1024"]
    large += ["training.micro_batch_tokens=4000000", "training.batch_rollouts=8192"]
    large += ["model.attention=xla"]  # fused kernels keep no scores, so smaller blocks of them would save nothing
    assert main(["plan", *TINY, *large, "--topology", "v5e:2x2", "--programs", "score"]) == 1
    text = capsys.readouterr().out
    assert "DOES NOT FIT" in text and "score alone needs" in text and "on a device that has 15.8" in text
    assert "  largest: " in text
    assert text.count("  change: ") == 3 and "training.micro_batch_tokens" in text
