"""Fused attention of rows on a mesh against the same on one device, and where it is chosen."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fr3e_jax.policy.attention import KeyValue, RowView, row_attention
from fr3e_jax.programs.fused_rows import chosen_attention, fused_rows
from fr3e_jax.programs.mesh import make_mesh


# On eight devices the heads are split four ways: each key/value head is read by two of the shards.
def test_attention_split_by_rows_and_heads_equals_that_of_one_device():
    count = jax.device_count()
    mesh = make_mesh(1, -1, 4 if count == 8 else 1)
    rng = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(rng.standard_normal(shape), jnp.float32)
    ones = jnp.ones((2, 1, 24), jnp.int32)
    view = RowView(jnp.ones((2, 40), jnp.int32), ones, ones * 30, ones * 0)
    query, own = normal(2, 1, 64, 2, 2, 16), KeyValue(normal(2, 1, 2, 16, 64), normal(2, 1, 2, 64, 16))
    cotangent = normal(*query.shape)

    def run(attend):
        out, pull = jax.vjp(lambda query, own: attend(query, own, view), query, own)
        return out, pull(cotangent)

    split, whole = jax.jit(lambda: run(fused_rows(mesh)))(), jax.jit(lambda: run(row_attention))()
    for left, right in zip(jax.tree.leaves(split), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(left, right, rtol=0, atol=2e-6 * np.abs(right).max())


@pytest.mark.parametrize(
    ("setting", "platform", "head_dim", "chosen"),
    [
        ("auto", "tpu", 128, "pallas"),
        ("auto", "tpu", 80, "xla"),
        ("auto", "cpu", 128, "xla"),
        ("auto", "gpu", 32, "pallas"),
        ("auto", "gpu", 80, "xla"),
        ("auto", "gpu 7.5", 128, "xla"),
        ("pallas", "tpu", 64, "pallas"),
        ("xla", "tpu", 128, "xla"),
    ],
)
def test_kernels_are_chosen_where_they_compile(setting, platform, head_dim, chosen):
    assert chosen_attention(setting, platform, head_dim) == chosen


def test_kernels_that_cannot_run_are_refused_with_the_way_out():
    with pytest.raises(ValueError, match=r"^model.attention=pallas: .* the devices are CPUs; set model.attention=auto"):
        chosen_attention("pallas", "cpu", 128)
    with pytest.raises(ValueError, match=r"heads of a multiple of 64, and the network's have 80; set"):
        chosen_attention("pallas", "tpu", 80)
    with pytest.raises(ValueError, match=r"GPU need heads of \(16, 32, 64, 128, 256\), and the network's have 80; set"):
        chosen_attention("pallas", "gpu", 80)


def test_a_jax_without_pallas_triton_runs_all_but_the_kernels_for_gpu():
    lines = (
        "import sys",
        "sys.modules['jax.experimental.pallas.triton'] = None",  # an import of it fails
        "import fr3e_jax.loop.train, fr3e_jax.programs.fused_rows as rows",
        "print(rows.chosen_attention('auto', 'gpu', 128), rows.chosen_attention('auto', 'tpu', 128))",
        "rows.chosen_attention('pallas', 'gpu', 128)",
    )
    ended = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)
    assert ended.stdout == "xla pallas\n"
    assert "need Pallas-Triton, which jax " in ended.stderr.splitlines()[-1]
