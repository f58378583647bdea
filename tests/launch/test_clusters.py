"""tpu_pod.sh, slurm.sh, xpk.sh, skypilot.sh and sweep.sh with stand-ins for programs of clouds: what runs where."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).parents[2]
POD = dict(TPU_NAME="my-slice", ZONE="us-east5-a", PROJECT="my-project")

# Each worker of the slice is a home directory: ssh runs the command there, scp copies into it.
GCLOUD = """verb=$4
declare -A option
for argument in "$@"; do [[ $argument != --*=* ]] || { key=${argument%%=*}; option[${key#--}]=${argument#*=}; }; done
case $verb in
  describe)
    [[ -z ${TPU_ERROR:-} ]] || { echo "$TPU_ERROR" >&2; exit 1; }
    read -r now rest <"$HOMES/../$3.states" 2>/dev/null || { echo "${TPU_STATE:-READY}"; exit; }
    [[ -z $rest ]] || echo "$rest" >"$HOMES/../$3.states"
    [[ $now != NONE ]] || { echo "NOT_FOUND: $5" >&2; exit 1; }
    echo "$now" ;;
  scp) for home in "$HOMES"/*; do cp "$5" "$home/${6#*:}"; done ;;
  ssh)
    for home in "$HOMES"/*; do
      (cd "$home" && HOME=$home TPU_WORKER_ID=${home##*/} FR3E_INSTALL=0 bash -c "${option[command]}") &
      workers+=($!)
    done
    code=0
    for worker in "${workers[@]}"; do wait "$worker" || code=$?; done
    exit "$code" ;;
