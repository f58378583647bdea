"""The processes that this one belongs to, read from the environment: coordinator, count, and number of this process.

There are four sources: the variables ``JAX_COORDINATOR_ADDRESS``, ``JAX_NUM_PROCESSES`` and ``JAX_PROCESS_ID``; Slurm
(``srun``); Open MPI (``mpirun``); and a TPU VM or a TPU pod slice on GKE. The variables override the other sources,
whose details jax reads itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fr3e_jax.configuration import ConfigError

COORDINATOR, COUNT, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
KUBERNETES_INDEX = "JOB_COMPLETION_INDEX"  # of an indexed job (JobSet); replaces a JAX_PROCESS_ID that is not set
_SLURM = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
_MPI = ("OMPI_MCA_orte_hnp_uri", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")
_TPU_DEVICES = ("/dev/accel0", "/dev/vfio/0")


@dataclass(frozen=True)
class Cluster:
    """Arguments of `jax.distributed.initialize`; jax finds out the ones that are None."""

    manager: str = ""  # slurm, mpi or tpu, if one of them started the processes
    coordinator: str | None = None
    count: int | None = None
    index: int | None = None


def find_cluster(environment: Mapping[str, str], has_tpu: bool | None = None) -> Cluster | None:
    """The processes that this one belongs to; None for a process on its own, which has nothing to initialise.

    Args:
      environment: variables, as ``os.environ``.
      has_tpu: whether TPU chips are attached; None: look for them.

    Raises:
      ConfigError: some variables are set and others are missing, or one is not a number or is out of range.
    """
    managed = _managed(environment, has_tpu)
    present = [name for name in (COORDINATOR, COUNT, INDEX) if environment.get(name)]
    if not present:
        return managed
    index_name = INDEX if environment.get(INDEX) else KUBERNETES_INDEX
    count, index = _whole(environment, COUNT), _whole(environment, index_name)
    if count == 1 and not index:
        return None
    cluster = Cluster(managed.manager if managed else "", environment.get(COORDINATOR) or None, count, index)
    parts = {COORDINATOR: cluster.coordinator, COUNT: count, INDEX: index}
    missing = [name for name, value in parts.items() if value is None]
    if missing and managed is None:
        raise ConfigError(
            f"found {', '.join(present)} without {', '.join(missing)}; expected all three ({COORDINATOR}=HOST:PORT of "
            f"process 0, {COUNT}, {INDEX} from 0), or none of them for one process: set the missing ones"
        )
    _check(cluster, index_name)
    return cluster


def _managed(environment: Mapping[str, str], has_tpu: bool | None) -> Cluster | None:
    """The processes that a manager started; jax finds the others by itself."""
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
    # A TPU VM outside Kubernetes: only its metadata server lists the other workers, and jax asks it.
    return Cluster("tpu") if attached and not environment.get("TPU_SKIP_MDS_QUERY") else None


def _whole(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal():
        raise ConfigError(f"{name}={text} is not a whole number; expected {_meaning(name)}")
    return int(text)


def _meaning(name: str) -> str:
    return "the number of this process, from 0" if name in (INDEX, KUBERNETES_INDEX) else "the number of processes"


def _check(cluster: Cluster, index_name: str) -> None:
    host, separator, port = (cluster.coordinator or "host:1").rpartition(":")
    if not (host and separator and port.isdecimal()):
        raise ConfigError(
            f"{COORDINATOR}={cluster.coordinator} is not HOST:PORT; expected an address of process 0 that all other "
            "processes reach, and a free port on it, such as 10.0.0.2:8476"
        )
    if cluster.count == 0:
        raise ConfigError(f"{COUNT}=0; expected the number of processes, at least 1")
    if cluster.count is not None and cluster.index is not None and cluster.index >= cluster.count:
        raise ConfigError(
            f"{index_name}={cluster.index} with {COUNT}={cluster.count}; expected a number from 0 to "
            f"{cluster.count - 1}, a different one for each process"
        )


def own_cluster() -> Cluster | None:
    """`find_cluster` of this process."""
    return find_cluster(os.environ)
