"""`fr3e plan` as a user types it. The tests that compile need libtpu and a CUDA plugin (`make test-plan`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from fr3e_jax.cli import main
from fr3e_jax.configuration import to_yaml
from fr3e_jax.methods import read_methods
from fr3e_jax.planning.absent_devices import find_cuda, find_libtpu, planning_environment

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
def compiled_plan():
    """`fr3e plan`, or another verb, in a process of its own: compilers read their environment when jax is loaded."""

    def plan(*arguments: str, verb: str = "plan", recipe: Sequence[str] = TINY) -> subprocess.CompletedProcess:
        _require_compiler("cuda-plan" if any("h100" in x for x in arguments) else "libtpu")
        code = "import sys; from fr3e_jax.cli import main; sys.exit(main(sys.argv[1:]))"
        return subprocess.run([sys.executable, "-c", code, verb, *recipe, *arguments], capture_output=True, text=True)

    return plan


def _require_compiler(needed: str) -> None:
    """Skip the test where a compiler is not installed, or fail where the environment requires all compilers."""
    if (find_cuda if needed == "cuda-plan" else find_libtpu)() is not None:
        return
    if os.environ.get("FR3E_REQUIRE_COMPILERS"):
        pytest.fail(f"no compiler; `make {needed}` installs it")
    pytest.skip(f"no {needed}; `make test-plan` installs it and runs this")


PRODUCT_OF_SPLIT_WEIGHTS = """
from fr3e_jax.planning.absent_devices import enter_planning_for
devices = enter_planning_for("v5e:4x4")
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from fr3e_jax.planning.compile import topology_devices
from fr3e_jax.programs.program import Program, abstract

mesh = Mesh(np.reshape(topology_devices(devices), (4, 4)), ("fsdp", "tensor"))
def split(*axes):
    return NamedSharding(mesh, P(*axes))
program = Program(jax.numpy.dot, out_shardings=split("fsdp", "tensor"))
rows = abstract((4 * 36_864, 3_584), "bfloat16", split("fsdp"))
weights = abstract((3_584, 18_944), "bfloat16", split("fsdp", "tensor"))
print(program.prepare(rows, weights).as_text().count("collective-permute"))
"""


def test_estimate_needs_no_libtpu(capsys, monkeypatch):
    monkeypatch.setattr("fr3e_jax.planning.absent_devices.find_libtpu", lambda: None)
    assert main(["plan", RECIPE, "--topology", "v5e:8x8", "--estimate", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["devices"], found["estimated"], found["fits"]) == (64, True, True)
    assert [program["name"] for program in found["programs"]][-2:] == ["accumulate", "apply"]


MEAN = ["--response-tokens", "2048"]
PUBLISHED = [method for method in read_methods() if method.command.startswith("fr3e plan ")]


@pytest.mark.parametrize("method", PUBLISHED, ids=lambda method: method.recipe)
def test_recipe_of_a_published_size_fits_the_hardware_of_its_header(method, capsys):
    """By estimate, with a tenth of the memory to spare, and within 15 % of the fastest settings that the plan finds."""
    topology = method.command.split()[4]
    assert f"({topology}" in method.hardware
    assert main(["plan", method.recipe, "--topology", topology, "--estimate", "--json", *MEAN]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(change["saved_time"] <= 0.15 for change in found["cheaper"])
    assert max(program["share"] for program in found["programs"]) < 0.9


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--topology", "v5p:8x8"], "slices of v5p have 3"),
        (["--topology", "v5e:2x2"], "--topology v5e:2x2 needs libtpu to compile for: `make libtpu`"),
        (["--topology", "h100:8"], "--topology h100:8x1 needs a CUDA plugin to compile for: `make cuda-plan`"),
        (
            [
                "--topology",
                "h100:8",
                "--estimate",
                "model.attention=pallas",
                "model.architecture=custom",
                "model.hidden_size=320",
            ],
            "model.attention=pallas: its kernels for GPU need heads of",
        ),
        (["--topology", "h100:8", "--kept-share", "2"], "'2' is not a share above 0 and up to 1"),
        (["--topology", "h100:8", "--efficiency", "speed=0.5"], "'speed=0.5' is not compute=SHARE, memory=SHARE"),
        (["--topology", "h100:8", "--efficiency", "compute=2"], "'2' is not a share above 0 and up to 1"),
        ([], "--topology"),
    ],
)
def test_mistake_is_reported_in_one_line(arguments, says, capsys, monkeypatch):
    monkeypatch.setattr("fr3e_jax.planning.absent_devices.find_libtpu", lambda: None)
    monkeypatch.setattr("fr3e_jax.planning.absent_devices.find_cuda", lambda: None)
    assert main(["plan", RECIPE, *arguments]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and says in told


def test_mesh_that_does_not_fit_the_devices_is_a_mistake(capsys):
    assert main(["plan", RECIPE, "--topology", "h100:8", "--estimate", "mesh.tensor=3"]) == 2
    assert "mesh.tensor=3" in capsys.readouterr().err


def test_gpu_has_the_memory_that_jax_hands_out(capsys, monkeypatch):
    def planned() -> int:
        return main(["plan", RECIPE, "--topology", "h100:8", "--estimate", "--json", "--programs", "apply"])

    for fraction, gib in (("", 59.3), ("0.92", 72.8)):
        monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", fraction)
        planned()
        assert round(json.loads(capsys.readouterr().out)["programs"][0]["hbm_bytes"] / 2**30, 1) == gib
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "92")
    assert planned() == 2
    assert "XLA_CLIENT_MEM_FRACTION=92 is not a share of the memory above 0 and up to 1" in capsys.readouterr().err


def test_planning_process_sees_no_other_device(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setenv("TPU_NAME", "other")
    found = planning_environment(tmp_path / "libtpu.so")
    assert found["JAX_PLATFORMS"] == "cpu"
    assert "TPU_NAME" not in found and found["TPU_LIBRARY_PATH"] == str(tmp_path / "libtpu.so")
    monkeypatch.setenv("XLA_FLAGS", "--mine")
    found = planning_environment(cuda=tmp_path)
    assert found["XLA_FLAGS"] == f"--mine --xla_gpu_cuda_data_dir={tmp_path}/nvidia/cuda_nvcc"
    assert found["PJRT_NAMES_AND_LIBRARY_PATHS"].startswith(f"cuda:{tmp_path}/") and found["JAX_PLATFORMS"] == "cpu"


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["v5e:2x2", "h100:2"])
def test_all_programs_of_a_run_compile_for_absent_devices(compiled_plan, tiny_run, tmp_path, topology):
    (tmp_path / "recipe.yaml").write_text(to_yaml(tiny_run.config(model__num_layers=1)))
    written = compiled_plan("--topology", topology, "--json", verb="compile", recipe=[str(tmp_path / "recipe.yaml")])
    assert written.returncode == 0, written.stderr
    programs = json.loads(written.stdout)
    names = {program["name"] for program in programs}
    assert {"prefill", "decode_chunk"} <= names and any(name.startswith("accumulate") for name in names)
    assert all(program["peak_gib"] > 0 and program["seconds"] > 0 for program in programs)


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["v5e:2x2", "h100:4"])
def test_programs_are_compiled_for_absent_devices(compiled_plan, topology):
    written = compiled_plan("--topology", topology, "--programs", "reshard,decode,apply", "--json")
    assert written.returncode == 0, written.stderr
    _, decode, apply = json.loads(written.stdout)["programs"]
    assert "decode: " in written.stderr and "compiled in" in written.stderr
    assert not decode["estimated"] and decode["peak_bytes"] >= decode["argument_bytes"] > 0
    assert decode["flops"] > 0 and decode["resident"]["optimizer state"] > 0
    assert decode["compile_seconds"] > 0 and apply["argument_bytes"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["v5e:2x2", "h100:4"])
def test_rows_split_over_context_compile_with_fused_attention_and_need_less_memory(compiled_plan, topology):
    """A row a batch shard: with half the shards each row lies on two devices. XLA's scores need more than kernels."""
    rows = ["model.hidden_size=256", "model.num_heads=4", "mesh.tensor=1", "rollout.max_response_tokens=896"]
    rows += ["model.compute_dtype=bfloat16", "training.micro_batch_tokens=1"]
    programs = []
    for more in (["model.attention=xla"], [], ["mesh.context=4"]):
        written = compiled_plan(*rows, *more, "--topology", topology, "--programs", "accumulate", "--json")
        assert written.returncode == 0, written.stderr
        programs += json.loads(written.stdout)["programs"]
    plain, fused, split = programs
    assert fused["temporary_bytes"] < plain["temporary_bytes"]
    assert split["positions"] * 4 == fused["positions"] and split["peak_bytes"] < fused["peak_bytes"]