esac"""

# The launchers load a recipe before they start anything.
CHECKED = "[[ $* != *--print-config ]] || exit 0; "


@pytest.fixture
def pod(bench):
    """Two workers that share a disk, with the launcher in its own small repository."""
    homes, repository = bench.folder / "homes", bench.folder / "repository"
    for worker in "01":
        (homes / worker).mkdir(parents=True)
    shutil.copytree(REPOSITORY / "launch", repository / "launch")
    (repository / "configs").mkdir()
    (repository / "configs/mine.yaml").write_text("name: mine\n")
    bench.stub("gcloud", GCLOUD)
    # As `git archive HEAD` and `git diff` of it, without a commit in a test.
    bench.stub("git", f'[[ $1 != archive ]] || tar -czf "${{3#--output=}}" -C {repository} .')
    fr3e = bench.stub(
        "fr3e", CHECKED + 'echo "worker in $PWD, $JAX_COMPILATION_CACHE_DIR"; echo "{}" >"$RUN_DIR/summary.json"'
    )
    runs = bench.folder / "runs"
    variables = POD | dict(RUNS=str(runs), HOMES=str(homes), FR3E=fr3e)
    script = str(repository / "launch/tpu_pod.sh")
    return bench, lambda *arguments, **changes: bench.launch(script, *arguments, **variables | changes)


def test_all_workers_of_a_slice_run_the_same_command_and_log_in_one_place(pod):
    bench, launch = pod
    result = launch("configs/mine.yaml", "data.root=a b")
    assert result.returncode == 0, result.stderr
    run = bench.folder / "runs/mine"
    checked, *calls = bench.calls("fr3e")
    assert checked == r"train configs/mine.yaml data.root=a\ b --print-config"
    assert calls == [rf"train configs/mine.yaml data.root=a\ b --continue runtime.run_dir={run}"] * 2
    read = lambda: {path.name: path.read_text().splitlines()[-1] for path in (run / "logs").iterdir()}
    logs = {
        f"worker_{i}.log": f"worker in {bench.folder}/homes/{i}/fr3e_jax, {run.parent}/compilation_cache"
        for i in range(2)
    }
    end = time.monotonic() + 60.0
    while read() != logs and time.monotonic() < end:  # what writes a log may end after its worker
        time.sleep(0.02)
    assert read() == logs
    assert result.stdout.count("worker in") == 1 and "homes/0" in result.stdout, "worker 0 speaks for all"


def test_a_recipe_that_is_not_committed_is_refused_because_the_workers_would_not_get_it(pod):
    bench, launch = pod
    bench.stub("git", "[[ $1 != cat-file ]]")
    result = launch("configs/mine.yaml")
    assert result.returncode == 2 and "configs/mine.yaml is not committed" in result.stderr
    assert bench.calls("git") == ["cat-file -e HEAD:./configs/mine.yaml"] and not bench.calls("gcloud")


def test_failed_worker_fails_the_launch_with_the_end_of_its_output(pod):
    bench, launch = pod
    bench.stub("fr3e", CHECKED + "echo not enough memory; exit 4")
    result = launch("configs/mine.yaml")
    assert result.returncode == 2 and "not enough memory" in result.stderr and "mine ended with code 4" in result.stderr


def test_stopped_run_ends_with_code_75_and_not_as_finished(pod):
    bench, launch = pod
    bench.stub("fr3e", CHECKED + "echo saved")
    result = launch("configs/mine.yaml")
    assert result.returncode == 75 and "the same command continues it" in result.stdout


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"TPU_NAME": ""}, "TPU_NAME is not set; expected the name of a TPU VM slice"),
        ({"ZONE": "here"}, "ZONE=here does not look like its zone, such as us-east5-a"),
        ({"RUNS": "runs"}, "RUNS=runs does not look like gs://BUCKET[/FOLDER], or an absolute path"),
        ({"TPU_STATE": "CREATING", "WAIT_MINUTES": "0"}, "is still CREATING after 0 minutes; expected READY"),
        ({"TPU_STATE": "PREEMPTED"}, "my-slice is PREEMPTED: it was preempted. The run is whole in /"),
        ({"TPU_STATE": "STOPPED"}, "my-slice is STOPPED; start it with gcloud"),
        (
            {"TPU_ERROR": "ERROR: NOT_FOUND: Resource 'my-slice'\n was not found"},
            "was not found in ZONE=us-east5-a of PROJECT=my-project; create it with launch/tpu_slice.sh create",
        ),
        (
            {"TPU_ERROR": "You do not currently have an active account selected.\nRun: $ gcloud auth login"},
            "cannot be described: You do not currently have an active account selected. Run: $ gcloud auth login; "
            "you are not logged in: gcloud auth login",
        ),
        ({"TPU_ERROR": "Reauthentication failed. cannot prompt"}, "you are not logged in: gcloud auth login"),
        ({"TPU_ERROR": "Request had invalid authentication credentials"}, "you are not logged in"),
        ({"TPU_ERROR": "PERMISSION_DENIED: TPU API is disabled"}, "TPU API is disabled; mend what it says"),
        ({"SECRETS": "HF_TOKEN"}, "SECRETS names HF_TOKEN, which is not set; export it, or leave it out"),
        ({"SECRETS": "a-b"}, "SECRETS has a-b; expected names of variables"),
        ({"WAIT_MINUTES": "soon"}, "WAIT_MINUTES=soon does not look like a number of minutes"),
        ({"RUN": "a b"}, "RUN=a b does not look like the name of a run"),
    ],
)
def test_wrong_variable_of_a_slice_is_refused_before_anything_is_copied(pod, changes, message):
    bench, launch = pod
    result = launch("configs/mine.yaml", **changes)
    assert result.returncode == 2 and message in result.stderr
    assert not [call for call in bench.calls("gcloud") if " scp " in call]


def test_a_wrong_recipe_costs_a_line_before_any_cloud_is_called(pod):
    bench, launch = pod
    bench.stub("fr3e", "echo 'fr3e: error: no such setting' >&2; exit 2")
    for option in ([], ["--dry-run"]):
        result = launch(*option, "configs/mine.yaml", "sede=3")
        assert result.returncode == 2 and "no such setting" in result.stderr
    assert bench.calls("gcloud") == []


def test_a_dry_run_of_a_slice_prints_the_commands_and_calls_nothing(pod):
    bench, launch = pod
    result = launch("--dry-run", "configs/mine.yaml", HF_TOKEN="hidden")
    assert result.returncode == 0, result.stderr
    verbs = [line.split()[4] for line in result.stdout.splitlines() if line.startswith("gcloud compute tpus")]
    assert verbs == ["scp", "scp", "ssh"] and "hidden" not in result.stdout and bench.calls("gcloud") == []


def test_secrets_reach_the_run_by_name_and_stay_in_no_command_or_file(pod):
    bench, launch = pod
    bench.stub("show")
    bench.stub("fr3e", CHECKED + 'show "$HF_TOKEN" "$MINE"; echo "{}" >"$RUN_DIR/summary.json"')
    result = launch("configs/mine.yaml", SECRETS="HF_TOKEN MINE", HF_TOKEN="hf_1 2", MINE="$x'", WANDB_API_KEY="other")
    assert result.returncode == 0, result.stderr
    assert bench.calls("show") == [r"hf_1\ 2 \$x\'"] * 2
    assert not any("hf_1" in call for call in bench.calls("gcloud"))
    assert not [*bench.folder.glob("homes/*/.fr3e_secrets")]


def states(bench, **states):
    """What `describe` says one after another; the last state stays."""
    for kind, row in states.items():
        (bench.folder / f"{kind.replace('_', '-')}.states").write_text(f"{row}\n")


def of_gcloud(bench):
    calls = [call.split() for call in bench.calls("gcloud")]
    return [f"{call[2]} {call[3]}" for call in calls if call[3] != "describe"]


def test_a_slice_that_is_being_made_is_waited_for(pod):
    bench, launch = pod
    states(bench, tpu_vm="CREATING CREATING READY")
    result = launch("configs/mine.yaml", POLL_SECONDS="0")
    assert result.returncode == 0 and result.stderr.count("my-slice is CREATING; waiting") == 1


def test_a_slice_preempted_in_mid_run_is_replaced_and_the_run_goes_on(pod):
    bench, launch = pod
    states(
        bench,
        tpu_vm="READY PREEMPTED PREEMPTED PREEMPTED NONE CREATING READY",
        queued_resources="SUSPENDED NONE ACTIVE",
    )
    flag = bench.folder / "preempted"
    body = f'[[ -f {flag} ]] || {{ sleep 1; touch {flag}; exit 4; }}; echo "{{}}" >"$RUN_DIR/summary.json"'
    bench.stub("fr3e", CHECKED + body)
    result = launch("configs/mine.yaml", TPU_TYPE="v5litepod-16", SPOT="true", POLL_SECONDS="0")
    assert result.returncode == 0, result.stderr
    assert "my-slice is PREEMPTED: the run stopped with it" in result.stderr
    made = ["queued-resources delete", "queued-resources create"]
    assert of_gcloud(bench) == ["tpu-vm scp", "tpu-vm ssh", *made, "tpu-vm scp", "tpu-vm ssh"]


def test_a_slice_preempted_in_mid_run_is_named_where_nobody_replaces_it(pod):
    bench, launch = pod
    states(bench, tpu_vm="READY PREEMPTED")
    bench.stub("fr3e", CHECKED + "exit 4")
    result = launch("configs/mine.yaml")
    assert result.returncode == 2 and "launch/tpu_slice.sh create, or set TPU_TYPE" in result.stderr


SLICE = POD | dict(TPU_TYPE="v6e-256", POLL_SECONDS="0")


def slice_of(bench, *arguments, **changes):
    (bench.folder / "homes").mkdir(exist_ok=True)
    bench.stub("gcloud", GCLOUD)
    return bench.launch("tpu_slice.sh", *arguments, **SLICE | dict(HOMES=str(bench.folder / "homes")) | changes)


MADE = (
    "compute tpus queued-resources create my-slice --node-id=my-slice --zone=us-east5-a --project=my-project "
    "--accelerator-type=v6e-256 --runtime-version=v2-alpha-tpuv6e"
)


@pytest.mark.parametrize(
    ("slices", "requests", "calls"),
    [
        ("READY", "ACTIVE", []),
        ("NONE READY", "NONE ACTIVE", ["queued-resources create"]),
        ("NONE NONE READY", "WAITING_FOR_RESOURCES PROVISIONING ACTIVE", []),
        ("NONE NONE READY", "FAILED NONE ACTIVE", ["queued-resources delete", "queued-resources create"]),
        ("PREEMPTED NONE READY", "SUSPENDED NONE ACTIVE", ["queued-resources delete", "queued-resources create"]),
        ("PREEMPTED NONE READY", "NONE NONE ACTIVE", ["tpu-vm delete", "queued-resources create"]),
        ("STOPPED STARTING READY", "NONE", ["tpu-vm start"]),
    ],
)
def test_a_slice_is_created_or_replaced_and_waited_for(bench, slices, requests, calls):
    states(bench, tpu_vm=slices, queued_resources=requests)
    result = slice_of(bench, "create")
    assert result.returncode == 0 and "my-slice is ready" in result.stdout, result.stderr
    assert of_gcloud(bench) == calls
    if calls[-1:] == ["queued-resources create"]:
        assert MADE in bench.calls("gcloud")


def test_a_slice_is_deleted_with_its_request_and_its_state_is_told(bench):
    states(bench, tpu_vm="READY", queued_resources="ACTIVE")
    assert slice_of(bench, "state").stdout == "my-slice: slice READY, request ACTIVE\n"
    assert slice_of(bench, "delete").returncode == 0
    assert of_gcloud(bench) == ["queued-resources delete"] and "--force --quiet" in bench.calls("gcloud")[-1]
    result = slice_of(bench, "--dry-run", "create", SPOT="true")
    assert result.stdout.strip() == f"gcloud {MADE} --spot" and of_gcloud(bench) == ["queued-resources delete"]


@pytest.mark.parametrize(
    ("arguments", "changes", "message"),
    [
        (["make"], {}, "expected create, state or delete"),
        (["create"], {"TPU_TYPE": ""}, "TPU_TYPE is not set; expected the type of a slice"),
        (["create"], {"TPU_TYPE": "v9-8"}, "RUNTIME is not set; expected the software of the workers of TPU_TYPE=v9-8"),
        (["create"], {"SPOT": "yes"}, "SPOT=yes does not look like true or false"),
        (["state"], {"TPU_ERROR": "You do not currently have an active account selected"}, "you are not logged in"),
        (["create"], {"TPU_STATE": "CREATING", "WAIT_MINUTES": "0"}, "is still CREATING after 0 minutes"),
    ],
)
def test_a_mistake_about_a_slice_costs_a_line(bench, arguments, changes, message):
    result = slice_of(bench, *arguments, **changes)
    assert result.returncode == 2 and message in result.stderr and of_gcloud(bench) == []


def test_a_request_that_fails_twice_is_not_made_again(bench):
    states(bench, tpu_vm="NONE", queued_resources="NONE FAILED")
    result = slice_of(bench, "create")
    assert result.returncode == 2 and "the request for my-slice has FAILED; gcloud" in result.stderr


def test_a_model_is_copied_from_a_folder_or_from_the_hub(bench):
    bench.stub("gcloud")
    python = bench.stub("python", 'touch "$4/config.json"')
    copy = lambda *arguments: bench.launch("copy_model.sh", *arguments, PYTHON=python)
    (bench.folder / "model").mkdir()
    result = copy(str(bench.folder / "model"), "gs://my-bucket/models/7b")
    assert result.returncode == 2 and "has no config.json" in result.stderr
    (bench.folder / "model/config.json").touch()
    result = copy(str(bench.folder / "model"), "gs://my-bucket/models/7b")
    assert result.returncode == 0 and bench.calls("python") == [], result.stderr
    assert bench.calls("gcloud") == [f"storage rsync --recursive {bench.folder}/model gs://my-bucket/models/7b"]
    result = copy("Qwen/Qwen2.5-7B", "gs://my-bucket/models/7b")
    assert result.stdout == "Qwen/Qwen2.5-7B is in gs://my-bucket/models/7b\n", result.stderr
    assert "Qwen/Qwen2.5-7B" in bench.calls("python")[0] and len(bench.calls("gcloud")) == 2
    assert "rsync" in copy("--dry-run", "Qwen/Qwen2.5-7B", "gs://b/m").stdout and len(bench.calls("gcloud")) == 2
    assert "TARGET=my-bucket does not look like a folder of a bucket" in copy("a/b", "my-bucket").stderr
    assert "no folder here and no id of a model" in copy("a/b/c", "gs://b/m").stderr
    bench.stub("gcloud", "echo 'Reauthentication failed' >&2; exit 1")
    assert "you are not logged in" in copy("a/b", "gs://b/m").stderr


@pytest.mark.parametrize("filesystem", ["ext2/ext3", "fuseblk"])
def test_a_log_on_a_mounted_bucket_is_closed_again_and_again(bench, filesystem):
    """What is closed is in the bucket: it is read while the run goes on, half a line at the end included."""
    bench.stub("stat", f"echo {filesystem}")
    log = bench.folder / "run/logs/worker.log"
    body = (
        f"echo first; printf half; until grep -q first {log}; do sleep 0.1; done; sleep 1; echo ' a line'; printf end"
    )
    variables = dict(RUN_DIR=str(bench.folder / "run"), WORKER="worker", UNFINISHED_CODE="75", LOG_SECONDS="1")
    result = bench.launch("worker.sh", "mine.yaml", FR3E=bench.stub("fr3e", body), **variables)
    assert result.returncode == 75 and result.stdout == "first\nhalf a line\nend"
    assert log.read_text().partition("\n")[2] == "first\nhalf a line\nend"


def test_programs_are_shared_unless_a_folder_is_named(pod):
    bench, launch = pod
    folder = lambda: bench.calls("show")[-1]
    bench.stub("show")
    bench.stub(
        "fr3e", CHECKED + 'show "${JAX_COMPILATION_CACHE_DIR:-of the settings}"; echo "{}" >"$RUN_DIR/summary.json"'
    )
    launch("configs/mine.yaml", JAX_COMPILATION_CACHE_DIR="/disk/programs")
    assert folder() == "/disk/programs"
    launch("configs/mine.yaml", "runtime.compilation_cache=/mine", RUN="other")
    assert folder() == r"of\ the\ settings"


UV = """cat >"$6/bin/uv" <<'END'
[[ $2 != find ]] || echo /fetched/python3.12
END
chmod +x "$6/bin/uv" """


@pytest.mark.parametrize("variables", [{}, {"PYTHON": "python3"}])
def test_a_worker_with_an_old_python_fetches_one_unless_another_is_named(bench, variables):
    repository = bench.folder / "repository"
    shutil.copytree(REPOSITORY / "launch", repository / "launch")
    for name in ("requirements.lock", "pyproject.toml"):
        (repository / name).touch()
    for name in ("python3.11", "python3.12", "python3.13"):
        bench.stub(name, "exit 1")
    bench.stub("python3", f'[[ $1 != -c ]] || exit 1; mkdir -p "$6/bin"; {UV}')
    bench.stub("make", "mkdir -p .venv/bin; printf 'echo 0.10.2' >.venv/bin/python; chmod +x .venv/bin/python")
    fr3e = bench.stub("fr3e", 'echo "{}" >"$RUN_DIR/summary.json"')
    where = dict(RUNS=str(bench.folder / "runs"), RUN="mine", FR3E=fr3e, FR3E_STATE=str(bench.folder / "state"))
    result = bench.launch(str(repository / "launch/tpu_worker.sh"), "mine.yaml", **where | variables)
    if variables:
        assert result.returncode == 2 and "PYTHON=python3 is not Python 3.11 or newer; leave it out" in result.stderr
    else:
        assert result.returncode == 0, result.stderr
        assert bench.calls("make") == ["PYTHON=/fetched/python3.12 .venv/.installed"]


SRUN = """while [[ $1 == --* ]]; do shift; done
for rank in 0 1; do SLURM_PROCID=$rank "$@" || exit; done"""
SLURM = dict(SLURM_JOB_ID="7", REPOSITORY=str(REPOSITORY), RECIPE="configs/demo_fr3e.yaml")


def slurm(bench, *arguments, fr3e, **changes):
    bench.stub("srun", SRUN)
    bench.stub("scontrol")
    variables = SLURM | dict(RUN_DIR=str(bench.folder / "run"), FR3E=bench.stub("fr3e", CHECKED + fr3e)) | changes
    return bench.launch("slurm.sh", *arguments, **variables)


def test_slurm_starts_every_task_and_ends_with_the_run(bench):
    result = slurm(bench, "seed=3", fr3e='echo "{}" >"$RUN_DIR/summary.json"')
    run = bench.folder / "run"
    assert result.returncode == 0, result.stderr
    calls = [f"train configs/demo_fr3e.yaml seed=3 --continue runtime.run_dir={run}"] * 2
    assert bench.calls("fr3e") == ["train configs/demo_fr3e.yaml seed=3 --print-config", *calls]
    assert {path.name for path in (run / "logs").iterdir()} == {"process_0.log", "process_1.log"}
    assert bench.calls("scontrol") == [] and "--kill-on-bad-exit=1" in bench.calls("srun")[0]


def test_a_dry_run_of_slurm_checks_the_recipe_and_starts_nothing(bench):
    result = slurm(bench, "--dry-run", "seed=3", fr3e="", SLURM_JOB_ID="")
    assert result.returncode == 0 and result.stdout.startswith("srun --kill-on-bad-exit=1"), result.stderr
    assert bench.calls("srun") == bench.calls("scontrol") == [] and not (bench.folder / "run").exists()
    assert bench.calls("fr3e") == ["train configs/demo_fr3e.yaml seed=3 --print-config"]


def test_slurm_requeues_an_interrupted_run_but_not_a_failed_one(bench):
    assert slurm(bench, fr3e="").returncode == 0
    assert bench.calls("scontrol") == ["requeue 7"]
    assert slurm(bench, fr3e="", REQUEUE="0").returncode == 0
    assert slurm(bench, fr3e="exit 3").returncode == 3
    assert bench.calls("scontrol") == ["requeue 7"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"SLURM_JOB_ID": ""}, "SLURM_JOB_ID is not set; expected to run under sbatch"),
        ({"RUN_DIR": "runs/mine"}, "RUN_DIR=runs/mine does not look like an absolute path"),
        ({"RECIPE": "nowhere.yaml"}, "there is no recipe RECIPE=nowhere.yaml in"),
        ({"SLURM_GPUS_PER_NODE": "h100:8", "SLURM_NTASKS_PER_NODE": "1"}, "jax needs one process for each GPU"),
        ({"REPOSITORY": "/nowhere"}, "REPOSITORY=/nowhere has no launch/launcher.sh"),
    ],
)
def test_wrong_variable_of_slurm_is_refused_before_anything_starts(bench, changes, message):
    result = slurm(bench, fr3e="", **changes)
    assert result.returncode == 2 and message in result.stderr and bench.calls("srun") == []


XPK = dict(
    NAME="fr3e-7b",
    IMAGE="us-docker.pkg.dev/my-project/fr3e/fr3e:1",
    CLUSTER="my-cluster",
    ZONE="us-east5-a",
    PROJECT="my-project",
    TPU_TYPE="v5p-128",
)


def xpk(bench, *arguments, **changes):
    bench.stub("xpk", "printf '%s\\n' \"$@\"")
    fr3e = bench.stub("fr3e", CHECKED + "exit 9")
    return bench.launch("xpk.sh", bench.recipe, *arguments, **XPK | dict(FR3E=fr3e) | changes)


def test_xpk_gets_a_workload_whose_command_a_shell_reads_as_it_was_given(bench):
    result = xpk(bench, "data.root=a b", 'name="$x"')
    assert result.returncode == 0, result.stderr
    options = dict(
        line.removeprefix("--").split("=", 1) for line in result.stdout.splitlines() if line.startswith("--")
    )
    assert (
        options["tpu-type"] == "v5p-128" and options["storage"] == "runs" and options["restart-on-exit-codes"] == "75"
    )
    script = options["command"].replace("cd /opt/fr3e_jax && ", "", 1).replace("launch/worker.sh", "show", 1)
    bench.stub("show", "env | grep -E '^(RUN_DIR|JAX_COMPILATION)' | sort")
    path = os.environ | {"PATH": f"{bench.folder}/bin:{os.environ['PATH']}"}
    ran = subprocess.run(["bash", "-c", script], env=path, capture_output=True, text=True)
    assert ran.stdout == "JAX_COMPILATION_CACHE_DIR=/runs/compilation_cache\nRUN_DIR=/runs/fr3e-7b\n"
    assert bench.calls("show") == [rf"{bench.recipe} data.root=a\ b name=\"\$x\""]


def test_xpk_gets_secrets_in_a_file_and_a_dry_run_calls_nothing(bench):
    result = xpk(bench, WANDB_API_KEY="hidden", SPOT="true")
    (file,) = [line for line in result.stdout.splitlines() if line.startswith("--env-file=")]
    assert "hidden" not in result.stdout and "--spot" in result.stdout
    assert not Path(file.partition("=")[2]).exists(), "it is removed after the call"
    calls = len(bench.calls("xpk"))
    variables = XPK | dict(FR3E=bench.stub("fr3e", CHECKED))
    result = bench.launch("xpk.sh", "--dry-run", bench.recipe, **variables)
    assert result.stdout.startswith("xpk workload create --workload=fr3e-7b") and len(bench.calls("xpk")) == calls


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"CLUSTER": ""}, "CLUSTER is not set; expected a cluster that xpk made or adapted"),
        ({"TPU_TYPE": "4x4x4"}, "TPU_TYPE=4x4x4 does not look like the type of a slice"),
        ({"PRIORITY": "urgent"}, "PRIORITY=urgent does not look like a priority of xpk"),
        ({"FR3E": "false"}, ""),
    ],
)
def test_wrong_value_of_xpk_is_refused_before_anything_starts(bench, changes, message):
    result = xpk(bench, **changes)
    assert result.returncode == 2 and message in result.stderr and bench.calls("xpk") == []


DRY_RUN = """for seed in 0 1 2; do
  echo "python -m fr3e_jax train mine.yaml seed=$seed 'data.root=a b' runtime.run_dir=/x/sweep/00$seed-seed=$seed"
