"""Environments that mean several processes, and the errors for incomplete ones."""

import pytest

from fr3e_jax.cluster.discovery import Cluster, find_cluster
from fr3e_jax.configuration import ConfigError

EXPLICIT = {"JAX_COORDINATOR_ADDRESS": "10.0.0.2:8476", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "3"}
SLURM = {
    "SLURM_JOB_ID": "17",
    "SLURM_STEP_NODELIST": "node[1-2]",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
}
MPI = {"OMPI_MCA_orte_hnp_uri": "1.0;tcp://10.0.0.2:1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}
GKE = {"TPU_WORKER_HOSTNAMES": "host-0,host-1", "TPU_WORKER_ID": "1"}
SLICES = {"TPU_WORKER_HOSTNAMES": "host-0", "MEGASCALE_NUM_SLICES": "2"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        (EXPLICIT, Cluster("", "10.0.0.2:8476", 4, 3)),
        (EXPLICIT | {"JAX_PROCESS_ID": "", "JOB_COMPLETION_INDEX": "2"}, Cluster("", "10.0.0.2:8476", 4, 2)),
        (EXPLICIT | {"JAX_COORDINATOR_ADDRESS": "[fd00::2]:8476"}, Cluster("", "[fd00::2]:8476", 4, 3)),
        (EXPLICIT | {"JAX_NUM_PROCESSES": "1", "JAX_PROCESS_ID": "0"}, None),
        ({"JAX_NUM_PROCESSES": "1"}, None),
        (SLURM | {"JAX_NUM_PROCESSES": "1"}, None),
        ({"JOB_COMPLETION_INDEX": "2"}, None),
        (SLURM, Cluster("slurm")),
        (SLURM | {"SLURM_NTASKS": "1"}, None),
        # A batch script outside of srun has these, but no step: it is one process, whatever the job's tasks are.
        ({name: SLURM[name] for name in SLURM if name != "SLURM_STEP_NODELIST"}, None),
        (SLURM | {"JAX_COORDINATOR_ADDRESS": "node7:1234"}, Cluster("slurm", "node7:1234")),
        (MPI, Cluster("mpi")),
        (MPI | {"OMPI_COMM_WORLD_SIZE": "1"}, None),
        (GKE, Cluster("tpu")),
        (GKE | {"JAX_PLATFORMS": "cpu"}, None),
        (GKE | EXPLICIT, Cluster("tpu", "10.0.0.2:8476", 4, 3)),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, None),
        (SLICES, Cluster("tpu")),
    ],
)
def test_the_environment_gives_the_cluster(environment, expected):
    assert find_cluster(environment, has_tpu=False) == expected


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Cluster("tpu")),  # the metadata server knows whether there are other workers
        ({"JAX_PLATFORMS": "tpu,cpu"}, Cluster("tpu")),
        ({"JAX_PLATFORMS": "cpu"}, None),
        ({"TPU_SKIP_MDS_QUERY": "1"}, None),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, None),
    ],
)
def test_a_tpu_vm_may_have_other_workers(environment, expected):
    assert find_cluster(environment, has_tpu=True) == expected


def without(name):
    return {key: value for key, value in EXPLICIT.items() if key != name}


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (without("JAX_PROCESS_ID"), r"without JAX_PROCESS_ID; expected all three .* or none"),
        (without("JAX_NUM_PROCESSES"), r"found JAX_COORDINATOR_ADDRESS, JAX_PROCESS_ID without JAX_NUM_PROCESSES;"),
        (without("JAX_COORDINATOR_ADDRESS"), r"without JAX_COORDINATOR_ADDRESS;"),
        ({"JAX_COORDINATOR_ADDRESS": "a:1"}, r"without JAX_NUM_PROCESSES, JAX_PROCESS_ID;"),
        (
            EXPLICIT | {"JAX_PROCESS_ID": "4"},
            r"JAX_PROCESS_ID=4 with JAX_NUM_PROCESSES=4; .* from 0 to 3",
        ),
        (EXPLICIT | {"JAX_PROCESS_ID": "-1"}, r"JAX_PROCESS_ID=-1 is not a whole number; .* from 0"),
        (EXPLICIT | {"JAX_NUM_PROCESSES": "two"}, r"JAX_NUM_PROCESSES=two is not a whole number"),
        (EXPLICIT | {"JAX_NUM_PROCESSES": "0"}, r"JAX_NUM_PROCESSES=0; expected .* at least 1"),
        (EXPLICIT | {"JAX_COORDINATOR_ADDRESS": "10.0.0.2"}, r"JAX_COORDINATOR_ADDRESS=10.0.0.2 is not HOST:PORT"),
        (EXPLICIT | {"JAX_COORDINATOR_ADDRESS": "host:"}, r"is not HOST:PORT"),
    ],
)
def test_an_incomplete_or_wrong_environment_raises_a_config_error(environment, message):
    with pytest.raises(ConfigError, match=message):
        find_cluster(environment, has_tpu=False)
