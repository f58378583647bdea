"""What attention moves through a TPU's memory, compiled for one device of a TPU that need not exist (needs libtpu).

    python benchmarks/attention_bytes.py rows v5p 7b pallas
    python benchmarks/attention_bytes.py decode v5e 32b xla

`rows`: attention of one layer over a row of 17,408 + 16,384 positions, forward and backward, with the heads that a
device has with tensor=4. `decode`: one layer of a decode step with trunks of 1,024 positions and rings of 16,384
columns, with the lanes and heads that a device has in the recipes. Prints one line of JSON. Kernels state their bytes:
of rows that see all that they may, and of rings that are half full.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from functools import partial

from fr3e_jax.planning.planner_process import INSTALL, environment, find_libtpu

CHIPS = {"v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2"}
TRUNK, LANE, PROMPT = 17408, 16384, 1024
ROW_HEADS = {"7b": (1, 7), "32b": (2, 5)}  # key/value heads of a device, and query heads of each
STEP = {"7b": (1, 8, 1, 7), "32b": (2, 16, 1, 5)}  # slots and lanes of each; heads with rollout_tensor 4 and 8
HEAD_DIM = 128


def rows_program(size: str, attention: str, array):
    """A function and its arguments."""
    import jax
    import jax.numpy as jnp

    from fr3e_jax.policy.attention import KeyValue, RowView, row_attention
    from fr3e_jax.policy.fused_attention import fused_row_attention

    heads, group = ROW_HEADS[size]
    positions = TRUNK + LANE
    attend = fused_row_attention if attention == "pallas" else partial(row_attention, block=512)

    def both_passes(query, own, slope, view):
        mixed, back = jax.vjp(lambda query, own: attend(query, own, view), query, own)
        return mixed, back(slope)

    query = array((1, 1, positions, heads, group, HEAD_DIM), jnp.bfloat16)
    key = array((1, 1, heads, HEAD_DIM, positions), jnp.bfloat16)
    value = array((1, 1, heads, positions, HEAD_DIM), jnp.bfloat16)
    lane = array((1, 1, LANE), jnp.int32)
    return both_passes, (query, KeyValue(key, value), query, RowView(array((1, TRUNK), jnp.int32), lane, lane, lane))


def decode_program(size: str, attention: str, array):
    """A function and its arguments."""
    import jax.numpy as jnp

    from fr3e_jax.policy.attention import KeyValue
    from fr3e_jax.policy.decode_attention import OwnPart, decode_attention
    from fr3e_jax.policy.decode_kernel import Seen, trunk_and_ring_attention

    slots, lanes, heads, group = STEP[size]
    cache = lambda count, positions: KeyValue(
        array((count, heads, HEAD_DIM, positions), jnp.bfloat16),
        array((count, heads, positions, HEAD_DIM), jnp.bfloat16),
    )
    query, of_lanes = array((slots, lanes, heads, group, HEAD_DIM), jnp.bfloat16), array((slots, lanes), jnp.int32)
    arguments = (query, cache(slots, PROMPT), cache(slots * lanes, LANE), Seen(*(of_lanes,) * 4))
    if attention == "pallas":
        return trunk_and_ring_attention, arguments

    def in_products(query, trunk, ring, seen):
        columns = jnp.arange(LANE)[None] - seen.first.reshape(-1, 1)
        part = OwnPart(ring, columns % LANE < seen.count.reshape(-1, 1))
        return decode_attention(query, [part], trunk, seen.fork, seen.start)

    return in_products, arguments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["rows", "decode"])
    parser.add_argument("chip", choices=list(CHIPS))
    parser.add_argument("size", choices=list(ROW_HEADS))
    parser.add_argument("attention", choices=["pallas", "xla"])
    arguments = parser.parse_args()
    if "TPU_LIBRARY_PATH" not in os.environ or os.environ.get("TPU_SKIP_MDS_QUERY") != "1":
        if (found := find_libtpu()) is None:
            parser.error(f"it needs libtpu: {INSTALL}")
        os.execve(sys.executable, [sys.executable, *sys.argv], environment(found))  # before jax is loaded

    import jax
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from fr3e_jax.planning.traffic import moved_bytes

    devices = topologies.get_topology_desc(platform="tpu", topology_name=CHIPS[arguments.chip]).devices
    one = NamedSharding(Mesh(np.array(devices[:1]), ("device",)), PartitionSpec())
    program = rows_program if arguments.what == "rows" else decode_program
    array = partial(jax.ShapeDtypeStruct, sharding=one)
    function, inputs = program(arguments.size, arguments.attention, array)
    started = time.process_time()
    compiled = jax.jit(function).lower(*inputs).compile()
    memory = compiled.memory_analysis()
    found = {
        "moved_gb": round(sum(moved_bytes(compiled.as_text()).values()) / 1e9, 4),
        "peak_mib": round(memory.peak_memory_in_bytes / 2**20, 1),
        "temporaries_mib": round(memory.temp_size_in_bytes / 2**20, 1),
        "compile_cpu_seconds": round(time.process_time() - started, 1),
    }
    print(json.dumps(vars(arguments) | found))


if __name__ == "__main__":
    main()