done"""


def test_sweep_gives_each_combination_to_one_slice_and_repeats_only_unfinished_ones(bench):
    launcher = bench.stub("launcher", 'echo "$TPU_NAME $RUN"; [[ $RUN != *seed=1 || -f $ALLOWED ]]')
    variables = dict(SLICES="a b", STATE=str(bench.folder / "state"), LAUNCHER=launcher)
    variables |= dict(FR3E=bench.stub("fr3e", DRY_RUN), ALLOWED=str(bench.folder / "allowed"))
    sweep = lambda: bench.launch("sweep.sh", bench.recipe, "seed=0,1,2", **variables)
    result = sweep()
    assert result.returncode == 1 and "2 of 3 combinations are finished" in result.stdout
    assert sorted(bench.calls("launcher")) == [rf"mine.yaml seed={seed} data.root=a\ b" for seed in range(3)]
    (bench.folder / "allowed").touch()
    result = sweep()
    assert result.returncode == 0 and "3 of 3 combinations are finished" in result.stdout
    assert len(bench.calls("launcher")) == 4
    assert (bench.folder / "state/001-seed=1.log").read_text().splitlines()[-1].endswith(" mine-001-seed=1")
    result = bench.launch("sweep.sh", "--dry-run", bench.recipe, "seed=0,1,2", **variables)
    assert result.stdout.count("seed=") == 6 and len(bench.calls("launcher")) == 4
    assert bench.calls("fr3e")[0] == f"sweep {bench.recipe} seed=0\\,1\\,2 --dry-run"


@pytest.fixture
def skypilot(bench):
    """The launcher of SkyPilot with `sky` and `fr3e` as stubs."""
    bench.stub("sky")

    def launch(*arguments, **variables):
        given = {"RUNS": "gs://bucket", "FR3E": bench.stub("fr3e")} | variables
        return bench.launch("skypilot.sh", *arguments, **given)

    return launch


def test_skypilot_gets_the_settings_quoted_and_secrets_by_name(bench, skypilot):
    result = skypilot("configs/demo.yaml", "name=a b", RUN="Mine.1", HF_TOKEN="hidden", GPUS="A100:1", SPOT="false")
    assert result.returncode == 0, result.stderr
    assert bench.calls("fr3e") == ["train configs/demo.yaml name=a\\ b --print-config"]
    (words,) = map(shlex.split, bench.calls("sky"))
    assert words[:3] == ["jobs", "launch", "launch/skypilot.yaml"] and "--secret=HF_TOKEN" in words
    assert words[words.index("--name") + 1] == "fr3e-mine-1" and "--no-use-spot" in words
    assert {"RUN=Mine.1", "RECIPE=configs/demo.yaml", "SETTINGS=name=a\\ b "} <= set(words)
    assert "hidden" not in " ".join(words) + result.stdout
    dry = skypilot("--dry-run", "configs/demo.yaml", HF_TOKEN="hidden")
    assert dry.returncode == 0 and "sky jobs launch" in dry.stdout and "hidden" not in dry.stdout
    assert len(bench.calls("sky")) == 1


@pytest.mark.parametrize(
    ("arguments", "variables", "complaint"),
    [
        ((), {}, "no recipe given"),
        (("configs/absent.yaml",), {}, "there is no recipe configs/absent.yaml below"),
        (("configs/demo.yaml",), {"RUNS": ""}, "RUNS is not set; expected a bucket"),
        (("configs/demo.yaml",), {"RUNS": "/runs"}, "RUNS=/runs does not look like a bucket"),
        (("configs/demo.yaml",), {"GPUS": "8"}, "GPUS=8 does not look like a kind of accelerator"),
        (("configs/demo.yaml",), {"SECRETS": "TOKEN"}, "SECRETS names TOKEN, which is not set"),
    ],
)
def test_mistakes_cost_a_line_before_skypilot_is_called(bench, skypilot, arguments, variables, complaint):
    result = skypilot(*arguments, **variables)
    assert result.returncode == 2 and complaint in result.stderr and not bench.calls("sky")


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_job_of_skypilot_runs_the_worker_of_all_launchers_and_comes_back_if_it_is_unfinished(bench, nodes):
    task = yaml.safe_load((REPOSITORY / "launch" / "skypilot.yaml").read_text())
    assert task["resources"]["use_spot"] and task["file_mounts"] == {"/runs": {"source": "${RUNS}", "mode": "MOUNT"}}
    worker = bench.folder / "launch" / "worker.sh"
    worker.parent.mkdir()
    names = ("RUN_DIR", "WORKER", "UNFINISHED_CODE", "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    worker.write_text(f"""#!/usr/bin/env bash
for name in {" ".join(names)}; do echo "$name=${{!name:-}}"; done; printf '%s\\n' "$@"; exit $UNFINISHED_CODE""")
    worker.chmod(0o755)
    variables = {"RUN": "mine", "RECIPE": "r.yaml", "SETTINGS": "name=a\\ b seed=3 ", "PATH": os.environ["PATH"]}
    variables |= {"SKYPILOT_NODE_RANK": str(nodes - 1), "SKYPILOT_NUM_NODES": str(nodes)}
    variables |= {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}
    result = subprocess.run(
        ["bash", "-c", task["run"]], env=variables, cwd=bench.folder, capture_output=True, text=True, timeout=60
    )
    assert result.returncode in task["resources"]["job_recovery"]["recover_on_exit_codes"], result.stderr
    *exported, recipe, name, seed = result.stdout.splitlines()
    assert (recipe, name, seed) == ("r.yaml", "name=a b", "seed=3")
    several = ["10.0.0.1:8476", "2", "1"] if nodes == 2 else ["", "", ""]
    values = ["/runs/mine", f"node_{nodes - 1}", "75", *several]
    assert exported == [f"{name}={value}" for name, value in zip(names, values, strict=True)]