@pytest.mark.slow
def test_product_on_tpu_passes_no_pieces_of_its_weights_from_device_to_device():
    """XLA's default does, and reads and writes the result once for each piece; without the option it prints 19."""
    _require_compiler("libtpu")
    written = subprocess.run([sys.executable, "-c", PRODUCT_OF_SPLIT_WEIGHTS], capture_output=True, text=True)
    assert written.returncode == 0, written.stderr
    assert int(written.stdout) == 0


@pytest.mark.slow
def test_programs_of_two_slices_compile(compiled_plan):
    """With fused kernels, which are mapped over the replicas, too."""
    heads = ["model.hidden_size=256", "model.num_heads=4", "model.compute_dtype=bfloat16", "model.attention=pallas"]
    choice = [*heads, "mesh.replica=2", "--topology", "v5e:2x2x2slices", "--programs", "accumulate,apply,decode"]
    written = compiled_plan(*choice, "--json")
    assert written.returncode == 0, written.stderr
    crossing = [program["sent_between_slices"] > 0 for program in json.loads(written.stdout)["programs"]]
    assert crossing == [False, False, True], "decode, accumulate, apply"


@pytest.mark.slow
def test_program_that_cannot_fit_is_reported_with_changes(compiled_plan):
    large = ["model.hidden_size=1024", "model.intermediate_size=8192", "rollout.max_response_tokens=8192"]
    large += ["training.micro_batch_tokens=4000000", "training.batch_rollouts=8192"]
    large += ["training.mini_batch_rollouts=8192"]
    large += ["model.attention=xla"]  # fused kernels keep no scores, so smaller blocks of them would save nothing
    written = compiled_plan(*large, "--topology", "v5e:2x2", "--programs", "score")
    assert written.returncode == 1, written.stderr
    assert "DOES NOT FIT" in written.stdout and "score alone needs" in written.stdout
    assert "on a device that has 15.8" in written.stdout and "  largest: " in written.stdout
    assert "  change: training.micro_batch_tokens=" in written.stdout
    assert "  change: training.attention_block=" in written.stdout
