"""The rendered JobSet has the fields that the controller requires, whole hosts, quoted arguments and checked values."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).parents[2]
VALUES = dict(
    NAME="fr3e-7b",
    IMAGE="us-docker.pkg.dev/my-project/fr3e/fr3e:1",
    BUCKET="my-runs",
    ACCELERATOR="tpu-v5p-slice",
    TOPOLOGY="4x4x4",
)
# Path in the manifest and type: the part of the schema (jobset.x-k8s.io/v1alpha2, batch/v1, core/v1) that this uses.
JOB = "spec.replicatedJobs.0.template.spec"
POD = f"{JOB}.template.spec"
CONTAINER = f"{POD}.containers.0"
SCHEMA = {
    "apiVersion": str,
    "kind": str,
    "metadata.name": str,
    "metadata.namespace": str,
    "metadata.annotations": dict,
    "spec.failurePolicy.maxRestarts": int,
    "spec.failurePolicy.rules": list,
    "spec.replicatedJobs.0.name": str,
    "spec.replicatedJobs.0.replicas": int,
    f"{JOB}.parallelism": int,
    f"{JOB}.completions": int,
    f"{JOB}.completionMode": str,
    f"{JOB}.backoffLimit": int,
    f"{JOB}.podFailurePolicy.rules": list,
    f"{JOB}.template.metadata.annotations": dict,
    f"{POD}.restartPolicy": str,
    f"{POD}.hostNetwork": bool,
    f"{POD}.dnsPolicy": str,
    f"{POD}.serviceAccountName": str,
    f"{POD}.terminationGracePeriodSeconds": int,
    f"{POD}.nodeSelector": dict,
    f"{POD}.volumes": list,
    f"{CONTAINER}.name": str,
    f"{CONTAINER}.image": str,
    f"{CONTAINER}.workingDir": str,
    f"{CONTAINER}.command": list,
    f"{CONTAINER}.args": list,
    f"{CONTAINER}.env": list,
    f"{CONTAINER}.envFrom": list,
    f"{CONTAINER}.ports": list,
    f"{CONTAINER}.resources.limits": dict,
    f"{CONTAINER}.resources.requests": dict,
    f"{CONTAINER}.securityContext.privileged": bool,
    f"{CONTAINER}.volumeMounts": list,
}


def at(manifest, path):
    for name in path.split("."):
        manifest = manifest[int(name) if name.isdecimal() else name]
    return manifest


def leaves(value, path=""):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [leaf for key, child in items for leaf in leaves(child, f"{path}.{key}".lstrip("."))] or [(path, value)]


def rendered(bench, *arguments, **changes):
    result = bench.launch("gke_jobset.sh", *arguments, **VALUES | dict(FR3E=bench.stub("fr3e")) | changes)
    assert result.returncode == 0, result.stderr
    return yaml.safe_load(result.stdout)


def test_manifest_has_the_fields_of_a_jobset_and_no_others(bench):
    manifest = rendered(bench, "configs/demo_fr3e.yaml")
    for path, kind in SCHEMA.items():
        assert type(at(manifest, path)) is kind, path
    unknown = [path for path, _ in leaves(manifest) if not any(path.startswith(known) for known in SCHEMA)]
    assert not unknown
    assert (manifest["apiVersion"], manifest["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert "${" not in str(manifest)


def test_each_host_is_a_pod_and_each_slice_a_job(bench):
    manifest = rendered(bench, "configs/demo_fr3e.yaml", SLICES="2")
    assert at(manifest, "spec.replicatedJobs.0.replicas") == 2
    assert at(manifest, f"{JOB}.parallelism") == at(manifest, f"{JOB}.completions") == 16  # 64 chips, 4 on a host
    assert at(manifest, f"{JOB}.completionMode") == "Indexed"
    assert at(manifest, f"{CONTAINER}.resources.limits") == {"google.com/tpu": 4}
    assert at(manifest, f"{POD}.nodeSelector") == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice",
        "cloud.google.com/gke-tpu-topology": "4x4x4",
    }
    small = rendered(bench, "configs/demo_fr3e.yaml", TOPOLOGY="2x4", CHIPS="8", ACCELERATOR="tpu-v5-lite-podslice")
    assert at(small, f"{JOB}.completions") == 1


def test_every_mount_has_a_volume_and_the_run_is_in_the_bucket(bench):
    manifest = rendered(bench, "configs/demo_fr3e.yaml")
    volumes = {volume["name"]: volume for volume in at(manifest, f"{POD}.volumes")}
    assert {mount["name"] for mount in at(manifest, f"{CONTAINER}.volumeMounts")} == set(volumes)
    assert volumes["runs"]["csi"]["volumeAttributes"]["bucketName"] == "my-runs"
    variables = {entry["name"]: entry.get("value") for entry in at(manifest, f"{CONTAINER}.env")}
    assert variables["RUN_DIR"] == "/runs/fr3e-7b" and variables["UNFINISHED_CODE"] == "75"
    assert variables["JAX_COMPILATION_CACHE_DIR"] == "/runs/compilation_cache"
    options = volumes["runs"]["csi"]["volumeAttributes"]["mountOptions"]
    assert "rename-dir-limit=" in options, "Orbax ends a checkpoint by renaming its folder"


def test_the_driver_reads_the_bucket_on_the_hosts_network(bench):
    attributes = lambda **changes: at(
        rendered(bench, "configs/demo_fr3e.yaml", **changes), f"{POD}.volumes.0.csi.volumeAttributes"
    )
    assert attributes()["hostNetworkPodKSA"] == "true" and "identityProvider" not in attributes()
    provider = "https://container.googleapis.com/v1/projects/p/locations/us-east5/clusters/c"
    assert attributes(IDENTITY_PROVIDER=provider)["identityProvider"] == provider


def test_a_pod_that_was_preempted_or_saved_and_ended_costs_no_restart(bench):
    manifest = rendered(bench, "configs/demo_fr3e.yaml")
    disruption, ended = at(manifest, f"{JOB}.podFailurePolicy.rules")
    assert disruption == {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget"}]}
    assert ended["onExitCodes"] == {
        "containerName": at(manifest, f"{CONTAINER}.name"),
        "operator": "In",
        "values": [75],
    }
    (rule,) = at(manifest, "spec.failurePolicy.rules")
    assert rule["action"] == "RestartJobSetAndIgnoreMaxRestarts" and rule["onJobFailureReasons"] == ["PodFailurePolicy"]


def test_spot_nodes_are_selected_and_their_taint_is_tolerated(bench):
    spot = at(rendered(bench, "configs/demo_fr3e.yaml", SPOT="true"), POD)
    assert spot["nodeSelector"]["cloud.google.com/gke-spot"] == "true"
    assert spot["tolerations"][0]["key"] == "cloud.google.com/gke-spot"
    assert "tolerations" not in at(rendered(bench, "configs/demo_fr3e.yaml"), POD)


def test_secrets_are_written_by_apply_and_named_in_the_manifest(bench):
    bench.stub("kubectl", f"[[ $1 != get ]] || {{ echo NotFound >&2; exit 1; }}; cat >>{bench.folder}/got")
    variables = VALUES | dict(FR3E=bench.stub("fr3e"), HF_TOKEN="hidden")
    result = bench.launch("gke_jobset.sh", "--apply", "configs/demo_fr3e.yaml", **variables)
    assert result.returncode == 0, result.stderr
    created = [call for call in bench.calls("kubectl") if call.startswith("create")]
    assert len(created) == 1 and "create secret generic fr3e-7b-secrets" in created[0] and "hidden" not in created[0]
    assert "HF_TOKEN=hidden" in (bench.folder / "got").read_text()
    printed = bench.launch("gke_jobset.sh", "--dry-run", "--apply", "configs/demo_fr3e.yaml", **variables).stdout
    reference = at(yaml.safe_load(printed), f"{CONTAINER}.envFrom.0.secretRef")
    assert reference == {"name": "fr3e-7b-secrets", "optional": True} and "hidden" not in printed
    bench.launch("gke_jobset.sh", "--apply", "configs/demo_fr3e.yaml", **variables, SECRET="tokens")
    assert [call for call in bench.calls("kubectl") if call.startswith("create")] == created


@pytest.mark.parametrize("said", ["error: You must be logged in to the server (Unauthorized)", "connection refused"])
def test_a_cluster_that_does_not_answer_is_named(bench, said):
    bench.stub("kubectl", f"echo '{said}' >&2; exit 1")
    result = bench.launch(
        "gke_jobset.sh", "--apply", "configs/demo_fr3e.yaml", **VALUES | dict(FR3E=bench.stub("fr3e"))
    )
    assert result.returncode == 2 and "the cluster does not answer" in result.stderr
    assert ("you are not logged in" in result.stderr) == ("logged in" in said) and len(bench.calls("kubectl")) == 1


def test_the_image_of_the_dockerfile_has_what_the_pods_run(bench):
    manifest = rendered(bench, "configs/demo_fr3e.yaml")
    dockerfile = (REPOSITORY / "Dockerfile").read_text()
    assert f"WORKDIR {at(manifest, f'{CONTAINER}.workingDir')}\n" in dockerfile
    folder, script = at(manifest, f"{CONTAINER}.command")[0].split("/")
    assert f"COPY {folder} {folder}\n" in dockerfile and (REPOSITORY / folder / script).exists()
    assert f"!{folder}\n" in (REPOSITORY / ".dockerignore").read_text()


def test_a_recipe_that_is_missing_or_wrong_is_refused_before_anything_is_printed(bench):
    for arguments, message in ((["nowhere.yaml"], "there is no recipe nowhere.yaml"), (["configs/demo.yaml"], "wrong")):
        fr3e = bench.stub("fr3e", "echo wrong setting >&2; exit 2")
        result = bench.launch("gke_jobset.sh", *arguments, **VALUES | dict(FR3E=fr3e))
        assert (result.returncode, result.stdout) == (2, "") and message in result.stderr


def test_arguments_pass_unchanged(bench):
    arguments = ["configs/demo_fr3e.yaml", 'data.root="a b" \\n & ${NAME}', "explore.num_anchors=[1, 2]", "name=ä: #x"]
    assert at(rendered(bench, *arguments), f"{CONTAINER}.args") == arguments


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"NAME": ""}, "NAME is not set; expected a name of a job"),
        ({"NAME": "Fr3e"}, "NAME=Fr3e does not look like a name of a job"),
        ({"NAME": "x" * 41}, "has 41 characters; expected at most 40"),
        ({"IMAGE": ""}, "IMAGE is not set; expected a container image"),
        ({"IMAGE": "a b"}, "IMAGE=a b does not look like a container image"),
        ({"BUCKET": "gs://my-runs"}, "BUCKET=gs://my-runs does not look like a bucket"),
        ({"TOPOLOGY": "4x"}, "TOPOLOGY=4x does not look like the shape of a slice"),
        ({"CHIPS": "3"}, "TOPOLOGY=4x4x4 has 64 chips, which are not whole hosts of CHIPS=3"),
        ({"SLICES": "0"}, "SLICES=0 does not look like a number of slices"),
    ],
)
def test_wrong_value_is_refused_before_anything_is_printed(bench, changes, message):
    result = bench.launch("gke_jobset.sh", "configs/demo_fr3e.yaml", **VALUES | changes)
    assert (result.returncode, result.stdout) == (2, "") and message in result.stderr


def test_apply_passes_the_manifest_to_kubectl_and_replaces_only_an_ended_set(bench):
    got = bench.folder / "applied.yaml"
    body = f"""case $1 in
  get)
    [[ -f {bench.folder}/exists ]] || {{ echo NotFound >&2; exit 1; }}
    [[ $* != *jsonpath* ]] || cat {bench.folder}/exists ;;
  apply) cat >{got} ;;
esac"""
    bench.stub("kubectl", body)
    launch = lambda: bench.launch(
        "gke_jobset.sh", "--apply", "configs/demo_fr3e.yaml", **VALUES | dict(FR3E=bench.stub("fr3e"))
    )
    assert launch().returncode == 0 and yaml.safe_load(got.read_text())["kind"] == "JobSet"
    (bench.folder / "exists").write_text("")
    assert "fr3e-7b is running" in launch().stderr
    (bench.folder / "exists").write_text("Failed")
    assert launch().returncode == 0
    assert [call.split()[0] for call in bench.calls("kubectl")][-4:] == ["get", "get", "delete", "apply"]
