"""Whether this process is one of several, told from the environment: who coordinates, how many there are, which it is.

Four ways to say it: the variables ``JAX_COORDINATOR_ADDRESS``, ``JAX_NUM_PROCESSES`` and ``JAX_PROCESS_ID``; Slurm
(``srun``); Open MPI (``mpirun``); a TPU VM or a TPU pod slice on GKE. The first overrides the others, whose details
jax reads itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fr3e_jax.configuration import ConfigError

COORDINATOR, COUNT, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
KUBERNETES_INDEX = "JOB_COMPLETION_INDEX"  # of an indexed job (JobSet); stands for JAX_PROCESS_ID where that is not set
_SLURM = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
_MPI = ("OMPI_MCA_orte_hnp_uri", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")
_TPU_DEVICES = ("/dev/accel0", "/dev/vfio/0")


@dataclass(frozen=True)
class Cluster:
    """What `jax.distributed.initialize` is to be told; None: jax finds that out itself."""

    manager: str = ""  # slurm, mpi or tpu, where one of them started the processes
    coordinator: str | None = None
    count: int | None = None
    index: int | None = None


def find_cluster(environment: Mapping[str, str], has_tpu: bool | None = None) -> Cluster | None:
    """The processes that this one belongs to, or None: it is alone, and nothing is to be initialised.

    Args:
      environment: variables, as ``os.environ``.
      has_tpu: whether TPU chips are attached; None: looked up.

    Raises:
      ConfigError: some variables are set and others are missing, or one is not a number or out of range.
    """
    managed = _managed(environment, has_tpu)
    given = [name for name in (COORDINATOR, COUNT, INDEX) if environment.get(name)]
    if not given:
        return managed
    index_name = INDEX if environment.get(INDEX) else KUBERNETES_INDEX
    count, index = _whole(environment, COUNT), _whole(environment, index_name)
    if count == 1 and not index:
        return None
    cluster = Cluster(managed.manager if managed else "", environment.get(COORDINATOR) or None, count, index)
    found = {COORDINATOR: cluster.coordinator, COUNT: count, INDEX: index}
    missing = [name for name, value in found.items() if value is None]
    if missing and managed is None:
        raise ConfigError(
            f"found {', '.join(given)} without {', '.join(missing)}; expected all three ({COORDINATOR}=HOST:PORT of "
            f"process 0, {COUNT}, {INDEX} from 0), or none of them for one process: set the missing ones"
        )
    _check(cluster, index_name)
    return cluster


def _managed(environment: Mapping[str, str], has_tpu: bool | None) -> Cluster | None:
    """Where jax finds the other processes by itself."""
    if all(environment.get(name) for name in _SLURM):
        return Cluster("slurm") if _whole(environment, "SLURM_NTASKS") != 1 else None
    if all(environment.get(name) for name in _MPI):
        return Cluster("mpi") if _whole(environment, "OMPI_COMM_WORLD_SIZE") != 1 else None
    if environment.get("JAX_PLATFORMS", "").split(",")[0] not in ("", "tpu"):
        return None
    hosts = environment.get("TPU_PROCESS_ADDRESSES") or environment.get("TPU_WORKER_HOSTNAMES", "")
    slices = _whole(environment, "MEGASCALE_NUM_SLICES") or 1
    if hosts:
        return Cluster("tpu") if len(hosts.split(",")) * slices > 1 else None
    attached = any(Path(device).exists() for device in _TPU_DEVICES) if has_tpu is None else has_tpu
    # A TPU VM outside of Kubernetes: the other workers are listed by its metadata server alone, which jax asks.
    return Cluster("tpu") if attached and not environment.get("TPU_SKIP_MDS_QUERY") else None


def _whole(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal():
        raise ConfigError(f"{name}={text} is not a whole number; expected {_meaning(name)}")
    return int(text)


def _meaning(name: str) -> str:
    return "the number of this process, from 0" if name in (INDEX, KUBERNETES_INDEX) else "how many there are"


def _check(cluster: Cluster, index_name: str) -> None:
    host, separator, port = (cluster.coordinator or "host:1").rpartition(":")
    if not (host and separator and port.isdecimal()):
        raise ConfigError(
            f"{COORDINATOR}={cluster.coordinator} is not HOST:PORT; expected an address of process 0 that all the "
            "others reach, and a free port on it, such as 10.0.0.2:8476"
        )
    if cluster.count == 0:
        raise ConfigError(f"{COUNT}=0; expected how many processes there are, at least 1")
    if cluster.count is not None and cluster.index is not None and cluster.index >= cluster.count:
        raise ConfigError(
            f"{index_name}={cluster.index} with {COUNT}={cluster.count}; expected a number from 0 to "
            f"{cluster.count - 1}, another one for each process"
        )


def own_cluster() -> Cluster | None:
    """`find_cluster` of this process."""
    return find_cluster(os.environ)
