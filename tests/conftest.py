"""A strict session: chosen device count, one compilation cache, no silent rank promotion, shapes checked as types.

Environment: FR3E_TEST_DEVICES is the number of virtual CPU devices (default 1).
"""

from __future__ import annotations

import os
from pathlib import Path

DEVICES = int(os.environ.get("FR3E_TEST_DEVICES", "1"))

# Through the environment, so that the processes that tests start inherit them.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(DEVICES))
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path.home() / ".cache" / "fr3e_jax" / "xla-tests"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import jax  # noqa: E402  (reads the environment above)
import jaxtyping  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_num_cpu_devices", DEVICES)
jax.config.update("jax_numpy_rank_promotion", "raise")

# Only the pure functions: the hook breaks pytree dataclasses under vmap, scan, grad and eval_shape.
jaxtyping.install_import_hook("fr3e_jax.objectives", "beartype.beartype")


@pytest.fixture
def key() -> jax.Array:
    return jax.random.key(0)
