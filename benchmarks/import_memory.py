"""Host memory of importing and exporting a checkpoint: about one tensor beyond the device arrays.

    .venv/bin/python benchmarks/import_memory.py [--gigabytes 2] [--param-dtype bfloat16] [--devices 1]

A checkpoint of random bfloat16 weights is written into a temporary directory, in shards. A separate process imports it
and exports it again. This process samples the other's memory every two milliseconds: RssAnon is allocated memory, and
RssFile is pages of mapped files, which the kernel can take back. Device arrays of the CPU lie in the same memory. So
the reported figures are peaks minus the memory held before, and for allocated memory also minus the arrays. The exit
code is 1 if a figure exceeds LIMIT_TENSORS times the largest tensor.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT_TENSORS = 1.25  # the tensor that is read or written, and memory kept by allocators and the runtime
SAMPLE_SECONDS = 0.002
VOCABULARY, HIDDEN, INTERMEDIATE = 32768, 2048, 8192  # the largest tensor is the embedding


def architecture_of(gigabytes: float):
    """The architecture with as many layers as fill ``gigabytes`` in bfloat16."""
    import dataclasses

    from fr3e_jax.policy.architecture import Architecture

    one = Architecture(VOCABULARY, HIDDEN, 1, 16, 4, 128, INTERMEDIATE)
    layer = dataclasses.replace(one, num_layers=2).num_parameters - one.num_parameters
    layers = max(1, round((gigabytes * 1e9 / 2 - one.num_parameters) / layer) + 1)
    return dataclasses.replace(one, num_layers=layers)


def make_checkpoint(directory: Path, gigabytes: float) -> None:
    import json

    import ml_dtypes
    import numpy as np

    from fr3e_jax.policy.config_file import to_hf_config
    from fr3e_jax.policy.huggingface import stored_shapes
    from fr3e_jax.policy.network import build_network
    from fr3e_jax.policy.tensor_writer import StoredTensor, write_shards

    architecture, rng = architecture_of(gigabytes), np.random.default_rng(0)
    shapes = stored_shapes(architecture, build_network(architecture)[1])
    tensors = [
        StoredTensor(name, shape, lambda shape=shape: rng.standard_normal(shape, np.float32) * 0.02)
        for name, shape in shapes.items()
    ]
    write_shards(directory, tensors, np.dtype(ml_dtypes.bfloat16), max_shard_bytes=10**9)
    config = to_hf_config(architecture, dtype="bfloat16", eos_token_id=None, pad_token_id=None)
    (directory / "config.json").write_text(json.dumps(config))


def import_and_export(directory: Path, param_dtype: str) -> None:
    """The measured process. It prints a line after each phase and reads a line before the next one."""
    import jax

    from fr3e_jax.policy.config_file import read_architecture
    from fr3e_jax.policy.huggingface import load_params, save_params
    from fr3e_jax.policy.network import build_network
    from fr3e_jax.programs.mesh import make_mesh
    from fr3e_jax.programs.shardings import param_shardings

    architecture = read_architecture(directory)
    _, abstract, axes = build_network(architecture, param_dtype=param_dtype)
    shardings = param_shardings(make_mesh(), abstract, axes, architecture)
    sizes = [leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(abstract)]
    jax.block_until_ready(jax.numpy.zeros(1))
    print(sum(sizes), max(sizes), flush=True)
    input()
    params = load_params(directory, architecture, abstract, shardings)
    print("imported", flush=True)
    input()
    save_params(directory / "again", architecture, params, dtype="bfloat16", max_shard_bytes=10**9)
    print("exported", flush=True)


def resident_bytes(process_id: int) -> list[int]:
    """Bytes of allocated memory and of mapped files."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{process_id}/status").read_text().splitlines())
    return [int(status[key].split()[0]) * 1024 for key in ("RssAnon", "RssFile")]


def growth_of_phase(process: subprocess.Popen) -> tuple[list[int], float]:
    """Start a phase; return the growth of each of `resident_bytes` at its peak, and the seconds until the end."""
    before = peak = resident_bytes(process.pid)
    os.set_blocking(process.stdout.fileno(), False)
    start = time.perf_counter()
    print(file=process.stdin, flush=True)
    while not process.stdout.readline():
        if process.poll() is not None:
            raise SystemExit(f"the measured process ended with exit code {process.returncode}")
        peak = [max(pair) for pair in zip(peak, resident_bytes(process.pid), strict=True)]
        time.sleep(SAMPLE_SECONDS)
    return [most - least for most, least in zip(peak, before, strict=True)], time.perf_counter() - start


def measure(directory: Path, param_dtype: str, devices: int) -> bool:
    command = [sys.executable, __file__, "--measured", str(directory), "--param-dtype", param_dtype]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    arrays, largest = map(int, process.stdout.readline().split())
    print(f"device arrays {arrays / 1e6:,.0f} MB ({param_dtype}, {devices} devices), largest {largest / 1e6:,.0f} MB")
    good = True
    for phase, held in (("import", arrays), ("export", 0)):
        (allocated, mapped), seconds = growth_of_phase(process)
        beyond = allocated - held
        good &= max(beyond, mapped) <= LIMIT_TENSORS * largest
        print(
            f"{phase}: {seconds:.1f} s, at their peaks beyond the arrays {beyond / 1e6:,.0f} MB allocated, "
            f"{mapped / 1e6:,.0f} MB of files: {beyond / largest:.2f} and {mapped / largest:.2f} of the largest tensor"
        )
    process.wait()
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0, help="size of the checkpoint (default 2)")
    parser.add_argument("--param-dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--devices", type=int, default=1, help="virtual CPU devices to shard over")
    parser.add_argument("--measured", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measured:
        import_and_export(arguments.measured, arguments.param_dtype)
        return 0
    with tempfile.TemporaryDirectory() as directory:
        make_checkpoint(Path(directory), arguments.gigabytes)
        return 0 if measure(Path(directory), arguments.param_dtype, arguments.devices) else 1


if __name__ == "__main__":
    sys.exit(main())
