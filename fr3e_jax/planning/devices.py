"""The devices of a topology that is not there, as libtpu describes them to the compiler."""

from __future__ import annotations

from jax.experimental import topologies

from fr3e_jax.planning.topology import Topology, TopologyError


def topology_devices(topology: Topology) -> list:
    """All chips, slice after slice. Needs libtpu and the environment of `fr3e_jax.planning.launch`.

    Raises:
      TopologyError: libtpu knows no such slice.
    """
    options = {"num_slices": topology.slices} if topology.slices > 1 else {}
    if topology.chip.name == "v4":
        options["chip_config_name"] = "megacore"  # both cores of a chip as one device
    try:
        found = topologies.get_topology_desc(platform="tpu", topology_name=topology.slice_name, **options)
    except Exception as error:  # libtpu's own, of several kinds
        reason = str(error).splitlines()[0]
        raise TopologyError(
            f"--topology {topology.name}: libtpu has no such slice ({reason}); "
            f"give the shape of one that exists, like {topology.chip.name}:{'x'.join('4' * topology.chip.dimensions)}"
        ) from error
    return sorted(found.devices, key=lambda device: (getattr(device, "slice_index", None) or 0, device.id))
