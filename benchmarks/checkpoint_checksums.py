"""CPU seconds of saving and restoring a checkpoint, with checksums and without.

    .venv/bin/python benchmarks/checkpoint_checksums.py [--megabytes 100] [--arrays 50] [--rounds 9]

The state is random float32 matrices of equal size. A round saves and restores it once with checksums and once without,
in turn. The figures are medians of ``time.process_time``, which counts all threads, background threads too. A
first round, which compiles, is left out. The last line times the checksums alone.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import jax

from fr3e_jax.programs.checksums import checksums
from fr3e_jax.runs import checkpoint_content
from fr3e_jax.runs.checkpoints import Checkpointer


@contextlib.contextmanager
def without_checksums() -> Iterator[None]:
    with (
        mock.patch.object(checkpoint_content, "checksums", lambda arrays: {}),
        mock.patch("fr3e_jax.runs.checkpoints.verify_arrays", lambda *arguments: None),
    ):
        yield


def cpu_seconds(action: Callable[[], object]) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


def one_round(folder: Path, state: dict) -> dict[str, float]:
    with Checkpointer(folder) as checkpoints:

        def save() -> None:
            checkpoints.save(1, state, {}, None)
            checkpoints.wait()

        saving = cpu_seconds(save)
        return {"save": saving, "restore": cpu_seconds(lambda: jax.block_until_ready(checkpoints.restore(1, state)))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--arrays", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    columns = 512
    rows = round(arguments.megabytes * 1e6 / arguments.arrays / 4 / columns)
    keys = jax.random.split(jax.random.key(0), arguments.arrays)
    state = {f"w{n}": jax.random.normal(key, (rows, columns)) for n, key in enumerate(keys)}
    print(f"{sum(leaf.nbytes for leaf in state.values()) / 1e6:.1f} MB in {arguments.arrays} arrays; CPU seconds")
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.rounds + 1):
            for name, setting in (("with", contextlib.nullcontext()), ("without", without_checksums())):
                with setting:
                    figures = one_round(Path(folder) / f"{number}_{name}", state)
                for action, seconds in figures.items() if number else ():
                    found.setdefault(f"{action} {name}", []).append(seconds)
    found["checksums alone"] = [cpu_seconds(lambda: checksums(state)) for _ in range(arguments.rounds)]
    for name, seconds in found.items():
        print(f"{name:<16} {statistics.median(seconds):.3f} ({min(seconds):.3f} to {max(seconds):.3f})")


if __name__ == "__main__":
    main()
